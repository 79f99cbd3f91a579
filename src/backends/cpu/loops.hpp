// What the loops of the host backend share beside number types (dtype_dispatch.hpp): how a matrix is cut over threads,
// and sums whose order depends on their length alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/dtype_dispatch.hpp"
#include "orthant/tensor.hpp"

namespace orthant::loops {

using dtypes::Accumulator;
using dtypes::load;
using dtypes::store;
using dtypes::Tag;
using dtypes::with_accumulator;
using dtypes::with_compute;

/// Token ids, labels, positions: i32 or i64, a row or a column, read as one list.
class Index {
 public:
  explicit Index(const Tensor& x)
      : data_(x.data()),
        wide_(x.dtype() == DType::i64),
        cols_(std::max<int64_t>(x.cols(), 1)),
        ld_(x.ld()),
        size_(x.size()) {
    ORTHANT_ENSURE(wide_ || x.dtype() == DType::i32, "an index tensor is i32 or i64");
  }
  int64_t operator[](int64_t i) const {
    const int64_t at = i / cols_ * ld_ + i % cols_;
    return wide_ ? static_cast<const int64_t*>(data_)[at] : static_cast<const int32_t*>(data_)[at];
  }
  int64_t size() const { return size_; }

 private:
  const void* data_;
  bool wide_;
  int64_t cols_, ld_, size_;
};

// ---- work over threads

/// Elements below which one thread does the work: a parallel region costs more than it saves.
constexpr int64_t parallel_from = 16384;
constexpr int64_t span = 4096;

/// f(row, first column, columns) over pieces that together cover the matrix; no piece depends on another.
template <class F>
void for_spans(int threads, int64_t rows, int64_t cols, bool dense, F&& f) {
  if (dense) {  // one long row
    cols *= rows;
    rows = 1;
  }
  if (rows <= 0 || cols <= 0) return;
  const int64_t in_row = (cols + span - 1) / span, pieces = rows * in_row;
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * cols >= parallel_from)
  for (int64_t p = 0; p < pieces; ++p) {
    const int64_t begin = p % in_row * span;
    f(p / in_row, begin, std::min(span, cols - begin));
  }
}

/// f(row) over rows of about `cost` elements.
template <class F>
void for_rows(int threads, int64_t rows, int64_t cost, F&& f) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > 1 && rows * cost >= parallel_from)
  for (int64_t r = 0; r < rows; ++r) f(r);
}

/// f(first column, columns): the columns cut into one range a thread. For sums down the columns: each column is
/// summed by one thread, so the cut does not show in the result.
template <class F>
void for_column_ranges(int threads, int64_t rows, int64_t cols, F&& f) {
  const int64_t unit = 32, units = (cols + unit - 1) / unit, parts = std::min<int64_t>(threads, units);
#pragma omp parallel for schedule(static) num_threads(threads) if (parts > 1 && rows * cols >= parallel_from)
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t begin = units * p / parts * unit, end = std::min(cols, units * (p + 1) / parts * unit);
    if (begin < end) f(begin, end - begin);
  }
}

// ---- sums

/// Terms f(0) + ... + f(n - 1) in A. Term i goes to lane i mod 16, lanes are added in halves: the order, and so the
/// bits, depend on n alone, and the lanes fill vector registers.
template <class A, class F>
inline A lane_sum(int64_t n, F&& f) {
  constexpr int lanes = 16;
  A lane[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int l = 0; l < lanes; ++l) lane[l] += f(i + l);
  for (int l = 0; i < n; ++i, ++l) lane[l] += f(i);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  return lane[0];
}

/// Rows summed by one thread before partial sums are added: fixed, so that sums over rows depend on the rows alone.
constexpr int64_t row_block = 64;

/// out[c] += sum over blocks of partial[block][c], block by block. Overwrites the first block; there is at least one.
template <class A>
void add_partials(int threads, A* partial, int64_t blocks, int64_t stride, int64_t cols, A* out) {
  for_column_ranges(threads, blocks, cols, [=](int64_t begin, int64_t count) {
    for (int64_t b = 1; b < blocks; ++b) {
      // summed into the first block, then once into out: out may hold the sum of earlier micro-batches
      A* first = partial + begin;
      const A* next = partial + b * stride + begin;
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) first[c] += next[c];
    }
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) out[begin + c] += partial[begin + c];
  });
}

}  // namespace orthant::loops
