// The canvas that paints pixels, and the PNG file. A line covers a pixel by how near the centre of it is:
// coverage = clamp(width / 2 + 1/2 - distance, 0, 1), which is smooth edges for lines, discs and the stroke font
// alike.
#include "support/png.hpp"

#include <png.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "orthant/error.hpp"
#include "support/chart_canvas.hpp"
#include "support/png_font.hpp"

namespace orthant::chart {

namespace {

double distance_to_segment(double px, double py, Point a, Point b) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double length2 = dx * dx + dy * dy;
  const double t = length2 > 0 ? std::clamp(((px - a.x) * dx + (py - a.y) * dy) / length2, 0.0, 1.0) : 0.0;
  return std::hypot(px - (a.x + t * dx), py - (a.y + t * dy));
}

class RasterCanvas : public Canvas {
 public:
  RasterCanvas(Picture& picture, double scale) : picture_(picture), scale_(scale) {}

  void line(const std::vector<Point>& points, Colour colour, double width, double opacity) override {
    std::vector<Point> scaled;
    for (const Point& p : points) scaled.push_back({p.x * scale_, p.y * scale_});
    stroke({scaled}, colour, width * scale_, opacity);
  }

  void disc(Point centre, double diameter, Colour colour, double opacity) override {
    const Point p{centre.x * scale_, centre.y * scale_};
    stroke({{p, p}}, colour, diameter * scale_, opacity);
  }

  void text(Point at, const std::string& text, double size, Colour colour, Anchor anchor, bool bold,
            bool upright) override {
    const double width = text_width(text, size);
    const double shift = anchor == Anchor::start ? 0 : anchor == Anchor::middle ? width / 2 : width;
    std::vector<std::vector<Point>> strokes = text_strokes(text, size);
    for (auto& s : strokes) {
      for (Point& p : s) {
        const double along = p.x - shift, up = p.y;
        p = upright ? Point{(at.x - up) * scale_, (at.y - along) * scale_}
                    : Point{(at.x + along) * scale_, (at.y - up) * scale_};
      }
    }
    stroke(strokes, colour, size * (bold ? 0.125 : 0.088) * scale_, 1.0);
  }

  void box(Point corner, double width, double height, Colour fill, Colour edge, double edge_width) override {
    const double w = edge_width * scale_;
    const double x0 = corner.x * scale_, y0 = corner.y * scale_;
    const double x1 = (corner.x + width) * scale_, y1 = (corner.y + height) * scale_;
    if (w > 0) fill_box(x0, y0, x1, y1, edge);
    fill_box(x0 + w, y0 + w, x1 - w, y1 - w, fill);
  }

 private:
  /// A pixel at the border is painted by the share of its area that is inside.
  void fill_box(double x0, double y0, double x1, double y1, Colour colour) {
    const auto overlap = [](double lo, double hi, std::int64_t at) {
      const auto a = static_cast<double>(at);
      return std::clamp(std::min(hi, a + 1) - std::max(lo, a), 0.0, 1.0);
    };
    for (std::int64_t r = row(y0); r < row(y1 + 1); ++r)
      for (std::int64_t c = column(x0); c < column(x1 + 1); ++c)
        blend(c, r, colour, overlap(y0, y1, r) * overlap(x0, x1, c));
  }

  void blend(std::int64_t c, std::int64_t r, Colour colour, double cover) {
    if (cover <= 0) return;
    std::uint8_t* p = &picture_.rgb[static_cast<std::size_t>(3 * (r * picture_.width + c))];
    const std::uint8_t own[3] = {colour.r, colour.g, colour.b};
    for (int k = 0; k < 3; ++k) p[k] = static_cast<std::uint8_t>(std::lround(p[k] + cover * (own[k] - p[k])));
  }

  /// Paints all strokes as one shape: coverage is the largest of any segment, blended once, so that a
  /// half-transparent line is not darker where it meets itself.
  void stroke(const std::vector<std::vector<Point>>& strokes, Colour colour, double width, double opacity) {
    const double reach = width / 2 + 1;
    double x0 = std::numeric_limits<double>::infinity(), y0 = x0, x1 = -x0, y1 = -x0;
    for (const auto& s : strokes) {
      for (const Point& p : s) {
        x0 = std::min(x0, p.x - reach), x1 = std::max(x1, p.x + reach);
        y0 = std::min(y0, p.y - reach), y1 = std::max(y1, p.y + reach);
      }
    }
    const std::int64_t left = column(x0), right = column(x1 + 1), top = row(y0), bottom = row(y1 + 1);
    if (left >= right || top >= bottom) return;
    const std::int64_t w = right - left;
    std::vector<float> cover(static_cast<std::size_t>(w * (bottom - top)), 0.0f);
    for (const auto& s : strokes) {
      for (std::size_t i = 0; i + 1 < s.size(); ++i) {
        const Point a = s[i], b = s[i + 1];
        const std::int64_t r1 = row(std::max(a.y, b.y) + reach + 1), c1 = column(std::max(a.x, b.x) + reach + 1);
        for (std::int64_t r = row(std::min(a.y, b.y) - reach); r < r1; ++r) {
          for (std::int64_t c = column(std::min(a.x, b.x) - reach); c < c1; ++c) {
            const double d = distance_to_segment(static_cast<double>(c) + 0.5, static_cast<double>(r) + 0.5, a, b);
            const auto value = static_cast<float>(std::clamp(width / 2 + 0.5 - d, 0.0, std::min(1.0, width)));
            float& now = cover[static_cast<std::size_t>((r - top) * w + c - left)];
            now = std::max(now, value);
          }
        }
      }
    }
    for (std::int64_t r = top; r < bottom; ++r) {
      for (std::int64_t c = left; c < right; ++c) {
        blend(c, r, colour, opacity * cover[static_cast<std::size_t>((r - top) * w + c - left)]);
      }
    }
  }

  std::int64_t column(double x) const { return clamped(x, picture_.width); }
  std::int64_t row(double y) const { return clamped(y, picture_.height); }
  static std::int64_t clamped(double v, std::int64_t size) {
    return static_cast<std::int64_t>(std::clamp(std::floor(v), 0.0, static_cast<double>(size)));
  }

  Picture& picture_;
  double scale_;
};

}  // namespace

Picture paint(const Chart& chart, double scale) {
  return paint(chart.width, chart.height, scale, [&](Canvas& canvas) { draw(chart, canvas); });
}

Picture paint(double width, double height, double scale, const Painter& painter) {
  Picture picture;
  picture.width = std::llround(width * scale);
  picture.height = std::llround(height * scale);
  picture.rgb.assign(static_cast<std::size_t>(3 * picture.width * picture.height), 255);
  RasterCanvas canvas(picture, scale);
  painter(canvas);
  return picture;
}

void write_png(const Picture& picture, const std::string& path) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(picture.width);
  image.height = static_cast<png_uint_32>(picture.height);
  image.format = PNG_FORMAT_RGB;
  if (png_image_write_to_file(&image, path.c_str(), 0, picture.rgb.data(), 0, nullptr) == 0) {
    const std::string why = image.message;
    png_image_free(&image);
    throw DataError("cannot write the picture " + path + ": " + why);
  }
}

}  // namespace orthant::chart
