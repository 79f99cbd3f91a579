// Axes, ticks, smoothing and text helpers of the chart model.
#include "support/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace orthant::chart {

Colour palette(int index) {
  static constexpr std::array<Colour, 8> colours = {{{0x1f, 0x6f, 0xd6},
                                                     {0xe0, 0x6c, 0x00},
                                                     {0x12, 0x8a, 0x5f},
                                                     {0x9a, 0x3f, 0xb5},
                                                     {0xc9, 0x2a, 0x3a},
                                                     {0x0b, 0x97, 0xa8},
                                                     {0x8a, 0x6d, 0x1b},
                                                     {0x55, 0x60, 0x70}}};
  return colours[static_cast<std::size_t>(index) % colours.size()];
}

namespace {

/// The next larger of 1, 2, 5 x 10^n.
double nice_step(double rough) {
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double part = rough / power;
  const double nice = part <= 1.0 + 1e-9 ? 1 : part <= 2.0 + 1e-9 ? 2 : part <= 5.0 + 1e-9 ? 5 : 10;
  return nice * power;
}

std::string trimmed(double value, int decimals) {
  std::string text = fmt::format("{:.{}f}", value, decimals);
  return text == "-0" ? "0" : text;
}

/// Digits after the point that tell multiples of `step` apart.
int decimals_for(double step) { return std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 12); }

std::pair<double, double> range(const Chart& chart, bool of_x) {
  double lo = std::numeric_limits<double>::infinity(), hi = -lo;
  for (const Series& s : chart.series) {
    for (std::size_t i = 0; i < s.x.size(); ++i) {
      if (!std::isfinite(s.x[i]) || !std::isfinite(s.y[i])) continue;
      const double v = of_x ? s.x[i] : s.y[i];
      lo = std::min(lo, v);
      hi = std::max(hi, v);
    }
  }
  return lo <= hi ? std::pair{lo, hi} : std::pair{0.0, 1.0};
}

}  // namespace

std::string tick_label(double value, double step) {
  const double size = std::max(std::abs(value), step);
  if (std::abs(value) < step * 1e-6) return "0";
  if (size < 1e-3) {  // 3e-4, not 0.0003
    const int exponent = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
    const double unit = std::pow(10.0, exponent);
    return trimmed(value / unit, decimals_for(step / unit)) + fmt::format("e{}", exponent);
  }
  static constexpr std::array<std::pair<double, const char*>, 4> units = {
      {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}}};
  for (const auto& [unit, suffix] : units) {
    // 1000 to 9999 read well as they are
    if (size >= unit * (unit < 1e4 ? 10 : 1)) return trimmed(value / unit, decimals_for(step / unit)) + suffix;
  }
  return trimmed(value, decimals_for(step));
}

Axis make_axis(double lo, double hi, int target, bool integer) {
  if (!(hi > lo)) {  // one value only: make room around it
    const double room = std::max(std::abs(lo) * 0.1, integer ? 1.0 : 1e-6);
    lo -= room;
    hi += room;
  }
  Axis axis;
  axis.lo = lo;
  axis.hi = hi;
  double step = nice_step((hi - lo) / std::max(1, target));
  if (integer) step = std::max(1.0, step);
  const double slack = step * 1e-6;
  const double first = std::ceil((lo - slack) / step);
  for (int i = 0;; ++i) {
    const double at = (first + i) * step;
    if (at > hi + slack) break;
    axis.ticks.push_back({at, tick_label(at, step)});
  }
  return axis;
}

Axis x_axis(const Chart& chart, int target) {
  auto [lo, hi] = range(chart, true);
  if (lo > 0 && lo < 0.1 * hi) lo = 0;  // a run that starts at step 1 is drawn from 0
  return make_axis(lo, hi, target, chart.integer_x);
}

Axis y_axis(const Chart& chart, int target) {
  auto [lo, hi] = range(chart, false);
  const double margin = 0.05 * (hi - lo);
  const bool positive = lo >= 0;
  lo -= margin;
  hi += margin;
  if (positive && lo < 0.15 * hi) lo = 0;
  return make_axis(lo, hi, target, false);
}

std::vector<double> smooth(const std::vector<double>& y, std::int64_t half) {
  const auto n = static_cast<std::int64_t>(y.size());
  std::vector<double> out(y);
  // Prefix sums would lose digits after a spike of 1e30; a fresh sum for each window costs n x half and does not.
  for (std::int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(y[static_cast<std::size_t>(i)])) continue;
    const std::int64_t before = std::min(half, i), after = std::min(before, n - 1 - i);
    double sum = 0;
    std::int64_t count = 0;
    for (std::int64_t j = i - before; j <= i + after; ++j) {
      const double v = y[static_cast<std::size_t>(j)];
      if (!std::isfinite(v)) continue;
      sum += v;
      ++count;
    }
    out[static_cast<std::size_t>(i)] = sum / static_cast<double>(count);
  }
  return out;
}

/// Bytes of the character that starts with this one; 0 when none does.
static int utf8_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
}

std::vector<std::uint32_t> code_points(const std::string& text) {
  constexpr std::uint32_t replacement = 0xFFFD;
  std::vector<std::uint32_t> out;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const int length = utf8_length(lead);
    std::uint32_t code = length == 1 ? lead : length == 0 ? replacement : lead & (0x7Fu >> length);
    bool good = length > 0 && i + static_cast<std::size_t>(length) <= text.size();
    for (int k = 1; good && k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]);
      good = (next & 0xC0u) == 0x80u;
      code = (code << 6) | (next & 0x3Fu);
    }
    static constexpr std::array<std::uint32_t, 5> least = {0, 0, 0x80, 0x800, 0x10000};
    if (good)
      good = code >= least[static_cast<std::size_t>(length)] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    i += good ? static_cast<std::size_t>(length) : 1;
    const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0xFFFE || code == 0xFFFF;
    out.push_back(good && !control ? code : replacement);
  }
  return out;
}

std::string utf8(std::uint32_t c) {
  std::string out;
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
  return out;
}

}  // namespace orthant::chart
