// The timeline of a schedule, for the planner and the drawing: what the lists come to when each action takes a given
// time.
#include <algorithm>

#include "orthant/error.hpp"
#include "orthant/schedule.hpp"
#include "schedule/walk.hpp"

namespace orthant {

Timeline play(const Pipeline& pipeline, const ScheduleCosts& costs) {
  const ScheduleReport report = check_pipeline(pipeline);
  ORTHANT_ENSURE(report.problems.empty(), "schedule " + pipeline.name + ": " + report.problems.front());
  Timeline out;
  out.stages.resize(pipeline.lists.size());
  const auto at = [&](int64_t virtual_stage, const Action& a) {
    return static_cast<size_t>(virtual_stage * pipeline.shape.micros + a.micro);
  };
  const auto cells = static_cast<size_t>(pipeline.virtual_stages() * pipeline.shape.micros);
  std::vector<double> forward(cells), backward(cells), free(pipeline.lists.size()), busy(pipeline.lists.size());
  walk(pipeline, [&](int64_t stage, const Action& action) {
    const auto s = static_cast<size_t>(stage);
    std::vector<double>& done = action.act == Act::F ? forward : backward;
    double begin = free[s];
    if (const int64_t input = input_of(pipeline, stage, action); input >= 0) {
      const double message = pipeline.stage_of(input) == stage ? 0 : costs.message;
      begin = std::max(begin, done[at(input, action)] + message);
    }
    const double cost = action.act == Act::F ? costs.forward : action.act == Act::B ? costs.backward : costs.weight;
    free[s] = begin + cost;
    busy[s] += cost;
    if (action.act != Act::W) done[at(pipeline.virtual_stage(stage, action.chunk), action)] = free[s];
    out.stages[s].push_back({action, begin, free[s]});
  });
  out.length = *std::max_element(free.begin(), free.end());  // the first action, on stage 0, begins at 0
  if (out.length <= 0) return out;                           // costs of nothing: nobody waits
  for (const double b : busy) out.idle_share += (1 - b / out.length) / static_cast<double>(busy.size());
  return out;
}

}  // namespace orthant
