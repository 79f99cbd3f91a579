// Rows of one number type as rows of another, each number rounded once to nearest even.
#pragma once

#include <cstdint>

#include "orthant/elementwise.hpp"

namespace orthant::convert {

inline float load(float x) { return x; }
inline double load(double x) { return x; }
inline float load(bf16 x) { return to_float(x); }
inline float load(f16 x) { return to_float(x); }

inline void store(float x, float& y) { y = x; }
inline void store(double x, float& y) { y = static_cast<float>(x); }
inline void store(float x, double& y) { y = static_cast<double>(x); }
inline void store(double x, double& y) { y = x; }
template <class X>
void store(X x, bf16& y) {
  y = to_bf16(x);
}
template <class X>
void store(X x, f16& y) {
  y = to_f16(x);
}

/// y[0, n) = x[0, n).
template <class To, class From>
inline void run(To* __restrict y, const From* __restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(load(x[i]), y[i]);
}

}  // namespace orthant::convert
