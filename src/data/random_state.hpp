// NumPy's legacy RandomState: the Mersenne Twister seeded by one word, and its shuffle. Megatron draws its orders
// from it.
#pragma once

#include <cstdint>
#include <random>
#include <utility>

namespace orthant {

class RandomState {
 public:
  explicit RandomState(uint32_t seed) : words_(seed) {}

  /// A draw from [0, max]: words masked to the bits of max, drawn again while above it. Two words (the first one
  /// high) where max needs more than 32 bits.
  uint64_t interval(uint64_t max) {
    if (max == 0) return 0;
    uint64_t mask = max;
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    const bool wide = max > 0xffffffffu;
    while (true) {
      uint64_t value = words_();
      if (wide) value = (value << 32) | words_();
      value &= mask;
      if (value <= max) return value;
    }
  }

  template <typename T>
  void shuffle(T* items, int64_t n) {
    for (int64_t i = n - 1; i > 0; --i) std::swap(items[i], items[interval(static_cast<uint64_t>(i))]);
  }

 private:
  std::mt19937 words_;  // the standard fixes its words: the same generator and seeding as NumPy's
};

}  // namespace orthant
