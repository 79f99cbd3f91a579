// A chart as an SVG document.
#pragma once

#include <string>

#include "support/chart.hpp"

namespace orthant::chart {

/// The whole document, with XML declaration; UTF-8; needs no style sheet, script or font file.
std::string to_svg(const Chart& chart);

}  // namespace orthant::chart
