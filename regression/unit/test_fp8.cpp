// The two 8-bit formats against their definition, scales against hand-worked numbers, and the FP8 operations of the backends
// against products in double of the numbers that the formats hold.
// ranks: 1
// labels: smoke asan
// seconds: 60
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

constexpr float infinite = std::numeric_limits<float>::infinity(), no_number = std::numeric_limits<float>::quiet_NaN();

/// A format by its definition: sign, exponent with its bias, mantissa; `nan` where a code is no finite number.
struct Format {
  int mantissa, bias;
  bool ieee;  ///< the largest exponent is infinities and NaN; else the last code alone is NaN
  double value(int code) const {
    const int exponent = (code & 0x7f) >> mantissa, rest = code & ((1 << mantissa) - 1), last = (0x7f >> mantissa);
    if (ieee ? exponent == last : (code & 0x7f) == 0x7f) return ieee && rest == 0 ? (code & 0x80 ? -INFINITY : INFINITY) : NAN;
    const double size = exponent == 0 ? std::ldexp(rest, 1 - bias - mantissa) : std::ldexp((1 << mantissa) + rest, exponent - bias - mantissa);
    return code & 0x80 ? -size : size;
  }
  /// The code nearest to x among the positive finite ones, the even one of two as near; the largest beyond it.
  int nearest(double x) const {
    int best = 0;
    for (int c = 1; c < 128 && std::isfinite(value(c)); ++c) {
      const double d = std::abs(value(c) - x), before = std::abs(value(best) - x);
      if (d < before || (d == before && c % 2 == 0)) best = c;
    }
    return best;
  }
};
const Format e4m3{3, 7, false}, e5m2{2, 15, true};

uint8_t code(float x, const Format& f) { return &f == &e4m3 ? to_f8e4m3(x).bits : to_f8e5m2(x).bits; }
float value(int c, const Format& f) {
  const auto bits = static_cast<uint8_t>(c);
  return &f == &e4m3 ? to_float(f8e4m3{bits}) : to_float(f8e5m2{bits});
}

TEST(Fp8Formats, All256CodesAreTheirNumbers) {
  for (const Format* f : {&e4m3, &e5m2})
    for (int c = 0; c < 256; ++c) {
      const double want = f->value(c);
      const float have = value(c, *f);
      if (std::isnan(want)) EXPECT_TRUE(std::isnan(have)) << c;
      else EXPECT_EQ(bits_of(have), bits_of(static_cast<float>(want))) << c;  // signs of zero too
      if (std::isfinite(want)) {
        EXPECT_EQ(code(have, *f), c);
      }
    }
  EXPECT_EQ(value(0x7e, e4m3), largest_e4m3);
  EXPECT_EQ(value(0x7b, e5m2), largest_e5m2);
}

TEST(Fp8Formats, RoundToNearestEvenAndSaturate) {
  for (const Format* f : {&e4m3, &e5m2}) {
    const auto check = [&](float x) {
      EXPECT_EQ(code(x, *f), f->nearest(static_cast<double>(x))) << x;
      EXPECT_EQ(code(-x, *f), f->nearest(static_cast<double>(x)) | 0x80) << -x;
    };
    for (int c = 0; c < 127 && std::isfinite(f->value(c + 1)); ++c) {
      const float a = value(c, *f), b = value(c + 1, *f), middle = (a + b) / 2;
      for (float x : {a, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, infinite), std::nextafter(b, 0.0f)}) check(x);
    }
    std::mt19937 generator(5);
    for (int i = 0; i < 4000; ++i) check(float_of(generator() % 0x4f000000u));
    const float largest = f == &e4m3 ? largest_e4m3 : largest_e5m2;
    for (float x : {largest * 1.01f, largest * 1.2f, 1e30f, infinite}) {
      EXPECT_EQ(value(code(x, *f), *f), largest) << x;
      EXPECT_EQ(value(code(-x, *f), *f), -largest) << x;
    }
    EXPECT_TRUE(std::isnan(value(code(no_number, *f), *f)));
    EXPECT_TRUE(std::isnan(value(code(-no_number, *f), *f)));
  }
  EXPECT_EQ(value(code(17.0f, e4m3), e4m3), 16.0f);  // a tie between 16 and 18: the even one
  EXPECT_EQ(value(code(19.0f, e4m3), e4m3), 20.0f);
  EXPECT_EQ(value(code(0x1p-10f, e4m3), e4m3), 0.0f);  // half of the least denormal
  EXPECT_EQ(value(code(0x1.8p-10f, e4m3), e4m3), 0x1p-9f);
}

// Transformer Engine's documentation: scale = (largest of the format / amax) / 2^margin, kept where amax is 0 or not finite
TEST(Fp8Scale, IsTransformerEngines) {
  EXPECT_EQ(fp8_scale(7.0f, largest_e4m3, 0, 1), 64.0f);
  EXPECT_EQ(fp8_scale(7.0f, largest_e4m3, 3, 1), 8.0f);
  EXPECT_EQ(fp8_scale(0.5f, largest_e5m2, 0, 1), 114688.0f);
  EXPECT_EQ(fp8_scale(3.0f, largest_e4m3, 0, 1), 448.0f / 3.0f);
  for (float amax : {0.0f, infinite, no_number}) EXPECT_EQ(fp8_scale(amax, largest_e4m3, 0, 12.5f), 12.5f);
  EXPECT_EQ(fp8_scale(1e-40f, largest_e5m2, 0, 1), std::numeric_limits<float>::max());
}

TEST(Fp8Scale, OfBlocksIsAPowerOfTwo) {
  EXPECT_EQ(fp8_block_scale(448.0f, largest_e4m3, false), 1.0f);
  EXPECT_EQ(fp8_block_scale(449.0f, largest_e4m3, false), 0.5f);
  EXPECT_EQ(fp8_block_scale(1.0f, largest_e4m3, false), 256.0f);
  EXPECT_EQ(fp8_block_scale(1.875f, largest_e4m3, false), 128.0f);
  EXPECT_EQ(fp8_block_scale(1.0f, largest_e5m2, false), 32768.0f);
  EXPECT_EQ(fp8_block_scale(1.875f, largest_e4m3, true), 256.0f);  // OCP: 2^(8 - floor(log2 amax)); 480 saturates
  EXPECT_EQ(fp8_block_scale(3.0f, largest_e4m3, true), 128.0f);
  for (bool mx : {false, true})
    for (float amax : {0.0f, infinite, no_number}) EXPECT_EQ(fp8_block_scale(amax, largest_e4m3, mx), 1.0f);
  for (float amax : {1e-45f, 1e-38f, 3e38f}) {
    const float s = fp8_block_scale(amax, largest_e4m3, false);
    EXPECT_TRUE(amax * s <= largest_e4m3 && std::isnormal(s) && std::isnormal(1 / s)) << amax;
  }
}

Quantised room(Backend& be, DType type, int64_t rows, int64_t cols, int64_t block_rows = 0, int64_t block_cols = 0) {
  const auto parts = [](int64_t n, int64_t block) { return block == 0 ? 1 : (n + block - 1) / block; };
  return {be.alloc(type, rows, cols, MemoryKind::workspace),
          be.alloc(DType::f32, parts(rows, block_rows), parts(cols, block_cols), MemoryKind::workspace), block_rows, block_cols};
}

Tensor number(Backend& be, float x) {
  const Tensor t = be.alloc(DType::f32, 1, 1, MemoryKind::workspace);
  Host<float>(be, t)[0] = x;
  return t;
}
float number(Backend& be, const Tensor& t) { return Host<float>(be, t)[0]; }

/// What a quantised matrix stands for.
std::vector<double> meaning(Backend& be, const Quantised& x) {
  const Host<uint8_t> q(be, x.q);
  const Host<float> inverse(be, x.inverse_scale);
  std::vector<double> out;
  for (int64_t r = 0; r < x.q.rows(); ++r)
    for (int64_t c = 0; c < x.q.cols(); ++c) {
      const int64_t block = x.block_rows == 0 ? 0 : r / x.block_rows * x.inverse_scale.cols() + c / x.block_cols;
      out.push_back((x.q.dtype() == DType::f8e4m3 ? e4m3 : e5m2).value(q[r * x.q.cols() + c]) * static_cast<double>(inverse[block]));
    }
  return out;
}

class Fp8Operations : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Backend> made = make_backend(GetParam());
  Backend& be = *made;
};
INSTANTIATE_TEST_SUITE_P(Backends, Fp8Operations, ::testing::Values("cpu", "debug"));

TEST_P(Fp8Operations, AmaxIsTheLargestSoFar) {
  for (DType type : {DType::f32, DType::bf16}) {
    const Tensor out = number(be, -1.0f);
    be.amax(make(be, type, 0, 4, 4, [](int64_t, int64_t) { return 0; }), out);
    EXPECT_EQ(number(be, out), -1.0f);
    be.amax(make(be, type, 5, 3, 7, [](int64_t r, int64_t c) { return r == 2 && c == 1 ? -8.0 : 1.0; }), out);  // not the padding
    EXPECT_EQ(number(be, out), 8.0f);
    be.amax(make(be, type, 2, 2, 2, [](int64_t, int64_t) { return 2; }), out);
    EXPECT_EQ(number(be, out), 8.0f);
    be.amax(make(be, type, 2, 2, 2, [](int64_t r, int64_t) { return r ? NAN : 1; }), out);
    EXPECT_EQ(number(be, out), infinite);
  }
}

TEST_P(Fp8Operations, QuantizeScalesRoundsAndSaturates) {
  const Tensor x = make(be, DType::bf16, 2, 3, 5, [](int64_t r, int64_t c) { return r ? -4.25 * static_cast<double>(c) : 0.5 + static_cast<double>(c); });
  Quantised out = room(be, DType::f8e4m3, 2, 3);
  be.quantize(x, number(be, 4.0f), out);
  EXPECT_EQ(number(be, out.inverse_scale), 0.25f);
  EXPECT_EQ(meaning(be, out), (std::vector<double>{0.5, 1.5, 2.5, -0.0, -4.0, -8.0 /* 34 lies between 32 and 36 */}));
  be.quantize(x, number(be, 1000.0f), out);
  EXPECT_FLOAT_EQ(static_cast<float>(meaning(be, out)[2]), 0.448f);
  const Tensor scale = number(be, 3.0f);
  be.scale_from_amax(number(be, 7.0f), DType::f8e4m3, 1, scale);
  EXPECT_EQ(number(be, scale), 32.0f);
  be.scale_from_amax(number(be, 0.0f), DType::f8e4m3, 1, scale);
  EXPECT_EQ(number(be, scale), 32.0f);
}

TEST_P(Fp8Operations, BlocksHaveScalesOfTheirOwn) {
  // neighbouring blocks differ by 2^12, which one scale could not hold
  const auto f = [](int64_t r, int64_t c) { return std::ldexp(1.0 + static_cast<double>((r * 5 + c) % 8) / 8, static_cast<int>(((r / 4 + c / 4) % 2) * 12)); };
  const Tensor x = make(be, DType::f32, 10, 9, 11, f);
  for (DType type : {DType::f8e4m3, DType::f8e5m2})
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 4}, {4, 1}, {4, 4}}) {
      Quantised out = room(be, type, 10, 9, rows, cols);
      be.quantize_blocks(x, BlockScale::fitted, out);
      const std::vector<double> have = meaning(be, out), want = values(be, x);
      for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(have[i], want[i], want[i] * (type == DType::f8e4m3 ? 0 : 0x1p-3));
      double most = 0;  // of the first block, and so its scale
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) most = std::max(most, f(r, c));
      EXPECT_EQ(Host<float>(be, out.inverse_scale)[0], most > 1.75 ? (type == DType::f8e4m3 ? 0x1p-7f : 0x1p-14f) : (type == DType::f8e4m3 ? 0x1p-8f : 0x1p-15f));
    }
  Quantised mx = room(be, DType::f8e4m3, 1, 4, 1, 32);
  be.quantize_blocks(make(be, DType::f32, 1, 4, 4, [](int64_t, int64_t c) { return c == 3 ? 1.9 : 0.5; }), BlockScale::mx, mx);
  EXPECT_EQ(meaning(be, mx), (std::vector<double>{0.5, 0.5, 0.5, 1.75}));  // 1.9 x 256 saturates at 448
}

TEST_P(Fp8Operations, ProductsAreThoseOfTheNumbersHeld) {
  const int64_t m = 7, n = 10, k = 37;
  const Tensor bias = random(be, DType::bf16, 1, n, 3);
  const auto wide_bias = values(be, bias);
  for (int blocks = 0; blocks < 2; ++blocks)
    for (int flags = 0; flags < 16; ++flags) {
      const bool ta = flags & 1, tb = flags & 2, accumulate = flags & 4, f32 = flags & 8;
      const auto made_of = [&](bool rows_are_k, int64_t other, DType type, unsigned seed) {
        const int64_t rows = rows_are_k ? k : other, cols = rows_are_k ? other : k;
        const Tensor x = random(be, DType::bf16, rows, cols, seed, cols + 2);
        Quantised q = blocks ? room(be, type, rows, cols, rows_are_k ? 16 : 3, rows_are_k ? 3 : 16) : room(be, type, rows, cols);
        if (blocks) be.quantize_blocks(x, BlockScale::fitted, q);
        else be.quantize(x, number(be, 300.0f), q);
        return q;
      };
      const Quantised a = made_of(ta, m, DType::f8e5m2, 1), b = made_of(!tb, n, DType::f8e4m3, 2);
      const DType type = f32 ? DType::f32 : DType::bf16;
      const Tensor c = random(be, type, m, n, 4, n + 1);
      const auto before = values(be, c), wa = meaning(be, a), wb = meaning(be, b);
      be.gemm_fp8(a, ta, b, tb, c, accumulate, accumulate ? Tensor() : bias);
      std::vector<double> want;
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = accumulate ? before[static_cast<size_t>(i * n + j)] : wide_bias[static_cast<size_t>(j)];
          for (int64_t t = 0; t < k; ++t)
            sum += wa[static_cast<size_t>(ta ? t * m + i : i * k + t)] * wb[static_cast<size_t>(tb ? j * k + t : t * n + j)];
          want.push_back(sum);
        }
      EXPECT_LT(distance(values(be, c), want), f32 ? 2e-5 : 4e-2) << "flags " << flags << ", blocks " << blocks;
    }
}

TEST(Fp8Checks, ShapesAndTypesAreChecked) {
  for (const char* name : {"cpu", "meta"}) {
    auto made = make_backend(name);
    Backend& be = *made;
    const auto of = [&](DType t, int64_t r, int64_t c) { return be.alloc(t, r, c, MemoryKind::workspace); };
    const Quantised a = room(be, DType::f8e4m3, 4, 8), b = room(be, DType::f8e4m3, 6, 8);
    EXPECT_THROW(be.amax(of(DType::i32, 2, 2), of(DType::f32, 1, 1)), LogicError);
    EXPECT_THROW(be.amax(of(DType::bf16, 2, 2), of(DType::f32, 1, 2)), LogicError);
    EXPECT_THROW(be.quantize(of(DType::bf16, 4, 4), of(DType::f32, 1, 1), a), LogicError);
    EXPECT_THROW(be.quantize_blocks(of(DType::bf16, 4, 8), BlockScale::mx, a), LogicError);
    EXPECT_THROW(be.gemm_fp8(a, false, b, false, of(DType::bf16, 4, 6), false), LogicError);
    EXPECT_THROW(be.gemm_fp8(a, false, b, true, of(DType::f16, 4, 6), false), LogicError);
    EXPECT_THROW(be.gemm_fp8(a, false, room(be, DType::f8e4m3, 6, 8, 2, 2), true, of(DType::bf16, 4, 6), false), LogicError);
    EXPECT_THROW(be.scale_from_amax(of(DType::f32, 1, 1), DType::bf16, 0, of(DType::f32, 1, 1)), LogicError);
  }
}

}  // namespace
}  // namespace orthant
