// One training step, and one validation pass.
#pragma once

#include <functional>
#include <string>

#include "data/batches.hpp"
#include "orthant/schedule.hpp"
#include "train/runner.hpp"

namespace orthant {

struct StepResult {
  double loss = 0;       ///< mean over the valid tokens of the global batch, before the update
  double grad_norm = 0;  ///< before clipping
  bool skipped = false;  ///< no update, for the reason `bad`
  std::string bad;       ///< loss or norm not finite, or what Session::judge says; "" = the step was taken
  double loss_scale = 1;   ///< fp16: of this step
  bool overflow = false;   ///< fp16: not finite, and a smaller loss scale is tried next: no bad step yet
  std::string not_finite;  ///< first parameter whose gradient is not finite, where known
  double busy_s = 0;       ///< of this rank in F, B and W
  double span_s = 0;       ///< from its first action to the end of its last
  RouterReport router;     ///< of a model with mixture layers
};

/// Runs the schedule over the micro-batches that `micro_batch(j)` gives, then sums, clips and updates. The loss is the
/// sum of the token losses divided by `valid` (token weights in the batches are 1 / valid). `step` counts from 1.
StepResult train_step(Session& session, const std::function<MicroBatch(int64_t)>& micro_batch, int64_t valid, const OptimizerSettings& settings,
                      double lr, int64_t step, Timers& timers);

/// Which samples and places of them this rank reads.
BatchShape batch_shape(const Session& session);
/// What the deck asks to know of each token; `eod` is the token that ends a document, or -1.
TokenFacts token_facts(const RunPlan& plan, int64_t eod);
/// Mean loss over the valid tokens of `count` global batches of the stream, from sample 0 on. Hands what the routers
/// report of each batch to `routed`.
double validation_loss(Session& session, const SampleStream& stream, LossMask mask, TokenFacts facts, int64_t count, Timers& timers,
                       const std::function<void(const RouterReport&)>& routed = nullptr);
/// After a step's update: the selection bias of each router on this stage moves by model.moe.bias_rate towards even load
/// (src/README.md, number 11).
void update_selection_bias(Session& session, const RouterReport& report);

}  // namespace orthant
