// See step.hpp.
#include "train/step.hpp"

#include <chrono>
#include <cmath>
#include <limits>

#include "optim/step.hpp"
#include "orthant/exact_sum.hpp"

namespace orthant {

namespace {

class Timed {
 public:
  Timed(Timers& timers, const char* phase) : timers_(timers), phase_(phase), begin_(std::chrono::steady_clock::now()) {}
  ~Timed() { timers_.add(phase_, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count()); }

 private:
  Timers& timers_;
  const char* phase_;
  std::chrono::steady_clock::time_point begin_;
};

/// Sum over the micro-batches of this rank and over dp: in rank order, or exactly in reproducible mode.
double sum_losses(Context& ctx, const std::vector<LossSum>& losses) {
  const Axis& dp = ctx.axes[AxisName::dp];
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
    dp.sum_control(t);
    Host<int64_t> h(ctx.be, t);
    return h[2] ? std::numeric_limits<double>::quiet_NaN() : ExactSum{h[0], h[1]}.value();
  }
  double mine = 0;
  for (const LossSum& l : losses) mine += l.value;
  Tensor t = ctx.workspace(DType::f64, 1, 1);
  Host<double>(ctx.be, t)[0] = mine;
  dp.sum_control(t);
  return Host<double>(ctx.be, t)[0];
}

BatchShape batch_shape(const Session& s) {
  return {s.plan.global_batch(), s.plan.micro(), s.plan.mesh.dp, s.layout.at().dp};
}

}  // namespace

StepResult train_step(Session& s, const std::function<MicroBatch(int64_t)>& micro_batch, int64_t valid, const OptimizerSettings& settings, double lr,
                      int64_t step, Timers& timers) {
  Context& ctx = s.ctx;
  const int64_t micros = s.plan.micros();
  std::vector<std::unique_ptr<Stash>> stash(static_cast<size_t>(micros));
  std::vector<MicroBatch> batch(static_cast<size_t>(micros));
  std::vector<LossSum> losses(static_cast<size_t>(micros));
  s.store->zero_gradients();

  const ScheduleShape shape{1, micros};
  for (const Action& a : schedule(s.plan.deck[keys::pipeline::schedule]).generate(shape, 0)) {
    auto m = static_cast<size_t>(a.micro);
    switch (a.act) {
      case Act::F: {
        Timed timed(timers, "forward");
        batch[m] = micro_batch(a.micro);
        ctx.batch = &batch[m];
        losses[m] = s.stage->forward(ctx, true, stash[m]);
        break;
      }
      case Act::B: {
        Timed timed(timers, "backward");
        ctx.batch = &batch[m];
        s.stage->backward(ctx, stash[m]);
        ctx.drain();
        batch[m] = {};
        break;
      }
      case Act::R: {
        Timed timed(timers, "gradient sums");
        sum_gradients(ctx, *s.store);
        break;
      }
      case Act::W: case Act::G: throw LogicError("a schedule without stages has no W or G action");
    }
  }
  ctx.be.synchronize();

  StepResult result;
  result.loss = sum_losses(ctx, losses) / static_cast<double>(std::max<int64_t>(1, valid));
  {
    Timed timed(timers, "gradient norm");
    result.grad_norm = gradient_norm(ctx, *s.store, &result.not_finite);
  }
  result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
  if (result.skipped) return result;
  Timed timed(timers, "update");
  update_parameters(ctx, *s.store, s.optimizer, settings, lr, step, result.grad_norm);
  return result;
}

double validation_loss(Session& s, const SampleStream& stream, LossMask mask, int64_t count, Timers& timers) {
  Timed timed(timers, "validation");
  Batches batches(stream, batch_shape(s), mask);
  std::vector<LossSum> losses;
  double total = 0;
  int64_t tokens = 0;
  for (int64_t b = 0; b < count; ++b) {
    batches.load_rows(b * s.plan.global_batch());
    batches.count(s.ctx);
    losses.clear();
    for (int64_t j = 0; j < s.plan.micros(); ++j) {
      MicroBatch mb = batches.micro(s.ctx, j);
      s.ctx.batch = &mb;
      std::unique_ptr<Stash> none;
      losses.push_back(s.stage->forward(s.ctx, false, none));
    }
    total += sum_losses(s.ctx, losses);
    tokens += batches.valid_tokens();
  }
  s.ctx.batch = nullptr;
  return total / static_cast<double>(std::max<int64_t>(1, tokens));
}

}  // namespace orthant
