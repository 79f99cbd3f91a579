// The blocks of the model that a rank runs, and what they keep of a micro-batch between forward and backward.
#pragma once

#include <memory>
#include <vector>

#include "orthant/context.hpp"
#include "orthant/exact_sum.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

/// What one micro-batch leaves behind in a forward pass. Typed by the stage; owned by the schedule's runner.
class Stash {
 public:
  virtual ~Stash() = default;
};

/// Sum of token losses: in token order as a double, and exactly for reproducible mode.
struct LossSum {
  double value = 0;
  ExactSum exact;
  void add(double loss) {
    value += loss;
    lost |= !exact.add(loss);
  }
  bool lost = false;  ///< a loss was not finite or out of the exact sum's range
};

/// Constant during a step: any number of micro-batches may be in flight.
class Stage {
 public:
  virtual ~Stage() = default;
  /// Embedding, blocks, loss of ctx.batch. With `train` false nothing is kept and no gradient is made.
  virtual LossSum forward(Context& ctx, bool train, std::unique_ptr<Stash>& stash) const = 0;
  virtual void backward(Context& ctx, std::unique_ptr<Stash>& stash) const = 0;
  /// This rank's part of the logits after the last position of each sequence, A [sequences, vocab of this rank].
  virtual Tensor last_logits(Context& ctx) const = 0;
};

std::unique_ptr<Stage> make_stage(Context& ctx, const ModelConfig& config, ParamStore& store);

}  // namespace orthant
