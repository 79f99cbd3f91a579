// Drawings of pipeline schedules: a box for each action, the words about idle time and stash, files that open.
// labels: smoke asan
// seconds: 30
#include <gtest/gtest.h>
#include <png.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "orthant/error.hpp"
#include "support/png.hpp"
#include "support/schedule_chart.hpp"
#include "support/svg.hpp"

namespace fs = std::filesystem;
using namespace orthant;

namespace {

Action f(int64_t micro, int64_t chunk = 0) { return {Act::F, chunk, micro}; }
Action b(int64_t micro, int64_t chunk = 0) { return {Act::B, chunk, micro}; }
Action w(int64_t micro, int64_t chunk = 0) { return {Act::W, chunk, micro}; }

/// Two stages, three micro-batches, one forward and one backward in turn.
Pipeline two_stages() {
  Pipeline p{"by hand", {2, 3, 1}, false, false, {}};
  p.lists = {{f(0), f(1), b(0), f(2), b(1), b(2)}, {f(0), b(0), f(1), b(1), f(2), b(2)}};
  return p;
}

/// Two stages of two chunks (looped), one micro-batch.
Pipeline two_chunks() {
  Pipeline p{"looped", {2, 1, 2}, false, false, {}};
  p.lists = {{f(0, 0), f(0, 1), b(0, 1), b(0, 0)}, {f(0, 0), f(0, 1), b(0, 1), b(0, 0)}};
  return p;
}

/// One stage, two micro-batches, weights apart from the input's gradient.
Pipeline split_stage() {
  Pipeline p{"split", {1, 2, 1}, true, false, {}};
  p.lists = {{f(0), b(0), f(1), b(1), w(0), w(1)}};
  return p;
}

std::size_t actions_of(const Pipeline& p) {
  std::size_t n = 0;
  for (const ActionList& list : p.lists) n += list.size();
  return n;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

double luminance(chart::Colour c) { return (0.299 * c.r + 0.587 * c.g + 0.114 * c.b) / 255; }

class ScheduleChart : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("orthant-schedule-chart-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string read(const std::string& name) const {
    std::ifstream in(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string drawn(const Pipeline& p, const ScheduleCosts& costs = {}) const {
    chart::draw_schedule(p, costs, check_pipeline(p), "title <1>", (folder_ / "a.svg").string());
    return read("a.svg");
  }

  fs::path folder_;
};

}  // namespace

TEST_F(ScheduleChart, HoldsABoxForEachAction) {
  // beside the actions: the background, and in the legend a swatch a kind and shade
  EXPECT_EQ(count(drawn(two_stages()), "<rect"), 1 + 2 + actions_of(two_stages()));
  EXPECT_EQ(count(drawn(two_chunks()), "<rect"), 1 + 2 * 2 + actions_of(two_chunks()));
  const std::string split = drawn(split_stage());
  EXPECT_EQ(count(split, "<rect"), 1 + 3 + actions_of(split_stage()));
  EXPECT_EQ(count(split, ">W weight gradients<"), 1u);
  EXPECT_EQ(count(split, ">1</text>"), 3u + 1u) << "micro-batch 1 in F, B and W, and the tick of the axis";
}

TEST_F(ScheduleChart, ABoxLiesWhereItsActionRuns) {
  // Stage 1 starts when the first forward of stage 0 is done.
  const Pipeline p = two_stages();
  const ScheduleCosts costs;
  const ScheduleReport report = check_pipeline(p);
  const Timeline timeline = play(p, costs);
  struct Recorder : chart::Canvas {
    struct Box {
      double x, y, width;
    };
    std::vector<Box> boxes;
    void line(const std::vector<chart::Point>&, chart::Colour, double, double) override {}
    void disc(chart::Point, double, chart::Colour, double) override {}
    void text(chart::Point, const std::string&, double, chart::Colour, chart::Anchor, bool, bool) override {}
    void box(chart::Point at, double width, double, chart::Colour, chart::Colour, double) override {
      boxes.push_back({at.x, at.y, width});
    }
  } canvas;
  chart::draw(chart::ScheduleView{p, costs, report, timeline, ""}, canvas);
  ASSERT_EQ(canvas.boxes.size(), 2 + actions_of(p));
  const auto& first = canvas.boxes[2];
  const auto& below = canvas.boxes[2 + p.lists[0].size()];
  EXPECT_LT(first.y, below.y) << "stage 0 is on top";
  EXPECT_NEAR(below.x, first.x + first.width, 1e-9);
  EXPECT_NEAR(canvas.boxes[3 + p.lists[0].size()].width, 2 * first.width, 1e-9) << "a backward takes twice as long";
}

TEST_F(ScheduleChart, SaysIdleShareAndStash) {
  // Each stage works 3 x (1 + 2) = 9. The last stage starts at 1 and never waits, the first ends 2 later: 12 in all,
  // and each idles for 3 of them.
  const std::string svg = drawn(two_stages());
  EXPECT_NE(svg.find("idle share 25.0 % of the time of all stages; peak stash 2 micro-batches (stage 0)"),
            std::string::npos)
      << svg;
  EXPECT_NE(svg.find(">idle 25.0 %   stash 2<"), std::string::npos);
  EXPECT_NE(svg.find(">idle 25.0 %   stash 1<"), std::string::npos);
  EXPECT_NE(svg.find(">title &lt;1&gt;<"), std::string::npos);
}

TEST_F(ScheduleChart, DrawsUnitsGathersAndSums) {
  Pipeline p{"units", {1, 1, 1}, false, false, {{f(0), b(0)}}};
  Timeline t;
  Action gather{Act::G, 0, 0, 0}, unit_f{Act::F, 0, 0, 0}, unit_b{Act::B, 0, 0, 0}, sum{Act::R, 0, 0, 0};
  t.stages = {{{gather, 0, 1}, {unit_f, 1, 2}, {unit_b, 2, 4}, {sum, 4, 5}}};
  t.length = 8;
  t.idle_share = 5.0 / 8;  // gathers and sums go on beside the work
  ScheduleReport report;
  report.peak_stash = {1};
  const ScheduleCosts costs;
  const chart::ScheduleView view{p, costs, report, t, "units"};
  const chart::Size size = chart::schedule_size(view);
  const std::string svg = chart::to_svg("units", size.width, size.height, [&](chart::Canvas& c) { draw(view, c); });
  EXPECT_EQ(count(svg, "<rect"), 1u + 4 + 4);
  EXPECT_NE(svg.find("G gather of weights"), std::string::npos);
  EXPECT_NE(svg.find("R sum of gradients"), std::string::npos);
  EXPECT_NE(svg.find("idle share 62.5 %"), std::string::npos);
  EXPECT_NEAR(chart::idle_of(t, 0), 5.0 / 8, 1e-12);
}

TEST_F(ScheduleChart, KindsDifferInGreyWhateverTheChunk) {
  const Act from_dark[] = {Act::R, Act::B, Act::W, Act::F, Act::G};
  double below = -1;
  for (const Act act : from_dark) {
    const double first = luminance(chart::action_colour(act, 0, 4)),
                 last = luminance(chart::action_colour(act, 3, 4));
    EXPECT_GT(first, below + 0.05) << static_cast<char>(act);
    EXPECT_GT(last, first) << "later chunks are lighter";
    EXPECT_GT(luminance(chart::action_colour(act, 1, 4)), first);
    below = last;
  }
  EXPECT_THROW(chart::action_colour(static_cast<Act>('Z'), 0, 1), LogicError);
}

TEST_F(ScheduleChart, WritesAPngOfTheSameSize) {
  const Pipeline p = two_stages();
  const ScheduleReport report = check_pipeline(p);
  const std::string path = (folder_ / "a.png").string();
  chart::draw_schedule(p, {}, report, "title", path);
  const std::string bytes = read("a.png");
  ASSERT_GT(bytes.size(), 8u);
  EXPECT_EQ(bytes.substr(0, 8), "\x89PNG\r\n\x1a\n");

  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  ASSERT_NE(png_image_begin_read_from_file(&image, path.c_str()), 0) << image.message;
  image.format = PNG_FORMAT_RGB;
  std::vector<unsigned char> rgb(PNG_IMAGE_SIZE(image));
  ASSERT_NE(png_image_finish_read(&image, nullptr, rgb.data(), 0, nullptr), 0) << image.message;
  const ScheduleCosts costs;
  const Timeline timeline = play(p, costs);
  const chart::Size size = chart::schedule_size({p, costs, report, timeline, "title"});
  EXPECT_EQ(image.width, static_cast<unsigned>(std::lround(2 * size.width)));
  EXPECT_EQ(image.height, static_cast<unsigned>(std::lround(2 * size.height)));
  // the colours of a forward and of a backward cover a good part of the lanes
  std::size_t forward = 0, backward = 0;
  const chart::Colour fc = chart::action_colour(Act::F, 0, 1), bc = chart::action_colour(Act::B, 0, 1);
  for (std::size_t i = 0; i + 2 < rgb.size(); i += 3) {
    forward += rgb[i] == fc.r && rgb[i + 1] == fc.g && rgb[i + 2] == fc.b;
    backward += rgb[i] == bc.r && rgb[i + 1] == bc.g && rgb[i + 2] == bc.b;
  }
  // 6 forwards of 1 and 6 backwards of 2 in two lanes of 12; of the 30 pixels of a lane 26 are box, less edges and
  // numbers
  const double lanes = 2.0 * 760 * 26 * 4;
  EXPECT_NEAR(static_cast<double>(forward) / lanes, 0.25, 0.05);
  EXPECT_NEAR(static_cast<double>(backward) / lanes, 0.5, 0.08);
}

TEST_F(ScheduleChart, RefusesOtherFilesAndBrokenSchedules) {
  const Pipeline good = two_stages();
  const ScheduleReport report = check_pipeline(good);
  for (const char* name : {"a.pdf", "a", "a.svg.txt", "svg"}) {
    const fs::path path = folder_ / name;
    EXPECT_THROW(chart::draw_schedule(good, {}, report, "t", path.string()), UsageError) << name;
    EXPECT_FALSE(fs::exists(path));
  }
  for (const char* name : {"missing/a.svg", "missing/a.png"})
    EXPECT_THROW(chart::draw_schedule(good, {}, report, "t", (folder_ / name).string()), DataError) << name;
  Pipeline broken = good;
  broken.lists[1].pop_back();
  EXPECT_THROW(chart::draw_schedule(broken, {}, check_pipeline(broken), "t", (folder_ / "b.svg").string()),
               UsageError);
}

TEST_F(ScheduleChart, DrawsInTheTerminalWhereItFits) {
  const Timeline t = play(two_stages(), {});
  EXPECT_EQ(chart::schedule_text(t, 1, 80),
            "stage 0  F0 F1 ......B0--- F2 B1--- ...B2--- \n"
            "stage 1  ...F0 B0--- F1 B1--- F2 B2--- ......\n");
  EXPECT_EQ(chart::schedule_text(t, 1, 30), "stage 0  FF..BBFBB.BB\nstage 1  .FBBFBBFBB..\n");
  EXPECT_EQ(chart::schedule_text(t, 1, 20), "");
  const std::string chunks = chart::schedule_text(play(two_chunks(), {1, 1, 1, 0}), 2, 80);
  EXPECT_NE(chunks.find("F0a ....F0b "), std::string::npos) << chunks;
  EXPECT_EQ(chart::schedule_text(play(two_stages(), {1, 1.618, 1, 0}), 1, 400), "") << "not on a grid";
}
