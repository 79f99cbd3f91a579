// Dropout against a plain loop over its definition; its rate; and that it repeats on any cut, and differs by step, site
// and token.
// labels: smoke asan
#include "ops_helpers.hpp"
#include "orthant/philox.hpp"

using namespace ops;

namespace {

/// Rows of a micro-batch: tokens anywhere in the stream, also beyond 2^32 elements.
Tensor tokens_of(Backend& b, int64_t rows, int64_t first = 1000, int64_t step = 1) {
  const Tensor x = b.alloc(DType::i64, rows, 1, MemoryKind::workspace);
  if (rows == 0) return x;
  Host<int64_t> h(b, x);
  for (int64_t r = 0; r < rows; ++r) h[r] = first + step * r;
  return x;
}

/// What the contract says, one element at a time.
Values plain(DType t, const Values& x, const Dropout& d, int64_t first, int64_t step, int64_t cols) {
  Values y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / cols, column = static_cast<int64_t>(i) % cols;
    const uint64_t n = static_cast<uint64_t>((first + step * row) * cols + column);
    const Philox4 w = philox(static_cast<uint32_t>(n / 4), static_cast<uint32_t>(n / 4 >> 32),
                             static_cast<uint32_t>(d.step), 0, static_cast<uint32_t>(d.key),
                             static_cast<uint32_t>(d.key >> 32));
    const uint32_t words[] = {w.x0, w.x1, w.x2, w.x3};
    const bool stays = static_cast<double>(words[n % 4]) >= d.rate * 4294967296.0;
    if (!stays) continue;
    y[i] = t == DType::f64 ? x[i] / (1 - d.rate)
                           : rounded(t, static_cast<float>(x[i]) / static_cast<float>(1 - d.rate));
  }
  return y;
}

Values random_in(DType t, int64_t n) {
  Values v = random_values(n, 7);
  for (double& x : v) x = rounded(t, x);
  return v;
}

TEST(Dropout, EqualsTheDefinitionBitForBit) {
  for (int threads : {1, 3}) {
    auto owner = backend_with(threads);
    Backend& b = *owner;
    for (DType t : {DType::f32, DType::bf16, DType::f64})
      for (const auto& [rows, cols, pad] :
           {std::tuple<int64_t, int64_t, int64_t>{1, 1, 0}, {3, 7, 2}, {50, 33, 0}, {2, 5003, 1}, {40, 1024, 0}, {0, 8, 0}})
        for (double rate : {0.1, 0.5, 0.999999, 1e-12})
          for (const auto& [first, step] : {std::pair<int64_t, int64_t>{1000, 1}, {int64_t{1} << 40, 17}}) {
            SCOPED_TRACE(testing::Message() << name_of(t) << " " << rows << "x" << cols << " rate " << rate);
            const Values v = random_in(t, rows * cols);
            const Matrix x(b, t, rows, cols, v, pad), y(b, t, rows, cols, pad + 3);
            const Dropout d{rate, 0xfedcba9876543210u, 12, tokens_of(b, rows, first, step)};
            b.dropout(x, d, y);
            const Values want = plain(t, v, d, first, step, cols);
            EXPECT_EQ(y.get(), want);
            b.dropout(x, d, x);
            EXPECT_EQ(x.get(), want) << "in place";
          }
  }
}

TEST(Dropout, RateZeroIsACopyWithoutTokens) {
  auto owner = backend_with(1);
  const Values v = random_in(DType::f32, 35);
  const Matrix x(*owner, DType::f32, 5, 7, v), y(*owner, DType::f32, 5, 7, 1);
  owner->dropout(x, Dropout{}, y);
  EXPECT_EQ(y.get(), v);
  owner->dropout(x, Dropout{}, x);
  EXPECT_EQ(x.get(), v);
}

class DropoutMask : public ::testing::Test {
 protected:
  static constexpr int64_t rows_ = 64, cols_ = 100;
  Values mask(const Dropout& d) {
    const Matrix x(b_, DType::f32, rows_, cols_, Values(rows_ * cols_, 1.0));
    b_.dropout(x, d, x);
    return x.get();
  }
  /// How many of two masks' elements fall in both.
  static double both(const Values& a, const Values& b) {
    double n = 0;
    for (size_t i = 0; i < a.size(); ++i) n += a[i] == 0 && b[i] == 0;
    return n / static_cast<double>(a.size());
  }
  std::unique_ptr<Backend> owner_ = backend_with(2);
  Backend& b_ = *owner_;
};

TEST_F(DropoutMask, KeepsItsRateAndTheMean) {
  for (double rate : {0.1, 0.5, 0.9}) {
    const Values m = mask({rate, 42, 1, tokens_of(b_, rows_)});
    double fell = 0, mean = 0;
    for (double x : m) {
      fell += x == 0;
      mean += x / static_cast<double>(m.size());
    }
    // six standard deviations of 6400 draws
    const double spread = 6 * std::sqrt(rate * (1 - rate) / 6400);
    EXPECT_NEAR(fell / 6400, rate, spread);
    EXPECT_NEAR(mean, 1, spread / (1 - rate));
  }
}

TEST_F(DropoutMask, RepeatsAndDiffersByStepSiteAndToken) {
  const Dropout d{0.5, 42, 1, tokens_of(b_, rows_)};
  const Values m = mask(d);
  EXPECT_EQ(m, mask(d));  // what recomputation relies on
  Dropout step = d, low = d, high = d, token = d;
  step.step = 2;
  low.key ^= 1;
  high.key ^= uint64_t{1} << 63;
  token.tokens = tokens_of(b_, rows_, 1000 + rows_);  // the sample of another data-parallel rank
  for (const Dropout* other : {&step, &low, &high, &token}) {
    // independent masks share a quarter: six standard deviations
    EXPECT_NEAR(both(m, mask(*other)), 0.25, 6 * std::sqrt(0.25 * 0.75 / 6400));
  }
}

TEST_F(DropoutMask, AnyCutOfTheRowsGivesTheSameBits) {
  const Values v = random_in(DType::f32, rows_ * cols_);
  const Matrix x(b_, DType::f32, rows_, cols_, v), whole(b_, DType::f32, rows_, cols_), parts(b_, DType::f32, rows_, cols_);
  const Dropout d{0.3, 9, 4, tokens_of(b_, rows_)};
  b_.dropout(x, d, whole);
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 30}, {31, 33}}) {
    Dropout part = d;
    part.tokens = d.tokens.row_range(begin, count);
    b_.dropout(x.tensor().row_range(begin, count), part, parts.tensor().row_range(begin, count));
  }
  EXPECT_EQ(parts.get(), whole.get());
}

TEST_F(DropoutMask, RefusesWhatDoesNotFit) {
  const Matrix x(b_, DType::f32, 4, 6), wide(b_, DType::f64, 4, 6), other(b_, DType::f32, 4, 5);
  const Dropout good{0.5, 1, 1, tokens_of(b_, 4)};
  const auto with = [&](double rate, const Tensor& tokens) { return Dropout{rate, 1, 1, tokens}; };
  b_.dropout(x, good, x);
  EXPECT_THROW(b_.dropout(x, good, wide), LogicError);
  EXPECT_THROW(b_.dropout(x, good, other), LogicError);
  EXPECT_THROW(b_.dropout(x, with(1, good.tokens), x), LogicError);
  EXPECT_THROW(b_.dropout(x, with(-0.1, good.tokens), x), LogicError);
  EXPECT_THROW(b_.dropout(x, with(0.5, {}), x), LogicError);
  EXPECT_THROW(b_.dropout(x, with(0.5, tokens_of(b_, 3)), x), LogicError);
}

TEST(DropoutLast, IsTheLargestWordBelowTheBound) {
  for (double rate : {0x1p-32, 0.25, 0.1, 1e-12, 0x1.8p-31, 1 - 0x1p-40}) {
    const uint32_t last = dropout_last(rate);
    EXPECT_LT(static_cast<double>(last), rate * 0x1p32) << rate;
    EXPECT_GE(static_cast<double>(last) + 1, rate * 0x1p32) << rate;
  }
}

}  // namespace
