// Rows of one number type as rows of another, each number rounded once to nearest even.
#pragma once

#include <cstdint>

#include "backends/dtype_dispatch.hpp"

namespace orthant::convert {

using dtypes::load;
using dtypes::store;

/// y[0, n) = x[0, n).
template <class To, class From>
inline void run(To* __restrict y, const From* __restrict x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = store<To>(load(x[i]));
}

}  // namespace orthant::convert
