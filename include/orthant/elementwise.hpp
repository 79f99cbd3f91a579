// Pointwise maths shared by the host and the device: one source, so that every backend gives the same bits.
//
// exp, log, tanh, sin, cos are ours: argument reduction by Cody and Waite, then a polynomial fitted to the reduced
// interval. They use +, -, *, / and bit patterns only: no fused multiply-add (a portable build has none, and the
// NumPy oracle could not repeat it), no branch, no table, so that loops over them are vectorised without -ffast-math.
// Compile with -ffp-contract=off (nvcc: -fmad=false), else the bits differ between files.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define ORTHANT_HD __host__ __device__ inline
#elif defined(__GNUC__)
// a large file can exhaust the compiler's appetite for inlining, and a call inside a loop keeps it scalar
#define ORTHANT_HD inline __attribute__((always_inline))
#else
#define ORTHANT_HD inline
#endif

namespace orthant {

// ---- bit patterns

ORTHANT_HD uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
ORTHANT_HD uint64_t bits_of(double x) {
  uint64_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
ORTHANT_HD float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}
ORTHANT_HD double double_of(uint64_t u) {
  double x;
  memcpy(&x, &u, sizeof x);
  return x;
}
ORTHANT_HD float abs_(float x) { return float_of(bits_of(x) & 0x7fffffffu); }
ORTHANT_HD double abs_(double x) { return double_of(bits_of(x) & 0x7fffffffffffffffull); }
ORTHANT_HD float copysign_(float x, float sign) {
  return float_of((bits_of(x) & 0x7fffffffu) | (bits_of(sign) & 0x80000000u));
}
ORTHANT_HD double copysign_(double x, double sign) {
  return double_of((bits_of(x) & 0x7fffffffffffffffull) | (bits_of(sign) & 0x8000000000000000ull));
}
/// Correctly rounded on host and device (nvcc: keep -prec-sqrt=true).
ORTHANT_HD float sqrt_(float x) { return ::sqrtf(x); }
ORTHANT_HD double sqrt_(double x) { return ::sqrt(x); }
/// condition ? a : b by a mask: GCC turns ?: on floats into jumps (it may not speculate a trapping operation), which
/// would keep loops scalar.
ORTHANT_HD float select_(bool condition, float a, float b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return float_of((bits_of(a) & mask) | (bits_of(b) & ~mask));
}
ORTHANT_HD double select_(bool condition, double a, double b) {
  const uint64_t mask = uint64_t{0} - static_cast<uint64_t>(condition);
  return double_of((bits_of(a) & mask) | (bits_of(b) & ~mask));
}
/// False for NaN and infinities.
ORTHANT_HD bool finite_(float x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }
ORTHANT_HD bool finite_(double x) { return (bits_of(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }

// ---- 16-bit types: storage only; sums and products are always taken in float

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

ORTHANT_HD float to_float(bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
/// Nearest even; a NaN stays a (quiet) NaN.
ORTHANT_HD bf16 to_bf16(float x) {
  const uint32_t u = bits_of(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  return bf16{static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

/// The float whose later rounding to a 16-bit type gives what rounding `x` itself once would give: rounded to odd.
ORTHANT_HD float round_to_odd(double x) {
  const float near = static_cast<float>(x);
  const double back = static_cast<double>(near);
  const uint32_t u = bits_of(near);
  // near lies on the other side of x when it grew in magnitude: step back, so that truncation, then set the last bit
  const uint32_t truncated = abs_(back) > abs_(x) ? u - 1u : u;
  return select_((back != x) & (x == x), float_of(truncated | 1u), near);
}
ORTHANT_HD bf16 to_bf16(double x) { return to_bf16(round_to_odd(x)); }

/// IEEE half precision, denormals included.
ORTHANT_HD float to_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  // as a float the shifted pattern is 2^-112 times the value, denormals too; the product is exact
  const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
  const uint32_t special = 0x7f800000u | (magnitude << 13);
  return float_of(sign | (magnitude >= 0x7c00u ? special : finite));
}
/// Nearest even; beyond 65504 (rounded) infinity; a NaN stays a NaN.
ORTHANT_HD f16 to_f16(float x) {
  const uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // adding 0.5 leaves the multiple of 2^-24 (the step of half denormals) in the last bits
  const uint32_t denormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  const uint32_t overflow = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t h = magnitude >= 0x477ff000u ? overflow : (magnitude < 0x38800000u ? denormal : normal);
  return f16{static_cast<uint16_t>(sign | h)};
}
ORTHANT_HD f16 to_f16(double x) { return to_f16(round_to_odd(x)); }

// ---- 8-bit types: E4M3 has no infinity and one NaN of each sign, E5M2 is the upper half of an IEEE half

struct f8e4m3 {
  uint8_t bits;
};
struct f8e5m2 {
  uint8_t bits;
};
constexpr float largest_e4m3 = 448.0f, largest_e5m2 = 57344.0f;

ORTHANT_HD float to_float(f8e4m3 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
  // as a float the shifted pattern is 2^-120 times the value, denormals too; the product is exact
  const uint32_t value = bits_of(float_of(magnitude << 20) * 0x1p120f);
  return float_of(sign | (magnitude == 0x7fu ? 0x7fc00000u : value));
}
ORTHANT_HD float to_float(f8e5m2 x) { return to_float(f16{static_cast<uint16_t>(x.bits << 8)}); }

namespace detail {
/// The magnitude |x| as an 8-bit float with `mantissa` bits and the exponent bias 127 - `shift`, nearest even, for |x| no larger
/// than the format's largest. `half` is the number whose last bit is the step of the format's denormals.
ORTHANT_HD uint32_t small_float(uint32_t magnitude, uint32_t mantissa, uint32_t shift, float half) {
  const uint32_t drop = 23u - mantissa;
  const uint32_t normal = (magnitude - (shift << 23) + ((1u << (drop - 1u)) - 1u) + ((magnitude >> drop) & 1u)) >> drop;
  const uint32_t denormal = bits_of(float_of(magnitude) + half) - bits_of(half);
  return magnitude < ((shift + 1u) << 23) ? denormal : normal;
}
}  // namespace detail

/// Nearest even; beyond the largest number (infinities too) that number, as the conversions of GPUs that saturate; NaN stays NaN.
ORTHANT_HD f8e4m3 to_f8e4m3(float x) {
  const uint32_t u = bits_of(x), sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
  const uint32_t kept = magnitude > bits_of(largest_e4m3) ? bits_of(largest_e4m3) : magnitude;
  const uint32_t code = magnitude > 0x7f800000u ? 0x7fu : detail::small_float(kept, 3u, 120u, 0x1p14f);
  return f8e4m3{static_cast<uint8_t>(sign | code)};
}
ORTHANT_HD f8e5m2 to_f8e5m2(float x) {
  const uint32_t u = bits_of(x), sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
  const uint32_t kept = magnitude > bits_of(largest_e5m2) ? bits_of(largest_e5m2) : magnitude;
  const uint32_t code = magnitude > 0x7f800000u ? 0x7eu : detail::small_float(kept, 2u, 112u, 0x1p7f);
  return f8e5m2{static_cast<uint8_t>(sign | code)};
}

/// The factor that brings numbers up to `amax` to the format's `largest`, with 2^margin of head room: Transformer Engine's rule.
/// Of a tensor of zeros, or one that is not finite, nothing can be learned: the factor `before` stays.
ORTHANT_HD float fp8_scale(float amax, float largest, int margin, float before) {
  if (!(amax > 0.0f) || !finite_(amax)) return before;
  const float scale = largest / amax / float_of(static_cast<uint32_t>(127 + margin) << 23);
  return finite_(scale) ? scale : 0x1.fffffep127f;
}
/// The scale of a block, a power of two. fitted: the largest that takes no element beyond `largest`. mx: 2^(emax - floor(log2
/// amax)) with emax the exponent of `largest`, as the OCP recipe has it: elements in the last eighth before a power of two saturate.
ORTHANT_HD float fp8_block_scale(float amax, float largest, bool mx) {
  if (!(amax > 0.0f) || !finite_(amax)) return 1.0f;
  const int exponent = static_cast<int>(bits_of(amax) >> 23), top = static_cast<int>(bits_of(largest) >> 23);  // denormals count as 2^-126
  int e = top - (exponent > 0 ? exponent : 1);
  if (!mx && (bits_of(amax) & 0x7fffffu) > (bits_of(largest) & 0x7fffffu)) --e;
  e = e > 126 ? 126 : e < -126 ? -126 : e;  // the inverse is a normal number too
  return float_of(static_cast<uint32_t>(127 + e) << 23);
}

// ---- exp

namespace detail {

/// exp(x) = 2^n (1 + q), |q| < 0.42, as q and the two halves 2^a, 2^b (a + b = n) that keep denormals and overflow
/// right. x in [-104, 89] (float) or [-746, 710] (double), or NaN (which makes q NaN).
template <class T>
struct ExpParts {
  T q, half1, half2;
};

ORTHANT_HD ExpParts<float> exp_parts(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: the sum's last bits are the rounded integer
  const float shifted = x * 1.44269504f + magic;
  const float n = shifted - magic;
  const float r = (x - n * 0.69317626953125f) - n * -2.9088971e-05f;
  float p = 0.0013926326f;
  p = p * r + 0.008363293f;
  p = p * r + 0.041666552f;
  p = p * r + 0.16666576f;
  p = p * r + 0.5f;
  const float halved = n * 0.5f + magic;
  const uint32_t a = bits_of(halved) - bits_of(magic), b = bits_of(shifted) - bits_of(magic) - a;
  return {r + (r * r) * p, float_of((a + 127u) << 23), float_of((b + 127u) << 23)};
}

ORTHANT_HD ExpParts<double> exp_parts(double x) {
  const double magic = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = x * 1.4426950408889634 + magic;
  const double n = shifted - magic;
  const double r = (x - n * 0x1.62e42fefa3800p-1) - n * 0x1.ef35793c76730p-45;
  double p = 0x1.1f7385560be05p-29;
  p = p * r + 0x1.af4ecd2129492p-26;
  p = p * r + 0x1.27e4db25ce3adp-22;
  p = p * r + 0x1.71de01c3fc936p-19;
  p = p * r + 0x1.a01a01a6ec522p-16;
  p = p * r + 0x1.a01a01ac0a9eep-13;
  p = p * r + 0x1.6c16c16c162b0p-10;
  p = p * r + 0x1.111111111009cp-7;
  p = p * r + 0x1.5555555555556p-5;
  p = p * r + 0x1.5555555555557p-3;
  p = p * r + 0.5;
  const double halved = n * 0.5 + magic;
  const uint64_t a = bits_of(halved) - bits_of(magic), b = bits_of(shifted) - bits_of(magic) - a;
  return {r + (r * r) * p, double_of((a + 1023u) << 52), double_of((b + 1023u) << 52)};
}

/// Clamp that lets NaN through.
template <class T>
ORTHANT_HD T clamp_(T x, T low, T high) {
  const T raised = select_(x < low, low, x);
  return select_(raised > high, high, raised);
}

}  // namespace detail

/// e^x; within 1.1 units in the last place (denormal results: of the smallest denormal). exp_(-inf) = 0, NaN stays
/// NaN.
ORTHANT_HD float exp_(float x) {
  const auto e = detail::exp_parts(detail::clamp_(x, -104.0f, 89.0f));
  return (1.0f + e.q) * e.half1 * e.half2;
}
ORTHANT_HD double exp_(double x) {
  const auto e = detail::exp_parts(detail::clamp_(x, -746.0, 710.0));
  return (1.0 + e.q) * e.half1 * e.half2;
}

// ---- log

/// Natural logarithm; within 1.1 units in the last place. log_(0) = -inf, log_(negative) = NaN, log_(inf) = inf.
ORTHANT_HD float log_(float x) {
  const bool small = x < 0x1p-126f;
  const uint32_t u = bits_of(select_(small, x * 0x1p23f, x));
  // exponent and fraction taken so that m lies in [sqrt(1/2), sqrt(2)); 2^23 + e is read off a bit pattern
  const uint32_t t = u + (0x3f800000u - 0x3f3504f3u);
  const float e = (float_of((t >> 23) | 0x4b000000u) - 8388735.0f) - select_(small, 23.0f, 0.0f);
  const float m = float_of((t & 0x7fffffu) + 0x3f3504f3u);
  const float f = m - 1.0f, s = f / (2.0f + f), z = s * s;
  const float p = ((0.29582024f * z + 0.39988735f) * z + 0.66666687f) * z;
  const float result = e * 0.69317626953125f + (f - (s * (f - p) - e * -2.9088971e-05f));
  const float special = select_(x == 0.0f, float_of(0xff800000u), select_(x > 0.0f, x, float_of(0x7fc00000u)));
  return select_((x > 0.0f) & (x < float_of(0x7f800000u)), result, special);
}
ORTHANT_HD double log_(double x) {
  const bool small = x < 0x1p-1022;
  const uint64_t u = bits_of(select_(small, x * 0x1p52, x));
  const uint64_t t = u + (0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull);
  const double e = (double_of((t >> 52) | 0x4330000000000000ull) - 4503599627371519.0) - select_(small, 52.0, 0.0);
  const double m = double_of((t & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);
  const double f = m - 1.0, s = f / (2.0 + f), z = s * s;
  double p = 0x1.2b6686d1072f3p-3;
  p = p * z + 0x1.39fd39474ad34p-3;
  p = p * z + 0x1.7462bd8e53c17p-3;
  p = p * z + 0x1.c71c62c63e016p-3;
  p = p * z + 0x1.2492492e09d1ap-2;
  p = p * z + 0x1.9999999995204p-2;
  p = p * z + 0x1.5555555555558p-1;
  p = p * z;
  const double result = e * 0x1.62e42fefa3800p-1 + (f - (s * (f - p) - e * 0x1.ef35793c76730p-45));
  const double special =
      select_(x == 0.0, double_of(0xfff0000000000000ull), select_(x > 0.0, x, double_of(0x7ff8000000000000ull)));
  return select_((x > 0.0) & (x < double_of(0x7ff0000000000000ull)), result, special);
}

// ---- sin, cos (double only: initialisation and rotary angles)

namespace detail {

/// x = n pi/2 + r, |r| <= pi/4; returns sin(r), cos(r) and the quadrant n mod 4.
struct Quadrant {
  double sine, cosine;
  uint64_t n;
};

ORTHANT_HD Quadrant quadrant(double x) {
  const double magic = 6755399441055744.0;
  const double shifted = x * 0.63661977236758138 + magic;
  const double n = shifted - magic;
  const double r = ((x - n * 0x1.921fb54400000p+0) - n * 0x1.0b4611a600000p-34) - n * 0x1.3198a2e037073p-69;
  const double z = r * r;
  double s = 0x1.5e07f04f301b6p-33;
  s = s * z + -0x1.ae60023696a43p-26;
  s = s * z + 0x1.71de378e148cap-19;
  s = s * z + -0x1.a01a019e7d21ap-13;
  s = s * z + 0x1.1111111110b97p-7;
  s = s * z + -0x1.5555555555555p-3;
  double c = -0x1.907a78f9a8549p-37;
  c = c * z + 0x1.1eeb64821c697p-29;
  c = c * z + -0x1.27e4fa139e45dp-22;
  c = c * z + 0x1.a01a019f4b6aap-16;
  c = c * z + -0x1.6c16c16c16959p-10;
  c = c * z + 0x1.5555555555555p-5;
  // 1 - z/2 loses bits that the second bracket gives back
  const double half = 0.5 * z, w = 1.0 - half;
  return {r + r * z * s, w + (((1.0 - w) - half) + z * z * c), bits_of(shifted) - bits_of(magic)};
}

}  // namespace detail

/// For |x| <= 2^20; absolute error below 1.6e-16 there.
ORTHANT_HD double sin_(double x) {
  const auto q = detail::quadrant(x);
  const double v = select_((q.n & 1u) != 0, q.cosine, q.sine);
  return double_of(bits_of(v) ^ ((q.n & 2u) << 62));
}
ORTHANT_HD double cos_(double x) {
  const auto q = detail::quadrant(x);
  const double v = select_((q.n & 1u) != 0, q.sine, q.cosine);
  return double_of(bits_of(v) ^ (((q.n + 1u) & 2u) << 62));
}

// ---- activations; T is float or double

/// Through expm1(-2|x|), so that small arguments keep their relative accuracy (3 units in the last place).
ORTHANT_HD float tanh_(float x) {
  const auto e = detail::exp_parts(detail::clamp_(-2.0f * abs_(x), -50.0f, 0.0f));
  const float power = e.half1 * e.half2, t = e.q * power + (power - 1.0f);
  return copysign_(t / (2.0f + t), x);
}
ORTHANT_HD double tanh_(double x) {
  const auto e = detail::exp_parts(detail::clamp_(-2.0 * abs_(x), -100.0, 0.0));
  const double power = e.half1 * e.half2, t = e.q * power + (power - 1.0);
  return copysign_(t / (2.0 + t), x);
}

namespace detail {

/// sigmoid(x) and 1 - sigmoid(x), neither by subtraction.
template <class T>
struct SigmoidPair {
  T value, complement;
};
template <class T>
ORTHANT_HD SigmoidPair<T> sigmoid_pair(T x) {
  const T e = exp_(-abs_(x)), inverse = T(1) / (T(1) + e), other = e * inverse;
  const bool positive = x >= T(0);
  return {select_(positive, inverse, other), select_(positive, other, inverse)};
}

}  // namespace detail

template <class T>
ORTHANT_HD T sigmoid(T x) {
  return detail::sigmoid_pair(x).value;
}

/// x sigmoid(x).
template <class T>
ORTHANT_HD T silu(T x) {
  return x * sigmoid(x);
}
template <class T>
ORTHANT_HD T silu_grad(T x) {
  const auto s = detail::sigmoid_pair(x);
  return s.value + (x * s.value) * s.complement;
}

/// gelu_new: x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), written x sigmoid(2 u) to keep the negative tail.
template <class T>
ORTHANT_HD T gelu_tanh(T x) {
  const T two_k = T(1.5957691216057308);
  return x * sigmoid(two_k * (x + T(0.044715) * (x * x * x)));
}
template <class T>
ORTHANT_HD T gelu_tanh_grad(T x) {
  const T two_k = T(1.5957691216057308);
  const T y = detail::clamp_(x, T(-40), T(40));  // constant beyond; keeps x^2 finite
  const T square = y * y;
  const auto s = detail::sigmoid_pair(two_k * (y + T(0.044715) * (square * y)));
  return s.value + (y * s.value) * (s.complement * (two_k * (T(1) + T(0.134145) * square)));
}

}  // namespace orthant
