// `orthant plot`: metrics with gaps, validation rows and a torn end become a chart; the chart an SVG, a PNG, text.
// labels: smoke asan
// seconds: 60
#include <gtest/gtest.h>
#include <png.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "orthant/command.hpp"
#include "orthant/error.hpp"
#include "support/chart_runs.hpp"
#include "support/png.hpp"
#include "support/svg.hpp"
#include "support/terminal_chart.hpp"

namespace fs = std::filesystem;
using namespace orthant;

namespace {

class Plot : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("orthant-plot-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// A run of `steps` steps, loss 5 / step + 1, with the given text after the rows.
  std::string run(const std::string& name, int steps, const std::string& tail = "", int nan_step = 0) {
    const fs::path path = folder_ / name;
    fs::create_directories(path);
    std::ofstream out(path / "metrics.jsonl", std::ios::binary);
    for (int s = 1; s <= steps; ++s) {
      out << "{\"step\":" << s << ",\"tokens\":" << 1000 * s << ",\"loss\":";
      if (s == nan_step)
        out << "NaN";
      else
        out << 5.0 / s + 1.0;
      out << ",\"lr\":0.0003,\"seconds\":0.5,\"comm_exposed_s\":{\"tp\":0.01}}\n";
      if (s % 5 == 0) out << "{\"step\":" << s << ",\"valid_loss\":" << 5.0 / s + 1.1 << "}\n";
    }
    out << tail;
    return path.string();
  }

  int plot(std::vector<std::string> args) {
    for (const Command& c : commands()) {
      if (c.name != "plot") continue;
      CommandArgs given;
      given.args = std::move(args);
      ::testing::internal::CaptureStdout();
      int code = -1;
      try {
        code = c.run(given);
      } catch (...) {
        printed_ = ::testing::internal::GetCapturedStdout();
        throw;
      }
      printed_ = ::testing::internal::GetCapturedStdout();
      return code;
    }
    ADD_FAILURE() << "the command plot is not registered";
    return -1;
  }

  fs::path folder_;
  std::string printed_;
};

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

/// A strict enough reader of XML: every tag closed in order, no bare & or <.
bool well_formed(const std::string& xml) {
  std::vector<std::string> open;
  bool seen = false;
  for (std::size_t i = 0; i < xml.size(); ++i) {
    if (xml[i] == '&') {
      const auto end = xml.find(';', i);
      if (end == std::string::npos || end - i > 6) return false;
    }
    if (xml[i] != '<') continue;
    const auto end = xml.find('>', i);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(i + 1, end - i - 1);
    if (tag.find('<') != std::string::npos || count(tag, "\"") % 2 != 0) return false;
    i = end;
    if (tag[0] == '?') continue;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      if (open.empty() && seen) return false;
      seen = true;
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return seen && open.empty();
}

/// Numbers of points of each polyline of the given colour.
std::vector<int> polylines(const std::string& svg, const std::string& colour) {
  std::vector<int> out;
  for (auto at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) {
    const std::string tag = svg.substr(at, svg.find("/>", at) - at);
    if (tag.find("stroke=\"" + colour + "\"") != std::string::npos)
      out.push_back(count(tag.substr(0, tag.find("fill=")), ","));
  }
  return out;
}

double number(const chart::MetricsRow& row, const char* name) { return row.get(name); }

TEST_F(Plot, ReadsRowsAndDropsATornEnd) {
  const auto run_read = chart::read_run(run("a", 20, "{\"step\":21,\"lo", 7));
  EXPECT_TRUE(run_read.torn);
  ASSERT_EQ(run_read.training.size(), 20u);
  ASSERT_EQ(run_read.validation.size(), 4u);
  EXPECT_TRUE(run_read.training[6].has("loss"));
  EXPECT_TRUE(std::isnan(number(run_read.training[6], "loss")));
  EXPECT_DOUBLE_EQ(number(run_read.training[9], "loss"), 1.5);
  EXPECT_DOUBLE_EQ(number(run_read.training[9], "tokens"), 10000);
  EXPECT_FALSE(run_read.training[0].has("comm_exposed_s"));
}

TEST_F(Plot, KeepsACompleteLastLineWithoutNewline) {
  const auto run_read = chart::read_run(run("a", 3, "{\"step\":4,\"loss\":-Infinity,\"note\":\"NaN, \\\"\"}"));
  EXPECT_FALSE(run_read.torn);
  ASSERT_EQ(run_read.training.size(), 4u);
  EXPECT_TRUE(std::isnan(number(run_read.training[3], "loss")));
}

TEST_F(Plot, ABadLineInTheMiddleIsNamed) {
  try {
    chart::read_run(run("a", 3, "{\"step\": oops}\n{\"step\":5,\"loss\":1}\n"));
    FAIL() << "a damaged file was read";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("line 4"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("metrics.jsonl"), std::string::npos) << e.what();
  }
  EXPECT_THROW(chart::read_run((folder_ / "none").string()), DataError);
  EXPECT_THROW(chart::read_run(folder_.string()), DataError);
}

TEST_F(Plot, WritesBothPicturesAndTheCurve) {
  const std::string path = run("a", 20, "{\"step\":21,", 7);
  ASSERT_EQ(plot({path}), 0);
  EXPECT_NE(printed_.find("loss (nats per token) over step"), std::string::npos);
  EXPECT_NE(printed_.find("cut off"), std::string::npos);
  EXPECT_NE(printed_.find("1 of 20 rows hold no finite loss"), std::string::npos);
  EXPECT_NE(printed_.find("wrote " + path + "/loss.svg"), std::string::npos);
  EXPECT_NE(printed_.find("wrote " + path + "/loss.png"), std::string::npos);

  const std::string svg = content(path + "/loss.svg");
  EXPECT_TRUE(well_formed(svg));
  // the NaN at step 7 cuts the curve into 6 and 13 points; the first line is the sample in the legend
  EXPECT_EQ(polylines(svg, "#1f6fd6"), (std::vector<int>{2, 6, 13}));
  // four validation points with a rim each, and the sample in the legend
  EXPECT_EQ(count(svg, "<circle"), 4 * 2 + 1);

  const std::string png = content(path + "/loss.png");
  ASSERT_GT(png.size(), 100u);
  EXPECT_EQ(std::memcmp(png.data(), "\x89PNG\r\n\x1a\n", 8), 0);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  ASSERT_NE(png_image_begin_read_from_memory(&image, png.data(), png.size()), 0) << image.message;
  EXPECT_EQ(image.width, 1920u);
  EXPECT_EQ(image.height, 1080u);
  image.format = PNG_FORMAT_RGB;
  std::vector<unsigned char> pixels(PNG_IMAGE_SIZE(image));
  ASSERT_NE(png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr), 0) << image.message;
  std::int64_t blue = 0, white = 0;
  for (std::size_t i = 0; i < pixels.size(); i += 3) {
    blue += pixels[i] == 0x1f && pixels[i + 1] == 0x6f && pixels[i + 2] == 0xd6 ? 1 : 0;
    white += pixels[i] == 255 && pixels[i + 1] == 255 && pixels[i + 2] == 255 ? 1 : 0;
  }
  EXPECT_GT(blue, 1500);  // the curve is about 1700 pixels long and 4 wide, with soft edges
  EXPECT_GT(white, 1920 * 1080 * 3 / 4);
}

TEST_F(Plot, ComparesRunsOverTokensAndTime) {
  const std::string a = run("a", 60), b = run("b<&>\"\xff", 40);
  const std::string svg = (folder_ / "both.svg").string();
  ASSERT_EQ(plot({a, b, "--x", "tokens", "--output", svg, "--no-terminal"}), 0);
  EXPECT_EQ(count(printed_, "\n"), 1) << printed_;
  const std::string text = content(svg);
  EXPECT_TRUE(well_formed(text));
  EXPECT_NE(text.find("b&lt;&amp;&gt;&quot;\xEF\xBF\xBD"), std::string::npos);
  EXPECT_NE(text.find(">60k<"), std::string::npos);  // tick of the tokens
  EXPECT_EQ(polylines(text, "#1f6fd6"), (std::vector<int>{2, 60, 60}));
  EXPECT_EQ(polylines(text, "#e06c00"), (std::vector<int>{2, 40, 40}));

  const auto chart = chart::chart_of({chart::read_run(a)}, {"seconds", "loss", 0});
  ASSERT_EQ(chart.series.size(), 2u);
  EXPECT_DOUBLE_EQ(chart.series[0].x.back(), 30.0);  // 60 steps of half a second
  EXPECT_DOUBLE_EQ(chart.series[1].x.front(), 2.5);  // the validation after step 5
}

TEST_F(Plot, RefusesWhatIsNotThere) {
  const std::string a = run("a", 3);
  EXPECT_THROW(plot({a, "--y", "mfu"}), UsageError);
  EXPECT_THROW(plot({a, "--x", "hours"}), UsageError);
  EXPECT_THROW(plot({a, "--output", "x.pdf"}), UsageError);
  EXPECT_THROW(plot({}), UsageError);
  EXPECT_THROW(plot({a, "--nothing"}), UsageError);
  EXPECT_THROW(plot({a, "--output", (folder_ / "missing" / "x.png").string()}), DataError);
  EXPECT_THROW(plot({a, "--output", (folder_ / "missing" / "x.svg").string()}), DataError);
  EXPECT_THROW(plot({run("empty", 0)}), DataError);
  EXPECT_EQ(plot({"--help"}), 0);
  EXPECT_NE(printed_.find("--output"), std::string::npos);
}

TEST_F(Plot, OneStepAndNothingButNanStillDraw) {
  ASSERT_EQ(plot({run("one", 1)}), 0);
  EXPECT_EQ(count(content(folder_ / "one" / "loss.svg"), "<circle"), 1);  // a lone step is a dot
  ASSERT_EQ(plot({run("nan", 1, "", 1)}), 0);
  EXPECT_TRUE(well_formed(content(folder_ / "nan" / "loss.svg")));
}

TEST(Chart, AxesAndLabels) {
  const auto axis = chart::make_axis(0, 400, 8, true);
  ASSERT_EQ(axis.ticks.size(), 9u);
  EXPECT_EQ(axis.ticks[3].label, "150");
  EXPECT_EQ(chart::make_axis(1, 3, 8, true).ticks.size(), 3u);  // no half steps
  EXPECT_LT(chart::make_axis(2, 2, 5, false).lo, 2);
  EXPECT_EQ(chart::tick_label(0.25, 0.05), "0.25");
  EXPECT_EQ(chart::tick_label(3e-4, 1e-4), "3e-4");
  EXPECT_EQ(chart::tick_label(2.5e-4, 5e-5), "2.5e-4");
  EXPECT_EQ(chart::tick_label(9500, 500), "9500");
  EXPECT_EQ(chart::tick_label(12500, 500), "12.5k");
  EXPECT_EQ(chart::tick_label(3e9, 1e9), "3B");
  EXPECT_EQ(chart::tick_label(1e-20, 1), "0");
}

TEST(Chart, SmoothingKeepsTheStartAndSkipsGaps) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto s = chart::smooth({10, 4, nan, 6, 2, 2}, 2);
  EXPECT_DOUBLE_EQ(s[0], 10);
  EXPECT_DOUBLE_EQ(s[1], 7);  // 10 and 4; the gap does not count
  EXPECT_TRUE(std::isnan(s[2]));
  EXPECT_DOUBLE_EQ(s[3], 3.5);         // 4, 6, 2, 2
  EXPECT_DOUBLE_EQ(s[5], 10.0 / 3.0);  // 6, 2, 2: the right side is cut off
}

TEST(Chart, AMillionStepsStaySmall) {
  chart::Chart c;
  chart::Series s;
  for (int i = 0; i < 1000000; ++i) {
    s.x.push_back(i);
    s.y.push_back(i == 500000 ? 9.0 : 1.0 + (i % 7) * 0.1);
  }
  c.series.push_back(s);
  const std::string svg = chart::to_svg(c);
  EXPECT_LT(svg.size(), 100000u);
  // the one high step is still there: the highest point of the curve lies at 5 % below the top of the axis
  const auto axis = chart::y_axis(c, 6);
  EXPECT_GT(axis.hi, 9.0);
  EXPECT_EQ(polylines(svg, "#000000").size(), 1u);
  EXPECT_LT(polylines(svg, "#000000")[0], 4000);
}

TEST(Terminal, BrailleLettersAndWidth) {
  chart::Chart c;
  c.title = "a \x1b[31m title";
  c.x_label = "step";
  c.y_label = "loss";
  chart::Series s;
  s.label = "run";
  for (int i = 0; i <= 100; ++i) {
    s.x.push_back(i);
    s.y.push_back(100 - i);
  }
  c.series.push_back(s);
  chart::TerminalStyle style;
  style.columns = 60;
  style.rows = 10;
  const std::string braille = chart::to_terminal(c, style);
  EXPECT_EQ(count(braille, "\n"), 10 + 4);
  EXPECT_EQ(count(braille, "\x1b"), 0);  // the title cannot smuggle in an escape, and no colours were asked for
  EXPECT_GT(count(braille, "\xE2\xA0") + count(braille, "\xE2\xA1") + count(braille, "\xE2\xA2") +
                count(braille, "\xE2\xA3"),
            30);

  style.unicode = false;
  c.series.push_back(s);
  for (double& v : c.series[1].y) v = 100 - v;
  const std::string ascii = chart::to_terminal(c, style);
  for (const char byte : ascii) EXPECT_LT(static_cast<unsigned char>(byte), 127);
  std::size_t from = 0;
  for (int line = 0; line < 13; ++line) {
    const std::size_t end = ascii.find('\n', from);
    EXPECT_LE(end - from, 60u);
    from = end + 1;
  }
  EXPECT_GT(count(ascii, "a"), 20);
  EXPECT_GT(count(ascii, "b"), 20);

  style.colour = true;
  EXPECT_GT(count(chart::to_terminal(c, style), "\x1b[38;2;"), 20);
}

TEST(Font, EveryLetterLeavesInk) {
  for (char letter = '!'; letter < 127; ++letter) {
    chart::Chart c;
    c.width = 200;
    c.height = 150;
    const auto empty = chart::paint(c, 1);
    c.title = std::string(1, letter);
    const auto drawn = chart::paint(c, 1);
    EXPECT_NE(empty.rgb, drawn.rgb) << "the letter " << letter << " is invisible";
  }
}

}  // namespace
