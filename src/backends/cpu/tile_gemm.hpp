// A product of whole matrices out of tiles: for f64, for reproducible products, and wherever oneDNN has no kernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/convert.hpp"
#include "backends/cpu/tile.hpp"

namespace orthant::tile {

/// A matrix element (i, j) at data[i row + j col]; one of the strides is 1.
template <class X>
struct View {
  const X* data;
  int64_t row, col;
};

constexpr int64_t rows_of_task = 144, cols_of_task = 128, depth_of_task = 256;
/// Elements of working memory a thread needs.
constexpr int64_t task_elements =
    rows_of_task * depth_of_task + depth_of_task * cols_of_task + rows_of_task * cols_of_task;

/// to [rows, ld] = x(rows, cols), zeros from cols to ld.
template <class T, class X>
void pack(T* to, int64_t ld, View<X> x, int64_t rows, int64_t cols) {
  if (x.col == 1) {
    for (int64_t i = 0; i < rows; ++i) convert::run(to + i * ld, x.data + i * x.row, cols);
  } else {  // columns lie together: read along them, eight at a time, so that both sides use whole cache lines
    for (int64_t j0 = 0; j0 < cols; j0 += 8)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = j0; j < std::min(cols, j0 + 8); ++j)
          to[i * ld + j] = static_cast<T>(convert::load(x.data[i * x.row + j * x.col]));
  }
  for (int64_t i = 0; i < rows && cols < ld; ++i) std::fill(to + i * ld + cols, to + (i + 1) * ld, T(0));
}

/// c [m, n] = a b (+ c) (+ bias), computed in T, rounded once to C. The bits of an element depend on its row of a,
/// its column of b and k alone (tile.hpp), whatever the threads do. `memory` holds threads * task_elements.
template <class T, class X, class C>
void gemm(int64_t m, int64_t n, int64_t k, View<X> a, View<X> b, C* c, int64_t ldc, bool accumulate, const X* bias,
          T* memory, int threads, int (*thread)()) {
  const int64_t row_tasks = (m + rows_of_task - 1) / rows_of_task, col_tasks = (n + cols_of_task - 1) / cols_of_task;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (row_tasks * col_tasks > 1)
  for (int64_t task = 0; task < row_tasks * col_tasks; ++task) {
    const int64_t i0 = task % row_tasks * rows_of_task, j0 = task / row_tasks * cols_of_task;
    const int64_t rows = std::min(rows_of_task, m - i0), cols = std::min(cols_of_task, n - j0), ld = padded<T>(cols);
    T* a_tile = memory + thread() * task_elements;
    T* b_tile = a_tile + rows_of_task * depth_of_task;
    T* sum = b_tile + depth_of_task * cols_of_task;
    if (k == 0) std::fill(sum, sum + rows * ld, T(0));
    for (int64_t p0 = 0; p0 < k; p0 += depth_of_task) {
      const int64_t depth = std::min(depth_of_task, k - p0);
      pack(a_tile, depth, View<X>{a.data + i0 * a.row + p0 * a.col, a.row, a.col}, rows, depth);
      pack(b_tile, ld, View<X>{b.data + p0 * b.row + j0 * b.col, b.row, b.col}, depth, cols);
      multiply(rows, ld, depth, a_tile, depth, int64_t{1}, b_tile, ld, sum, ld, p0 > 0);
    }
    for (int64_t i = 0; i < rows; ++i) {
      T* from = sum + i * ld;
      C* to = c + (i0 + i) * ldc + j0;
      if (bias)
        for (int64_t j = 0; j < cols; ++j) from[j] += convert::load(bias[j0 + j]);
      if (accumulate)
        for (int64_t j = 0; j < cols; ++j) from[j] += static_cast<T>(convert::load(to[j]));
      convert::run(to, from, cols);
    }
  }
}

}  // namespace orthant::tile
