// The layout of a chart: title and legend above, grid and curves below them, tick labels at the left and the foot.
#include <algorithm>
#include <cmath>

#include "support/chart_canvas.hpp"
#include "support/png_font.hpp"

namespace orthant::chart {

namespace {

constexpr Colour paper{0xff, 0xff, 0xff}, ink{0x1c, 0x27, 0x33}, quiet{0x5b, 0x68, 0x77}, grid{0xe4, 0xe8, 0xec},
    rule{0x9a, 0xa5, 0xb1};
constexpr double title_size = 18, text_size = 13, row_height = 22, swatch = 26;

struct Frame {
  double left = 0, right = 0, top = 0, bottom = 0;
  Axis x, y;
  Point at(double vx, double vy) const {
    return {left + x.place(vx) * (right - left), bottom - y.place(vy) * (bottom - top)};
  }
};

/// Fonts of SVG viewers differ from ours: leave some air.
double room_for(const std::string& text, double size) { return 1.08 * text_width(text, size); }

/// Draws the legend in rows from the left; returns the y below the last row.
double draw_legend(const Chart& chart, Canvas& canvas, double left, double right, double y) {
  double x = left;
  bool any = false;
  for (const Series& s : chart.series) {
    if (s.label.empty()) continue;
    const double sample = s.mark == Series::Mark::line ? swatch : s.width;
    const double needs = sample + 8 + room_for(s.label, text_size) + 26;
    if (any && x + needs > right + 26) {
      x = left;
      y += row_height;
    }
    const double middle = y + row_height / 2;
    if (s.mark == Series::Mark::line) {
      canvas.line({{x, middle}, {x + sample, middle}}, s.colour, s.background ? 2 * s.width : 1.2 * s.width,
                  s.opacity);
    } else {
      canvas.disc({x + sample / 2, middle}, s.width, s.colour, s.opacity);
    }
    canvas.text({x + sample + 8, middle + text_size * 0.36}, s.label, text_size, ink, Anchor::start, false, false);
    x += needs;
    any = true;
  }
  return any ? y + row_height : y;
}

/// At more points than pixels only the first, lowest, highest and last of each column can be seen: the picture
/// stays the same and a run of a million steps stays a small file.
std::vector<Point> thinned(const std::vector<Point>& points, double columns) {
  if (static_cast<double>(points.size()) <= 4 * columns) return points;
  std::vector<Point> out;
  for (std::size_t i = 0; i < points.size();) {
    const double column = std::floor(points[i].x);
    std::size_t end = i, low = i, high = i;
    for (; end < points.size() && std::floor(points[end].x) == column; ++end) {
      if (points[end].y < points[low].y) low = end;
      if (points[end].y > points[high].y) high = end;
    }
    std::vector<std::size_t> keep = {i, low, high, end - 1};
    std::sort(keep.begin(), keep.end());
    keep.erase(std::unique(keep.begin(), keep.end()), keep.end());
    for (std::size_t k : keep) out.push_back(points[k]);
    i = end;
  }
  return out;
}

void draw_series(const Series& s, const Frame& frame, Canvas& canvas) {
  std::vector<Point> piece;
  const auto flush = [&] {
    if (piece.size() == 1) canvas.disc(piece[0], 2 * s.width, s.colour, s.opacity);  // alone between gaps
    if (piece.size() > 1) canvas.line(thinned(piece, frame.right - frame.left), s.colour, s.width, s.opacity);
    piece.clear();
  };
  for (std::size_t i = 0; i < s.x.size(); ++i) {
    const bool good = std::isfinite(s.x[i]) && std::isfinite(s.y[i]);
    if (s.mark == Series::Mark::points) {
      if (!good) continue;
      canvas.disc(frame.at(s.x[i], s.y[i]), s.width + 3, paper, 1.0);  // a rim, so that points stand out from lines
      canvas.disc(frame.at(s.x[i], s.y[i]), s.width, s.colour, s.opacity);
    } else if (good) {
      piece.push_back(frame.at(s.x[i], s.y[i]));
    } else {
      flush();
    }
  }
  flush();
}

}  // namespace

void draw(const Chart& chart, Canvas& canvas) {
  Frame frame;
  frame.y = y_axis(chart, 6);
  double labels = 0;
  for (const Tick& t : frame.y.ticks) labels = std::max(labels, room_for(t.label, text_size));
  frame.left = 24 + text_size + 14 + labels + 10;
  frame.right = chart.width - 32;
  frame.bottom = chart.height - 62;

  canvas.text({frame.left, 36}, chart.title, title_size, ink, Anchor::start, true, false);
  frame.top = draw_legend(chart, canvas, frame.left, frame.right, 48) + 12;
  frame.x = x_axis(chart, 8);

  for (const Tick& t : frame.y.ticks) {
    const double y = frame.at(frame.x.lo, t.at).y;
    canvas.line({{frame.left, y}, {frame.right, y}}, grid, 1, 1);
    canvas.text({frame.left - 10, y + text_size * 0.36}, t.label, text_size, quiet, Anchor::end, false, false);
  }
  for (const Tick& t : frame.x.ticks) {
    const double x = frame.at(t.at, frame.y.lo).x;
    canvas.line({{x, frame.bottom}, {x, frame.bottom + 5}}, rule, 1, 1);
    canvas.text({x, frame.bottom + 22}, t.label, text_size, quiet, Anchor::middle, false, false);
  }
  canvas.line({{frame.left, frame.bottom}, {frame.right, frame.bottom}}, rule, 1, 1);
  canvas.text({(frame.left + frame.right) / 2, chart.height - 16}, chart.x_label, text_size, ink, Anchor::middle,
              false, false);
  canvas.text({24 + text_size * 0.7, (frame.top + frame.bottom) / 2}, chart.y_label, text_size, ink, Anchor::middle,
              false, true);

  // noisy curves first, points last: nothing that matters is painted over
  for (int layer = 0; layer < 3; ++layer) {
    for (const Series& s : chart.series) {
      const int own = s.mark == Series::Mark::points ? 2 : s.background ? 0 : 1;
      if (own == layer) draw_series(s, frame, canvas);
    }
  }
}

}  // namespace orthant::chart
