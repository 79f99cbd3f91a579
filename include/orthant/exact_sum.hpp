// An exact sum of doubles on the host, of the same form as Backend::exact_add (src/README.md, number 10): for the loss and the
// gradient norm in reproducible mode, and for moving such sums between ranks.
#pragma once

#include <cmath>
#include <cstdint>

namespace orthant {

struct ExactSum {
  int64_t hi = 0, lo = 0;

  /// Adds x; false (and nothing added) when x is NaN, infinite or not below 2^18 in size.
  bool add(double x) {
    if (!(std::abs(x) < 0x1p18)) return false;
    double high = std::rint(x * 0x1p20);
    hi += static_cast<int64_t>(high);
    lo += static_cast<int64_t>(std::rint((x - high * 0x1p-20) * 0x1p59));
    carry();
    return true;
  }
  void carry() {
    int64_t c = lo >> 39;
    hi += c;
    lo -= c * (int64_t{1} << 39);
  }
  double value() const {
    ExactSum s = *this;
    s.carry();
    return static_cast<double>(s.hi) * 0x1p-20 + static_cast<double>(s.lo) * 0x1p-59;
  }
};

}  // namespace orthant
