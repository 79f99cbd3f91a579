// A schedule is data: the list of actions of each stage. One list feeds the runner, the checker, the planner and the
// drawing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// F forward, B backward (of the input, and of the weights unless W stands apart), W weight gradients, G gather of a
/// block's weights, R reduction of its gradients.
enum class Act : char { F = 'F', B = 'B', W = 'W', G = 'G', R = 'R' };

struct Action {
  Act act = Act::F;
  int64_t chunk = 0;  ///< model chunk of the stage
  int64_t micro = 0;  ///< micro-batch; 0 for G and R
  bool operator==(const Action&) const = default;
};

struct ScheduleShape {
  int64_t stages = 1;
  int64_t micros = 1;
};

/// Actions of one stage.
using ActionList = std::vector<Action>;

struct Schedule {
  std::string name;
  ActionList (*generate)(const ScheduleShape& shape, int64_t stage);
};

Schedule gpipe_schedule();
Schedule one_f_one_b_schedule();
/// UsageError naming pipeline.schedule for one that is not in the list.
const Schedule& schedule(const std::string& name);

/// What the checker finds out about a schedule.
struct ScheduleReport {
  std::vector<std::string> problems;  ///< empty: each action once, in a legal order
  std::vector<int64_t> peak_stash;    ///< micro-batches kept at once, a number a stage
};
/// Looks at the lists of all stages.
ScheduleReport check_schedule(const ScheduleShape& shape, const std::vector<ActionList>& lists);

}  // namespace orthant
