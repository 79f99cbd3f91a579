// Philox 4x32-10, the counter-based generator of Salmon et al. (SC 2011): random words as a function of a key and a
// counter, so that any rank can draw any element alone.
#pragma once

#include <cstdint>

#include "orthant/elementwise.hpp"

namespace orthant {

struct Philox4 {
  uint32_t x0, x1, x2, x3;
};

namespace detail {

/// Round `r` of the ten: the key of each is the first one moved on by a fixed step.
ORTHANT_HD Philox4 philox_round(Philox4 c, uint32_t k0, uint32_t k1, uint32_t r) {
  const uint64_t p0 = uint64_t{0xd2511f53u} * c.x0, p1 = uint64_t{0xcd9e8d57u} * c.x2;
  return {static_cast<uint32_t>(p1 >> 32) ^ c.x1 ^ (k0 + r * 0x9e3779b9u), static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.x3 ^ (k1 + r * 0xbb67ae85u), static_cast<uint32_t>(p0)};
}

}  // namespace detail

/// Ten rounds over the counter words c0..c3 with the key words k0, k1. Written without a loop, so that a loop over
/// counters is vectorised.
ORTHANT_HD Philox4 philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
  Philox4 c{c0, c1, c2, c3};
  c = detail::philox_round(c, k0, k1, 0);
  c = detail::philox_round(c, k0, k1, 1);
  c = detail::philox_round(c, k0, k1, 2);
  c = detail::philox_round(c, k0, k1, 3);
  c = detail::philox_round(c, k0, k1, 4);
  c = detail::philox_round(c, k0, k1, 5);
  c = detail::philox_round(c, k0, k1, 6);
  c = detail::philox_round(c, k0, k1, 7);
  c = detail::philox_round(c, k0, k1, 8);
  return detail::philox_round(c, k0, k1, 9);
}

/// The middle of the word's cell of (0, 1): never 0, never 1.
ORTHANT_HD double unit_interval(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

/// The words of dropout's elements 4 group .. 4 group + 3 (struct Dropout, backend.hpp).
ORTHANT_HD Philox4 dropout_words(uint64_t group, uint64_t key, int64_t step) {
  return philox(static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), static_cast<uint32_t>(step), 0,
                static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}
/// The largest word that drops its element, for rates in (0, 1): words of at least rate 2^32 stay, and that bound can be
/// 2^32, which no word reaches or holds.
ORTHANT_HD uint32_t dropout_last(double rate) {
  const double bound = rate * 0x1p32;
  const uint64_t below = static_cast<uint64_t>(bound);
  return static_cast<uint32_t>(static_cast<double>(below) == bound ? below - 1 : below);
}

}  // namespace orthant
