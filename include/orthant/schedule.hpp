// A schedule is data: the list of actions of each stage. One list feeds the runner, the checker, the planner and the
// drawing; sends and receives are derived from it.
//
// p stages (ranks of the pp axis) hold v chunks each; the model is cut into p v virtual stages. Looped placement:
// chunk c of stage r is virtual stage c p + r. V placement (v = 2): chunk 0 of stage r is virtual stage r, chunk 1 is
// 2 p - 1 - r, so that the first and the last virtual stage share a rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace orthant {

/// F forward, B backward (of the input, and of the weights unless W stands apart), W weight gradients, G gather of a
/// unit's weights, R reduction of the gradients of some units.
enum class Act : char { F = 'F', B = 'B', W = 'W', G = 'G', R = 'R' };

/// A generator's list speaks of whole chunks (unit = -1); the list that runs speaks of units: embedding, blocks,
/// head.
struct Action {
  Act act = Act::F;
  int64_t chunk = 0;      ///< model chunk of the stage
  int64_t micro = 0;      ///< micro-batch
  int64_t unit = -1;      ///< unit of the chunk, in the order of the forward pass; -1: the whole chunk
  int64_t units = 1;      ///< R: this many units from `unit` on
  bool backward = false;  ///< G: for a backward pass
  bool operator==(const Action&) const = default;
};
using ActionList = std::vector<Action>;

struct ScheduleShape {
  int64_t stages = 1;
  int64_t micros = 1;
  int64_t chunks = 1;  ///< of a stage
};

/// A schedule made for a shape: the lists of all stages (F, B and, when split, W of whole chunks).
struct Pipeline {
  std::string name;
  ScheduleShape shape;
  bool split = false;  ///< W stands apart from B
  bool vee = false;    ///< V placement
  std::vector<ActionList> lists;

  int64_t virtual_stages() const { return shape.stages * shape.chunks; }
  int64_t virtual_stage(int64_t stage, int64_t chunk) const {
    return vee && chunk == 1 ? 2 * shape.stages - 1 - stage : chunk * shape.stages + stage;
  }
  int64_t stage_of(int64_t virtual_stage) const {
    return vee && virtual_stage >= shape.stages ? 2 * shape.stages - 1 - virtual_stage : virtual_stage % shape.stages;
  }
  int64_t chunk_of(int64_t virtual_stage) const { return virtual_stage / shape.stages; }
};

/// One kind of schedule, an entry of the list in schedule/list.cpp.
struct Schedule {
  std::string name;
  bool many_chunks = false;                   ///< may have more than one chunk a stage
  void (*generate)(Pipeline& out) = nullptr;  ///< fills split, vee and lists from name and shape
};
Schedule gpipe_schedule();
Schedule one_f_one_b_schedule();
Schedule interleaved_schedule();
Schedule zero_bubble_schedule();

/// The schedule called `name`, or, when `csv` is not empty, the one it holds (name is then the file's, for messages).
/// UsageError naming pipeline.schedule (and for a CSV file its line) for what cannot be made; LogicError when one of
/// our own lists does not pass the checker.
Pipeline make_pipeline(const std::string& name, const ScheduleShape& shape, const std::string& csv = {});
/// True for a name that is in the list of schedules; anything else is the name of a CSV file.
bool is_schedule_name(const std::string& name);
std::vector<std::string> schedule_names();

/// The rows of a schedule as a CSV file holds them (the format stands in schedule/csv.cpp).
std::string schedule_csv(const Pipeline& pipeline);

/// The forward actions alone (F, and G for F): what validation runs. Taken before with_units the gathers stay one
/// ahead.
ActionList forward_only(const ActionList& list);

/// What the checker finds out about a schedule.
struct ScheduleReport {
  std::vector<std::string> problems;  ///< empty: each action once, in a legal order, and no deadlock
  /// Micro-batches kept at once, a number a stage, in units of one whole stage (a chunk is 1 / v): from F to B, or to
  /// W where it stands apart.
  std::vector<double> peak_stash;
};
ScheduleReport check_pipeline(const Pipeline& pipeline);

/// R actions under way at once: each holds a packed bucket, so the next one waits for the oldest.
constexpr std::size_t sums_in_flight = 2;

/// How the actions of a stage are refined into units, gathers and sums.
struct SumPlan {
  std::vector<std::vector<int64_t>> unit_elements;  ///< [chunk][unit]: elements whose gradient the unit owns
  bool gather = false;       ///< ZeRO 3: weights are gathered before each use (G), one unit ahead
  bool every_micro = false;  ///< gradients are reduced after each micro-batch (ZeRO 2, 3), else after the last one
  int64_t bucket = 0;        ///< R waits until its units hold at least this many elements (0: each unit alone)
};
/// The list that runs: F of units in order, B and W from the last unit to the first. G stands one use ahead, G(u1)
/// G(u2) u1 G(u3) u2 ..., for each F and B; R right behind the B, or W when split, that completes the lowest of its
/// units. LogicError for a list that is refined already or names a chunk of which the plan has no units.
ActionList with_units(const ActionList& list, bool split, const SumPlan& plan);

/// Seconds (or any unit) of each action of a whole chunk, and of a message between virtual stages on different ranks.
/// The defaults are for a B that does the weights too; where W stands apart set backward without them.
struct ScheduleCosts {
  double forward = 1, backward = 2, weight = 1;  ///< backward: without the weights when W stands apart
  double message = 0;
};
/// F = 1, B = 2 of a whole stage, or F = B = W = 1 where W stands apart; a chunk takes its share.
ScheduleCosts schedule_costs(const Pipeline& pipeline);
/// One action in time.
struct Interval {
  Action action;
  double begin = 0, end = 0;
};
/// When each action runs if each stage works through its list, waiting for messages only.
struct Timeline {
  std::vector<std::vector<Interval>> stages;
  double length = 0;      ///< from the first action to the end of the last
  double idle_share = 0;  ///< mean over stages of 1 - busy / length
  std::vector<double> input_waits;  ///< of each stage: seconds in which it waited for another stage's message
};
/// What an action of a unit list takes on a stage: F, B, W of a unit; G and R on the wire.
using UnitSeconds = std::function<double(int64_t stage, const Action& action)>;
/// The timeline of lists with units, gathers and sums (with_units), `lists` of all stages. G and R go on beside the work:
/// the use of a gathered unit waits for its G, an R for the one two before it (the runner keeps two under way). F, B and W
/// of a chunk's units stand as one interval each where nothing comes between them. The length is that of the work.
/// `message`: between virtual stages on different ranks.
Timeline play_units(const Pipeline& pipeline, const std::vector<ActionList>& lists, const UnitSeconds& seconds, double message);
/// LogicError for lists that the checker refuses.
Timeline play(const Pipeline& pipeline, const ScheduleCosts& costs);

}  // namespace orthant
