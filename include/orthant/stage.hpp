// The part of the model that a rank runs: chunks of units (embedding, blocks, head), and what a unit keeps of a
// micro-batch between forward and backward.
#pragma once

#include <memory>
#include <vector>

#include "orthant/context.hpp"
#include "orthant/exact_sum.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

/// What one micro-batch leaves behind in a unit's forward pass. Typed by the unit; owned by the schedule's runner.
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
class Unit {
 public:
  virtual ~Unit() = default;
  /// x [tokens of the shard, hidden] -> the same shape. The embedding takes no x; the head gives no output and adds to
  /// `loss`. With `train` false nothing is kept and no gradient is made.
  virtual Tensor forward(Context& ctx, const Tensor& x, bool train, std::unique_ptr<Stash>& kept, LossSum& loss) const = 0;
  /// dy -> dx. The head takes no dy, the embedding gives no dx.
  virtual Tensor backward(Context& ctx, const Tensor& dy, std::unique_ptr<Stash>& kept) const = 0;
  /// The head makes the gradient of its weight in the forward pass.
  virtual bool gradient_in_forward() const { return false; }
  virtual Tensor last_logits(Context&, const Tensor&) const { throw LogicError("only the head has logits"); }
  /// All parameters it computes with, a tied one included.
  const std::vector<LocalParam*>& params() const { return params_; }

 protected:
  std::vector<LocalParam*> params_;
};

struct Chunk {
  std::vector<std::unique_ptr<Unit>> units;
};

/// What a chunk is made of: see model/stage_cut.hpp.
struct ChunkRange;

class Stage {
 public:
  std::vector<Chunk> chunks;

  // For a stage that holds the whole model in one chunk: all units in a row.
  LossSum forward(Context& ctx, bool train, std::unique_ptr<Stash>& stash) const;
  void backward(Context& ctx, std::unique_ptr<Stash>& stash) const;
  /// This rank's part of the logits after the last position of each sequence, A [sequences, vocab of this rank].
  Tensor last_logits(Context& ctx) const;
};

/// The chunks that `ranges` describe, with the parameters of `store`.
std::unique_ptr<Stage> make_stage(Context& ctx, const ModelConfig& config, ParamStore& store, const std::vector<ChunkRange>& ranges);
/// The whole model in one chunk.
std::unique_ptr<Stage> make_stage(Context& ctx, const ModelConfig& config, ParamStore& store);

}  // namespace orthant
