// Exact sums on the device (reproducible mode): integers in units of 2^-59, so that any order, any grouping and any
// number of ranks gives the bits of the host. The parts of a summand and of a sum are told in cpu/exact.cpp.
#include "backends/check_shapes.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/numbers.hpp"

namespace orthant {

using namespace cuda;

namespace {

/// 1.5 * 2^52: adding it rounds |v| < 2^51 to the nearest (even) integer, which then lies in the last bits of the
/// sum.
constexpr double magic = 6755399441055744.0;
constexpr int64_t lo_unit = int64_t{1} << 39;

struct Parts {
  int64_t hi, lo;
};

/// A summand's parts; 0, with the flag set, for a value that has no place: NaN, infinite, or |x| >= 2^18.
ORTHANT_KERNEL inline Parts parts_of(double x, int* overflow) {
  const bool fits = abs_(x) < 0x1p18;  // false for NaN
  if (!fits) *overflow = 1;            // threads may write it at once: they write the same
  const double v = select_(fits, x, 0.0);
  const double high = v * 0x1p20 + magic;
  const double low = (v - (high - magic) * 0x1p-20) * 0x1p59 + magic;
  return {static_cast<int64_t>(bits_of(high) - bits_of(magic)), static_cast<int64_t>(bits_of(low) - bits_of(magic))};
}

template <class T>
struct AddExact {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const {
    const Parts p = parts_of(load(x(r, c)), overflow);
    const int64_t at = r * cols + c;
    sum(0, at) += p.hi;
    sum(1, at) += p.lo;
  }
  int64_t cols;
  View<const T> x;
  View<int64_t> sum;
  int* overflow;
};

struct Carry {
  ORTHANT_KERNEL void operator()(int64_t, int64_t i) const {
    const int64_t carry = sum(1, i) >> 39;
    sum(0, i) += carry;
    sum(1, i) -= carry * lo_unit;
  }
  View<int64_t> sum;
};

template <class T>
struct ExactValue {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const {
    const int64_t at = r * cols + c;
    const int64_t carry = sum(1, at) >> 39;  // 0 after a carry; so that a sum has one value however it was carried
    const int64_t high = sum(0, at) + carry, low = sum(1, at) - carry * lo_unit;
    out(r, c) = store<T>(static_cast<double>(high) * 0x1p-20 + static_cast<double>(low) * 0x1p-59);
  }
  int64_t cols;
  View<const int64_t> sum;
  View<T> out;
};

/// Tokens of one id meet at the same elements: integers may be added there in any order.
template <class T>
struct AddExactRow {
  ORTHANT_KERNEL void operator()(int64_t t, int64_t c) const {
    const int64_t row = ids[t] - first;
    if (row < 0 || row >= table_rows) return;
    const Parts p = parts_of(load(dy(t, c)), overflow);
    const int64_t at = row * cols + c;
    add_integer(&sum(0, at), p.hi);
    add_integer(&sum(1, at), p.lo);
  }
  Index ids;
  int64_t first, table_rows, cols;
  View<const T> dy;
  View<int64_t> sum;
  int* overflow;
};

/// Moves the flag to where the host can read it, and clears it.
struct TakeFlag {
  ORTHANT_KERNEL void operator()(int64_t, int64_t) const {
    *to = *flag;
    *flag = 0;
  }
  int* flag;
  int32_t* to;
};

}  // namespace

void CudaBackend::exact_add(const Tensor& x, const Tensor& sum) {
  check::exact_add(x, sum);
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_cells(stream_, x.rows(), x.cols(), x.dense(),
              AddExact<T>{x.cols(), View<const T>(x), View<int64_t>(sum), exact_overflow_});
  });
}

void CudaBackend::exact_carry(const Tensor& sum) {
  check::exact_carry(sum);
  for_cells(stream_, 1, sum.cols(), true, Carry{View<int64_t>(sum)});
}

void CudaBackend::exact_value(const Tensor& sum, const Tensor& out) {
  check::exact_value(sum, out);
  with_compute(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_cells(stream_, out.rows(), out.cols(), out.dense(),
              ExactValue<T>{out.cols(), View<const int64_t>(sum), View<T>(out)});
  });
}

void CudaBackend::exact_embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, int64_t table_rows,
                                           const Tensor& sum) {
  check::exact_embedding_backward(ids, dy, first, table_rows, sum);
  with_compute(dy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_cells(stream_, dy.rows(), dy.cols(), false,
              AddExactRow<T>{Index(ids), first, table_rows, dy.cols(), View<const T>(dy), View<int64_t>(sum),
                             exact_overflow_});
  });
}

bool CudaBackend::exact_overflow() {
  const Tensor seen = alloc(DType::i32, 1, 1, MemoryKind::workspace);
  for_cells(stream_, 1, 1, true, TakeFlag{exact_overflow_, seen.as<int32_t>()});
  return Host<int32_t>(*this, seen)[0] != 0;
}

}  // namespace orthant
