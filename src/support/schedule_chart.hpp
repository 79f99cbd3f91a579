// A pipeline schedule as a picture: stages down, time across, a box for each action; and as a few lines of text.
#pragma once

#include <string>

#include "orthant/schedule.hpp"
#include "support/chart_canvas.hpp"

namespace orthant::chart {

/// What is drawn. The timeline may hold more than the lists of the pipeline do (actions of units, G and R).
struct ScheduleView {
  const Pipeline& pipeline;
  const ScheduleCosts& costs;
  const ScheduleReport& report;  ///< peak_stash: a number for each stage
  const Timeline& timeline;
  std::string title;
};

/// Fill of an action: hue and darkness by its kind, a lighter shade for later chunks. The darknesses of the kinds do
/// not overlap, so that a grey print still tells them apart.
Colour action_colour(Act act, int64_t chunk, int64_t chunks);

/// Share of the whole time in which a stage does nothing, 0 to 1.
double idle_of(const Timeline& timeline, int64_t stage);

/// Idle share and peak stash of the schedule in one sentence, for people.
std::string schedule_words(const ScheduleView& view);

/// Logical pixels that the picture needs.
struct Size {
  double width = 0, height = 0;
};
Size schedule_size(const ScheduleView& view);
void draw(const ScheduleView& view, Canvas& canvas);

/// Plays the schedule and writes the picture: SVG or PNG by the ending of `path`. UsageError for another ending or
/// when the report holds problems; DataError with the path when it cannot be written.
void draw_schedule(const Pipeline& pipeline, const ScheduleCosts& costs, const ScheduleReport& report,
                   const std::string& title, const std::string& path);
/// The same for a timeline that was played already.
void draw_schedule(const ScheduleView& view, const std::string& path);
/// UsageError unless `path` ends in .svg or .png: to be asked before work is done.
void check_picture_path(const std::string& path);

/// The schedule in ASCII, one line for each stage: kind and micro-batch of each action (and, with several chunks, the
/// chunk as a letter), idle time as dots; where this is too wide, the kinds alone. Empty when no form fits into
/// `columns`, or when actions are too short to be shown to scale.
std::string schedule_text(const Timeline& timeline, int64_t chunks, int columns);

}  // namespace orthant::chart
