// What a chart is drawn on. Coordinates are logical pixels from the top left corner; svg.cpp writes the calls down,
// png.cpp paints them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/chart.hpp"

namespace orthant::chart {

struct Point {
  double x = 0, y = 0;
};

enum class Anchor { start, middle, end };

class Canvas {
 public:
  virtual ~Canvas() = default;
  /// A line through the points with round joints; two points at least.
  virtual void line(const std::vector<Point>& points, Colour colour, double width, double opacity) = 0;
  virtual void disc(Point centre, double diameter, Colour colour, double opacity) = 0;
  /// Text whose baseline starts, is centred or ends at `at`. `upright`: turned by a quarter, reading upwards.
  virtual void text(Point at, const std::string& text, double size, Colour colour, Anchor anchor, bool bold,
                    bool upright) = 0;
  /// A filled rectangle by its top left corner. `edge_width` > 0: its outermost pixels are painted in `edge`.
  virtual void box(Point corner, double width, double height, Colour fill, Colour edge, double edge_width) = 0;
};

/// Draws something whose size was agreed with the canvas; called once.
using Painter = std::function<void(Canvas&)>;

/// Lays out title, legend, grid, axes and series, and draws them.
void draw(const Chart& chart, Canvas& canvas);

}  // namespace orthant::chart
