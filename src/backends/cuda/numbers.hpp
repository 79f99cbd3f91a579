// What the kernels share beside number types (dtype_dispatch.hpp): functions of numbers, matrices and index lists as a
// kernel sees them, and pointwise work cut over blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <type_traits>

#include "backends/cuda/kernel.hpp"
#include "backends/dtype_dispatch.hpp"
#include "orthant/elementwise.hpp"
#include "orthant/tensor.hpp"

namespace orthant::cuda {

using dtypes::Accumulator;
using dtypes::load;
using dtypes::store;
using dtypes::Tag;
using dtypes::with_accumulator;
using dtypes::with_compute;

// ---- numbers

template <class A>
ORTHANT_HD A infinity() {
  if constexpr (std::is_same_v<A, double>)
    return double_of(0x7ff0000000000000ull);
  else
    return float_of(0x7f800000u);
}
template <class T>
ORTHANT_HD T min_(T a, T b) {
  return b < a ? b : a;
}
template <class T>
ORTHANT_HD T max_(T a, T b) {
  return a < b ? b : a;
}
/// a * b + c, rounded once: an explicit call, which -fmad=false and -ffp-contract=off leave alone.
ORTHANT_HD float fused(float a, float b, float c) { return ::fmaf(a, b, c); }
ORTHANT_HD double fused(double a, double b, double c) { return ::fma(a, b, c); }

/// A mistake of the program that only the device can see, such as an index outside its table: the kernel stops, and
/// so does, at its next call, the program. `what` is a literal.
ORTHANT_KERNEL inline void need(bool condition, const char* what) {
#ifdef __CUDACC__
  if (!condition) {  // not assert, which a release build leaves out
    printf("a kernel of the cuda backend: %s\n", what);
    __trap();
  }
#else
  ORTHANT_ENSURE(condition, what);
#endif
}

/// *to += value, from any thread: for integers, whose sums have no order.
ORTHANT_KERNEL inline void add_integer(int64_t* to, int64_t value) {
#ifdef __CUDACC__
  // two's complement: the unsigned sum has the bits of the signed one
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
#else
  *to += value;
#endif
}

// ---- matrices

/// A tensor of a known type; T may be const.
template <class T>
struct View {
  T* data = nullptr;
  int64_t ld = 0;

  View() = default;
  explicit View(const Tensor& x) : data(x.as<std::remove_const_t<T>>()), ld(x.ld()) {}
  ORTHANT_HD T* row(int64_t r) const { return data + r * ld; }
  ORTHANT_HD T& operator()(int64_t r, int64_t c) const { return data[r * ld + c]; }
};

/// A tensor of floats whose type is asked for at each element: for results that may be T or A, and for rare mixtures,
/// so that not every pair of types needs a kernel.
class AnyView {
 public:
  explicit AnyView(const Tensor& x) : data_(x.data()), ld_(x.ld()), type_(x.dtype()) {}

  template <class A>
  ORTHANT_HD A get(int64_t r, int64_t c) const {
    const int64_t i = r * ld_ + c;
    switch (type_) {
      case DType::bf16:
        return static_cast<A>(load(static_cast<const bf16*>(data_)[i]));
      case DType::f16:
        return static_cast<A>(load(static_cast<const f16*>(data_)[i]));
      case DType::f64:
        return static_cast<A>(static_cast<const double*>(data_)[i]);
      default:
        return static_cast<A>(static_cast<const float*>(data_)[i]);
    }
  }
  template <class A>
  ORTHANT_HD void put(int64_t r, int64_t c, A value) const {
    const int64_t i = r * ld_ + c;
    switch (type_) {
      case DType::bf16:
        static_cast<bf16*>(data_)[i] = store<bf16>(value);
        break;
      case DType::f16:
        static_cast<f16*>(data_)[i] = store<f16>(value);
        break;
      case DType::f64:
        static_cast<double*>(data_)[i] = static_cast<double>(value);
        break;
      default:
        static_cast<float*>(data_)[i] = static_cast<float>(value);
    }
  }

 private:
  void* data_;
  int64_t ld_;
  DType type_;
};

/// Token ids, labels, positions: i32 or i64, read row by row as one list.
class Index {
 public:
  explicit Index(const Tensor& x)
      : data_(x.data()),
        wide_(x.dtype() == DType::i64),
        cols_(std::max<int64_t>(x.cols(), 1)),
        ld_(x.ld()),
        step_(x.cols() == 1 ? x.ld()
              : x.dense()   ? 1
                            : 0) {
    ORTHANT_ENSURE(wide_ || x.dtype() == DType::i32, "an index tensor is i32 or i64");
  }
  ORTHANT_HD int64_t operator[](int64_t i) const {
    const int64_t at = step_ > 0 ? i * step_ : i / cols_ * ld_ + i % cols_;
    return wide_ ? static_cast<const int64_t*>(data_)[at] : static_cast<const int32_t*>(data_)[at];
  }

 private:
  const void* data_;
  bool wide_;
  int64_t cols_, ld_;
  int64_t step_;  // elements from one entry to the next; 0: rows have a gap between them
};

inline bool all_dense(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor* t) { return t->dense(); });
}

// ---- pointwise work

/// f(row, column) for every element of a matrix; no element's work depends on another's.
template <class F>
struct EveryCell {
  static constexpr int64_t unit = 4 * default_width;  // elements of a block

  ORTHANT_KERNEL void operator()(const Block& b) const {
    // the place is divided once for the block; its elements reach past the end of that row at most in narrow matrices
    const int64_t begin = b.x() * unit, row = begin / cols, col = begin % cols;
    b.each(min_(unit, rows * cols - begin), [&](int64_t i) {
      const int64_t c = col + i;
      if (c < cols)
        f(row, c);
      else
        f(row + c / cols, c % cols);
    });
  }

  int64_t rows, cols;
  F f;
};

/// `dense`: all matrices are, so they may be taken as one long row.
template <class F>
void for_cells(cudaStream_t stream, int64_t rows, int64_t cols, bool dense, const F& f) {
  if (dense) {
    cols *= rows;
    rows = 1;
  }
  launch(stream, {blocks_of(rows * cols, EveryCell<F>::unit)}, EveryCell<F>{rows, cols, f});
}

/// out row r = row index[r] - first of `from`. Rows outside are zeros; `strict`: only -1 may be outside.
template <class T>
struct TakeRow {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const {
    const int64_t at = index[r] - first;
    const bool inside = at >= 0 && at < from_rows;
    need(inside || !strict || at == -1, "gather_rows: an index is neither -1 nor a row of x");
    out(r, c) = inside ? from(at, c) : store<T>(Accumulator<T>(0));
  }

  Index index;
  int64_t first, from_rows;
  bool strict;
  View<const T> from;
  View<T> out;
};

/// Threads for a block that works along n elements; by n alone, as the order of sums is.
inline int width_for(int64_t n) {
  int width = 32;
  while (width < default_width && width * 4 < n) width *= 2;
  return width;
}

}  // namespace orthant::cuda
