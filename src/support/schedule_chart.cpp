// See schedule_chart.hpp.
#include "support/schedule_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "orthant/error.hpp"
#include "support/png.hpp"
#include "support/png_font.hpp"
#include "support/svg.hpp"

namespace orthant::chart {

namespace {

constexpr Colour paper{0xff, 0xff, 0xff}, ink{0x1c, 0x27, 0x33}, quiet{0x5b, 0x68, 0x77}, lane_rule{0xe4, 0xe8, 0xec},
    rule{0x9a, 0xa5, 0xb1};
constexpr double title_size = 18, text_size = 13, margin = 24, lanes_top = 112, foot = 62;
constexpr double lane_gap = 4;
constexpr std::size_t legend_shades = 4;  ///< at most, in the swatch of a kind

/// Colours of the first and of the last chunk. Each kind has a band of luminance of its own.
struct Kind {
  Act act;
  const char* label;
  Colour first, last;
};
constexpr std::array<Kind, 5> kinds = {{{Act::F, "F forward", {0x8f, 0xc2, 0xf0}, {0xb4, 0xd8, 0xf8}},
                                        {Act::B, "B backward", {0xb8, 0x3a, 0x10}, {0xd4, 0x5c, 0x2c}},
                                        {Act::W, "W weight gradients", {0x4a, 0xb8, 0x68}, {0x6e, 0xcc, 0x86}},
                                        {Act::G, "G gather of weights", {0xf6, 0xe6, 0xa0}, {0xfc, 0xf4, 0xcc}},
                                        {Act::R, "R sum of gradients", {0x2a, 0x12, 0x3a}, {0x4e, 0x2a, 0x6b}}}};

const Kind& kind_of(Act act) {
  for (const Kind& k : kinds)
    if (k.act == act) return k;
  throw LogicError("schedule drawing: there is no colour for the action '" + std::string(1, static_cast<char>(act)) +
                   "'");
}

bool is_dark(Colour c) { return 0.299 * c.r + 0.587 * c.g + 0.114 * c.b < 128; }

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
/// Stashes are whole micro-batches, or parts of them where a stage has several chunks.
std::string stash_text(double micros) { return fmt::format("{:.4g}", micros); }

double shortest(const Timeline& timeline) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& stage : timeline.stages)
    for (const Interval& i : stage)
      if (i.end > i.begin) least = std::min(least, i.end - i.begin);
  return least;
}

int64_t stages_of(const ScheduleView& view) { return static_cast<int64_t>(view.timeline.stages.size()); }

/// What stands beside a lane.
std::string lane_note(const ScheduleView& view, int64_t stage) {
  return "idle " + percent(idle_of(view.timeline, stage)) + "   stash " +
         stash_text(view.report.peak_stash.at(static_cast<std::size_t>(stage)));
}

/// Where things lie: lanes from `left` to `right`, the names of the stages before and the notes after them.
struct Frame {
  double left = 0, right = 0, lane = 0;
  Size size;
};

Frame frame_of(const ScheduleView& view) {
  const int64_t stages = stages_of(view);
  ORTHANT_ENSURE(view.report.peak_stash.size() == static_cast<std::size_t>(stages),
                 "schedule drawing: the report and the timeline speak of different numbers of stages");
  const auto room = [](const std::string& text) { return 1.08 * text_width(text, text_size); };
  Frame f;
  double notes = 0;
  for (int64_t s = 0; s < stages; ++s) notes = std::max(notes, room(lane_note(view, s)));
  f.left = margin + room(fmt::format("stage {}", stages)) + 10;
  // Wide enough for a number in the shortest box, as long as that is a picture people can still handle.
  const double least = shortest(view.timeline);
  const double wanted = std::isfinite(least) ? 20 * view.timeline.length / least : 0;
  f.right = f.left + std::clamp(wanted, 760.0, 3000.0);
  f.lane = std::clamp(2400.0 / static_cast<double>(std::max<int64_t>(stages, 1)), 5.0, 30.0);
  f.size = {f.right + 12 + notes + margin, lanes_top + f.lane * static_cast<double>(stages) + foot};
  return f;
}

void draw_head(const ScheduleView& view, Canvas& canvas) {
  canvas.text({margin, 34}, view.title, title_size, ink, Anchor::start, true, false);
  canvas.text({margin, 57}, schedule_words(view), text_size, ink, Anchor::start, false, false);
}

void draw_legend(const ScheduleView& view, Canvas& canvas) {
  std::set<Act> present;
  for (const auto& stage : view.timeline.stages)
    for (const Interval& i : stage) present.insert(i.action.act);
  const int64_t chunks = view.pipeline.shape.chunks;
  const auto shades = static_cast<int64_t>(std::min(legend_shades, static_cast<std::size_t>(chunks)));
  double x = margin;
  const double y = 72, side = 16;
  for (const Kind& k : kinds) {
    if (!present.count(k.act)) continue;
    for (int64_t s = 0; s < shades; ++s, x += side)
      canvas.box({x, y}, side, side, action_colour(k.act, shades == 1 ? 0 : s * (chunks - 1) / (shades - 1), chunks),
                 ink, 0.75);
    canvas.text({x + 7, y + 13}, k.label, text_size, ink, Anchor::start, false, false);
    x += 7 + 1.08 * text_width(k.label, text_size) + 22;
  }
  if (chunks > 1)
    canvas.text({x, y + 13}, fmt::format("shades: chunk 0 (darkest) to {}", chunks - 1), text_size, quiet,
                Anchor::start, false, false);
}

void draw_box(const Interval& i, int64_t chunks, const Frame& f, double top, double scale, Canvas& canvas) {
  const bool beside = i.action.act == Act::G || i.action.act == Act::R;  // goes on beside the work: a strip below it
  const double x = f.left + i.begin * scale, width = (i.end - i.begin) * scale,
               whole = f.lane - lane_gap * f.lane / 30, height = beside ? 0.22 * whole : whole;
  if (beside) top += whole - height;
  const Colour fill = action_colour(i.action.act, i.action.chunk, chunks);
  canvas.box({x, top}, width, height, fill, ink, width > 3 && height > 6 ? 0.75 : 0.0);
  const std::string number = std::to_string(i.action.micro);
  const double size = std::min(12.0, 0.5 * f.lane);
  if (beside || size < 7 || text_width(number, size) + 5 > width) return;
  canvas.text({x + width / 2, top + height / 2 + 0.36 * size}, number, size, is_dark(fill) ? paper : ink,
              Anchor::middle, false, false);
}

void draw_lanes(const ScheduleView& view, const Frame& f, Canvas& canvas) {
  const double scale = view.timeline.length > 0 ? (f.right - f.left) / view.timeline.length : 0;
  const auto every = static_cast<int64_t>(std::ceil((text_size + 2) / f.lane));  // labels where they do not touch
  for (int64_t s = 0; s < stages_of(view); ++s) {
    const double top = lanes_top + f.lane * static_cast<double>(s), baseline = top + f.lane / 2 + 0.3 * text_size;
    canvas.line({{f.left, top + f.lane / 2}, {f.right, top + f.lane / 2}}, lane_rule, 1, 1);
    for (const Interval& i : view.timeline.stages[static_cast<std::size_t>(s)])
      draw_box(i, view.pipeline.shape.chunks, f, top, scale, canvas);
    if (s % every != 0) continue;
    canvas.text({f.left - 10, baseline}, fmt::format("stage {}", s), text_size, ink, Anchor::end, false, false);
    canvas.text({f.right + 12, baseline}, lane_note(view, s), text_size, quiet, Anchor::start, false, false);
  }
}

void draw_time(const ScheduleView& view, const Frame& f, Canvas& canvas) {
  const double y = f.size.height - foot + 6, length = view.timeline.length;
  canvas.line({{f.left, y}, {f.right, y}}, rule, 1, 1);
  if (length > 0) {
    for (const Tick& t : make_axis(0, length, 10, false).ticks) {
      if (t.at < 0 || t.at > length) continue;
      const double x = f.left + t.at / length * (f.right - f.left);
      canvas.line({{x, y}, {x, y + 5}}, rule, 1, 1);
      canvas.text({x, y + 20}, t.label, text_size, quiet, Anchor::middle, false, false);
    }
  }
  std::string label = fmt::format("time, where a chunk's forward takes {:.3g}, its backward {:.3g}",
                                  view.costs.forward, view.costs.backward);
  if (view.pipeline.split) label += fmt::format(", its weight gradients {:.3g}", view.costs.weight);
  label += view.costs.message > 0 ? fmt::format(", a message {:.3g}", view.costs.message) : ", messages nothing";
  canvas.text({(f.left + f.right) / 2, y + 42}, label, text_size, ink, Anchor::middle, false, false);
}

}  // namespace

Colour action_colour(Act act, int64_t chunk, int64_t chunks) {
  const Kind& k = kind_of(act);
  const double t = chunks > 1 ? static_cast<double>(chunk) / static_cast<double>(chunks - 1) : 0;
  const auto mix = [&](std::uint8_t a, std::uint8_t b) {
    return static_cast<std::uint8_t>(std::lround(a + t * (b - a)));
  };
  return {mix(k.first.r, k.last.r), mix(k.first.g, k.last.g), mix(k.first.b, k.last.b)};
}

double idle_of(const Timeline& timeline, int64_t stage) {
  double busy = 0;
  for (const Interval& i : timeline.stages.at(static_cast<std::size_t>(stage)))
    if (i.action.act != Act::G && i.action.act != Act::R) busy += i.end - i.begin;
  // a sum of many times may pass the whole by a rounding error
  return timeline.length > 0 ? std::max(0.0, 1 - busy / timeline.length) : 0;
}

std::string schedule_words(const ScheduleView& view) {
  const auto& stash = view.report.peak_stash;
  const auto most = std::max_element(stash.begin(), stash.end());
  std::string out = "idle share " + percent(view.timeline.idle_share) + " of the time of all stages";
  if (most != stash.end())
    out += fmt::format("; peak stash {} micro-batch{} (stage {})", stash_text(*most), *most == 1 ? "" : "es",
                       most - stash.begin());
  return out;
}

Size schedule_size(const ScheduleView& view) { return frame_of(view).size; }

void draw(const ScheduleView& view, Canvas& canvas) {
  const Frame f = frame_of(view);
  draw_head(view, canvas);
  draw_legend(view, canvas);
  draw_lanes(view, f, canvas);
  draw_time(view, f, canvas);
}

void check_picture_path(const std::string& path) {
  const std::string kind = std::filesystem::path(path).extension().string();
  if (kind != ".svg" && kind != ".png")
    throw UsageError("picture of the schedule " + path + ": the name of the file has to end in .svg or .png");
}

void draw_schedule(const Pipeline& pipeline, const ScheduleCosts& costs, const ScheduleReport& report,
                   const std::string& title, const std::string& path) {
  check_picture_path(path);
  if (!report.problems.empty())
    throw UsageError("the schedule " + pipeline.name + " cannot run, so it cannot be drawn: " + report.problems[0]);
  draw_schedule({pipeline, costs, report, play(pipeline, costs), title}, path);
}

void draw_schedule(const ScheduleView& view, const std::string& path) {
  check_picture_path(path);
  const Size size = schedule_size(view);
  const Painter painter = [&](Canvas& canvas) { draw(view, canvas); };
  if (std::filesystem::path(path).extension() == ".png")
    return write_png(paint(size.width, size.height, 2.0, painter), path);
  std::ofstream out(path, std::ios::binary);
  out << to_svg(view.title, size.width, size.height, painter);
  out.close();
  if (!out) throw DataError("cannot write " + path + ": is its folder there and writable, and the disk not full?");
}

namespace {

/// A line of `cells` cells of `width` characters. In each box: the start of its name that fits, then dashes.
std::string text_lane(const std::vector<Interval>& stage, double unit, int64_t cells, int64_t width, int64_t chunks) {
  std::string line(static_cast<std::size_t>(cells * width), '.');
  for (const Interval& i : stage) {
    if (i.end <= i.begin) continue;
    const auto begin = static_cast<std::size_t>(std::llround(i.begin / unit) * width);
    const auto end = static_cast<std::size_t>(std::llround(i.end / unit) * width);
    std::string name(1, static_cast<char>(i.action.act));
    if (width > 1) {
      name += std::to_string(i.action.micro);
      if (chunks > 1) name += static_cast<char>('a' + i.action.chunk);
      name.resize(end - begin - 1, '-');
      name += ' ';
    } else {
      name.resize(end - begin, name[0]);
    }
    line.replace(begin, end - begin, name);
  }
  return line;
}

}  // namespace

std::string schedule_text(const Timeline& timeline, int64_t chunks, int columns) {
  const double unit = shortest(timeline);
  if (!std::isfinite(unit) || chunks > 26) return {};
  int64_t micros = 0;
  for (const auto& stage : timeline.stages)
    for (const Interval& i : stage) {
      micros = std::max(micros, i.action.micro);
      // off the grid, boxes would overlap
      for (const double t : {i.begin / unit, i.end / unit})
        if (std::abs(t - std::round(t)) > 1e-6 * std::max(1.0, t)) return {};
    }
  const int64_t cells = std::llround(timeline.length / unit);
  const auto named = static_cast<int64_t>(std::to_string(micros).size()) + 2 + (chunks > 1 ? 1 : 0);
  const std::size_t label = std::to_string(timeline.stages.size()).size();
  for (const int64_t width : {named, int64_t{1}}) {
    if (cells * width + static_cast<int64_t>(label) + 8 > columns) continue;
    std::string out;
    for (std::size_t s = 0; s < timeline.stages.size(); ++s)
      out += fmt::format("stage {:>{}}  {}\n", s, label, text_lane(timeline.stages[s], unit, cells, width, chunks));
    return out;
  }
  return {};
}

}  // namespace orthant::chart
