// The canvas that writes SVG.
#include "support/svg.hpp"

#include <fmt/format.h>

#include <iterator>

#include "support/chart_canvas.hpp"

namespace orthant::chart {

namespace {

std::string escaped(const std::string& text) {
  std::string out;
  for (const std::uint32_t c : code_points(text)) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += utf8(c);
  }
  return out;
}

std::string hex(Colour c) { return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b); }

/// At most two decimals, without trailing zeros: a hundredth of a pixel is never seen.
std::string number(double v) {
  std::string text = fmt::format("{:.2f}", v);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

class SvgCanvas : public Canvas {
 public:
  std::string body;

  void line(const std::vector<Point>& points, Colour colour, double width, double opacity) override {
    body += "<polyline points=\"";
    for (std::size_t i = 0; i < points.size(); ++i) {
      body += fmt::format("{}{},{}", i == 0 ? "" : " ", number(points[i].x), number(points[i].y));
    }
    body += fmt::format("\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"", hex(colour), number(width));
    if (opacity < 1) body += fmt::format(" stroke-opacity=\"{}\"", number(opacity));
    body += " stroke-linejoin=\"round\" stroke-linecap=\"round\"/>\n";
  }

  void disc(Point centre, double diameter, Colour colour, double opacity) override {
    body += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"", number(centre.x), number(centre.y),
                        number(diameter / 2), hex(colour));
    if (opacity < 1) body += fmt::format(" fill-opacity=\"{}\"", number(opacity));
    body += "/>\n";
  }

  void text(Point at, const std::string& text, double size, Colour colour, Anchor anchor, bool bold,
            bool upright) override {
    const char* where = anchor == Anchor::start ? "start" : anchor == Anchor::middle ? "middle" : "end";
    body += fmt::format("<text x=\"{0}\" y=\"{1}\" font-size=\"{2}\" fill=\"{3}\" text-anchor=\"{4}\"", number(at.x),
                        number(at.y), number(size), hex(colour), where);
    if (bold) body += " font-weight=\"600\"";
    if (upright) body += fmt::format(" transform=\"rotate(-90 {} {})\"", number(at.x), number(at.y));
    body += fmt::format(">{}</text>\n", escaped(text));
  }

  void box(Point corner, double width, double height, Colour fill, Colour edge, double edge_width) override {
    // a stroke lies astride the border: half of it would fall outside
    const double inset = edge_width / 2;
    body += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"", number(corner.x + inset),
                        number(corner.y + inset), number(width - edge_width), number(height - edge_width), hex(fill));
    if (edge_width > 0) body += fmt::format(" stroke=\"{}\" stroke-width=\"{}\"", hex(edge), number(edge_width));
    body += "/>\n";
  }
};

}  // namespace

std::string to_svg(const Chart& chart) {
  return to_svg(chart.title, chart.width, chart.height, [&](Canvas& canvas) { draw(chart, canvas); });
}

std::string to_svg(const std::string& title, double width, double height, const Painter& painter) {
  SvgCanvas canvas;
  painter(canvas);
  const std::string w = number(width), h = number(height);
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" +
         fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
             "role=\"img\" "
             "font-family=\"Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\">\n",
             w, h) +
         "<title>" + escaped(title) + "</title>\n" +
         fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", w, h) + canvas.body + "</svg>\n";
}

}  // namespace orthant::chart
