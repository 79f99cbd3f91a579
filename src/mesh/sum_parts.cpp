// Sums and maxima of the parts of ranks, on host memory.
#include "mesh/sum_parts.hpp"

#include <algorithm>
#include <string>

#include "orthant/elementwise.hpp"

namespace orthant {
namespace {

template <class T, class Wide, class Load, class Store>
void add_in_order(const std::vector<const void*>& parts, void* out, int64_t n, Load load, Store store) {
  // blocks small enough to stay in cache while the parts are added one after the other
  constexpr int64_t block = 1024;
  Wide sum[block];
  for (int64_t at = 0; at < n; at += block) {
    int64_t count = std::min(block, n - at);
    for (int64_t i = 0; i < count; ++i) sum[i] = load(static_cast<const T*>(parts[0])[at + i]);
    for (size_t r = 1; r < parts.size(); ++r) {
      const T* p = static_cast<const T*>(parts[r]) + at;
      for (int64_t i = 0; i < count; ++i) sum[i] += load(p[i]);
    }
    for (int64_t i = 0; i < count; ++i) static_cast<T*>(out)[at + i] = store(sum[i]);
  }
}

}  // namespace

void sum_parts(DType dtype, const std::vector<const void*>& parts, void* out, int64_t n) {
  auto same = [](auto x) { return x; };
  switch (dtype) {
    case DType::f32: return add_in_order<float, float>(parts, out, n, same, same);
    case DType::f64: return add_in_order<double, double>(parts, out, n, same, same);
    case DType::i64: return add_in_order<int64_t, int64_t>(parts, out, n, same, same);
    case DType::bf16:
      return add_in_order<bf16, float>(parts, out, n, [](bf16 x) { return to_float(x); }, [](float x) { return to_bf16(x); });
    case DType::f16:
      return add_in_order<f16, float>(parts, out, n, [](f16 x) { return to_float(x); }, [](float x) { return to_f16(x); });
    default: throw LogicError(std::string("sum of ") + name_of(dtype) + " over ranks");
  }
}

namespace {

template <class T>
void largest(const std::vector<const void*>& parts, void* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    T m = static_cast<const T*>(parts[0])[i];
    for (size_t r = 1; r < parts.size(); ++r) {
      T x = static_cast<const T*>(parts[r])[i];
      if (x > m || x != x) m = x;  // a NaN stays
    }
    static_cast<T*>(out)[i] = m;
  }
}

}  // namespace

void max_parts(DType dtype, const std::vector<const void*>& parts, void* out, int64_t n) {
  switch (dtype) {
    case DType::f32: return largest<float>(parts, out, n);
    case DType::f64: return largest<double>(parts, out, n);
    default: throw LogicError(std::string("largest ") + name_of(dtype) + " over ranks");
  }
}

}  // namespace orthant
