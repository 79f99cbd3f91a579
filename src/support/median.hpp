// The middle one of some numbers.
#pragma once

#include <algorithm>
#include <vector>

namespace orthant {

/// Mean of the two in the middle where their number is even. `x` is not empty.
inline double median(std::vector<double> x) {
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  if (x.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(x.begin(), middle)) / 2;
}

}  // namespace orthant
