// Memory, copies, the host's views and products of the CUDA backend, against the cpu backend.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda_kit.hpp"
#include "cuda_runtime.h"
#include "orthant/elementwise.hpp"

namespace orthant {
namespace {

using cuda_kit::cuda_backend;

/// The same numbers on both backends, in a matrix with a gap behind each row.
struct Both {
  Tensor host, device;
};

double number(int64_t i, int salt) { return std::sin(static_cast<double>(i * 37 + salt * 1001)) * std::ldexp(1.0, static_cast<int>((i + salt) % 5)); }

template <class F>
void write(Backend& be, const Tensor& x, F&& value) {
  const Tensor whole = be.alloc(DType::f64, x.rows(), x.cols(), MemoryKind::workspace);
  {
    Host<double> h(be, whole);
    for (int64_t i = 0; i < whole.size(); ++i) h[i] = value(i);
  }
  be.copy(x, whole);
}

std::vector<double> read(Backend& be, const Tensor& x) {
  const Tensor whole = be.alloc(DType::f64, x.rows(), x.cols(), MemoryKind::workspace);
  be.copy(whole, x);
  Host<double> h(be, whole);
  return {h.data(), h.data() + whole.size()};
}

struct Pair {
  std::unique_ptr<Backend> cpu = make_backend("cpu"), cuda = cuda_backend();
  Both matrix(DType t, int64_t rows, int64_t cols, int64_t gap, int salt) {
    const auto made = [&](Backend& be) {
      const Tensor whole = be.alloc(t, rows, cols + gap, MemoryKind::workspace);
      const Tensor x = gap > 0 ? whole.col_range(gap / 2, cols) : whole;
      write(be, x, [&](int64_t i) { return number(i, salt); });
      return x;
    };
    return {made(*cpu), made(*cuda)};
  }
};

constexpr DType floats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

TEST(CudaDevice, CopiesConvertAsTheCpuDoes) {
  Pair p;
  for (DType from : floats)
    for (DType to : floats)
      for (auto [rows, cols, gap] : {std::array<int64_t, 3>{1, 5000, 0}, {7, 129, 3}, {0, 4, 0}, {300, 1, 2}}) {
        const Both x = p.matrix(from, rows, cols, gap, 1), y = p.matrix(to, rows, cols, 5, 2);
        p.cpu->copy(y.host, x.host);
        p.cuda->copy(y.device, x.device);
        EXPECT_EQ(read(*p.cpu, y.host), read(*p.cuda, y.device)) << name_of(from) << " to " << name_of(to);
      }
}

TEST(CudaDevice, ZeroLeavesTheGapsAlone) {
  Pair p;
  const Tensor whole = p.cuda->alloc(DType::f32, 5, 9, MemoryKind::workspace);
  write(*p.cuda, whole, [](int64_t) { return 3.0; });
  p.cuda->zero(whole.col_range(2, 4));
  const std::vector<double> seen = read(*p.cuda, whole);
  for (int64_t i = 0; i < whole.size(); ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i % 9 >= 2 && i % 9 < 6 ? 0 : 3) << i;
}

TEST(CudaDevice, ViewsOfOneTensorAreOneMemory) {
  const auto be = cuda_backend();
  const Tensor x = be->alloc(DType::f32, 4, 3, MemoryKind::workspace);
  be->zero(x);
  auto* whole = static_cast<float*>(be->host_begin(x));
  auto* row = static_cast<float*>(be->host_begin(x.row_range(2, 1)));
  row[1] = 5;
  EXPECT_EQ(whole[7], 5);
  be->host_end(x.row_range(2, 1));
  whole[0] = 1;
  be->host_end(x);
  // the inner one first: whichever ends, neither is lost
  auto* inner = static_cast<float*>(be->host_begin(x.row_range(1, 1)));
  inner[0] = 8;
  whole = static_cast<float*>(be->host_begin(x));
  EXPECT_EQ(whole[3], 8);
  EXPECT_EQ(whole[7], 5);
  whole[11] = 9;
  be->host_end(x);
  be->host_end(x.row_range(1, 1));
  EXPECT_EQ(read(*be, x), (std::vector<double>{1, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 9}));
  EXPECT_THROW(be->host_end(x), LogicError);
}

TEST(CudaDevice, TheAccountAndTheDeviceAgreeAndTensorsMayOutliveTheBackend) {
  const size_t before = host_stand_in::bytes_in_use();
  auto be = cuda_backend();
  Tensor x = be->alloc(DType::bf16, 100, 3, MemoryKind::gradients);
  EXPECT_EQ(be->account().now(MemoryKind::gradients), 600);
  EXPECT_GE(host_stand_in::bytes_in_use(), before + 600);
  be.reset();
  x = {};
  EXPECT_EQ(host_stand_in::bytes_in_use(), before);
}

TEST(CudaGemm, EqualsTheCpuInEveryForm) {
  Pair p;
  for (DType t : floats) {
    const double eps = t == DType::f64 ? 1e-13 : t == DType::f32 ? 2e-5 : t == DType::f16 ? 2e-3 : 1.6e-2;
    for (auto [m, n, k] : {std::array<int64_t, 3>{5, 7, 3}, {1, 16, 33}, {24, 1, 8}, {6, 4, 0}, {0, 3, 2}, {16, 0, 4}})
      for (int form = 0; form < 32; ++form) {
        const bool ta = form & 1, tb = form & 2, accumulate = form & 4, with_bias = form & 8, wide = form & 16;
        const DType c_type = wide ? (t == DType::f64 ? DType::f64 : DType::f32) : t;
        const int64_t gap = form % 3;
        const Both a = p.matrix(t, ta ? k : m, ta ? m : k, gap, 1), b = p.matrix(t, tb ? n : k, tb ? k : n, 2 * gap, 2), c = p.matrix(c_type, m, n, gap, 3),
                   bias = p.matrix(t, 1, n, 0, 4);
        p.cpu->gemm(a.host, ta, b.host, tb, c.host, accumulate, with_bias ? bias.host : Tensor());
        p.cuda->gemm(a.device, ta, b.device, tb, c.device, accumulate, with_bias ? bias.device : Tensor());
        const auto want = read(*p.cpu, c.host), got = read(*p.cuda, c.device);
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(got[i], want[i], eps * (std::abs(want[i]) + 16 * std::sqrt(static_cast<double>(k + 1)))) << name_of(t) << " form " << form << " element " << i;
      }
  }
}

TEST(CudaGemm, CanonicalProductsHaveTheSameBitsAtAnyPlace) {
  Pair p;
  for (DType t : floats) {
    const DType wide = t == DType::f64 ? t : DType::f32;
    const Both a = p.matrix(t, 9, 21, 0, 1), b = p.matrix(t, 21, 6, 0, 2), c = p.matrix(wide, 9, 6, 0, 3);
    const Both a2 = p.matrix(t, 9, 21, 3, 1), c2 = p.matrix(wide, 9, 6, 1, 3);
    p.cuda->gemm_canonical(a.device, false, b.device, false, c.device);
    p.cuda->gemm_canonical(a2.device, false, b.device, false, c2.device);
    EXPECT_EQ(read(*p.cuda, c.device), read(*p.cuda, c2.device)) << name_of(t);
    p.cpu->gemm_canonical(a.host, false, b.host, false, c.host);
    const auto want = read(*p.cpu, c.host), got = read(*p.cuda, c.device);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], (t == DType::f64 ? 1e-13 : 1e-4) * (1 + std::abs(want[i])));
  }
}

TEST(CudaGemm, Tf32IsTakenForF32AloneAndWhenAsked) {
  // 1 + 2^-11 - 1: TF32 keeps 10 bits behind the point, and rounds the first to 1
  const auto sum = [](bool asked, DType t) {
    const auto be = cuda_backend();
    if (asked) be->allow_tf32();
    const Tensor a = be->alloc(t, 8, 8, MemoryKind::workspace), b = be->alloc(t, 8, 8, MemoryKind::workspace), c = be->alloc(t, 8, 8, MemoryKind::workspace);
    write(*be, a, [](int64_t i) { return i % 8 == 0 ? 1 + 0x1p-11 : i % 8 == 1 ? 1 : 0; });
    write(*be, b, [](int64_t i) { return i / 8 == 0 ? 1 : i / 8 == 1 ? -1 : 0; });
    be->gemm(a, false, b, false, c, false);
    return read(*be, c);
  };
  EXPECT_EQ(sum(false, DType::f32), std::vector<double>(64, 0x1p-11));
  EXPECT_EQ(sum(true, DType::f32), std::vector<double>(64, 0.0));
  EXPECT_EQ(sum(true, DType::f64), std::vector<double>(64, 0x1p-11));
}

TEST(CudaGemm, GeluComesAtTheEndOfTheProductWhereTheLibraryCan) {
  // the sum 1 + 2^-9 + 2^-12 is not a bf16; gelu of the sum in f32 and of the sum as it is kept differ
  const auto be = cuda_backend();
  const double whole = 100 * (1 + 0x1p-9 + 0x1p-12);
  for (const int64_t gap : {0, 1, 8}) {  // a row of 17 numbers is none of the library's
    const Tensor a = be->alloc(DType::bf16, 3, 16, MemoryKind::workspace), b = be->alloc(DType::bf16, 16, 16, MemoryKind::workspace),
                 bias = be->alloc(DType::bf16, 1, 16, MemoryKind::workspace);
    const Tensor pre = be->alloc(DType::bf16, 3, 16 + gap, MemoryKind::workspace).col_range(0, 16), y = be->alloc(DType::bf16, 3, 16, MemoryKind::workspace);
    write(*be, a, [](int64_t i) { return i % 16 == 0 ? 1 : i % 16 == 1 ? 0x1p-9 : i % 16 == 2 ? 0x1p-12 : 0; });
    write(*be, b, [](int64_t) { return 100; });
    write(*be, bias, [](int64_t i) { return -104.0 + static_cast<double>(i) / 2; });
    be->gemm_gelu(a, false, b, false, bias, pre, y);
    const std::vector<double> kept = read(*be, pre), got = read(*be, y), added = read(*be, bias);
    bool differ = false;
    for (size_t i = 0; i < kept.size(); ++i) {
      const float sum = static_cast<float>(whole + added[i % 16]);
      const double of_sum = to_float(to_bf16(gelu_tanh(sum))), of_kept = to_float(to_bf16(gelu_tanh(static_cast<float>(kept[i]))));
      EXPECT_EQ(kept[i], to_float(to_bf16(sum))) << i;
      EXPECT_EQ(got[i], gap == 1 ? of_kept : of_sum) << "gap " << gap << ", element " << i;
      differ = differ || of_sum != of_kept;
    }
    EXPECT_TRUE(differ) << "these numbers tell nothing";
  }
}

}  // namespace
}  // namespace orthant
