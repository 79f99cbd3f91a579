// A chart as text: curves of braille dots (2 x 4 to a character), or plain letters where the terminal has no UTF-8.
#pragma once

#include <string>

#include "support/chart.hpp"

namespace orthant::chart {

struct TerminalStyle {
  int columns = 80;     ///< whole width, tick labels included; at least 40 are used
  int rows = 18;        ///< rows of the curve area
  bool unicode = true;  ///< braille dots and box lines; else ASCII
  bool colour = false;  ///< ANSI colours
};

/// What standard output can show: its width (the window's, else COLUMNS, else 80), UTF-8 by the locale's variables,
/// colours when it is a terminal and neither NO_COLOR nor TERM=dumb forbids them.
TerminalStyle terminal_style();

/// The chart, each line ended by a newline. Background series are left out.
std::string to_terminal(const Chart& chart, const TerminalStyle& style);

}  // namespace orthant::chart
