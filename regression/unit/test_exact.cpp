// Exact sums of the cpu backend: the same bits for any order, grouping and thread count; range, carry and error.
// labels: smoke asan
#include <algorithm>
#include <limits>

#include "ops_helpers.hpp"

using namespace ops;

namespace {

const DType types[] = {DType::f32, DType::bf16, DType::f64};

class Exact : public ::testing::Test {
 protected:
  std::unique_ptr<Backend> owner_ = backend_with(2);
  Backend& b_ = *owner_;

  /// Raw lanes of a sum.
  std::vector<int64_t> lanes(const Tensor& sum) {
    Host<int64_t> host(b_, sum);
    return {host.data(), host.data() + sum.size()};
  }
  Tensor zero_sum(int64_t n) {
    Tensor t = b_.alloc(DType::i64, 2, n, MemoryKind::workspace);
    b_.zero(t);
    return t;
  }
  Values value(const Tensor& sum, DType t = DType::f64) {
    const Matrix out(b_, t, 1, sum.cols());
    b_.exact_value(sum, out);
    return out.get();
  }
};

/// x as hi 2^39 + lo, in integers of the compiler.
__int128 scaled(double x) {
  int exponent;
  const double fraction = std::frexp(x, &exponent);  // x = integer * 2^(exponent - 53)
  const auto integer = static_cast<__int128>(std::ldexp(fraction, 53));
  const int shift = exponent - 53 + 59;
  if (shift >= 0) return integer << shift;
  const __int128 half = __int128{1} << (-shift - 1), low = integer >> -shift, rest = integer - (low << -shift);
  return low + (rest > half || (rest == half && (low & 1)) ? 1 : 0);
}

TEST_F(Exact, one_value_is_split_as_documented) {
  Values x = {0,       1,         -1,      0.5,  0x1p-59, -0x1p-59, 0x1p-60, 3 * 0x1p-60, 262143.99999, -262143.99999,
              0x1p-20, 0x1.8p-20, 1.0 / 3, -0.0, 1e-300};
  for (double v : random_values(2000, 1)) x.push_back(v);
  for (double v : random_values(2000, 2, 20000)) x.push_back(v);
  for (double v : random_values(2000, 3, 1e-9)) x.push_back(v);
  const auto n = static_cast<int64_t>(x.size());
  const Tensor sum = zero_sum(n);
  b_.exact_add(Matrix(b_, DType::f64, 1, n, x), sum);
  const auto got = lanes(sum);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto hi = static_cast<int64_t>(std::nearbyint(x[i] * 0x1p20));
    ASSERT_EQ(got[i], hi) << x[i];
    ASSERT_EQ(got[i + x.size()],
              static_cast<int64_t>(std::nearbyint((x[i] - static_cast<double>(hi) * 0x1p-20) * 0x1p59)))
        << x[i];
    const __int128 total = (static_cast<__int128>(got[i]) << 39) + got[i + x.size()];
    if (std::fabs(x[i]) > 1e-290) {
      ASSERT_TRUE(total == scaled(x[i])) << x[i];
    }
  }
  EXPECT_FALSE(b_.exact_overflow());
  const Values back = value(sum);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(back[i], x[i], 0x1p-60 + std::fabs(x[i]) * 0x1p-52);
}

TEST_F(Exact, order_and_grouping_do_not_matter) {
  for (DType t : types) {
    SCOPED_TRACE(name_of(t));
    const int64_t rows = 300, cols = 67;
    Values x = random_values(rows * cols, 5);
    std::mt19937 engine(6);
    for (double& v : x) v = rounded(t, v * std::pow(10.0, static_cast<int>(engine() % 12) - 8));
    const Matrix m(b_, t, rows, cols, x, 3);
    const Tensor straight = zero_sum(cols);
    for (int64_t r = 0; r < rows; ++r) b_.exact_add(m.tensor().row_range(r, 1), straight);

    std::vector<int64_t> order(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) order[static_cast<size_t>(r)] = r;
    std::shuffle(order.begin(), order.end(), engine);
    // five "ranks", each with carries of its own, then plain integer addition as a reduction would do
    std::vector<int64_t> total(static_cast<size_t>(2 * cols), 0);
    for (size_t rank = 0; rank < 5; ++rank) {
      const Tensor part = zero_sum(cols);
      for (size_t i = rank; i < order.size(); i += 5) {
        b_.exact_add(m.tensor().row_range(order[i], 1), part);
        if (i % 3 == 0) b_.exact_carry(part);
      }
      b_.exact_carry(part);
      const auto mine = lanes(part);
      for (size_t i = 0; i < total.size(); ++i) total[i] += mine[i];
    }
    const Tensor joined = zero_sum(cols);
    {
      Host<int64_t> host(b_, joined);
      std::copy(total.begin(), total.end(), host.data());
    }
    EXPECT_EQ(value(joined), value(straight));  // a value does not depend on how often was carried
    EXPECT_EQ(value(joined, DType::f32), value(straight, DType::f32));
    b_.exact_carry(joined);
    b_.exact_carry(straight);
    EXPECT_EQ(lanes(joined), lanes(straight));

    // the error bound: 2^-60 a summand and one rounding
    const Values got = value(straight);
    for (int64_t c = 0; c < cols; ++c) {
      __float128 want = 0;
      for (int64_t r = 0; r < rows; ++r) want += x[static_cast<size_t>(r * cols + c)];
      const auto w = static_cast<double>(want);
      ASSERT_NEAR(got[static_cast<size_t>(c)], w, static_cast<double>(rows) * 0x1p-60 + std::fabs(w) * 0x1p-52);
    }
  }
}

TEST_F(Exact, any_shape_and_any_thread_count) {
  const int64_t rows = 37, cols = 601;
  const Values x = random_values(rows * cols, 8);
  std::vector<int64_t> first;
  for (int threads : {1, 2, 5}) {
    owner_ = backend_with(threads);
    Backend& b = *owner_;
    Tensor sum = b.alloc(DType::i64, 2, rows * cols, MemoryKind::workspace);
    b.zero(sum);
    b.exact_add(Matrix(b, DType::f64, rows, cols, x, 7), sum);
    b.exact_add(Matrix(b, DType::f64, 1, rows * cols, x), sum);
    Host<int64_t> host(b, sum);
    const std::vector<int64_t> got(host.data(), host.data() + sum.size());
    if (threads == 1)
      first = got;
    else
      EXPECT_EQ(got, first) << threads;
  }
}

// The lo lane of 2^23 summands of the worst size still fits, and a carry makes room for as many again.
TEST_F(Exact, carry_over_many_summands) {
  const double worst = 0x1p-21 - 0x1p-60;  // the largest rest: lo = 2^38 nearly
  const int64_t n = int64_t{1} << 23, chunk = 1 << 12;
  const Tensor sum = zero_sum(chunk);
  const Matrix x(b_, DType::f64, 1, chunk, Values(static_cast<size_t>(chunk), worst));
  b_.exact_add(x, sum);
  const auto once = lanes(sum);
  EXPECT_EQ(once[0], 0);
  EXPECT_LE(std::llabs(once[static_cast<size_t>(chunk)]), int64_t{1} << 38);
  // as if every element had been added 2^23 times
  {
    Host<int64_t> host(b_, sum);
    for (int64_t i = 0; i < 2 * chunk; ++i) {
      int64_t product;
      ASSERT_FALSE(__builtin_mul_overflow(host[i], n, &product)) << "lo does not hold 2^23 summands";
      host[i] = product;
    }
  }
  const Values before = value(sum);
  b_.exact_carry(sum);
  const auto carried = lanes(sum);
  for (int64_t i = 0; i < chunk; ++i) {
    ASSERT_GE(carried[static_cast<size_t>(chunk + i)], 0);
    ASSERT_LT(carried[static_cast<size_t>(chunk + i)], int64_t{1} << 39);
  }
  EXPECT_EQ(value(sum), before);
  EXPECT_NEAR(before[0], static_cast<double>(n) * worst, static_cast<double>(n) * 0x1p-60);
  // negative sums: the shift is arithmetic
  const Tensor negative = zero_sum(1);
  for (int i = 0; i < 1000; ++i) b_.exact_add(Matrix(b_, DType::f64, 1, 1, {-1e-7}), negative);
  b_.exact_carry(negative);
  EXPECT_GE(lanes(negative)[1], 0);
  EXPECT_NEAR(value(negative)[0], -1e-4, 1e-15);
}

// O048, O049: what does not fit is flagged, adds nothing and disturbs nothing; large finite sums are no overflow.
TEST_F(Exact, flags_what_has_no_place) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(b_.exact_overflow());
  for (DType t : types) {
    for (double bad : {inf, -inf, nan, 0x1p18, -0x1p18, 3e38}) {
      for (int64_t at : {0, 1, 99}) {
        Values x(100, 0.25);
        x[static_cast<size_t>(at)] = bad;
        const Tensor sum = zero_sum(100);
        b_.exact_add(Matrix(b_, t, 10, 10, x), sum);
        EXPECT_TRUE(b_.exact_overflow()) << bad << " at " << at;
        EXPECT_FALSE(b_.exact_overflow()) << "reading must clear the flag";
        Values want(100, 0.25);
        want[static_cast<size_t>(at)] = 0;
        EXPECT_EQ(value(sum), want);
      }
    }
    const Tensor sum = zero_sum(1);
    const double large = rounded(t, 0x1p18 - 0x1p10);
    for (int i = 0; i < 1000; ++i) b_.exact_add(Matrix(b_, t, 1, 1, {large}), sum);
    EXPECT_FALSE(b_.exact_overflow());
    EXPECT_EQ(value(sum)[0], 1000 * large);
  }
}

// O047, O050: 512 times 1, and 1 with 100 times 1/512, from bf16.
TEST_F(Exact, small_values_are_not_swallowed) {
  const Tensor sum = zero_sum(2);
  b_.exact_add(Matrix(b_, DType::bf16, 1, 2, {0, 1}), sum);
  for (int i = 0; i < 512; ++i) b_.exact_add(Matrix(b_, DType::bf16, 1, 2, {1, i < 100 ? 1.0 / 512 : 0}), sum);
  EXPECT_EQ(value(sum, DType::f32), (Values{512, 1.1953125}));
}

TEST_F(Exact, value_is_rounded_once) {
  // just above the tie between 1 and 1 + 2^-7: bf16 through f32 would fall on the tie and then to even
  const Tensor sum = zero_sum(1);
  b_.exact_add(Matrix(b_, DType::f64, 1, 1, {1 + 0x1p-8}), sum);
  EXPECT_EQ(value(sum, DType::bf16)[0], 1.0);
  b_.exact_add(Matrix(b_, DType::f64, 1, 1, {0x1p-40}), sum);
  EXPECT_EQ(value(sum, DType::bf16)[0], 1 + 0x1p-7);
}

// double(hi) 2^-20 + double(lo) 2^-59 for lanes of every size and sign
TEST_F(Exact, value_of_any_lanes) {
  std::mt19937_64 engine(9);
  const int64_t n = 5000;
  const Tensor sum = zero_sum(n);
  Values want;
  {
    Host<int64_t> host(b_, sum);
    for (int64_t i = 0; i < n; ++i) {
      host[i] = static_cast<int64_t>(engine()) >> (2 + engine() % 60);
      host[n + i] = static_cast<int64_t>(engine() >> 25) >> (engine() % 40);  // carried: 0 <= lo < 2^39
      want.push_back(static_cast<double>(host[i]) * 0x1p-20 + static_cast<double>(host[n + i]) * 0x1p-59);
    }
  }
  EXPECT_EQ(value(sum), want);
}

TEST_F(Exact, embedding_gradient) {
  const int64_t tokens = 500, width = 45, table_rows = 9, first = 3;
  Values ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<double>(i * i % 15));
  for (DType t : types) {
    Values dy = random_values(tokens * width, 4);
    for (double& v : dy) v = rounded(t, v);
    const Matrix mdy(b_, t, tokens, width, dy, 2);
    const Tensor sum = zero_sum(table_rows * width), by_hand = zero_sum(table_rows * width);
    b_.exact_embedding_backward(Matrix(b_, DType::i32, tokens, 1, ids), mdy, first, table_rows, sum);
    for (int64_t i = tokens - 1; i >= 0; --i) {
      const auto row = static_cast<int64_t>(ids[static_cast<size_t>(i)]) - first;
      if (row >= 0 && row < table_rows)
        b_.exact_add(mdy.tensor().row_range(i, 1), by_hand.col_range(row * width, width));
    }
    EXPECT_EQ(lanes(sum), lanes(by_hand));
    EXPECT_FALSE(b_.exact_overflow());
    dy[17] = std::numeric_limits<double>::quiet_NaN();
    const Matrix bad(b_, t, tokens, width, dy);
    b_.exact_embedding_backward(Matrix(b_, DType::i32, tokens, 1, Values(500, 3.0)), bad, first, table_rows, sum);
    EXPECT_TRUE(b_.exact_overflow());
  }
}

}  // namespace
