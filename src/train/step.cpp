// See step.hpp.
#include "train/step.hpp"

#include <cmath>
#include <limits>
#include <numeric>

#include "optim/step.hpp"
#include "orthant/exact_sum.hpp"

namespace orthant {

namespace {

/// Sum over the micro-batches of this rank, over stages (the last one has the losses), cp and dp: in rank order, or
/// exactly in reproducible mode.
double sum_losses(Context& ctx, const std::vector<LossSum>& losses) {
  auto sum_over_ranks = [&](const Tensor& t) {
    for (AxisName a : {AxisName::pp, AxisName::cp, AxisName::dp}) ctx.axes[a].sum_control(t);
  };
  if (ctx.be.shapes_only()) return 0;
  if (ctx.reproducible()) {
    ExactSum sum;
    int64_t lost = 0;
    for (const LossSum& l : losses) {
      sum.hi += l.exact.hi;
      sum.lo += l.exact.lo;
      sum.carry();
      lost += l.lost;
    }
    Tensor t = ctx.workspace(DType::i64, 1, 3);
    {
      Host<int64_t> h(ctx.be, t);
      h[0] = sum.hi, h[1] = sum.lo, h[2] = lost;
    }
    sum_over_ranks(t);
    Host<int64_t> h(ctx.be, t);
    return h[2] ? std::numeric_limits<double>::quiet_NaN() : ExactSum{h[0], h[1]}.value();
  }
  double mine = 0;
  for (const LossSum& l : losses) mine += l.value;
  Tensor t = ctx.workspace(DType::f64, 1, 1);
  Host<double>(ctx.be, t)[0] = mine;
  sum_over_ranks(t);
  return Host<double>(ctx.be, t)[0];
}

}  // namespace

BatchShape batch_shape(const Session& s) {
  return {s.plan.global_batch(), s.plan.micro(), s.plan.mesh.dp, s.layout.at().dp, s.plan.mesh.cp, s.layout.at().cp};
}

TokenFacts token_facts(const RunPlan& plan, int64_t eod) {
  return {eod, plan.deck[keys::data::document_mask], plan.deck[keys::data::reset_positions], plan.model.dropout > 0};
}

StepResult train_step(Session& s, const std::function<MicroBatch(int64_t)>& micro_batch, int64_t valid, const OptimizerSettings& settings, double lr,
                      int64_t step, Timers& timers) {
  Context& ctx = s.ctx;
  Sharding sharding(ctx, *s.store);
  Runner runner(s, sharding, timers);
  s.store->zero_gradients();
  ctx.step = step;
  ctx.loss_scale = s.loss_scale.value();
  if (s.fp8) s.fp8->record(true);
  const std::vector<LossSum> losses = runner.run(s.actions, micro_batch, true);
  if (s.fp8) s.fp8->record(false);
  {
    Timed timed(timers, "gradient sums");
    sharding.finish_sums();
  }

  StepResult result;
  if (s.router_stats) result.router = s.router_stats->finish(ctx);
  result.busy_s = runner.busy();
  result.span_s = runner.span();
  result.loss = sum_losses(ctx, losses) / static_cast<double>(std::max<int64_t>(1, valid));
  {
    Timed timed(timers, "gradient norm");
    result.grad_norm = gradient_norm(ctx, *s.store, &result.not_finite) / ctx.loss_scale;
  }
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) result.bad = "loss or gradient norm was not finite";
  result.loss_scale = ctx.loss_scale;
  result.overflow = s.loss_scale.count(result.bad.empty());
  if (result.bad.empty() && s.judge) result.bad = s.judge(result.loss, result.grad_norm);
  result.skipped = !result.bad.empty();
  if (s.before_update && (s.fp8 || !result.skipped)) s.before_update();
  if (s.fp8) s.fp8->roll(ctx);
  if (result.skipped) return result;
  Timed timed(timers, "update");
  update_parameters(ctx, *s.store, s.optimizer, settings, lr, step, result.grad_norm);
  update_selection_bias(s, result.router);
  return result;
}

void update_selection_bias(Session& s, const RouterReport& report) {
  const ModelConfig& c = s.plan.model;
  if (c.moe.bias_rate <= 0 || !c.selection_bias() || s.ctx.be.shapes_only()) return;
  for (LocalParam& p : s.store->all()) {
    if (p.trained()) continue;
    const int64_t layer = std::stoll(p.param.name.substr(std::string("layers.").size()));
    const std::vector<int64_t>& load = report.load.at(static_cast<size_t>(layer - c.moe.first_dense_layers));
    const int64_t picks = std::accumulate(load.begin(), load.end(), int64_t{0}), experts = static_cast<int64_t>(load.size());
    auto move = [&](auto* bias) {
      using A = std::remove_pointer_t<decltype(bias)>;
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t below = picks - load[static_cast<size_t>(e)] * experts;  // > 0: less than the mean; integers, so never a near miss
        bias[e] += static_cast<A>(c.moe.bias_rate * static_cast<double>((below > 0) - (below < 0)));
      }
    };
    if (p.weight.dtype() == DType::f64) move(Host<double>(s.ctx.be, p.weight).data());
    else move(Host<float>(s.ctx.be, p.weight).data());
  }
}

double validation_loss(Session& s, const SampleStream& stream, LossMask mask, TokenFacts facts, int64_t count, Timers& timers,
                       const std::function<void(const RouterReport&)>& routed) {
  Timed timed(timers, "validation");
  facts.places = false;  // nothing is dropped here
  Batches batches(stream, batch_shape(s), mask, facts);
  Sharding sharding(s.ctx, *s.store);
  Runner runner(s, sharding, timers);
  std::vector<LossSum> losses;
  double total = 0;
  int64_t tokens = 0;
  for (int64_t b = 0; b < count; ++b) {
    batches.load_rows(b * s.plan.global_batch());
    batches.count(s.ctx);
    losses = runner.run(s.forward_actions, [&](int64_t j) { return batches.micro(s.ctx, j); }, false);
    total += sum_losses(s.ctx, losses);
    tokens += batches.valid_tokens();
    if (s.router_stats) {
      const RouterReport report = s.router_stats->finish(s.ctx);
      if (routed) routed(report);
    }
  }
  s.ctx.batch = nullptr;
  return total / static_cast<double>(std::max<int64_t>(1, tokens));
}

}  // namespace orthant
