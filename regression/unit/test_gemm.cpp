// Products against a plain double loop, over transposes, types, strides and empty sizes; bits of the canonical
// product.
// labels: smoke asan
// seconds: 60
#include <gtest/gtest.h>
#include <omp.h>

#include "backend_kit.hpp"

namespace orthant {
namespace {

using kit::values;

struct Case {
  int64_t m, n, k;
};

/// op(a) op(b) + start + bias in double.
std::vector<double> expected(const std::vector<double>& a, bool ta, const std::vector<double>& b, bool tb, Case s,
                             const std::vector<double>& start, const std::vector<double>& bias) {
  std::vector<double> c(static_cast<size_t>(s.m * s.n));
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = start.empty() ? 0 : start[static_cast<size_t>(i * s.n + j)];
      if (!bias.empty()) sum += bias[static_cast<size_t>(j)];
      for (int64_t p = 0; p < s.k; ++p)
        sum += a[static_cast<size_t>(ta ? p * s.m + i : i * s.k + p)] *
               b[static_cast<size_t>(tb ? j * s.k + p : p * s.n + j)];
      c[static_cast<size_t>(i * s.n + j)] = sum;
    }
  return c;
}

void compare(Backend& be, Case s, DType type, DType c_type, bool ta, bool tb, bool accumulate, bool with_bias,
             int64_t pad) {
  SCOPED_TRACE(testing::Message() << s.m << " x " << s.n << " x " << s.k << " " << name_of(type) << " to "
                                  << name_of(c_type) << (ta ? " ta" : "") << (tb ? " tb" : "")
                                  << (accumulate ? " accumulate" : "") << (with_bias ? " bias" : "") << " pad "
                                  << pad);
  const int64_t ar = ta ? s.k : s.m, ac = ta ? s.m : s.k, br = tb ? s.n : s.k, bc = tb ? s.k : s.n;
  const Tensor a = kit::random(be, type, ar, ac, 1, ac + pad), b = kit::random(be, type, br, bc, 2, bc + pad);
  const Tensor c = kit::random(be, c_type, s.m, s.n, 3, s.n + pad);
  const Tensor bias = with_bias ? kit::random(be, type, 1, s.n, 4) : Tensor();
  const auto start = accumulate ? values(be, c) : std::vector<double>();
  const auto want =
      expected(values(be, a), ta, values(be, b), tb, s, start, with_bias ? values(be, bias) : std::vector<double>());
  be.gemm(a, ta, b, tb, c, accumulate, bias);
  // sums of K products of numbers below 1, rounded once to c's type
  const double arithmetic =
      kit::epsilon(type == DType::bf16 ? DType::f32 : type) * (2 + 2 * std::sqrt(static_cast<double>(s.k)));
  const double magnitude = 2 + std::sqrt(static_cast<double>(s.k));
  const double rounding = c_type == DType::bf16 ? 0.5 * 0x1p-7 * magnitude : 0;
  EXPECT_LE(kit::distance(values(be, c), want), arithmetic * magnitude + rounding);
}

TEST(Gemm, EqualsPlainLoops) {
  auto be = make_backend("cpu");
  const DType f32 = DType::f32, bf16 = DType::bf16, f64 = DType::f64;
  for (const Case s : {Case{5, 7, 3}, Case{1, 33, 20}, Case{64, 1, 9}, Case{70, 130, 65}, Case{150, 40, 260}})
    for (const auto& [type, c_type] : {std::pair{f32, f32}, {bf16, bf16}, {bf16, f32}, {f64, f64}})
      for (int flags = 0; flags < 16; ++flags)
        compare(*be, s, type, c_type, flags & 1, flags & 2, flags & 4, flags & 8, (flags * 7 + s.m) % 3 == 0 ? 0 : 5);
}

TEST(Gemm, EmptySizes) {
  auto be = make_backend("cpu");
  for (const Case s : {Case{0, 4, 3}, Case{4, 0, 3}, Case{4, 5, 0}, Case{0, 0, 0}})
    for (const auto& [type, c_type] : {std::pair{DType::f32, DType::f32},
                                       {DType::bf16, DType::bf16},
                                       {DType::bf16, DType::f32},
                                       {DType::f64, DType::f64}})
      for (int flags = 0; flags < 16; ++flags)
        compare(*be, s, type, c_type, flags & 1, flags & 2, flags & 4, flags & 8, 2);
}

TEST(Gemm, DoesNotTouchWhatLiesBetweenRows) {
  auto be = make_backend("cpu");
  for (DType type : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor a = kit::random(*be, type, 30, 20, 1), b = kit::random(*be, type, 20, 40, 2);
    const Tensor whole = kit::random(*be, type, 30, 60, 3);
    const auto before = values(*be, whole);
    be->gemm(a, false, b, false, whole.col_range(10, 40), false);
    const auto after = values(*be, whole);
    for (size_t i = 0; i < before.size(); ++i) {
      if (i % 60 < 10 || i % 60 >= 50) {
        ASSERT_EQ(before[i], after[i]) << name_of(type) << " element " << i;
      }
    }
  }
}

TEST(Gemm, Bf16IsRoundedOnce) {
  auto be = make_backend("cpu");
  const Tensor a = kit::make(*be, DType::bf16, 1, 3, 3, [](int64_t, int64_t j) { return j == 0 ? 256.0 : 0.5; });
  const Tensor b = kit::make(*be, DType::bf16, 3, 1, 1, [](int64_t i, int64_t) { return i == 0 ? 1.0 : 1.015625; });
  const Tensor c = be->alloc(DType::bf16, 1, 1, MemoryKind::workspace);
  be->gemm(a, false, b, false, c, false);
  // 257.015625 lies above 257, the middle of the bf16 numbers 256 and 258; rounded after each summand it would stay
  // 256
  EXPECT_EQ(values(*be, c)[0], 258.0);
}

/// Bits of the canonical product of `a` and `b`.
std::vector<double> canonical(Backend& be, const Tensor& a, bool ta, const Tensor& b, bool tb) {
  const int64_t m = ta ? a.cols() : a.rows(), n = tb ? b.rows() : b.cols();
  const Tensor c = be.alloc(a.dtype() == DType::f64 ? DType::f64 : DType::f32, m, n, MemoryKind::workspace);
  be.gemm_canonical(a, ta, b, tb, c);
  return values(be, c);
}

TEST(GemmCanonical, EqualsPlainLoopsWhateverTheStrides) {
  auto be = make_backend("cpu");
  const Case s{150, 137, 300};
  for (DType type : {DType::f32, DType::bf16, DType::f64}) {
    std::vector<double> first;
    for (int flags = 0; flags < 8; ++flags) {
      const bool ta = flags & 1, tb = flags & 2;
      const int64_t pad = flags & 4 ? 7 : 0;
      auto at = [](int64_t i, int64_t p) {
        return std::sin(0.37 * static_cast<double>(i) + 1.3 * static_cast<double>(p));
      };
      auto bt = [](int64_t p, int64_t j) {
        return std::cos(0.71 * static_cast<double>(p) - 0.9 * static_cast<double>(j));
      };
      const Tensor a = ta ? kit::make(*be, type, s.k, s.m, s.m + pad, [&](int64_t p, int64_t i) { return at(i, p); })
                          : kit::make(*be, type, s.m, s.k, s.k + pad, at);
      const Tensor b = tb ? kit::make(*be, type, s.n, s.k, s.k + pad, [&](int64_t j, int64_t p) { return bt(p, j); })
                          : kit::make(*be, type, s.k, s.n, s.n + pad, bt);
      const auto c = canonical(*be, a, ta, b, tb);
      if (first.empty()) {
        first = c;
        const auto want = expected(values(*be, a), ta, values(*be, b), tb, s, {}, {});
        EXPECT_LE(kit::distance(c, want), (type == DType::f64 ? 1e-13 : 6e-5)) << name_of(type);
      }
      EXPECT_EQ(c, first) << name_of(type) << " flags " << flags;
    }
  }
}

TEST(GemmCanonical, BitsStayWhenRowsOrColumnsAreCut) {
  auto be = make_backend("cpu");
  const Case s{200, 210, 517};
  for (DType type : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor a = kit::random(*be, type, s.m, s.k, 1), b = kit::random(*be, type, s.k, s.n, 2);
    const auto whole = canonical(*be, a, false, b, false);
    for (int64_t cut : {1, 6, 17, 100, 144, 199}) {
      const auto top = canonical(*be, a.row_range(0, cut), false, b, false);
      const auto bottom = canonical(*be, a.row_range(cut, s.m - cut), false, b, false);
      auto both = top;
      both.insert(both.end(), bottom.begin(), bottom.end());
      EXPECT_EQ(both, whole) << name_of(type) << " rows cut at " << cut;
      const auto left = canonical(*be, a, false, b.col_range(0, cut), false);
      const auto right = canonical(*be, a, false, b.col_range(cut, s.n - cut), false);
      for (int64_t i = 0; i < s.m; ++i)
        for (int64_t j = 0; j < s.n; ++j) {
          const double got = j < cut ? left[static_cast<size_t>(i * cut + j)]
                                     : right[static_cast<size_t>(i * (s.n - cut) + j - cut)];
          ASSERT_EQ(got, whole[static_cast<size_t>(i * s.n + j)]) << name_of(type) << " columns cut at " << cut;
        }
    }
  }
}

TEST(GemmCanonical, BitsDoNotDependOnThreads) {
  const int threads = omp_get_max_threads();
  std::vector<double> first;
  for (int n : {1, 2, 3}) {
    omp_set_num_threads(n);
    auto be = make_backend("cpu");
    const auto c = canonical(*be, kit::random(*be, DType::f32, 300, 260, 1), false,
                             kit::random(*be, DType::f32, 260, 290, 2), false);
    if (first.empty()) first = c;
    EXPECT_EQ(c, first) << n << " threads";
  }
  omp_set_num_threads(threads);
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  auto be = make_backend("cpu");
  const Tensor a = kit::random(*be, DType::f32, 4, 5, 1), b = kit::random(*be, DType::f32, 6, 7, 2);
  const Tensor c = kit::random(*be, DType::f32, 4, 7, 3);
  try {
    be->gemm(a, false, b, false, c, false);
    FAIL() << "a product of [4, 5] and [6, 7] was accepted";
  } catch (const LogicError& e) {
    EXPECT_NE(std::string(e.what()).find("gemm"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("[4, 5]"), std::string::npos) << e.what();
  }
  EXPECT_THROW(
      be->gemm_canonical(a, false, b.row_range(0, 5), false, be->alloc(DType::bf16, 4, 7, MemoryKind::workspace)),
      LogicError);
}

}  // namespace
}  // namespace orthant
