// A product of small matrices in registers: C (+)= A B, for tiles that lie in cache.
//
// Every element of C is one chain of fused multiply-adds over k in rising order, started from C or from zero. Its
// bits therefore depend on its own row of A and column of B alone: not on where a matrix is cut along M or N, nor
// into how many calls K is split. gemm.cpp (canonical and f64 products) and attention.cpp rely on that.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace orthant::tile {

#if defined(__AVX512F__)
constexpr int64_t vector_bytes = 64;
constexpr int block_rows = 12;  // 24 accumulators of 32 registers
#elif defined(__AVX__)
constexpr int64_t vector_bytes = 32;
constexpr int block_rows = 6;  // 12 accumulators of 16 registers
#else
constexpr int64_t vector_bytes = 16;
constexpr int block_rows = 6;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(vector_bytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

/// Columns of one step: widths of B and C are padded to a multiple of this.
template <class T>
constexpr int64_t panel = 2 * vector_bytes / static_cast<int64_t>(sizeof(T));
template <class T>
constexpr int64_t padded(int64_t n) {
  return (n + panel<T> - 1) / panel<T> * panel<T>;
}

/// a * b + c, fused where the processor can. -ffp-contract=off keeps the compiler from deciding that by itself.
inline Vector<float> multiply_add(Vector<float> a, Vector<float> b, Vector<float> c) {
#if defined(__AVX512F__)
  return (Vector<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX__) && defined(__FMA__)
  return (Vector<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
  for (int i = 0; i < 4; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}
inline Vector<double> multiply_add(Vector<double> a, Vector<double> b, Vector<double> c) {
#if defined(__AVX512F__)
  return (Vector<double>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX__) && defined(__FMA__)
  return (Vector<double>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__FP_FAST_FMA)
  for (int i = 0; i < 2; ++i) c[i] = __builtin_fma(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}

template <class T>
inline Vector<T> load(const T* p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
inline void store(T* p, Vector<T> v) {
  std::memcpy(p, &v, sizeof v);
}
#if defined(__AVX512F__)
inline Vector<float> broadcast(float x) { return (Vector<float>)_mm512_set1_ps(x); }
inline Vector<double> broadcast(double x) { return (Vector<double>)_mm512_set1_pd(x); }
#elif defined(__AVX__)
inline Vector<float> broadcast(float x) { return (Vector<float>)_mm256_set1_ps(x); }
inline Vector<double> broadcast(double x) { return (Vector<double>)_mm256_set1_pd(x); }
#else
template <class T>
inline Vector<T> broadcast(T x) {
  return x - Vector<T>{};
}  // x - 0 is x, signed zeros included
#endif

/// R rows and one panel of columns.
template <class T, int R>
inline void block(int64_t k, const T* a, int64_t a_row, int64_t a_k, const T* b, int64_t ldb, T* c, int64_t ldc,
                  bool accumulate) {
  constexpr int64_t half = panel<T> / 2;
  Vector<T> left[R], right[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    left[i] = accumulate ? load(c + i * ldc) : Vector<T>{};
    right[i] = accumulate ? load(c + i * ldc + half) : Vector<T>{};
  }
  for (int64_t p = 0; p < k; ++p, a += a_k, b += ldb) {
    const Vector<T> b_left = load(b), b_right = load(b + half);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Vector<T> x = broadcast(a[i * a_row]);
      left[i] = multiply_add(x, b_left, left[i]);
      right[i] = multiply_add(x, b_right, right[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    store(c + i * ldc, left[i]);
    store(c + i * ldc + half, right[i]);
  }
}

template <class T, int R>
inline void last_rows(int rows, int64_t k, const T* a, int64_t a_row, int64_t a_k, const T* b, int64_t ldb, T* c,
                      int64_t ldc, bool accumulate) {
  if constexpr (R > 0) {
    if (rows == R) return block<T, R>(k, a, a_row, a_k, b, ldb, c, ldc, accumulate);
    last_rows<T, R - 1>(rows, k, a, a_row, a_k, b, ldb, c, ldc, accumulate);
  }
}

/// C [m, n] (+)= A B; A(i, p) = a[i a_row + p a_k], B and C row-major; n a multiple of panel<T>.
template <class T>
inline void multiply(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_k, const T* b, int64_t ldb,
                     T* c, int64_t ldc, bool accumulate) {
  for (int64_t j = 0; j < n; j += panel<T>) {
    int64_t i = 0;
    for (; i + block_rows <= m; i += block_rows)
      block<T, block_rows>(k, a + i * a_row, a_row, a_k, b + j, ldb, c + i * ldc + j, ldc, accumulate);
    last_rows<T, block_rows - 1>(static_cast<int>(m - i), k, a + i * a_row, a_row, a_k, b + j, ldb, c + i * ldc + j,
                                 ldc, accumulate);
  }
}

}  // namespace orthant::tile
