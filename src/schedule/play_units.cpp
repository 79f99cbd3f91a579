// The timeline of lists with units, gathers and sums: what the runner does, in given times.
#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "orthant/error.hpp"
#include "orthant/schedule.hpp"

namespace orthant {

namespace {

struct StageTime {
  size_t next = 0;
  double free = 0, busy = 0, input_wait = 0;
  std::deque<double> gathers, sums;  ///< when they are complete
  std::vector<Interval> intervals;
};

bool is_work(const Action& a) { return a.act == Act::F || a.act == Act::B || a.act == Act::W; }

/// Units of one F, B or W that follow each other without a gap become one box.
void put(std::vector<Interval>& out, const Action& a, double begin, double end) {
  for (size_t i = out.size(); is_work(a) && i-- > 0;) {
    Interval& last = out[i];
    if (!is_work(last.action)) continue;
    const bool same = last.action.act == a.act && last.action.chunk == a.chunk && last.action.micro == a.micro;
    if (!same || begin > last.end + 1e-12 * std::max(1.0, end)) break;
    last.end = end;
    return;
  }
  out.push_back({a, begin, end});
  if (is_work(a)) out.back().action.unit = -1;
}

}  // namespace

Timeline play_units(const Pipeline& p, const std::vector<ActionList>& lists, const UnitSeconds& seconds, double message) {
  ORTHANT_ENSURE(static_cast<int64_t>(lists.size()) == p.shape.stages, "a list for each stage");
  std::vector<StageTime> stages(lists.size());
  // number of units of each chunk, from the lists themselves
  std::vector<std::map<int64_t, int64_t>> units(lists.size());
  std::vector<bool> gathers(lists.size(), false);
  for (size_t s = 0; s < lists.size(); ++s)
    for (const Action& a : lists[s]) {
      if (is_work(a)) units[s][a.chunk] = std::max(units[s][a.chunk], a.unit + 1);
      if (a.act == Act::G) gathers[s] = true;
    }
  std::map<std::tuple<bool, int64_t, int64_t>, double> done;  // [backward, virtual stage, micro]
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < lists.size(); ++s) {
      StageTime& t = stages[s];
      for (; t.next < lists[s].size(); ++t.next) {
        const Action& a = lists[s][t.next];
        const double cost = seconds(static_cast<int64_t>(s), a);
        if (a.act == Act::G) {
          t.gathers.push_back(t.free + cost);
          put(t.intervals, a, t.free, t.free + cost);
          moved = true;
          continue;
        }
        if (a.act == Act::R) {
          while (t.sums.size() >= sums_in_flight) {
            t.free = std::max(t.free, t.sums.front());
            t.sums.pop_front();
          }
          t.sums.push_back(t.free + cost);
          put(t.intervals, a, t.free, t.free + cost);
          moved = true;
          continue;
        }
        const bool backward = a.act == Act::B;
        const int64_t own = p.virtual_stage(static_cast<int64_t>(s), a.chunk), last = units[s][a.chunk] - 1;
        const int64_t input = a.act == Act::F && a.unit == 0 ? own - 1 : backward && a.unit == last && own + 1 < p.virtual_stages() ? own + 1 : -1;
        double begin = t.free;
        if (input >= 0) {
          auto found = done.find({backward, input, a.micro});
          if (found == done.end()) break;
          begin = std::max(begin, found->second + (p.stage_of(input) == static_cast<int64_t>(s) ? 0 : message));
          t.input_wait += begin - t.free;
        }
        if (gathers[s] && a.act != Act::W) {
          ORTHANT_ENSURE(!t.gathers.empty(), "a unit is used without a gather");
          begin = std::max(begin, t.gathers.front());
          t.gathers.pop_front();
        }
        t.free = begin + cost;
        t.busy += cost;
        put(t.intervals, a, begin, t.free);
        if (a.act == Act::F && a.unit == last) done[{false, own, a.micro}] = t.free;
        if (backward && a.unit == 0) done[{true, own, a.micro}] = t.free;
        moved = true;
      }
    }
  }
  Timeline out;
  for (size_t s = 0; s < lists.size(); ++s) {
    ORTHANT_ENSURE(stages[s].next == lists[s].size(), "the lists of units do not run to their end");
    out.length = std::max(out.length, stages[s].free);
    out.stages.push_back(std::move(stages[s].intervals));
    out.input_waits.push_back(stages[s].input_wait);
  }
  if (out.length > 0)
    for (const StageTime& t : stages) out.idle_share += (1 - t.busy / out.length) / static_cast<double>(stages.size());
  return out;
}

}  // namespace orthant
