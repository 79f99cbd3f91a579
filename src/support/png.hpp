// A chart as a PNG picture, painted by a small anti-aliasing rasteriser of our own: no font file, no graphics
// library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/chart_canvas.hpp"

namespace orthant::chart {

/// 8-bit RGB, rows from the top, no padding.
struct Picture {
  std::int64_t width = 0, height = 0;
  std::vector<std::uint8_t> rgb;  ///< 3 x width x height
};

/// Paints the chart with `scale` picture pixels for a logical one (2: sharp on high-density screens and on paper).
Picture paint(const Chart& chart, double scale);
/// The same for any drawing of `width` x `height` logical pixels.
Picture paint(double width, double height, double scale, const Painter& painter);
/// Writes the picture as PNG; throws DataError with the path when the file cannot be written.
void write_png(const Picture& picture, const std::string& path);

}  // namespace orthant::chart
