// The 16-bit floating types of model files, by integer arithmetic alone: the same bits on every compiler and machine.
#pragma once

#include <bit>
#include <cstdint>

namespace orthant {

/// bfloat16 is the upper half of a binary32: exact.
inline float float_from_bf16(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

/// Rounds to nearest, ties to even. A NaN stays a NaN and keeps the payload bits that fit, so that a file that was
/// read and written again is the same.
inline uint16_t bf16_from_float(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) {
    const uint16_t top = static_cast<uint16_t>(u >> 16);
    return (top & 0x7fu) ? top : static_cast<uint16_t>(top | 0x40u);
  }
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/// binary16 to binary32: exact, subnormals included.
inline float float_from_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t fraction = h & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // subnormal: fraction x 2^-24, exact in binary32
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

/// Rounds to nearest, ties to even; overflow gives infinity, tiny values give subnormals.
inline uint16_t f16_from_float(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) {
    const uint32_t fraction = (a >> 13) & 0x3ffu;
    return static_cast<uint16_t>(sign | 0x7c00u | (fraction ? fraction : 0x200u));
  }
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more rounds to infinity
  if (a >= 0x38800000u) {                                              // 2^-14: smallest normal
    const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (a < 0x33000000u) return sign;  // below 2^-25: rounds to zero (2^-25 itself is a tie and goes to zero below)
  const uint32_t exponent = a >> 23;
  const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 126u - exponent;  // the last bit kept is worth 2^-24
  const uint32_t kept = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  const uint32_t up = rest > half || (rest == half && (kept & 1u)) ? 1u : 0u;
  return static_cast<uint16_t>(sign | (kept + up));
}

}  // namespace orthant
