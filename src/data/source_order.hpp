// The samples of one source in Megatron-core's GPTDataset order.
//
// The sequences of the part, repeated for each epoch and shuffled, form one long row of tokens; sample k of the row
// starts at token k x L and has L + 1 tokens; the samples are then shuffled once more. When little of the last epoch
// is needed, that epoch is shuffled apart from the earlier ones, in both steps, so that its sequences come last.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "orthant/data.hpp"

namespace orthant {

/// A permutation of [0, n): 4 bytes an entry below 2^32 - 2 entries, 8 above.
class Permutation {
 public:
  Permutation() = default;
  explicit Permutation(int64_t n);
  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    return wide_.empty() ? static_cast<int64_t>(narrow_[static_cast<size_t>(i)]) : wide_[static_cast<size_t>(i)];
  }
  /// Shuffles entries [begin, end).
  void shuffle(class RandomState& random, int64_t begin, int64_t end);

 private:
  int64_t size_ = 0;
  std::vector<uint32_t> narrow_;
  std::vector<int64_t> wide_;
};

/// What the order of a source depends on.
struct SourceSpec {
  std::shared_ptr<const IndexedDataset> data;
  int64_t begin = 0, end = 0;  ///< sequences of the part
  int64_t samples = 0;         ///< wanted: fixes the number of epochs
  int64_t sequence = 0;        ///< L
  uint32_t seed = 0;
};

/// How many passes over a part an order takes, and which of them are shuffled together.
struct EpochPlan {
  int64_t epochs = 1;
  int64_t held = 0;         ///< samples in all of them
  int64_t before_last = 0;  ///< samples in all but the last; 0 with one epoch
  bool last_apart = false;  ///< little of the last is wanted: it is shuffled apart from the others and comes last
};
/// For a part of `tokens` tokens and `samples` wanted samples of `sequence` tokens.
EpochPlan plan_epochs(int64_t tokens, int64_t sequence, int64_t samples);

/// Samples that the order of a source is laid out for: its share of N, and in a mixture a little more, as the greedy
/// rule may run ahead of the share.
int64_t samples_for_share(int64_t samples, double share, bool mixed);

class SourceOrder {
 public:
  /// DataError if one epoch holds too few tokens for one sample.
  explicit SourceOrder(const SourceSpec& spec);

  const IndexedDataset& data() const { return *spec_.data; }
  int64_t wanted() const { return spec_.samples; }
  int64_t epochs() const { return epochs_; }
  int64_t tokens_per_epoch() const { return tokens_; }
  /// Samples that the epochs hold.
  int64_t available() const { return order_.size(); }
  /// The sequence + 1 tokens of sample i as runs within sequences. Appends (SamplePiece::source is left 0).
  void pieces(int64_t i, std::vector<SamplePiece>& out) const;

 private:
  void order_sequences(class RandomState& random, bool last_apart);

  SourceSpec spec_;
  int64_t tokens_ = 0, epochs_ = 1;
  std::vector<int32_t> row_;    // sequence numbers in the order of the long row
  std::vector<int64_t> marks_;  // first token of every 16th entry of row_: the samples' bounds follow from these
  Permutation order_;
};

}  // namespace orthant
