// The glyphs of the stroke font, drawn for this program, and how they become lines.
//
// A glyph is a width and strokes separated by blanks. A stroke is a row of points, two characters each: x = 0..9 to
// the right, y = 0..9 upwards from the baseline or a, b, c = 1, 2, 3 below it (capitals are 9 high, small letters 6).
// A point after `*` is not passed but bent around: the corner of a quarter ellipse between its two neighbours.
#include "support/png_font.hpp"

#include <array>

namespace orthant::chart {

namespace {

struct Glyph {
  int width;
  const char* strokes;
};

constexpr double unit = 0.72 / 9;  // of the font size
constexpr double gap = 2.4;        // between letters, in grid units
constexpr Glyph box = {5, "0009595000"};

// clang-format off
constexpr std::array<Glyph, 95> glyphs = {{
    {2, ""},                                                                               // space
    {0, "0903 0000"},                                                                      // !
    {2, "0907 2927"},                                                                      // "
    {5, "1029 3049 0353 0656"},                                                            // #
    {6, "67*6939*0907*0535*656362*6030*0002 3c39"},                                        // $
    {6, "0069 19*0908*0717*2728*2919 52*4241*4050*6061*6252"},                             // %
    {6, "6016*0929*49473614*0202*0020*4063"},                                              // &
    {0, "0907"},                                                                           // '
    {2, "29*0704*012a"},                                                                   // (
    {2, "09*2724*210a"},                                                                   // )
    {4, "2428 0547 0745"},                                                                 // *
    {4, "0444 2226"},                                                                      // +
    {1, "100b"},                                                                           // ,
    {3, "0434"},                                                                           // -
    {0, "0000"},                                                                           // .
    {4, "0a49"},                                                                           // /
    {5, "3020*000306*092939*595653*5030"},                                                 // 0
    {5, "173930"},                                                                         // 1
    {5, "07*092939*5957560050"},                                                           // 2
    {5, "07*092939*5957*553525 35*555352*503020*0002"},                                    // 3
    {5, "40490353"},                                                                       // 4
    {5, "59090535*555352*503020*0002"},                                                    // 5
    {5, "58*593929*090603*002030*505253*553525*0503"},                                     // 6
    {5, "095920"},                                                                         // 7
    {5, "2939*5957*553525*0507*0929 3535*555352*503020*000203*052535"},                    // 8
    {5, "01*002030*505356*593929*090706*042434*5456"},                                     // 9
    {0, "0000 0505"},                                                                      // :
    {1, "1515 100b"},                                                                      // ;
    {4, "470441"},                                                                         // <
    {4, "0343 0545"},                                                                      // =
    {4, "074401"},                                                                         // >
    {4, "07*0929*494746*2523 2020"},                                                       // ?
    {7, "55*563626*161413*122232*525256*594939*090603*0030*4050"},                              // @
    {6, "003960 1353"},                                                                    // A
    {6, "000939*5957*553505 35*656362*603000"},                                            // B
    {6, "67*6939*090603*0030*6062"},                                                       // C
    {6, "000929*696564*602000"},                                                           // D
    {5, "59090050 0545"},                                                                  // E
    {5, "590900 0545"},                                                                    // F
    {6, "67*6939*090603*0030*60626444"},                                                   // G
    {6, "0009 6069 0565"},                                                                 // H
    {0, "0009"},                                                                           // I
    {4, "4942*4020*0002"},                                                                 // J
    {6, "0009 6903 2560"},                                                                 // K
    {5, "090050"},                                                                         // L
    {8, "0009438980"},                                                                     // M
    {6, "00096069"},                                                                       // N
    {6, "30*000306*0939*696663*6030"},                                                     // O
    {6, "000939*696766*643404"},                                                           // P
    {6, "30*000306*0939*696663*6030 4260"},                                                // Q
    {6, "000939*696766*643404 3460"},                                                      // R
    {6, "67*6939*0907*0535*656362*6030*0002"},                                             // S
    {6, "0969 3930"},                                                                      // T
    {6, "0903*0030*606369"},                                                               // U
    {6, "093069"},                                                                         // V
    {8, "0920476089"},                                                                     // W
    {6, "0069 0960"},                                                                      // X
    {6, "093569 3530"},                                                                    // Y
    {6, "09690060"},                                                                       // Z
    {2, "29090a2a"},                                                                       // [
    {4, "094a"},                                                                           // backslash
    {2, "09292a0a"},                                                                       // ]
    {4, "072947"},                                                                         // ^
    {5, "0b5b"},                                                                           // _
    {1, "0918"},                                                                           // `
    {4, "20*0003*0626*4643*4020 4640"},                                                    // a
    {4, "0900 20*0003*0626*4643*4020"},                                                    // b
    {4, "45*4626*0603*0020*4041"},                                                         // c
    {4, "4940 20*0003*0626*4643*4020"},                                                    // d
    {4, "034344*4626*0603*0020*4041"},                                                     // e
    {3, "39*191710 0636"},                                                                 // f
    {4, "20*0003*0626*4643*4020 464a*4c2c*0c0b"},                                          // g
    {4, "0009 03*0626*464340"},                                                            // h
    {0, "0006 0808"},                                                                      // i
    {1, "161b*1c0c 1818"},                                                                 // j
    {4, "0009 4602 1340"},                                                                 // k
    {0, "0009"},                                                                           // l
    {6, "0006 04*061626*363430 34*364656*666460"},                                         // m
    {4, "0006 03*0626*464340"},                                                            // n
    {4, "20*0003*0626*4643*4020"},                                                         // o
    {4, "060c 20*0003*0626*4643*4020"},                                                    // p
    {4, "464c 20*0003*0626*4643*4020"},                                                    // q
    {3, "0006 03*062636"},                                                                 // r
    {4, "45*463616*060504*031333*434241*403010*0001"},                                     // s
    {3, "1812*1030 0636"},                                                                 // t
    {4, "0603*0020*4043 4640"},                                                            // u
    {4, "062046"},                                                                         // v
    {6, "0610355066"},                                                                     // w
    {4, "0046 0640"},                                                                      // x
    {4, "0620 461c"},                                                                      // y
    {4, "06460040"},                                                                       // z
    {3, "39*191715041310*1a3a"},                                                           // {
    {0, "0c09"},                                                                           // |
    {3, "09*292725342320*2a0a"},                                                           // }
    {5, "04*061525*344556"},                                                               // ~
}};
// clang-format on

const Glyph& glyph_of(std::uint32_t code) { return code >= 32 && code < 127 ? glyphs[code - 32] : box; }

double height_of(char c) { return c >= 'a' ? -(c - 'a' + 1) : c - '0'; }

/// Quarter ellipse from a to b around the corner, as a cubic Bezier curve in eight pieces.
void bend(std::vector<Point>& out, Point a, Point corner, Point b) {
  constexpr double k = 0.5523;  // the control length that comes nearest to a circle
  const Point c{a.x + k * (corner.x - a.x), a.y + k * (corner.y - a.y)};
  const Point d{b.x + k * (corner.x - b.x), b.y + k * (corner.y - b.y)};
  for (int i = 1; i <= 8; ++i) {
    const double t = i / 8.0, u = 1 - t;
    const double wa = u * u * u, wc = 3 * u * u * t, wd = 3 * u * t * t, wb = t * t * t;
    out.push_back({wa * a.x + wc * c.x + wd * d.x + wb * b.x, wa * a.y + wc * c.y + wd * d.y + wb * b.y});
  }
}

void add_strokes(std::vector<std::vector<Point>>& out, const char* text, double x0, double scale) {
  std::vector<Point> stroke;
  Point corner;
  bool bent = false, about_corner = false;
  for (const char* c = text;; ++c) {
    if (*c == ' ' || *c == '\0') {
      if (!stroke.empty()) out.push_back(stroke);
      stroke.clear();
      if (*c == '\0') return;
      continue;
    }
    if (*c == '*') {
      about_corner = true;
      continue;
    }
    const Point p{x0 + (*c - '0') * scale, height_of(c[1]) * scale};
    ++c;
    if (about_corner) {
      corner = p;
      bent = true;
    } else if (bent) {
      bend(stroke, stroke.back(), corner, p);
      bent = false;
    } else {
      stroke.push_back(p);
    }
    about_corner = false;
  }
}

}  // namespace

double text_width(const std::string& text, double size) {
  double width = 0;
  const auto codes = code_points(text);
  for (const std::uint32_t code : codes) width += glyph_of(code).width + gap;
  return codes.empty() ? 0 : (width - gap) * unit * size;
}

std::vector<std::vector<Point>> text_strokes(const std::string& text, double size) {
  std::vector<std::vector<Point>> out;
  double x = 0;
  for (const std::uint32_t code : code_points(text)) {
    add_strokes(out, glyph_of(code).strokes, x * unit * size, unit * size);
    x += glyph_of(code).width + gap;
  }
  return out;
}

}  // namespace orthant::chart
