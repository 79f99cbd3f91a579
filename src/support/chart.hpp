// A chart as data: series, labels and axes, with no idea of how it is drawn. chart_draw.cpp lays it out on a Canvas
// (svg.cpp, png.cpp); terminal_chart.cpp turns the same chart into characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orthant::chart {

struct Colour {
  std::uint8_t r = 0, g = 0, b = 0;
};

/// The i-th colour for a run; repeats after eight. Told apart also by the common kinds of colour blindness.
Colour palette(int index);

struct Series {
  enum class Mark { line, points };
  std::string label;  ///< for the legend; empty = not in the legend
  Mark mark = Mark::line;
  Colour colour;
  double width = 2.0;        ///< line width, or diameter of a point, in logical pixels
  double opacity = 1.0;      ///< 0 to 1
  bool background = false;   ///< the noisy curve behind a smoothed one: left out where there is no room for both
  std::vector<double> x, y;  ///< same length; a non-finite y interrupts the line
};

struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  double width = 960, height = 540;  ///< logical pixels
  bool integer_x = false;            ///< ticks of x only at whole numbers (steps)
};

struct Tick {
  double at = 0;
  std::string label;
};

struct Axis {
  double lo = 0, hi = 1;  ///< lo < hi always, both finite
  std::vector<Tick> ticks;
  /// Position of a value on the axis: 0 at lo, 1 at hi.
  double place(double value) const { return (value - lo) / (hi - lo); }
};

/// An axis from lo to hi with about `target` ticks at 1, 2 or 5 times a power of ten.
Axis make_axis(double lo, double hi, int target, bool integer);
/// The axes that hold every finite point of the chart; y gets a small margin. 0 to 1 when there is no such point.
Axis x_axis(const Chart& chart, int target);
Axis y_axis(const Chart& chart, int target);

/// A number the way people write it beside a curve whose neighbouring ticks are `step` apart: 1.25, 20k, 3e-4.
std::string tick_label(double value, double step);

/// Mean over a window of 2 half + 1 neighbours. At the start it shrinks on both sides, so that the steep first values
/// are not dragged; at the end it only loses its right side, so that the curve does not end in one noisy value.
/// Non-finite values are left out of the means and stay as they are.
std::vector<double> smooth(const std::vector<double>& y, std::int64_t half);

/// Splits text into code points. Bytes that are not UTF-8 and control characters become U+FFFD, so that a strange
/// folder name breaks neither an XML file nor a terminal.
std::vector<std::uint32_t> code_points(const std::string& text);
std::string utf8(std::uint32_t code_point);

}  // namespace orthant::chart
