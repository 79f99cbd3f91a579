// The split of a dataset into training, validation and test parts.
#include "data/split.hpp"

#include <charconv>
#include <cmath>

#include "orthant/error.hpp"

namespace orthant {

namespace {

// NumPy adds up to 128 numbers in eight interleaved partial sums and halves longer arrays.
double pairwise_sum(const double* a, size_t n) {
  if (n < 8) {
    double sum = n == 0 ? 0.0 : a[0];
    for (size_t i = 1; i < n; ++i) sum += a[i];
    return sum;
  }
  if (n > 128) {
    const size_t half = n / 2 - n / 2 % 8;
    return pairwise_sum(a, half) + pairwise_sum(a + half, n - half);
  }
  double lane[8];
  for (size_t k = 0; k < 8; ++k) lane[k] = a[k];
  size_t i = 8;
  for (; i + 8 <= n; i += 8)
    for (size_t k = 0; k < 8; ++k) lane[k] += a[i + k];
  double sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  for (; i < n; ++i) sum += a[i];
  return sum;
}

}  // namespace

std::vector<double> normalised(const std::vector<double>& values) {
  const double sum = pairwise_sum(values.data(), values.size());
  std::vector<double> shares;
  for (const double v : values) shares.push_back(v / sum);
  return shares;
}

std::array<double, 3> parse_split(const std::string& split) {
  auto refuse = [&](const std::string& why) {
    throw UsageError("data.split is \"" + split + "\": " + why +
                     "; give the shares of training, validation and test, such as \"969,30,1\"");
  };
  std::vector<double> shares;
  size_t begin = 0;
  while (begin <= split.size()) {
    const size_t end = std::min(split.find(',', begin), split.size());
    std::string part = split.substr(begin, end - begin);
    const size_t first = part.find_first_not_of(' '), last = part.find_last_not_of(' ');
    part = first == std::string::npos ? "" : part.substr(first, last - first + 1);
    double value = 0;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (part.empty() || error != std::errc() || stop != part.data() + part.size() || !std::isfinite(value))
      refuse("\"" + part + "\" is not a number");
    if (std::signbit(value)) refuse("\"" + part + "\" is negative");
    shares.push_back(value);
    begin = end + 1;
  }
  if (shares.size() > 3) refuse("it has " + std::to_string(shares.size()) + " shares, at most 3 are meant");
  shares.resize(3, 0.0);
  if (!(shares[0] + shares[1] + shares[2] > 0)) refuse("all shares are 0");
  shares = normalised(shares);
  return {shares[0], shares[1], shares[2]};
}

std::array<int64_t, 4> split_bounds(const std::array<double, 3>& shares, int64_t n) {
  std::array<int64_t, 4> bounds{};
  double sum = 0;
  for (size_t k = 0; k < 3; ++k) {
    sum += shares[k];
    bounds[k + 1] = std::min(n, static_cast<int64_t>(std::nearbyint(sum * static_cast<double>(n))));
  }
  return bounds;
}

}  // namespace orthant
