// From the global stream of samples to the micro-batches of one rank.
#pragma once

#include <vector>

#include "orthant/context.hpp"
#include "orthant/data.hpp"

namespace orthant {

/// Samples of a step: the next `global` of the stream; dp rank r takes [r G/dp, (r + 1) G/dp) of them in runs of
/// `micro` (src/README.md, number 7), so that which sample is in which step does not depend on the mesh.
struct BatchShape {
  int64_t global = 1, micro = 1;
  int64_t dp = 1, dp_rank = 0;
  int64_t micros() const { return global / (micro * dp); }
};

/// Which tokens count in the loss.
struct LossMask {
  const SampleStream* mask = nullptr;  ///< 0/1 per token, in the same order as the tokens
  int64_t eod = -1;                    ///< inputs with this id do not count; -1: all count
};

class Batches {
 public:
  Batches(const SampleStream& stream, BatchShape shape, LossMask mask)
      : stream_(stream), shape_(shape), mask_(mask) {}

  /// Reads this rank's samples of the batch that begins at sample `first`. Errors are this rank's own.
  void load_rows(int64_t first);
  /// Sums the tokens that count over dp, so that each token's weight in the loss is known before the first backward
  /// pass. Collective over dp.
  void count(Context& ctx);
  int64_t valid_tokens() const { return valid_; }  ///< of the global batch
  /// Micro-batch j on the device.
  MicroBatch micro(Context& ctx, int64_t j) const;

 private:
  const SampleStream& stream_;
  BatchShape shape_;
  LossMask mask_;
  std::vector<int32_t> rows_;    ///< samples of this rank, sequence + 1 tokens each
  std::vector<int32_t> labels_;  ///< sequence a sample; -1 does not count
  int64_t valid_ = 0;            ///< of this rank until `count`, then of the global batch
};

/// A micro-batch of given sequences of equal length (no labels): what generation needs.
MicroBatch prompt_batch(Context& ctx, const std::vector<std::vector<int32_t>>& sequences, int64_t length);
/// A micro-batch without values, for plans.
MicroBatch blank_batch(Context& ctx, int64_t sequences, int64_t length);

}  // namespace orthant
