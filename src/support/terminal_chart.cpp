// Draws a chart with characters.
#include "support/terminal_chart.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

namespace orthant::chart {

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool utf8_locale() {
  std::string locale = environment("LC_ALL");
  if (locale.empty()) locale = environment("LC_CTYPE");
  if (locale.empty()) locale = environment("LANG");
  std::transform(locale.begin(), locale.end(), locale.begin(), [](unsigned char c) { return std::tolower(c); });
  return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
}

/// Text as it may go to a terminal: no control characters, and ASCII alone where nothing else can be shown.
std::string shown(const std::string& text, bool unicode) {
  std::string out;
  for (const std::uint32_t c : code_points(text)) out += unicode || c < 0x7F ? utf8(c) : "?";
  return out;
}

/// The curve area: a grid of dots gathered into characters.
class Dots {
 public:
  Dots(int columns, int rows, bool braille)
      : columns_(columns), rows_(rows), braille_(braille), cells_(static_cast<std::size_t>(columns * rows)) {}

  int width() const { return columns_ * (braille_ ? 2 : 1); }
  int height() const { return rows_ * (braille_ ? 4 : 1); }

  void dot(int x, int y, int series, char letter) {
    if (x < 0 || y < 0 || x >= width() || y >= height()) return;
    Cell& cell = cells_[static_cast<std::size_t>((braille_ ? y / 4 : y) * columns_ + (braille_ ? x / 2 : x))];
    // the bits of U+2800: dots 1-3 and 7 down the left column, 4-6 and 8 down the right one
    static constexpr unsigned bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    cell.dots |= braille_ ? bits[y % 4][x % 2] : 1u;
    cell.series = series;
    cell.letter = letter;
  }
  /// A character of its own over whatever is there (a point of a series).
  void mark(int x, int y, int series, const std::string& glyph) {
    if (x < 0 || y < 0 || x >= width() || y >= height()) return;
    Cell& cell = cells_[static_cast<std::size_t>((braille_ ? y / 4 : y) * columns_ + (braille_ ? x / 2 : x))];
    cell.glyph = glyph;
    cell.series = series;
  }
  void line(int x0, int y0, int x1, int y1, int series, char letter) {
    const int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
    for (int i = 0; i <= steps; ++i) {
      const double t = static_cast<double>(i) / steps;
      dot(static_cast<int>(std::lround(x0 + t * (x1 - x0))), static_cast<int>(std::lround(y0 + t * (y1 - y0))),
          series, letter);
    }
  }
  /// One row of characters; `paint` wraps a character in the colour of its series.
  template <class Paint>
  std::string row(int r, const Paint& paint) const {
    std::string out;
    for (int c = 0; c < columns_; ++c) {
      const Cell& cell = cells_[static_cast<std::size_t>(r * columns_ + c)];
      if (!cell.glyph.empty())
        out += paint(cell.series, cell.glyph);
      else if (cell.dots == 0)
        out += ' ';
      else
        out += paint(cell.series, braille_ ? utf8(0x2800 + cell.dots) : std::string(1, cell.letter));
    }
    return out;
  }

 private:
  struct Cell {
    unsigned dots = 0;
    int series = -1;
    char letter = ' ';
    std::string glyph;
  };
  int columns_, rows_;
  bool braille_;
  std::vector<Cell> cells_;
};

std::string right_trimmed(std::string text) {
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace

TerminalStyle terminal_style() {
  TerminalStyle style;
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  winsize window{};
  if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) {
    style.columns = window.ws_col;
  } else if (const int columns = std::atoi(environment("COLUMNS").c_str()); columns > 0) {
    style.columns = columns;
  }
  style.columns = std::min(style.columns, 160);  // wider than this the curve only gets flat
  style.unicode = utf8_locale();
  style.colour = terminal && environment("NO_COLOR").empty() && environment("TERM") != "dumb";
  return style;
}

std::string to_terminal(const Chart& chart, const TerminalStyle& style) {
  const auto n = static_cast<int>(chart.series.size());
  // Braille cannot tell several curves apart without colours; letters can.
  int lines = 0;
  for (const Series& s : chart.series) lines += s.mark == Series::Mark::line && !s.background ? 1 : 0;
  const bool braille = style.unicode && (style.colour || lines <= 1);

  const Axis y = y_axis(chart, std::max(2, style.rows / 3));
  std::size_t label_width = 0;
  for (const Tick& t : y.ticks) label_width = std::max(label_width, t.label.size());
  const int columns = std::max(40, style.columns) - static_cast<int>(label_width) - 4;
  const Axis x = x_axis(chart, std::max(2, columns / 12));

  Dots dots(columns, style.rows, braille);
  const auto at_x = [&](double v) { return static_cast<int>(std::lround(x.place(v) * (dots.width() - 1))); };
  const auto at_y = [&](double v) { return static_cast<int>(std::lround((1 - y.place(v)) * (dots.height() - 1))); };
  std::vector<std::string> glyph(static_cast<std::size_t>(n));
  int letter = 0;
  for (int points = 0; points < 2; ++points) {  // points over lines
    for (int k = 0; k < n; ++k) {
      const Series& s = chart.series[static_cast<std::size_t>(k)];
      if (s.background || (s.mark == Series::Mark::points) != (points == 1)) continue;
      const char own = lines > 1 ? static_cast<char>('a' + letter % 26) : '*';
      if (points == 0) ++letter;
      glyph[static_cast<std::size_t>(k)] = points == 1 ? (style.unicode ? "●" : "O")
                                           : braille   ? "⣀⣀"
                                                       : std::string(2, own);
      std::optional<std::pair<int, int>> last;
      for (std::size_t i = 0; i < s.x.size(); ++i) {
        if (!std::isfinite(s.x[i]) || !std::isfinite(s.y[i])) {
          last.reset();
          continue;
        }
        const int px = at_x(s.x[i]), py = at_y(s.y[i]);
        if (points == 1)
          dots.mark(px, py, k, glyph[static_cast<std::size_t>(k)]);
        else if (last)
          dots.line(last->first, last->second, px, py, k, own);
        else
          dots.dot(px, py, k, own);
        last = {px, py};
      }
    }
  }

  const auto paint = [&](int k, const std::string& text) {
    if (!style.colour) return text;
    const Colour c = chart.series[static_cast<std::size_t>(k)].colour;
    return fmt::format("\x1b[38;2;{};{};{}m{}\x1b[0m", c.r, c.g, c.b, text);
  };
  std::vector<std::string> labels(static_cast<std::size_t>(style.rows));
  for (const Tick& t : y.ticks) {
    const int r = at_y(t.at) / (braille ? 4 : 1);
    if (r >= 0 && r < style.rows) labels[static_cast<std::size_t>(r)] = t.label;
  }
  std::string out = "  " + shown(chart.title, style.unicode) + "\n";
  for (int r = 0; r < style.rows; ++r) {
    const std::string& label = labels[static_cast<std::size_t>(r)];
    const char* edge = style.unicode ? (label.empty() ? "│" : "┤") : (label.empty() ? "|" : "+");
    out += right_trimmed(fmt::format(" {:>{}} {}{}", label, label_width, edge, dots.row(r, paint))) + "\n";
  }
  std::string foot;
  for (int c = 0; c < columns; ++c) foot += style.unicode ? "─" : "-";
  out += fmt::format(" {:>{}} {}{}\n", "", label_width, style.unicode ? "└" : "+", foot);
  std::string ticks(static_cast<std::size_t>(columns), ' ');
  std::size_t free_from = 0;
  for (const Tick& t : x.ticks) {
    const int centre = at_x(t.at) / (braille ? 2 : 1);
    const int start = std::clamp(centre - static_cast<int>(t.label.size()) / 2, 0,
                                 std::max(0, columns - static_cast<int>(t.label.size())));
    const auto from = static_cast<std::size_t>(start);
    if (from < free_from || from + t.label.size() > ticks.size()) continue;
    ticks.replace(from, t.label.size(), t.label);
    free_from = from + t.label.size() + 2;
  }
  out += right_trimmed(fmt::format(" {:>{}}  {}", "", label_width, ticks)) + "\n";
  out += fmt::format(" {:>{}}  {} over {}", "", label_width, shown(chart.y_label, style.unicode),
                     shown(chart.x_label, style.unicode));
  for (int k = 0; k < n; ++k) {
    const Series& s = chart.series[static_cast<std::size_t>(k)];
    if (s.label.empty() || s.background) continue;
    out += "   " + paint(k, glyph[static_cast<std::size_t>(k)]) + " " + shown(s.label, style.unicode);
  }
  return out + "\n";
}

}  // namespace orthant::chart
