// A chart as an SVG document.
#pragma once

#include <string>

#include "support/chart_canvas.hpp"

namespace orthant::chart {

/// The whole document, with XML declaration; UTF-8; needs no style sheet, script or font file.
std::string to_svg(const Chart& chart);
/// The same for any drawing of `width` x `height` logical pixels.
std::string to_svg(const std::string& title, double width, double height, const Painter& painter);

}  // namespace orthant::chart
