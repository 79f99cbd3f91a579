// Proves a schedule before it runs: each action once, in a legal order, no deadlock; counts what is kept at once.
#include <algorithm>

#include "orthant/schedule.hpp"
#include "schedule/walk.hpp"

namespace orthant {

std::string action_text(const Action& action) {
  return static_cast<char>(action.act) + std::to_string(action.micro) + " of chunk " + std::to_string(action.chunk);
}

namespace {

/// One stage's list by itself: what it has, in which order, how much it keeps.
class ListCheck {
 public:
  ListCheck(const Pipeline& pipeline, int64_t stage, ScheduleReport& report)
      : pipeline_(pipeline), stage_(stage), report_(report) {
    for (auto* seen : {&forward_, &backward_, &weight_})
      seen->resize(static_cast<size_t>(pipeline.shape.chunks * pipeline.shape.micros));
  }

  void run() {
    for (const Action& action : pipeline_.lists[static_cast<size_t>(stage_)])
      if (belongs(action)) take(action);
    for (int64_t chunk = 0; chunk < pipeline_.shape.chunks; ++chunk)
      for (int64_t micro = 0; micro < pipeline_.shape.micros; ++micro)
        for (const Act act : {Act::F, Act::B, Act::W})
          if ((act != Act::W || pipeline_.split) && !seen(act)[at(chunk, micro)])
            problem({act, chunk, micro}, "is missing");
    report_.peak_stash.push_back(static_cast<double>(peak_) / static_cast<double>(pipeline_.shape.chunks));
  }

 private:
  size_t at(int64_t chunk, int64_t micro) const {
    return static_cast<size_t>(chunk * pipeline_.shape.micros + micro);
  }
  std::vector<char>& seen(Act act) { return act == Act::F ? forward_ : act == Act::B ? backward_ : weight_; }
  void problem(const Action& action, const std::string& what) {
    report_.problems.push_back("stage " + std::to_string(stage_) + ": " + action_text(action) + " " + what);
  }

  bool belongs(const Action& a) {
    const ScheduleShape& s = pipeline_.shape;
    if (a.act != Act::F && a.act != Act::B && a.act != Act::W)
      problem(a, "does not belong here: a schedule has F, B and W");
    else if (a.unit != -1)
      problem(a, "is of one unit: a schedule speaks of whole chunks");
    else if (a.act == Act::W && !pipeline_.split)
      problem(a, "does not belong here: the weights are part of B in this schedule");
    else if (a.chunk < 0 || a.chunk >= s.chunks)
      problem(a, "names a chunk that is not there: a stage has chunks 0 to " + std::to_string(s.chunks - 1));
    else if (a.micro < 0 || a.micro >= s.micros)
      problem(a, "names a micro-batch that is not there: a step has 0 to " + std::to_string(s.micros - 1));
    else
      return true;
    return false;
  }

  void take(const Action& a) {
    const size_t cell = at(a.chunk, a.micro);
    if (seen(a.act)[cell]) return problem(a, "stands twice");
    seen(a.act)[cell] = 1;
    if (a.act == Act::B && !forward_[cell]) problem(a, "stands before its forward");
    if (a.act == Act::W && !backward_[cell]) problem(a, "stands before its B");
    if (a.act == Act::F) peak_ = std::max(peak_, ++kept_);
    if (a.act == (pipeline_.split ? Act::W : Act::B)) --kept_;
  }

  const Pipeline& pipeline_;
  int64_t stage_;
  ScheduleReport& report_;
  std::vector<char> forward_, backward_, weight_;
  int64_t kept_ = 0, peak_ = 0;
};

void check_deadlock(const Pipeline& pipeline, ScheduleReport& report) {
  const std::vector<size_t> reached = walk(pipeline, [](int64_t, const Action&) {});
  for (int64_t stage = 0; stage < pipeline.shape.stages; ++stage) {
    const ActionList& list = pipeline.lists[static_cast<size_t>(stage)];
    const size_t i = reached[static_cast<size_t>(stage)];
    if (i == list.size()) continue;
    const int64_t input = input_of(pipeline, stage, list[i]);
    report.problems.push_back("deadlock: stage " + std::to_string(stage) + " waits at action " + std::to_string(i) +
                              ", " + action_text(list[i]) + ", for " +
                              action_text({list[i].act, pipeline.chunk_of(input), list[i].micro}) + " of stage " +
                              std::to_string(pipeline.stage_of(input)));
  }
}

}  // namespace

ScheduleReport check_pipeline(const Pipeline& pipeline) {
  ScheduleReport report;
  const ScheduleShape& s = pipeline.shape;
  if (s.stages < 1 || s.micros < 1 || s.chunks < 1)
    report.problems.push_back("the shape needs at least one stage, micro-batch and chunk");
  else if (pipeline.vee && s.chunks != 2)
    report.problems.push_back("the V placement needs 2 chunks a stage, not " + std::to_string(s.chunks));
  else if (static_cast<int64_t>(pipeline.lists.size()) != s.stages)
    report.problems.push_back("there are lists for " + std::to_string(pipeline.lists.size()) + " stages instead of " +
                              std::to_string(s.stages));
  if (!report.problems.empty()) return report;
  for (int64_t stage = 0; stage < s.stages; ++stage) ListCheck(pipeline, stage, report).run();
  // A missing action would only show once more, as whatever waits for it.
  if (report.problems.empty()) check_deadlock(pipeline, report);
  return report;
}

}  // namespace orthant
