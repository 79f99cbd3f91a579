// An operation on two backends: the cuda backend, run by the host, against cpu. Tensors come in twins with the same
// contents, in rows that are longer than they are wide; what lies behind the width must stay as it is.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend_kit.hpp"
#include "orthant/backend.hpp"
#include "orthant/elementwise.hpp"

namespace cuda_kit {

using namespace orthant;

inline std::unique_ptr<Backend> cuda_backend() { return make_backend("cuda"); }

constexpr DType compute_types[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr DType sum_types[] = {DType::f32, DType::f64};
inline DType accumulator(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

/// The same tensor on cpu [0] and on cuda [1].
struct Twin {
  std::array<Tensor, 2> whole, view;
  const Tensor& operator[](int side) const { return view[static_cast<size_t>(side)]; }
  explicit operator bool() const { return static_cast<bool>(view[0]); }
  /// One row, seen as many.
  Twin repeated(int64_t rows) const { return {whole, {view[0].repeated(rows), view[1].repeated(rows)}}; }
};

class Pair {
 public:
  Backend& be(int side) { return *backends_[static_cast<size_t>(side)]; }

  /// f(row, column), rounded to the type, with `pad` columns of 99 behind.
  Twin make(DType t, int64_t rows, int64_t cols, int64_t pad, const std::function<double(int64_t, int64_t)>& f) {
    Twin x;
    for (size_t side = 0; side < 2; ++side) {
      x.whole[side] = backends_[side]->alloc(t, rows, cols + pad, MemoryKind::workspace);
      x.view[side] = x.whole[side].col_range(0, cols);
      if (x.whole[side].size() == 0) continue;
      put(*backends_[side], x.whole[side], [&](int64_t r, int64_t c) { return c < cols ? f(r, c) : 99.0; });
    }
    return x;
  }
  /// Normal numbers, the same for the same seed.
  Twin random(DType t, int64_t rows, int64_t cols, unsigned seed, int64_t pad = 3, double scale = 1) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal(0, scale);
    std::vector<double> v(static_cast<size_t>(rows * cols));
    for (double& x : v) x = normal(engine);
    return make(t, rows, cols, pad, [&](int64_t r, int64_t c) { return v[static_cast<size_t>(r * cols + c)]; });
  }
  /// For results: numbers that are none of an operation.
  Twin blank(DType t, int64_t rows, int64_t cols, int64_t pad = 3) {
    return make(t, rows, cols, pad, [](int64_t, int64_t) { return 55.0; });
  }

  template <class F>
  void run(F&& f) {
    for (int side = 0; side < 2; ++side) f(be(side), side);
  }

  /// All bits, those behind the width among them.
  void expect_same(const Twin& x, const std::string& what) {
    const auto a = bytes(0, x), b = bytes(1, x);
    ASSERT_EQ(a.size(), b.size()) << what;
    const auto size = static_cast<size_t>(size_of(x[0].dtype()));
    const auto width = static_cast<size_t>(std::max<int64_t>(x.whole[0].cols(), 1));
    for (size_t i = 0; i < a.size() / size; ++i)
      ASSERT_EQ(0, std::memcmp(&a[i * size], &b[i * size], size))
          << what << ", " << name_of(x[0].dtype()) << ": row " << i / width << " column " << i % width << " is "
          << number(x[0].dtype(), &b[i * size]) << " on cuda, " << number(x[0].dtype(), &a[i * size]) << " on cpu";
  }
  /// |cuda - cpu| <= bound (|cpu| + scale); infinities and what lies behind the width equal.
  void expect_near(const Twin& x, double bound, const std::string& what, double scale = 1) {
    const auto a = bytes(0, x), b = bytes(1, x);
    ASSERT_EQ(a.size(), b.size()) << what;
    const DType t = x[0].dtype();
    const auto size = static_cast<size_t>(size_of(t));
    for (int64_t r = 0; r < x.whole[0].rows(); ++r)
      for (int64_t c = 0; c < x.whole[0].cols(); ++c) {
        const size_t at = static_cast<size_t>(r * x.whole[0].cols() + c) * size;
        const double want = number(t, &a[at]), got = number(t, &b[at]);
        if (got == want) continue;
        ASSERT_LT(c, x[0].cols()) << what << ": written behind the width of row " << r;
        ASSERT_LE(std::abs(got - want), bound * (std::abs(want) + scale))
            << what << ", " << name_of(t) << ": row " << r << " column " << c << " is " << got << " on cuda, " << want
            << " on cpu";
        ASSERT_FALSE(std::isnan(got)) << what << ": row " << r << " column " << c;
      }
  }
  /// A distance of sums that are cut differently, with `terms` terms, and rounded to t at the end.
  static double slack(DType t, int64_t terms = 1) {
    const double sums = accumulator(t) == DType::f64 ? 0x1p-53 : 0x1p-24;
    const double last = t == DType::bf16 ? 0x1p-8 : t == DType::f16 ? 0x1p-11 : sums;
    return 2 * last + 4 * sums * std::sqrt(static_cast<double>(terms) + 1);
  }

 private:
  static void put(Backend& be, const Tensor& x, const std::function<double(int64_t, int64_t)>& f) {
    const auto fill = [&]<class T>(T) {
      const Host<T> h(be, x);
      for (int64_t i = 0; i < x.size(); ++i) {
        const double v = f(i / x.cols(), i % x.cols());
        if constexpr (std::is_same_v<T, bf16>)
          h[i] = to_bf16(v);
        else if constexpr (std::is_same_v<T, f16>)
          h[i] = to_f16(v);
        else
          h[i] = static_cast<T>(v);
      }
    };
    with_type(x.dtype(), fill);
  }
  template <class F>
  static void with_type(DType t, F&& f) {
    switch (t) {
      case DType::f32:
        return f(float{});
      case DType::bf16:
        return f(bf16{});
      case DType::f16:
        return f(f16{});
      case DType::f64:
        return f(double{});
      case DType::i32:
        return f(int32_t{});
      case DType::i64:
        return f(int64_t{});
    }
  }
  static double number(DType t, const unsigned char* at) {
    double value = 0;
    with_type(t, [&]<class T>(T x) {
      std::memcpy(&x, at, sizeof x);
      if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
        value = to_float(x);
      else
        value = static_cast<double>(x);
    });
    return value;
  }
  std::vector<unsigned char> bytes(int side, const Twin& x) {
    const Tensor& whole = x.whole[static_cast<size_t>(side)];
    std::vector<unsigned char> out(static_cast<size_t>(whole.bytes()));
    if (out.empty()) return out;
    void* data = be(side).host_begin(whole);
    std::memcpy(out.data(), data, out.size());
    be(side).host_end(whole);
    return out;
  }

  std::array<std::unique_ptr<Backend>, 2> backends_{make_backend("cpu"), cuda_backend()};
};

/// "f32 [7, 33]" for messages.
inline std::string text(DType t, int64_t rows, int64_t cols) {
  return std::string(name_of(t)) + " [" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

}  // namespace cuda_kit
