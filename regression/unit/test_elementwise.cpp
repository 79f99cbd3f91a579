// Pointwise maths: accuracy, special values, rounding to 16 bits, the same bits scalar and vectorised.
// labels: smoke
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "orthant/elementwise.hpp"

using namespace orthant;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr float inff = std::numeric_limits<float>::infinity();

/// Largest error of f against the long double reference, in units in the last place of the result.
template <class T, class F, class R>
double worst_ulp(F f, R reference, T low, T high) {
  std::mt19937_64 engine(11);
  std::uniform_real_distribution<T> uniform(low, high);
  double worst = 0;
  for (int i = 0; i < 100000; ++i) {
    const T x = uniform(engine);
    const long double want = reference(static_cast<long double>(x));
    const T near = std::fabs(static_cast<T>(want));
    if (!std::isfinite(near)) continue;
    const double ulp = static_cast<double>(std::nextafter(near, std::numeric_limits<T>::infinity()) - near);
    const double error = static_cast<double>(std::fabs(static_cast<long double>(f(x)) - want)) / ulp;
    worst = std::max(worst, error);
  }
  return worst;
}

template <class T>
void check_accuracy(T lowest_exp, T highest_exp) {
  const auto e = [](T x) { return exp_(x); };
  const auto l = [](T x) { return log_(x); };
  const auto t = [](T x) { return tanh_(x); };
  const auto exp_l = [](long double x) { return std::exp(x); };
  const auto log_l = [](long double x) { return std::log(x); };
  const auto tanh_l = [](long double x) { return std::tanh(x); };
  EXPECT_LT(worst_ulp<T>(e, exp_l, lowest_exp, highest_exp), 1.2);
  EXPECT_LT(worst_ulp<T>(e, exp_l, T(-1), T(1)), 1.2);
  EXPECT_LT(worst_ulp<T>(l, log_l, T(0), T(3)), 1.2);
  EXPECT_LT(worst_ulp<T>(l, log_l, T(0.99), T(1.01)), 1.2);
  EXPECT_LT(worst_ulp<T>(l, log_l, T(0), 4 * std::numeric_limits<T>::min()), 1.2);
  EXPECT_LT(worst_ulp<T>(t, tanh_l, T(-1e-4), T(1e-4)), 3);
  EXPECT_LT(worst_ulp<T>(t, tanh_l, T(-2), T(2)), 3);
  EXPECT_LT(worst_ulp<T>(t, tanh_l, T(-30), T(30)), 3);
  EXPECT_LT(worst_ulp<T>([](T x) { return sigmoid(x); }, [](long double x) { return 1 / (1 + std::exp(-x)); }, T(-80),
                         T(80)),
            3);
  EXPECT_LT(
      worst_ulp<T>([](T x) { return silu(x); }, [](long double x) { return x / (1 + std::exp(-x)); }, T(-80), T(80)),
      4);
}

TEST(Elementwise, accuracy_float) { check_accuracy<float>(-87.0f, 88.7f); }
TEST(Elementwise, accuracy_double) { check_accuracy<double>(-708.0, 709.7); }

TEST(Elementwise, sine_and_cosine) {
  std::mt19937_64 engine(3);
  for (double range : {3.2, 7.0, 1e3, 1048576.0}) {
    std::uniform_real_distribution<double> uniform(-range, range);
    for (int i = 0; i < 50000; ++i) {
      const double x = uniform(engine);
      ASSERT_NEAR(sin_(x), static_cast<double>(std::sin(static_cast<long double>(x))), 1.6e-16) << x;
      ASSERT_NEAR(cos_(x), static_cast<double>(std::cos(static_cast<long double>(x))), 1.6e-16) << x;
    }
  }
  EXPECT_EQ(sin_(0.0), 0.0);
  EXPECT_EQ(cos_(0.0), 1.0);
  EXPECT_EQ(cos_(3.141592653589793), -1.0);
}

TEST(Elementwise, special_values) {
  EXPECT_EQ(exp_(-inf), 0.0);
  EXPECT_EQ(exp_(-inff), 0.0f);
  EXPECT_EQ(exp_(inf), inf);
  EXPECT_EQ(exp_(inff), inff);
  EXPECT_EQ(exp_(0.0), 1.0);
  EXPECT_EQ(exp_(0.0f), 1.0f);
  EXPECT_EQ(exp_(-3e38f), 0.0f);
  EXPECT_TRUE(std::isnan(exp_(std::nan(""))) && std::isnan(exp_(std::nanf(""))));
  EXPECT_GT(exp_(-103.0f), 0.0f);  // denormal
  EXPECT_EQ(exp_(-104.5f), 0.0f);
  EXPECT_EQ(exp_(89.0f), inff);
  EXPECT_EQ(exp_(710.0), inf);
  EXPECT_GT(exp_(-745.0), 0.0);
  EXPECT_EQ(log_(0.0), -inf);
  EXPECT_EQ(log_(0.0f), -inff);
  EXPECT_EQ(log_(1.0), 0.0);
  EXPECT_EQ(log_(1.0f), 0.0f);
  EXPECT_EQ(log_(inf), inf);
  EXPECT_EQ(log_(inff), inff);
  EXPECT_TRUE(std::isnan(log_(-1.0)) && std::isnan(log_(-1.0f)) && std::isnan(log_(std::nan(""))));
  EXPECT_EQ(tanh_(inf), 1.0);
  EXPECT_EQ(tanh_(-inff), -1.0f);
  EXPECT_TRUE(std::signbit(tanh_(-0.0)) && std::isnan(tanh_(std::nan(""))));
  EXPECT_EQ(sigmoid(-inff), 0.0f);
  EXPECT_EQ(sigmoid(inff), 1.0f);
  EXPECT_EQ(gelu_tanh(3e38f), 3e38f);
  EXPECT_EQ(gelu_tanh(-3e38f), 0.0f);
  EXPECT_EQ(gelu_tanh_grad(3e38f), 1.0f);
  EXPECT_EQ(gelu_tanh_grad(-3e38f), 0.0f);
  EXPECT_TRUE(std::isnan(gelu_tanh_grad(std::nanf(""))) && std::isnan(silu_grad(std::nanf(""))));
  EXPECT_FALSE(finite_(inf) || finite_(-inff) || finite_(std::nan("")) || finite_(std::nanf("")));
  EXPECT_TRUE(finite_(3e38f) && finite_(0.0) && finite_(-1e308));
}

TEST(Elementwise, gradients_are_derivatives) {
  for (double x = -12; x < 12; x += 0.0371) {
    const double h = 1e-5;
    EXPECT_NEAR(gelu_tanh_grad(x), (gelu_tanh(x + h) - gelu_tanh(x - h)) / (2 * h), 1e-9) << x;
    EXPECT_NEAR(silu_grad(x), (silu(x + h) - silu(x - h)) / (2 * h), 1e-9) << x;
    const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    EXPECT_NEAR(gelu_tanh(x), 0.5 * x * (1 + std::tanh(u)), 2e-15 * (1 + std::fabs(x)));
  }
}

TEST(Elementwise, bf16_every_pattern_and_every_tie) {
  for (uint32_t b = 0; b < 65536; ++b) {
    const bf16 h{static_cast<uint16_t>(b)};
    const float x = to_float(h);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(x))));
      continue;
    }
    ASSERT_EQ(to_bf16(x).bits, b);
    if (std::isinf(x) || (b & 0x7fffu) == 0x7f7fu) continue;
    // half-way to the neighbour away from zero goes to the even one, a little more goes up, a little less down
    ASSERT_EQ(to_bf16(float_of((b << 16) + 0x8000u)).bits, b + (b & 1u));
    ASSERT_EQ(to_bf16(float_of((b << 16) + 0x8001u)).bits, b + 1);
    ASSERT_EQ(to_bf16(float_of((b << 16) + 0x7fffu)).bits, b);
    // from double a rounding in two steps would fall on the tie
    const double tie = static_cast<double>(float_of((b << 16) + 0x8000u));
    ASSERT_EQ(to_bf16(tie * (1 + 0x1p-50)).bits, b + 1) << b;
    ASSERT_EQ(to_bf16(tie * (1 - 0x1p-50)).bits, b) << b;
  }
  EXPECT_EQ(to_float(to_bf16(3.4e38f)), inff);
  EXPECT_TRUE(
      std::isnan(to_float(to_bf16(float_of(0x7f800001u)))));  // a NaN whose upper half alone would be infinity
  EXPECT_TRUE(std::isnan(to_float(to_bf16(float_of(0xffffffffu)))));
}

TEST(Elementwise, f16_every_pattern) {
  for (uint32_t b = 0; b < 65536; ++b) {
    const float x = to_float(f16{static_cast<uint16_t>(b)});
    const uint32_t exponent = (b >> 10) & 31u, fraction = b & 1023u;
    const double sign = (b & 0x8000u) ? -1 : 1;
    if (exponent == 31) {
      if (fraction)
        EXPECT_TRUE(std::isnan(x) && std::isnan(to_float(to_f16(x))));
      else
        EXPECT_EQ(x, sign * inf);
      continue;
    }
    const double want =
        exponent ? std::ldexp(1024.0 + fraction, static_cast<int>(exponent) - 25) : std::ldexp(fraction, -24);
    ASSERT_EQ(x, sign * want) << b;
    ASSERT_EQ(to_f16(x).bits, b);
    if ((b & 0x7fffu) < 0x7bffu) {
      const double next = to_float(f16{static_cast<uint16_t>(b + 1)}), middle = (x + next) / 2;
      ASSERT_EQ(to_f16(static_cast<float>(middle)).bits, b + (b & 1u)) << b;
      ASSERT_EQ(to_f16(middle + (next - x) * 1e-9).bits, b + 1) << b;
    }
  }
  EXPECT_EQ(to_f16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_f16(-1e30f).bits, 0xfc00);
}

/// One element at a time, so that the compiler cannot use its vector form.
template <class T>
__attribute__((noinline)) T one(int which, T x) {
  switch (which) {
    case 0:
      return exp_(x);
    case 1:
      return log_(x);
    case 2:
      return tanh_(x);
    case 3:
      return gelu_tanh(x);
    case 4:
      return gelu_tanh_grad(x);
    default:
      return silu_grad(x);
  }
}

template <class T>
void check_vector_bits() {
  const std::vector<T> special = {T(0),
                                  T(-0.0),
                                  T(inf),
                                  T(-inf),
                                  std::numeric_limits<T>::quiet_NaN(),
                                  std::numeric_limits<T>::min(),
                                  std::numeric_limits<T>::denorm_min(),
                                  T(-1),
                                  T(1),
                                  T(700),
                                  T(-700),
                                  T(-100)};
  std::vector<T> x = special, y(1003);
  std::mt19937 engine(5);
  std::normal_distribution<T> normal(0, 8);
  while (x.size() < y.size()) x.push_back(normal(engine));
  const auto compare = [&](int which) {
    for (size_t i = 0; i < x.size(); ++i) {
      const T want = one(which, x[i]);
      if (std::isnan(want))
        ASSERT_TRUE(std::isnan(y[i])) << which << " " << x[i];
      else
        ASSERT_EQ(bits_of(y[i]), bits_of(want)) << which << " " << x[i];
    }
  };
  const size_t n = x.size();
  for (size_t i = 0; i < n; ++i) y[i] = exp_(x[i]);
  compare(0);
  for (size_t i = 0; i < n; ++i) y[i] = log_(x[i]);
  compare(1);
  for (size_t i = 0; i < n; ++i) y[i] = tanh_(x[i]);
  compare(2);
  for (size_t i = 0; i < n; ++i) y[i] = gelu_tanh(x[i]);
  compare(3);
  for (size_t i = 0; i < n; ++i) y[i] = gelu_tanh_grad(x[i]);
  compare(4);
  for (size_t i = 0; i < n; ++i) y[i] = silu_grad(x[i]);
  compare(5);
}

TEST(Elementwise, vector_loops_give_the_scalar_bits) {
  check_vector_bits<float>();
  check_vector_bits<double>();
}

/// Bits of a few values (exp_(1.0) is the neighbour of the nearest): other machines, compilers, backends give the
/// same.
TEST(Elementwise, known_bits) {
  EXPECT_EQ(bits_of(exp_(1.0f)), 0x402df854u);
  EXPECT_EQ(bits_of(log_(2.0f)), 0x3f317218u);
  EXPECT_EQ(bits_of(exp_(1.0)), 0x4005bf0a8b14576aull);
  EXPECT_EQ(bits_of(log_(2.0)), 0x3fe62e42fefa39efull);
  EXPECT_EQ(bits_of(sin_(0.5)), 0x3fdeaee8744b05f0ull);
}

}  // namespace
