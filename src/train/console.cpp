// See console.hpp.
#include "train/console.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "mesh/expected_traffic.hpp"
#include "orthant/version.hpp"
#include "support/agree.hpp"
#include "support/cores.hpp"
#include "support/versions.hpp"

namespace orthant {

namespace {

double d(int64_t x) { return static_cast<double>(x); }

/// Multiply-adds of a token in attention: the projections, and two products (with queries and keys as wide as `qk`, with
/// values as wide as `v`) over half the keys.
double attention_products(const ModelConfig& c, int64_t sequence) {
  const double h = d(c.hidden), heads = d(c.heads);
  if (c.mla.kv_lora_rank == 0) {
    const double q = heads * d(c.head_dim), kv = d(c.kv_heads * c.head_dim);
    return h * (q + 2 * kv) + q * h + q * d(sequence);
  }
  const double qk = d(c.mla.qk_dim()), v = d(c.mla.v_dim), rank = d(c.mla.q_lora_rank), kv_rank = d(c.mla.kv_lora_rank);
  const double query = rank > 0 ? h * rank + rank * heads * qk : h * heads * qk;
  return query + h * (kv_rank + d(c.mla.rope_dim)) + kv_rank * heads * (d(c.mla.nope_dim) + v) + heads * v * h + heads * (qk + v) * d(sequence) / 2;
}

/// Of a mixture layer a token takes part in the router, the experts it is sent to and the shared ones.
double feed_forward_products(const ModelConfig& c, bool mixture) {
  const double h = d(c.hidden);
  if (!mixture) return (c.family == "gpt2" ? 2 : 3) * h * d(c.ffn);
  return h * d(c.moe.experts) + 3 * h * d(c.moe.ffn) * d(c.moe.top_k + c.moe.shared_experts);
}

}  // namespace

double flops_per_token(const ModelConfig& c, int64_t sequence) {
  const int64_t mixtures = c.mixture_layers();
  const double blocks = d(c.layers) * attention_products(c, sequence) + d(c.layers - mixtures) * feed_forward_products(c, false) +
                        d(mixtures) * feed_forward_products(c, true);
  return 6 * (blocks + d(c.hidden) * d(c.vocab));
}

std::string duration_text(double s) {
  if (!(s >= 0) || s > 1e9) return "?";
  auto t = static_cast<long long>(s + 0.5);
  if (t >= 86400) return fmt::format("{}d {:02}h", t / 86400, t / 3600 % 24);
  if (t >= 3600) return fmt::format("{}h {:02}m", t / 3600, t / 60 % 60);
  if (t >= 60) return fmt::format("{}m {:02}s", t / 60, t % 60);
  return fmt::format("{}s", t);
}

std::string bytes_text(double b) {
  if (b >= 1e9) return fmt::format("{:.2f} GB", b / 1e9);
  if (b >= 1e6) return fmt::format("{:.1f} MB", b / 1e6);
  if (b >= 1e3) return fmt::format("{:.1f} kB", b / 1e3);
  return fmt::format("{:.0f} B", b);
}

/// What is FP8, in the header's words.
static std::string fp8_text(const RunPlan& plan) {
  const Fp8Settings& s = *plan.fp8;
  std::string out = fmt::format("fp8 ({} scales", plan.deck[keys::precision::fp8_recipe]);
  if (s.recipe == Fp8Recipe::delayed) out += fmt::format(", {} of {} steps", s.most_recent ? "newest" : "largest", s.history);
  if (s.margin > 0) out += fmt::format(", margin {}", s.margin);
  if (s.keep_ends > 0) out += fmt::format(", first and last {} blocks in bf16", s.keep_ends);
  return out + "; bf16 beside products of blocks, fp32 masters, gradients and sums)";
}

std::string header_text(const Session& s, const Mesh& mesh, const MemoryAccount& planned, const MemoryLimit& limit, int64_t steps) {
  const RunPlan& plan = s.plan;
  const ModelConfig& m = plan.model;
  std::string out = fmt::format("Orthant {} ({}) · {}\n", ORTHANT_VERSION, ORTHANT_COMMIT, libraries_text());
  out += fmt::format("deck      {}\n", plan.deck.path());
  out += fmt::format("model     {}: {} layers x {} hidden, {} heads ({} kv) of {}, ffn {}, vocabulary {}{} · {:.3f} M parameters, {:.3f} M on this rank\n", m.family,
                     m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.vocab, m.tie_embeddings ? ", tied head" : "",
                     static_cast<double>(s.store->model_elements()) / 1e6, static_cast<double>(s.store->local_elements()) / 1e6);
  out += fmt::format("batch     {} sequences of {} tokens a step, micro {}, {} micro-batches a rank · {} steps\n", plan.global_batch(), plan.sequence(), plan.micro(),
                     plan.micros(), steps);
  out += fmt::format("precision {}{}{} · {}\n", plan.fp8 ? fp8_text(plan)
                     : plan.precision.compute == DType::bf16   ? std::string("bf16 (fp32 masters, gradients and sums)")
                     : plan.precision.compute == DType::f16 ? fmt::format("fp16 (fp32 masters, gradients and sums; loss scale {}, {})", s.loss_scale.value(), plan.deck[keys::precision::loss_scale] == "dynamic" ? "dynamic" : "fixed")
                     : plan.deck[keys::precision::tf32]     ? std::string("fp32 (products in TF32)")
                                                            : std::string("fp32"),
                     plan.reproducible ? ", reproducible on every mesh" : "", plan.sequence_parallel ? ", sequence parallel" : "", s.backend->describe());
  out += fmt::format("mesh      {} ranks on {} node{}, order {}\n", mesh.ranks(), mesh.nodes(), mesh.nodes() == 1 ? "" : "s", plan.mesh.order);
  for (const AxisPlacement& a : mesh.placement())
    out += fmt::format("  {:<3} size {:>4}  stride {:>4}  nodes {:>4}  link {}{}\n", name_of(a.axis), a.size, a.stride, a.nodes,
                       a.size == 1 ? "none" : a.nodes > 1 ? "network" : "shared memory",
                       a.nodes <= 1 ? ""
                       : a.axis == AxisName::tp ? "   <- warning: tp crosses nodes; its sums are on the critical path of every layer"
                       : a.axis == AxisName::ep ? "   <- warning: ep crosses nodes; its exchanges are on the critical path of every mixture layer (mesh.order = \"tp-cp-dp-pp\" keeps stages together)"
                                                : "");
  if (plan.mesh.experts > 0) {
    const MoeConfig& moe = m.moe;
    out += fmt::format("experts   {} a layer, {} for a token{}: ep {} x etp {} x edp {} on each stage; {}\n", moe.experts, moe.top_k,
                       moe.shared_experts > 0 ? fmt::format(" and {} shared", moe.shared_experts) : "", plan.mesh.ep, plan.mesh.etp, plan.mesh.expert_data(),
                       moe.capacity_factor > 0 ? fmt::format("capacity factor {}", moe.capacity_factor) : "no token is dropped, memory is that of the worst routing");
  }
  if (plan.mesh.pp > 1) {
    const Pipeline& p = plan.pipeline;
    const Timeline time = play(p, schedule_costs(p));
    out += fmt::format("pipeline  {}, {} stages of {} chunk{}, bubble {:.1f} % by plan (F = 1, B = 2)\n", p.name, p.shape.stages, p.shape.chunks, p.shape.chunks == 1 ? "" : "s", 100 * time.idle_share);
    for (int64_t s = 0; s < p.shape.stages; ++s) {
      std::string held;
      for (int64_t c = 0; c < p.shape.chunks; ++c) held += (c ? " | " : "") + range_text(plan.cut[static_cast<size_t>(p.virtual_stage(s, c))]);
      out += fmt::format("  stage {:<3} {}\n", s, held);
    }
  }
  if (plan.zero.stage > 0)
    out += fmt::format("zero      stage {} over {} ranks{}{}\n", plan.zero.stage, plan.mesh.shard_size(), plan.mesh.replicas() > 1 ? fmt::format(", {} replicas", plan.mesh.replicas()) : "",
                       plan.zero.stage > 1 && plan.zero.accumulate_full ? ", whole gradients between micro-batches" : "");
  out += fmt::format("memory    {} planned at the peak of a rank, {} allowed ({}):", bytes_text(static_cast<double>(planned.total_peak())), bytes_text(limit.bytes), limit.source);
  for (int k = 0; k < memory_kinds; ++k)
    if (auto kind = static_cast<MemoryKind>(k); planned.at_peak(kind) > 0) out += fmt::format(" {} {}", name_of(kind), bytes_text(static_cast<double>(planned.at_peak(kind))));
  out += "\ntraffic   a step, all ranks:";
  std::map<std::pair<std::string, std::string>, int64_t> traffic;
  for (const auto& [key, bytes] : planned_step_traffic(traffic_plan(plan))) traffic[{traffic_name(key.first), key.second}] += bytes;
  bool any = false;
  for (const auto& [key, bytes] : traffic)
    if (bytes > 0) {
      out += fmt::format(" {} {} {}", key.first, key.second, bytes_text(static_cast<double>(bytes)));
      any = true;
    }
  if (!any) out += " none";
  if (const std::string transport = s.axes->transport(); !transport.empty()) out += "\ntransport " + transport;
  if (!s.device_note.empty()) out += "\nnote      " + s.device_note;
  for (const std::string& note : plan.notes) out += "\nnote      " + note;
  return out;
}

std::string ranks_text(const Mesh& mesh, const std::string& device, int threads) {
  const std::vector<int> cores = cores_allowed();
  const std::vector<std::string> lines = texts_of_ranks(
      mesh.cart(), fmt::format("{}  cores {}, {} thread{}, {}", mesh.where(), cores.empty() ? "unknown" : ranges_text(cores), threads, threads == 1 ? "" : "s", device));

  // Threads and the different cores they have, of each node: the worst node is told.
  MPI_Comm node = MPI_COMM_NULL;
  ORTHANT_MPI(MPI_Comm_split_type(mesh.cart(), MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
  int highest = cores.empty() ? 0 : cores.back() + 1, wanted = threads;
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &highest, 1, MPI_INT, MPI_MAX, node));
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &wanted, 1, MPI_INT, MPI_SUM, node));
  std::vector<unsigned char> had(static_cast<size_t>(highest), 0);
  for (int c : cores) had[static_cast<size_t>(c)] = 1;
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, had.data(), highest, MPI_UNSIGNED_CHAR, MPI_MAX, node));
  ORTHANT_MPI(MPI_Comm_free(&node));
  const auto have = static_cast<int>(std::count(had.begin(), had.end(), 1));
  const std::vector<std::string> crowded = texts_of_ranks(mesh.cart(), have > 0 && wanted > have ? fmt::format("{} threads on {} cores of {}", wanted, have, mesh.host()) : "");

  std::string out;
  constexpr size_t shown = 8;
  for (size_t r = 0; r < lines.size(); ++r) {
    if (r == shown && lines.size() > shown + 1) {
      out += fmt::format("\n  … and {} more", lines.size() - shown);
      break;
    }
    out += (r ? "\n  " : "  ") + lines[r];
  }
  const auto first = std::find_if(crowded.begin(), crowded.end(), [](const std::string& s) { return !s.empty(); });
  if (first != crowded.end()) out += fmt::format("\n  warning: {} rank(s) share cores ({}): steps take longer than they should; bind each rank to cores of its own", std::count_if(crowded.begin(), crowded.end(), [](const std::string& s) { return !s.empty(); }), *first);
  return out;
}

std::string step_text(const StepLine& l) {
  return fmt::format("step {:>{}}/{}  loss {:.5f}  lr {:.3e}  grad norm {:.4f}  {:.0f} tokens/s  {:.1f} ms/step  {:.4f} TFLOP/s/rank  left {}", l.step,
                     std::to_string(l.steps).size(), l.steps, l.loss, l.lr, l.grad_norm, l.tokens_per_s, l.seconds * 1e3, l.tflops_per_rank, duration_text(l.left_s));
}

namespace {

/// mpirun gives its ranks a terminal of their own even when it writes into a file: where the launcher writes counts.
bool on_terminal() {
  if (!isatty(STDOUT_FILENO)) return false;
  if (!std::getenv("OMPI_COMM_WORLD_SIZE")) return true;
  char target[64] = "";
  if (readlink(fmt::format("/proc/{}/fd/1", getppid()).c_str(), target, sizeof target - 1) < 0) return false;
  std::string name = target;
  return name.rfind("/dev/pts/", 0) == 0 || name.rfind("/dev/tty", 0) == 0;
}

}  // namespace

Console::Console(bool shown) : shown_(shown), terminal_(shown && on_terminal()) {}

void Console::clear_bar() {
  if (!bar_) return;
  std::fputs("\r\033[K", stdout);
  bar_ = false;
}

void Console::line(const std::string& text) {
  if (!shown_) return;
  clear_bar();
  std::fputs((text + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void Console::fault(const std::string& text) {
  if (!shown_) return;
  clear_bar();
  std::fprintf(stderr, "orthant: %s\n", text.c_str());
}

void Console::progress(const StepLine& at) {
  if (!terminal_) return;
  constexpr int width = 40;
  int full = at.steps > 0 ? static_cast<int>(width * at.step / at.steps) : 0;
  std::string bar;
  for (int i = 0; i < width; ++i) bar += i < full ? "█" : "░";
  std::fputs(fmt::format("\r\033[K{} {:3}%  {}/{}  left {}", bar, at.steps ? 100 * at.step / at.steps : 0, at.step, at.steps, duration_text(at.left_s)).c_str(), stdout);
  std::fflush(stdout);
  bar_ = true;
}

}  // namespace orthant
