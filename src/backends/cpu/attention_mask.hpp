// What a tile of attention leaves out beyond the causal mask: keys of earlier documents, and dropped probabilities.
//
// Both are written along the queries, as scores are. A masked key's probability is an exact zero in every chain, so
// that (its numbers being finite) it contributes nothing, and it does not matter to a query whether tiles that only its
// neighbours see are visited.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "orthant/backend.hpp"
#include "orthant/elementwise.hpp"

namespace orthant::attention {

constexpr int64_t edge = 64;  // queries and keys of a tile; a multiple of every panel width

/// Where the documents of one block of queries start.
class Documents {
 public:
  void load(const AttentionShape& s, int64_t sequence, int64_t q0, int64_t queries);
  /// First key row, at a multiple of `edge`, that some query's document reaches. The grid of key tiles stays where it
  /// is without documents: where a tile ends shows in the bits of the online softmax.
  int64_t first_keys(const AttentionShape& s) const {
    return std::max<int64_t>(0, smallest_ - s.k_begin) / edge * edge;
  }
  /// False when the `keys` rows from k0 lie before every query's document.
  bool reach(const AttentionShape& s, int64_t k0, int64_t keys) const { return smallest_ < s.k_begin + k0 + keys; }
  /// Scores [keys][edge] of key rows k0, ... become -inf where the key stands before the query's document.
  template <class T>
  void mask(const AttentionShape& s, T* scores, int64_t k0, int64_t keys) const {
    const int64_t place = s.k_begin + k0, until = std::min(keys, largest_ - place);
    for (int64_t i = 0; i < until; ++i) {
      T* row = scores + i * edge;
      const int32_t here = static_cast<int32_t>(place + i);
#pragma omp simd
      for (int64_t j = 0; j < edge; ++j)
        row[j] = select_(start_[j] > here, -std::numeric_limits<T>::infinity(), row[j]);
    }
  }

 private:
  int64_t smallest_ = 0, largest_ = 0;  // without documents all keys are reached and none is masked
  alignas(64) int32_t start_[edge] = {};
};

/// Which probabilities of one block of queries of one head are dropped.
class Drops {
 public:
  explicit Drops(const AttentionShape& s);
  bool on() const { return on_; }
  void load(int64_t sequence, int64_t head, int64_t q0, int64_t queries);
  /// Draws for key rows k0, ...: a key's row of `edge` words follows the row before; those above last() stay.
  const uint32_t* draw(int64_t k0, int64_t keys);
  uint32_t last() const { return last_; }
  /// Probabilities [keys][edge] of key rows k0, ... become 0 where they are dropped.
  template <class T>
  void drop(T* p, int64_t k0, int64_t keys, int64_t lanes) {
    const uint32_t* words = draw(k0, keys);
    const uint32_t last = last_;
    for (int64_t i = 0; i < keys; ++i) {
      T* __restrict row = p + i * edge;
      const uint32_t* __restrict word = words + i * edge;
#pragma omp simd
      for (int64_t j = 0; j < lanes; ++j) row[j] = select_(word[j] > last, row[j], T(0));
    }
  }

 private:
  const AttentionShape& s_;
  const bool on_;
  bool aligned_ = true;  // every query's elements begin at the same place of a Philox call
  uint32_t last_ = 0;
  alignas(64) uint64_t element_[edge] = {};  // of the query's probability for key row 0
  alignas(64) uint32_t words_[(edge + 4) * edge];
};

}  // namespace orthant::attention
