// The split of a dataset into training, validation and test parts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// "969,30,1" -> shares that add up to 1; missing ones are 0. UsageError naming data.split for anything else than
/// one to three non-negative numbers with a positive sum.
std::array<double, 3> parse_split(const std::string& split);

/// Bounds of the three parts over `n` sequences: cumulative shares times n, rounded half to even.
std::array<int64_t, 4> split_bounds(const std::array<double, 3>& shares, int64_t n);

/// The values over their sum, with the sum's order of additions of NumPy (it decides ties between equal weights).
std::vector<double> normalised(const std::vector<double>& values);

}  // namespace orthant
