// Proves a list before it runs: each action once, in a legal order; counts what is kept at once.
#include <algorithm>
#include <set>

#include "orthant/schedule.hpp"

namespace orthant {

namespace {

std::string text(const Action& a, int64_t stage) {
  return std::string(1, static_cast<char>(a.act)) + std::to_string(a.micro) + " (chunk " + std::to_string(a.chunk) + ") of stage " + std::to_string(stage);
}

/// Each F and B of each micro-batch once, F before B, R after the last B.
void check_list(const ScheduleShape& shape, const ActionList& list, int64_t stage, ScheduleReport& report) {
  std::set<int64_t> forwards, backwards;
  int64_t stash = 0, peak = 0;
  bool reduced = false;
  for (const Action& a : list) {
    if (a.act == Act::F) {
      if (!forwards.insert(a.micro).second) report.problems.push_back(text(a, stage) + " stands twice");
      peak = std::max(peak, ++stash);
    } else if (a.act == Act::B) {
      if (!forwards.count(a.micro)) report.problems.push_back(text(a, stage) + " stands before its forward");
      if (!backwards.insert(a.micro).second) report.problems.push_back(text(a, stage) + " stands twice");
      if (reduced) report.problems.push_back(text(a, stage) + " stands after R");
      --stash;
    } else if (a.act == Act::R) {
      if (reduced) report.problems.push_back("R of stage " + std::to_string(stage) + " stands twice");
      reduced = true;
    }
  }
  for (int64_t m = 0; m < shape.micros; ++m)
    for (const auto& [set, act] : {std::pair{&forwards, Act::F}, {&backwards, Act::B}})
      if (!set->count(m)) report.problems.push_back(text({act, 0, m}, stage) + " is missing");
  if (static_cast<int64_t>(forwards.size()) > shape.micros) report.problems.push_back("stage " + std::to_string(stage) + " has more forwards than micro-batches");
  if (!reduced) report.problems.push_back("R of stage " + std::to_string(stage) + " is missing");
  report.peak_stash.push_back(peak);
}

}  // namespace

ScheduleReport check_schedule(const ScheduleShape& shape, const std::vector<ActionList>& lists) {
  ScheduleReport report;
  for (int64_t s = 0; s < shape.stages; ++s) check_list(shape, lists[static_cast<size_t>(s)], s, report);
  return report;
}

}  // namespace orthant
