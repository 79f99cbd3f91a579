// Exact sums of the host backend (reproducible mode): integers in units of 2^-59, so that any order, any grouping and
// any number of ranks gives the same bits.
//
// A summand x, |x| < 2^18, is hi = rint(x 2^20) and lo = rint((x - hi 2^-20) 2^59), at most 2^38 and 2^38 in size.
// Sums stand for T = hi 2^39 + lo. A lane takes 2^23 summands before `exact_carry` must move lo's excess into hi.
#include "backends/check_shapes.hpp"
#include "backends/cpu/cpu_backend.hpp"
#include "backends/cpu/loops.hpp"

namespace orthant {

using namespace loops;

namespace {

/// 1.5 * 2^52: adding it rounds |v| < 2^51 to the nearest (even) integer, which then lies in the last bits of the
/// sum.
constexpr double magic = 6755399441055744.0;

/// hi[i], lo[i] += x[i]; returns whether a value had no place (NaN, infinite, or |x| >= 2^18), which then counts as
/// 0.
template <class T>
bool add_values(const T* x, int64_t n, int64_t* hi, int64_t* lo) {
  uint64_t lost = 0;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const double given = load(x[i]);
    const bool fits = abs_(given) < 0x1p18;  // false for NaN
    const double v = select_(fits, given, 0.0);
    const double high = v * 0x1p20 + magic;
    const double low = (v - (high - magic) * 0x1p-20) * 0x1p59 + magic;
    hi[i] += static_cast<int64_t>(bits_of(high) - bits_of(magic));
    lo[i] += static_cast<int64_t>(bits_of(low) - bits_of(magic));
    lost |= static_cast<uint64_t>(!fits);
  }
  return lost != 0;
}

constexpr int64_t lo_unit = int64_t{1} << 39;

/// double(x), rounded once, out of its two halves read off bit patterns: AVX2 has no conversion of 64-bit integers.
inline double to_double(int64_t x) {
  const auto u = static_cast<uint64_t>(x);
  const double low = double_of((u & 0xffffffffull) | 0x4330000000000000ull) - 0x1p52;
  const double high = double_of(((u >> 32) ^ 0x80000000ull) | 0x4330000000000000ull) - (0x1p52 + 0x1p31);
  return high * 0x1p32 + low;
}

}  // namespace

void CpuBackend::exact_add(const Tensor& x, const Tensor& sum) {
  check::exact_add(x, sum);
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    int64_t *hi = sum.as<int64_t>(), *lo = hi + sum.ld();
    for_spans(threads_, x.rows(), x.cols(), x.dense(), [&](int64_t r, int64_t begin, int64_t count) {
      const int64_t at = r * x.cols() + begin;
      if (add_values(x.as<T>() + r * x.ld() + begin, count, hi + at, lo + at)) exact_overflow_ = true;
    });
  });
}

void CpuBackend::exact_carry(const Tensor& sum) {
  check::exact_carry(sum);
  int64_t *hi = sum.as<int64_t>(), *lo = hi + sum.ld();
  for_spans(threads_, 1, sum.cols(), true, [=](int64_t, int64_t begin, int64_t count) {
#pragma omp simd
    for (int64_t i = begin; i < begin + count; ++i) {
      const int64_t carry = lo[i] >> 39;
      hi[i] += carry;
      lo[i] -= carry * lo_unit;
    }
  });
}

void CpuBackend::exact_value(const Tensor& sum, const Tensor& out) {
  check::exact_value(sum, out);
  with_compute(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t *hi = sum.as<int64_t>(), *lo = hi + sum.ld();
    for_spans(threads_, out.rows(), out.cols(), out.dense(), [&](int64_t r, int64_t begin, int64_t count) {
      const int64_t at = r * out.cols() + begin;
      T* y = out.as<T>() + r * out.ld() + begin;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const int64_t carry =
            lo[at + i] >> 39;  // 0 after a carry; so that a sum has one value however it was carried
        const int64_t high = hi[at + i] + carry, low = lo[at + i] - carry * lo_unit;
        y[i] = store<T>(to_double(high) * 0x1p-20 + to_double(low) * 0x1p-59);
      }
    });
  });
}

void CpuBackend::exact_embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, int64_t table_rows,
                                          const Tensor& sum) {
  check::exact_embedding_backward(ids, dy, first, table_rows, sum);
  const Index id(ids);
  with_compute(dy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    int64_t *hi = sum.as<int64_t>(), *lo = hi + sum.ld();
    for_column_ranges(threads_, dy.rows(), dy.cols(), [&](int64_t begin, int64_t count) {
      for (int64_t t = 0; t < dy.rows(); ++t) {
        const int64_t row = id[t] - first;
        if (row < 0 || row >= table_rows) continue;
        const int64_t at = row * dy.cols() + begin;
        if (add_values(dy.as<T>() + t * dy.ld() + begin, count, hi + at, lo + at)) exact_overflow_ = true;
      }
    });
  });
}

bool CpuBackend::exact_overflow() { return exact_overflow_.exchange(false); }

}  // namespace orthant
