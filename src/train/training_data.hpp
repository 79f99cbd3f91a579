// The training stream of a run, and what is asked of its tokens.
#pragma once

#include <optional>

#include "data/batches.hpp"
#include "train/session.hpp"

namespace orthant {

/// Opened from a deck; the same for every command that trains. Errors are this rank's own: call inside `collectively`.
class TrainingData {
 public:
  /// A stream of `samples` samples, whose ids fit the model's vocabulary, with its loss mask, and the token that ends a
  /// document where the deck asks for something that needs it (UsageError naming data.eod when nobody knows it).
  TrainingData(const RunPlan& plan, int64_t samples);
  /// The same for a stream that has begun: `settings` are those of its DataPosition.
  TrainingData(const RunPlan& plan, const DataSettings& settings);
  TrainingData(const TrainingData&) = delete;
  TrainingData& operator=(const TrainingData&) = delete;

  const SampleStream& stream() const { return stream_; }
  LossMask loss_mask() const { return {mask_ ? &*mask_ : nullptr, loss_eod_}; }
  const TokenFacts& facts() const { return facts_; }

 private:
  SampleStream stream_;
  std::optional<SampleStream> mask_;
  int64_t loss_eod_ = -1;
  TokenFacts facts_;
};

}  // namespace orthant
