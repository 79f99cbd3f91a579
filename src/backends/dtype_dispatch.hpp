// From the number type of a tensor to the C++ type that stands for it, and numbers of it as sums take them. For loops
// and kernels of all backends.
#pragma once

#include <string>
#include <type_traits>

#include "orthant/elementwise.hpp"
#include "orthant/tensor.hpp"

namespace orthant::dtypes {

/// Stands for the C++ type of a dtype: `with_compute(t, [&](auto tag) { using T = typename decltype(tag)::type; ... })`.
template <class T>
struct Tag {
  using type = T;
};

/// The type sums are taken in.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls f with the tag of a compute type.
template <class F>
void with_compute(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      return f(Tag<float>{});
    case DType::bf16:
      return f(Tag<bf16>{});
    case DType::f16:
      return f(Tag<f16>{});
    case DType::f64:
      return f(Tag<double>{});
    default:
      throw LogicError(std::string("no operation computes in ") + name_of(t));
  }
}
/// Calls f with the tag of an accumulation type.
template <class F>
void with_accumulator(DType t, F&& f) {
  if (t == DType::f64) return f(Tag<double>{});
  ORTHANT_ENSURE(t == DType::f32, "an accumulation type is f32 or f64");
  f(Tag<float>{});
}

ORTHANT_HD float load(float x) { return x; }
ORTHANT_HD double load(double x) { return x; }
ORTHANT_HD float load(bf16 x) { return to_float(x); }
ORTHANT_HD float load(f16 x) { return to_float(x); }

/// Rounds once to T.
template <class T, class A>
ORTHANT_HD T store(A x) {
  if constexpr (std::is_same_v<T, bf16>)
    return to_bf16(x);
  else if constexpr (std::is_same_v<T, f16>)
    return to_f16(x);
  else
    return static_cast<T>(x);
}

}  // namespace orthant::dtypes
