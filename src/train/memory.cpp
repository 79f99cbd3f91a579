// Planned memory of a rank against what it may use, before anything is allocated.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "train/console.hpp"
#include "train/step.hpp"

namespace orthant {

namespace {

/// First number of a file, or 0 when there is none ("max").
double number_in(const std::string& path) {
  std::ifstream in(path);
  double x = 0;
  return in >> x ? x : 0;
}

double machine_bytes() {
  std::ifstream in("/proc/meminfo");
  std::string name;
  double kib = 0;
  while (in >> name >> kib) {
    if (name == "MemTotal:") return kib * 1024;
    in.ignore(256, '\n');
  }
  return 0;
}

/// The tightest memory.max of the cgroup this process is in and of its parents (cgroup v2, then v1).
double cgroup_bytes() {
  double least = 0;
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    bool v2 = line.rfind("0::", 0) == 0;
    if (!v2 && line.find(":memory:") == std::string::npos) continue;
    std::string path = line.substr(line.rfind(':') + 1);
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory", leaf = v2 ? "/memory.max" : "/memory.limit_in_bytes";
    while (true) {
      double x = number_in(root + path + leaf);
      if (x > 0 && x < 1e18 && (least == 0 || x < least)) least = x;
      if (path.empty() || path == "/") break;
      path = path.substr(0, path.rfind('/'));
    }
  }
  return least;
}

std::string axes_that_cut(MemoryKind kind, const RunPlan& plan) {
  switch (kind) {
    case MemoryKind::weights: case MemoryKind::master: case MemoryKind::optimizer: case MemoryKind::gradients:
      return "a larger mesh.tp or mesh.pp, or zero.stage = 1, 2 or 3 cuts them";
    case MemoryKind::activations:
      return std::string("a smaller batch.micro, memory.recompute = \"selective\" or \"full\", a larger mesh.tp or mesh.cp, pipeline.schedule = \"1f1b\"") +
             (plan.sequence_parallel ? "" : ", or mesh.sequence_parallel = true") + " cut them" +
             (plan.mesh.experts > 0 && plan.model.moe.capacity_factor == 0
                  ? "; without a capacity the plan holds every token that could come to a rank's experts, and model.moe.capacity_factor bounds them"
                  : "");
    default: return "a smaller batch.micro or a larger mesh.tp cut it";
  }
}

}  // namespace

MemoryLimit memory_limit(const Deck& deck, int ranks_on_node) {
  if (deck.has(keys::memory::limit_gb) && deck[keys::memory::limit_gb] > 0) return {deck[keys::memory::limit_gb] * 1e9, "memory.limit_gb"};
  MemoryLimit limit{machine_bytes() / ranks_on_node, "the machine's memory"};
  auto tighter = [&](double bytes, const char* source) {
    if (bytes > 0 && bytes < limit.bytes) limit = {bytes, source};
  };
  tighter(cgroup_bytes() / ranks_on_node, "the cgroup's limit");
  // Slurm gives MiB; its cgroup may not be set up on every machine
  if (const char* v = std::getenv("SLURM_MEM_PER_NODE")) tighter(std::atof(v) * 1048576 / ranks_on_node, "SLURM_MEM_PER_NODE");
  if (const char* v = std::getenv("SLURM_MEM_PER_CPU")) {
    const char* cpus = std::getenv("SLURM_CPUS_PER_TASK");
    tighter(std::atof(v) * 1048576 * (cpus ? std::max(1.0, std::atof(cpus)) : 1.0), "SLURM_MEM_PER_CPU");
  }
  return limit;
}

MemoryAccount planned_memory(const RunPlan& plan, const Coordinates& at) {
  Session session(plan, at, true);
  Timers timers;
  OptimizerSettings settings = optimizer_settings(plan.deck);
  train_step(session, [&](int64_t) { return blank_batch(session.ctx, plan.micro(), plan.sequence(), token_facts(plan, -1)); }, 1, settings, 0.0, 1, timers);
  return session.backend->account();
}

void check_memory(const RunPlan& plan, const MemoryAccount& account, const MemoryLimit& limit) {
  double planned = static_cast<double>(account.total_peak());
  if (planned <= limit.bytes) return;
  MemoryKind largest = MemoryKind::weights;
  std::string table;
  for (int k = 0; k < memory_kinds; ++k) {
    auto kind = static_cast<MemoryKind>(k);
    if (account.at_peak(kind) > account.at_peak(largest)) largest = kind;
    if (account.at_peak(kind) > 0) table += fmt::format("\n  {:<14} {:>10}", name_of(kind), bytes_text(static_cast<double>(account.at_peak(kind))));
  }
  throw UsageError(fmt::format("this run needs {} a rank at its peak, and a rank may use {} ({}):{}\nThe largest part is {}: {}.",
                               bytes_text(planned), bytes_text(limit.bytes), limit.source, table, name_of(largest), axes_that_cut(largest, plan)));
}

}  // namespace orthant
