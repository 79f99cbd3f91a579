// A stroke font for pictures: letters are lines and quarter ellipses, so they are smooth at any size and need no
// file.
#pragma once

#include <string>
#include <vector>

#include "support/chart_canvas.hpp"

namespace orthant::chart {

/// Width of the text in the unit of `size` (the font size: cap height is 0.72 of it).
double text_width(const std::string& text, double size);
/// The lines of the text: x to the right from its start, y upwards from the baseline. Characters outside ASCII are
/// drawn as a box.
std::vector<std::vector<Point>> text_strokes(const std::string& text, double size);

}  // namespace orthant::chart
