// The parts of one attention tile: 64 queries against 64 keys of one head.
//
// Scores are kept transposed, S^T [key][query] = K Q^T: queries lie along the vector lanes, so that maxima, sums and
// rescaling are plain vertical operations, and S^T is at once the right operand of the next product (O^T = V^T P^T).
// A query's numbers depend on its own row and on the keys in order, never on its neighbours: see tile.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "backends/cpu/attention_mask.hpp"
#include "backends/cpu/convert.hpp"
#include "backends/cpu/tile.hpp"
#include "orthant/backend.hpp"

namespace orthant::attention {

/// Row and head, `width` columns wide, of one sequence of the batch in a token tensor.
template <class X>
struct Rows {
  X* data;
  int64_t step;  // elements from one position to the next
  Rows(const Tensor& x, const AttentionShape& s, int64_t sequence, int64_t head, int64_t width)
      : data(x.as<X>() + sequence * x.ld() + head * width), step(s.batch * x.ld()) {}
  X* operator[](int64_t position) const { return data + position * step; }
};

/// Number of keys, from the first, that the query at row `q` sees.
inline int64_t visible(const AttentionShape& s, int64_t q) {
  return std::clamp<int64_t>(s.q_begin + q + 1 - s.k_begin, 0, s.k_length);
}
/// First query row that sees key row `k`, at most q_length.
inline int64_t first_query(const AttentionShape& s, int64_t k) {
  return std::clamp<int64_t>(s.k_begin + k - s.q_begin, 0, s.q_length);
}

/// Copies `count` rows of `width` numbers into dense memory of leading dim `ld`; zeros to the right and, up to `edge`
/// rows, below.
template <class T, class X>
void load_rows(T* to, int64_t ld, const Rows<X>& x, int64_t begin, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i) {
    convert::run(to + i * ld, x[begin + i], width);
    std::fill(to + i * ld + width, to + (i + 1) * ld, T(0));
  }
  std::fill(to + count * ld, to + edge * ld, T(0));
}

/// to [width][edge] = factor * transposed from [edge][ld].
template <class T>
void transpose(T* __restrict to, const T* __restrict from, int64_t ld, int64_t width, T factor) {
  for (int64_t d0 = 0; d0 < width; d0 += 8)
    for (int64_t j = 0; j < edge; ++j)
      for (int64_t d = d0; d < std::min(width, d0 + 8); ++d) to[d * edge + j] = factor * from[j * ld + d];
}

/// Calls f with a number of the type that tensor `y` holds: 16-bit storage X or what is computed in, T.
template <class T, class X, class F>
void stored_as(const Tensor& y, F&& f) {
  if constexpr (!std::is_same_v<T, X>)
    if (size_of(y.dtype()) == static_cast<int64_t>(sizeof(X))) return f(X{});
  f(T{});
}

/// Row position + j of y = transposed column j of from [width][edge], each times factor[j].
template <class T, class X>
void store_columns(const Rows<X>& y, int64_t begin, int64_t count, const T* from, int64_t width, const T* factor,
                   T* row) {
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t d = 0; d < width; ++d) row[d] = from[d * edge + j] * factor[j];
    convert::run(y[begin + j], row, width);
  }
}

/// scores [keys][edge] = K Q^T with -inf where query q0 + j may not see key k0 + i.
template <class T>
void scores(const AttentionShape& s, const Documents& documents, T* out, const T* k_rows, int64_t k0, int64_t keys,
            const T* q_transposed, int64_t q0, int64_t queries) {
  tile::multiply(keys, tile::padded<T>(queries), s.head_dim, k_rows, s.head_dim, int64_t{1}, q_transposed, edge, out,
                 edge, false);
  const int64_t ahead = s.k_begin + k0 - (s.q_begin + q0);  // position of key 0 minus position of query 0
  for (int64_t i = std::max<int64_t>(0, 1 - ahead); i < keys; ++i)
    std::fill(out + i * edge, out + i * edge + std::min(edge, ahead + i), -std::numeric_limits<T>::infinity());
  documents.mask(s, out, k0, keys);
}

/// One step of the online softmax: scores become exp(score - running maximum), `sum` and `maximum` go on, `factor`
/// says by what earlier results must be multiplied. Returns false when every factor is one.
template <class T>
bool online_softmax(T* __restrict p, int64_t keys, int64_t lanes, T* __restrict maximum, T* __restrict sum,
                    T* __restrict factor) {
  alignas(64) T top[edge], added[edge];
  bool changed = false;
  for (int64_t j = 0; j < lanes; ++j) top[j] = maximum[j];
  for (int64_t i = 0; i < keys; ++i) {
    const T* row = p + i * edge;
#pragma omp simd
    for (int64_t j = 0; j < lanes; ++j) top[j] = select_(row[j] > top[j], row[j], top[j]);
  }
  for (int64_t j = 0; j < lanes; ++j) {
    changed |= !(top[j] == maximum[j]);
    const T old = maximum[j];
    maximum[j] = top[j];
    top[j] = top[j] == -std::numeric_limits<T>::infinity() ? T(0) : top[j];  // no key yet: keep inf - inf away
    factor[j] = exp_(old - top[j]);
    added[j] = T(0);
  }
  for (int64_t i = 0; i < keys; ++i) {
    T* row = p + i * edge;
#pragma omp simd
    for (int64_t j = 0; j < lanes; ++j) {
      const T e = exp_(row[j] - top[j]);
      row[j] = e;
      added[j] += e;
    }
  }
  for (int64_t j = 0; j < lanes; ++j) sum[j] = sum[j] * factor[j] + added[j];
  return changed;
}

/// Product of two rows, in a fixed pattern of eight sums.
template <class T>
T dot(const T* x, const T* y, int64_t n) {
  T part[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int64_t l = 0; l < 8; ++l) part[l] += x[i + l] * y[i + l];
  for (; i < n; ++i) part[i % 8] += x[i] * y[i];
  return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}

/// Hands out pieces of a thread's working memory, each at a cache line.
template <class T>
struct Pieces {
  T* next;
  T* take(int64_t elements) {
    T* piece = next;
    next += (elements + 15) / 16 * 16;
    return piece;
  }
};

}  // namespace orthant::attention
