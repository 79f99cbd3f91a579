// orthant bench step DECK [--steps N] [--warm N] [key=value …]: the rate of training steps on random tokens, as one JSON line.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "backends/device_peaks.hpp"
#include "commands/bench.hpp"
#include "support/agree.hpp"
#include "train/console.hpp"
#include "train/step.hpp"

namespace orthant {
namespace {

/// Tokens of a fixed pseudo-random stream: what is measured is the step, not the data.
MicroBatch random_batch(Context& ctx, int64_t sequences, int64_t length, int64_t vocab, double weight, const TokenFacts& facts) {
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(sequences), std::vector<int32_t>(static_cast<size_t>(length)));
  uint64_t x = 88172645463325252ULL;
  for (auto& row : rows)
    for (int32_t& t : row) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      t = static_cast<int32_t>(x % static_cast<uint64_t>(vocab));
    }
  MicroBatch mb = prompt_batch(ctx, rows, length, facts);
  Host<int32_t> ids(ctx.be, mb.ids), labels(ctx.be, mb.labels);
  Host<float> weights(ctx.be, mb.weights);
  for (int64_t t = 0; t < mb.tokens(); ++t) {
    labels[t] = ids[(t + sequences) % mb.tokens()];
    weights[t] = static_cast<float>(weight);
  }
  return mb;
}

}  // namespace

int bench_step(const CommandArgs& args, const std::string& deck, const std::vector<std::string>& overrides, int64_t steps, int64_t warm) {
  RunPlan plan = make_plan(args.world, deck, overrides);
  Mesh mesh(args.world, plan.mesh);
  Session session(plan, mesh, true);
  collectively(mesh.cart(), [&] { fill_weights(session); });
  publish_weights(session);
  OptimizerSettings settings = optimizer_settings(plan.deck);
  Timers timers;
  const double tokens = static_cast<double>(plan.global_batch() * plan.sequence());
  MicroBatch mb = random_batch(session.ctx, plan.micro(), plan.sequence(), plan.model.vocab, 1.0 / tokens, token_facts(plan, -1));
  std::vector<double> seconds;
  for (int64_t n = 0; n < warm + steps; ++n) {
    ORTHANT_MPI(MPI_Barrier(mesh.cart()));
    auto begin = std::chrono::steady_clock::now();
    train_step(session, [&](int64_t) { return mb; }, static_cast<int64_t>(tokens), settings, 1e-4, n + 1, timers);
    double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &s, 1, MPI_DOUBLE, MPI_MAX, mesh.cart()));
    if (n >= warm) seconds.push_back(s);
  }
  std::sort(seconds.begin(), seconds.end());
  double median = seconds[seconds.size() / 2];
  if (mesh.rank() == 0) {
    nlohmann::json phases;
    for (const auto& [phase, s] : timers.seconds()) phases[phase] = s / static_cast<double>(warm + steps);
    nlohmann::json out = {{"tokens_per_s", tokens / median}, {"seconds", median}, {"best_seconds", seconds.front()}, {"steps", steps}, {"ranks", mesh.ranks()},
                          {"tflops", flops_per_token(plan.model, plan.sequence()) * tokens / median / 1e12}, {"precision", plan.deck[keys::precision::compute]},
                          {"backend", session.backend->describe()}, {"peak_gb", static_cast<double>(session.backend->account().total_peak()) / 1e9}, {"phases", phases}};
    const double peak = peak_flops(*session.backend, plan.precision.compute);
    if (peak > 0) out["mfu"] = out["tflops"].get<double>() * 1e12 / mesh.ranks() / peak;
    std::printf("%s\n", out.dump().c_str());
  }
  return 0;
}

}  // namespace orthant
