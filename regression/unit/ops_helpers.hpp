// Matrices on a backend, written and read as doubles, for the tests of operations.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "orthant/backend.hpp"
#include "orthant/elementwise.hpp"

namespace ops {

using namespace orthant;

inline bool is_16_bit(DType t) { return t == DType::bf16 || t == DType::f16; }
inline DType accumulator(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

/// Relative size of one rounding to the type.
inline double unit(DType t) {
  switch (t) {
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    case DType::f64:
      return 0x1p-53;
    default:
      return 0x1p-24;
  }
}

/// `x` as the type holds it.
inline double rounded(DType t, double x) {
  switch (t) {
    case DType::bf16:
      return to_float(to_bf16(x));
    case DType::f16:
      return to_float(to_f16(x));
    case DType::f32:
      return static_cast<float>(x);
    default:
      return x;
  }
}

using Values = std::vector<double>;

inline Values random_values(int64_t n, unsigned seed, double scale = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  Values v(static_cast<size_t>(n));
  for (double& x : v) x = scale * normal(engine);
  return v;
}

/// A matrix with `pad` columns beyond its own in each row; they hold a mark that no operation may touch.
class Matrix {
 public:
  Matrix(Backend& b, DType t, int64_t rows, int64_t cols, int64_t pad = 0)
      : backend_(b), whole_(b.alloc(t, rows, cols + pad, MemoryKind::workspace)), view_(whole_.col_range(0, cols)) {
    put(Values(static_cast<size_t>(rows * cols), 0.0));
  }
  Matrix(Backend& b, DType t, int64_t rows, int64_t cols, const Values& v, int64_t pad = 0)
      : Matrix(b, t, rows, cols, pad) {
    put(v);
  }
  Matrix(Backend& b, DType t, int64_t rows, int64_t cols, std::initializer_list<double> v)
      : Matrix(b, t, rows, cols, Values(v)) {}

  operator const Tensor&() const { return view_; }
  const Tensor& tensor() const { return view_; }
  DType dtype() const { return view_.dtype(); }

  void put(const Values& v) {
    const int64_t width = whole_.cols();
    for_each([&](auto* data, int64_t r, int64_t c) {
      const double x = c < view_.cols() ? v[static_cast<size_t>(r * view_.cols() + c)] : mark;
      set(data[r * width + c], x);
    });
  }
  /// The values row by row; fails the test when a mark changed.
  Values get() const {
    Values out;
    const int64_t width = whole_.cols();
    for_each([&](auto* data, int64_t r, int64_t c) {
      const double x = value(data[r * width + c]);
      if (c < view_.cols())
        out.push_back(x);
      else
        EXPECT_EQ(x, mark) << "written past the row's end";
    });
    return out;
  }

 private:
  static constexpr double mark = 77;

  static void set(bf16& to, double x) { to = to_bf16(x); }
  static void set(f16& to, double x) { to = to_f16(x); }
  template <class T>
  static void set(T& to, double x) {
    to = static_cast<T>(x);
  }
  static double value(bf16 x) { return to_float(x); }
  static double value(f16 x) { return to_float(x); }
  template <class T>
  static double value(T x) {
    return static_cast<double>(x);
  }

  template <class F>
  void for_each(F f) const {
    switch (whole_.dtype()) {
      case DType::f32:
        return walk<float>(f);
      case DType::f64:
        return walk<double>(f);
      case DType::bf16:
        return walk<bf16>(f);
      case DType::f16:
        return walk<f16>(f);
      case DType::i32:
        return walk<int32_t>(f);
      case DType::i64:
        return walk<int64_t>(f);
    }
  }
  template <class T, class F>
  void walk(F f) const {
    if (whole_.size() == 0) return;
    Host<T> host(backend_, whole_);
    for (int64_t r = 0; r < whole_.rows(); ++r)
      for (int64_t c = 0; c < whole_.cols(); ++c) f(host.data(), r, c);
  }

  Backend& backend_;
  Tensor whole_, view_;
};

/// A cpu backend that works with this many threads.
inline std::unique_ptr<Backend> backend_with(int threads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  auto backend = make_backend("cpu");
  omp_set_num_threads(before);
  return backend;
}

/// |got - want| <= bound * (|want| + 1) everywhere.
inline void expect_near(const Values& got, const Values& want, double bound, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], bound * (std::fabs(want[i]) + 1)) << what << " at element " << i;
  }
}

}  // namespace ops
