// What a tile of attention leaves out: where documents start, and the draws of dropout.
#include "backends/cpu/attention_mask.hpp"

#include "orthant/philox.hpp"

namespace orthant::attention {

void Documents::load(const AttentionShape& s, int64_t sequence, int64_t q0, int64_t queries) {
  if (!s.starts) return;
  const int64_t step = s.batch * s.starts.ld();
  const int32_t* from = s.starts.as<int32_t>() + (q0 * s.batch + sequence) * s.starts.ld();
  smallest_ = std::numeric_limits<int32_t>::max();
  largest_ = 0;
  std::fill(start_, start_ + edge, 0);  // lanes without a query are masked nowhere
  for (int64_t j = 0; j < queries; ++j) {
    start_[j] = from[j * step];
    smallest_ = std::min<int64_t>(smallest_, start_[j]);
    largest_ = std::max<int64_t>(largest_, start_[j]);
  }
}

Drops::Drops(const AttentionShape& s) : s_(s), on_(s.dropout.rate > 0) {
  if (on_) last_ = dropout_last(s.dropout.rate);
}

void Drops::load(int64_t sequence, int64_t head, int64_t q0, int64_t queries) {
  if (!on_) return;
  const Tensor& tokens = s_.dropout.tokens;
  aligned_ = true;
  for (int64_t j = 0; j < edge; ++j) {
    const int64_t query = q0 + std::min(j, queries - 1);  // lanes without a query draw what nobody uses
    const int64_t token = tokens.as<int64_t>()[(query * s_.batch + sequence) * tokens.ld()];
    element_[j] = static_cast<uint64_t>((token * s_.all_heads + s_.first_head + head) * s_.sequence + s_.k_begin);
    aligned_ &= (element_[j] - element_[0]) % 4 == 0;
  }
}

const uint32_t* Drops::draw(int64_t k0, int64_t keys) {
  // A Philox call gives the words of four elements, and the first key's need not be the first of its four: up to three
  // rows too many are drawn in front of it, as many for all queries unless the sequence is not a multiple of four.
  const uint64_t begin = static_cast<uint64_t>(k0), key = s_.dropout.key;
  const int64_t step = s_.dropout.step, skip = static_cast<int64_t>((element_[0] + begin) % 4);
  const int64_t groups = (keys + (aligned_ ? skip : 3) + 3) / 4;
  const uint64_t* __restrict element = element_;
  for (int64_t g = 0; g < groups; ++g) {
    uint32_t* __restrict row = words_ + 4 * g * edge;
    const uint64_t first = begin + static_cast<uint64_t>(4 * g);
#pragma omp simd
    for (int64_t j = 0; j < edge; ++j) {
      const Philox4 w = dropout_words((element[j] + first) / 4, key, step);
      row[j] = w.x0;
      row[edge + j] = w.x1;
      row[2 * edge + j] = w.x2;
      row[3 * edge + j] = w.x3;
    }
  }
  if (aligned_) return words_ + skip * edge;
  for (int64_t j = 0; j < edge; ++j) {
    const int64_t ahead = static_cast<int64_t>((element_[j] + begin) % 4) * edge;
    for (int64_t i = j; ahead > 0 && i < keys * edge; i += edge) words_[i] = words_[i + ahead];
  }
  return words_;
}

}  // namespace orthant::attention
