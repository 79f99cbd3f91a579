// Philox 4x32-10, the counter-based generator of Salmon et al. (SC 2011): random words as a function of a key and a
// counter, so that any rank can draw any element alone.
#pragma once

#include <cstdint>

#include "orthant/elementwise.hpp"

namespace orthant {

struct Philox4 {
  uint32_t x0, x1, x2, x3;
};

/// Ten rounds over the counter words c0..c3 with the key words k0, k1.
ORTHANT_HD Philox4 philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xd2511f53u} * c0, p1 = uint64_t{0xcd9e8d57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return {c0, c1, c2, c3};
}

/// The middle of the word's cell of (0, 1): never 0, never 1.
ORTHANT_HD double unit_interval(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

}  // namespace orthant
