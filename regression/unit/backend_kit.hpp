// Helpers for tests of backends: tensors from and to host vectors, seeded numbers, comparison.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "orthant/backend.hpp"
#include "orthant/elementwise.hpp"

namespace orthant::kit {

/// A tensor of the given leading dim, filled from f(row, col), rounded to its type. Padding holds 99.
inline Tensor make(Backend& be, DType type, int64_t rows, int64_t cols, int64_t ld,
                   const std::function<double(int64_t, int64_t)>& f) {
  const Tensor whole = be.alloc(DType::f64, rows, std::max(ld, cols), MemoryKind::workspace);
  if (whole.size() > 0) {
    Host<double> h(be, whole);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < whole.cols(); ++j) h[i * whole.cols() + j] = j < cols ? f(i, j) : 99.0;
  }
  const Tensor x = be.alloc(type, rows, whole.cols(), MemoryKind::workspace);
  be.copy(x, whole);
  return x.col_range(0, cols);
}

/// Numbers in [-1, 1), the same for the same seed.
inline Tensor random(Backend& be, DType type, int64_t rows, int64_t cols, unsigned seed, int64_t ld = 0) {
  std::mt19937 generator(seed);
  return make(be, type, rows, cols, ld,
              [&](int64_t, int64_t) { return static_cast<double>(generator()) * 0x1p-31 - 1.0; });
}

inline std::vector<double> values(Backend& be, const Tensor& x) {
  const Tensor dense = be.alloc(DType::f64, x.rows(), x.cols(), MemoryKind::workspace);
  be.copy(dense, x);
  std::vector<double> v(static_cast<size_t>(x.size()));
  Host<double> h(be, dense);
  if (!v.empty()) std::memcpy(v.data(), h.data(), v.size() * sizeof(double));
  return v;
}

/// Largest |a - b|; infinite when sizes differ or one alone is not finite.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // equal infinities too
    const double d = std::abs(a[i] - b[i]);
    worst = d > worst || std::isnan(d) ? (std::isnan(d) ? INFINITY : d) : worst;
  }
  return worst;
}

/// Relative size of the last place of a type's sums: what a comparison may differ by.
inline double epsilon(DType t) { return t == DType::f64 ? 1e-15 : t == DType::f32 ? 1.2e-7 : 4e-3; }

}  // namespace orthant::kit
