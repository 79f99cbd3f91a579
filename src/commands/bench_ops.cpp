// orthant bench ops, bench gemm: rates of products and attention of the sizes of a Llama layer on one device.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "backends/device_peaks.hpp"
#include "backends/registry.hpp"
#include "commands/bench.hpp"
#include "commands/ops_trial.hpp"
#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

const char* const bench_ops_notes =
    "Products: y = x W^T (forward), dx = dy W (backward_input), dW += dy^T x with fp32 sums (backward_weight), for the\n"
    "weights of a layer; causal attention of one sequence, forward and backward (tf32: products alone). Every case is\n"
    "checked before it is timed: exit 4. A call's time is the median over --repeat timings; TFLOP/s counts 2 for a\n"
    "multiply-add and the causal half of attention. Where the maker's peak of the device is known, the share of it stands\n"
    "beside the rate. With --json each case is a row, {\"op\", \"form\", \"dtype\", sizes, \"flops\", \"calls\",\n"
    "\"seconds\", \"seconds_min\", \"tflops\", \"of_peak\"}.\n"
    "  full    a layer of Llama 8B: 4096 and 14336 wide, 8192 tokens; 32 heads (8 kv) of 128, 2048 to 8192 tokens\n"
    "  small   a 16th of its width, 96 tokens: for host cores and tests; its rates say little";

namespace {

/// A type of the cases, and how products take it.
struct Type {
  std::string name;
  DType dtype = DType::f32;
  bool tf32 = false;
};
const Type all_types[] = {{"fp32", DType::f32}, {"tf32", DType::f32, true}, {"bf16", DType::bf16}, {"fp16", DType::f16}};

std::vector<Type> parse_types(const std::string& list) {
  std::vector<Type> out;
  std::istringstream in(list);
  for (std::string word; std::getline(in, word, ',');) {
    const auto* found = std::find_if(std::begin(all_types), std::end(all_types), [&](const Type& t) { return t.name == word; });
    if (found == std::end(all_types))
      throw UsageError("bench ops --types " + list + ": \"" + word + "\" is none of fp32, tf32, bf16 and fp16");
    out.push_back(*found);
  }
  if (out.empty()) throw UsageError("bench ops --types: name at least one of fp32, tf32, bf16 and fp16");
  return out;
}

nlohmann::json row_of(const OpCase& c, const Type& type, const OpRate& r, double peak) {
  const double rate = c.flops() / r.seconds;
  nlohmann::json row = {{"op", c.kind == OpKind::product ? "product" : "attention"},
                        {"form", name_of(c.form)},
                        {"dtype", type.name},
                        {"tokens", c.tokens},
                        {"flops", c.flops()},
                        {"calls", r.calls},
                        {"seconds", r.seconds},
                        {"seconds_min", r.least},
                        {"tflops", rate / 1e12}};
  if (c.kind == OpKind::product)
    row["in"] = c.in, row["out"] = c.out;
  else
    row["heads"] = c.heads, row["kv_heads"] = c.kv_heads, row["head_dim"] = c.head_dim;
  if (peak > 0) row["of_peak"] = rate / peak;
  return row;
}

/// A line for each row.
std::string text_of(nlohmann::json out) {
  std::string rows;
  for (const nlohmann::json& row : out["rows"]) rows += (rows.empty() ? "\n" : ",\n") + row.dump();
  out.erase("rows");
  std::string head = out.dump();
  head.pop_back();
  return head + ",\"rows\":[" + rows + "\n]}";
}

}  // namespace

int bench_ops(const CommandArgs& args, const OpsSettings& settings) {
  std::vector<Type> types;
  OpSizes sizes;
  collectively(args.world, [&] {
    if (args.ranks > 1)
      throw UsageError(fmt::format("bench ops measures one device: start one rank, not {}", args.ranks));
    types = parse_types(settings.types);
    sizes = op_sizes(settings.sizes);
    if (!settings.attention) sizes.lengths.clear();
  });
  const ChosenBackend chosen = choose_backend(settings.backend, args.world);
  const std::unique_ptr<Backend> backend = make_backend(chosen.name);
  if (backend->shapes_only())
    throw UsageError("bench ops --backend " + settings.backend + ": computes nothing; cpu, cuda and auto do");
  std::unique_ptr<Backend> rounding;  // a backend of its own: there is no way back from TF32
  if (std::any_of(types.begin(), types.end(), [](const Type& t) { return t.tf32; })) {
    rounding = make_backend(chosen.name);
    try {
      rounding->allow_tf32();
    } catch (const UsageError&) {  // before anything is measured; its own words are about a deck
      throw UsageError("bench ops --types " + settings.types + ": products of fp32 are in full on the backend " + chosen.name + "; only cuda has TF32");
    }
  }
  std::ofstream file;
  const bool table = settings.json != "-";
  if (!settings.json.empty() && table) {
    file.open(settings.json);
    if (!file) throw DataError("--json: " + settings.json + " cannot be written");
  }
  if (!chosen.note.empty()) std::fprintf(stderr, "note: %s\n", chosen.note.c_str());
  nlohmann::json out = {{"backend", backend->describe()},
                        {"device", device_name(*backend)},
                        {"sizes", settings.sizes},
                        {"peak_tflops", nlohmann::json::object()},
                        {"rows", nlohmann::json::array()}};
  if (table) std::printf("%s\n", backend->describe().c_str());
  for (const Type& t : types) {
    Backend& of_type = t.tf32 ? *rounding : *backend;
    const double peak = peak_flops(of_type, t.dtype);
    if (peak > 0) out["peak_tflops"][t.name] = peak / 1e12;
    if (table) {
      std::printf("%s", t.name.c_str());
      if (peak > 0) std::printf(", peak of the device %.1f TFLOP/s", peak / 1e12);
      std::printf("\n  %-58s %10s %10s%s\n", "", "ms", "TFLOP/s", peak > 0 ? "  of peak" : "");
    }
    OpSizes measured = sizes;
    if (t.tf32) measured.lengths.clear();  // attention has full products of fp32 whatever is allowed
    const std::vector<OpCase> cases = op_cases(measured, {t.dtype});
    OpTrial trial(of_type, cases);
    for (const OpCase& c : cases) {
      trial.check(c);
      const OpRate r = trial.time(c, settings.repeat, settings.seconds);
      const nlohmann::json row = row_of(c, t, r, peak);
      if (table) {
        std::printf("  %-58s %10.4f %10.4g", c.text().c_str(), r.seconds * 1e3, row["tflops"].get<double>());
        if (peak > 0) std::printf("  %6.1f %%", 100 * row["of_peak"].get<double>());
        std::printf("\n");
        std::fflush(stdout);
      }
      out["rows"].push_back(row);
    }
  }
  if (const std::string now = backend->describe(); now != out["backend"]) {  // with what it has chosen for these shapes
    out["backend"] = now;
    if (table) std::printf("%s\n", now.c_str());
  }
  if (!table) std::printf("%s\n", out.dump().c_str());
  if (file.is_open()) {
    file << text_of(out) << '\n';
    file.close();
    if (!file) throw DataError("--json: " + settings.json + " cannot be written");
  }
  return 0;
}

}  // namespace orthant
