// The time line of lists with units, gathers and sums.
// labels: asan
#include <gtest/gtest.h>

#include "orthant/error.hpp"
#include "orthant/schedule.hpp"

namespace orthant {
namespace {

/// Lists of units for all stages, `units` of them in each chunk.
std::vector<ActionList> refined(const Pipeline& p, int64_t units, bool gather, bool every_micro) {
  std::vector<ActionList> out;
  SumPlan plan;
  plan.gather = gather;
  plan.every_micro = every_micro;
  plan.unit_elements.assign(static_cast<size_t>(p.shape.chunks), std::vector<int64_t>(static_cast<size_t>(units), 1));
  for (const ActionList& list : p.lists) out.push_back(with_units(list, p.split, plan));
  return out;
}

TEST(PlayUnits, WithoutWireTimeItIsTheScheduleItself) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zero_bubble"})
    for (int64_t stages : {1, 2, 4})
      for (int64_t micros : {1, 3, 8})
        for (int64_t units : {1, 3}) {
          const int64_t chunks = std::string(name) == "interleaved" ? 2 : 1;
          const Pipeline p = make_pipeline(name, {stages, micros, chunks});
          const ScheduleCosts costs = schedule_costs(p);
          auto seconds = [&](int64_t, const Action& a) {
            const double whole = a.act == Act::F ? costs.forward : a.act == Act::B ? costs.backward : a.act == Act::W ? costs.weight : 0;
            return whole / static_cast<double>(units);
          };
          const Timeline want = play(p, costs), got = play_units(p, refined(p, units, true, true), seconds, 0);
          EXPECT_NEAR(got.length, want.length, 1e-9) << name << " " << stages << " " << micros;
          EXPECT_NEAR(got.idle_share, want.idle_share, 1e-9);
        }
}

TEST(PlayUnits, UnitsOfOneActionAreOneInterval) {
  const Pipeline p = make_pipeline("1f1b", {1, 2, 1});
  const Timeline t = play_units(p, refined(p, 3, false, false), [](int64_t, const Action& a) { return a.act == Act::R ? 0.5 : 1.0; }, 0);
  std::string text;
  for (const Interval& i : t.stages[0]) text += std::string(1, static_cast<char>(i.action.act)) + std::to_string(static_cast<int>(i.end - i.begin)) + " ";
  EXPECT_EQ(text, "F3 B3 F3 B3 R0 R0 R0 ");
  EXPECT_DOUBLE_EQ(t.length, 12);
}

TEST(PlayUnits, AGatherHidesBehindTheUnitBeforeIt) {
  const Pipeline p = make_pipeline("1f1b", {1, 1, 1});
  auto length = [&](double gather) {
    return play_units(p, refined(p, 4, true, false), [&](int64_t, const Action& a) { return a.act == Act::G ? gather : a.act == Act::R ? 0.0 : 1.0; }, 0).length;
  };
  EXPECT_DOUBLE_EQ(length(0), 8);
  EXPECT_DOUBLE_EQ(length(0.9), 8.9);  // the first has nothing to hide behind
  // two gathers are under way while a unit waits: every second one is late, by a half
  EXPECT_DOUBLE_EQ(length(1.5), 8 + 1.5 + 3 * 0.5);
}

TEST(PlayUnits, AtMostTwoSumsAreUnderWay) {
  const Pipeline p = make_pipeline("1f1b", {1, 1, 1});
  auto length = [&](double sum) {
    return play_units(p, refined(p, 4, false, false), [&](int64_t, const Action& a) { return a.act == Act::R ? sum : 1.0; }, 0).length;
  };
  EXPECT_DOUBLE_EQ(length(1), 8);
  EXPECT_DOUBLE_EQ(length(2), 8);
  // sums begin at 5, 6, then only when the one two before is done: at 5 + 4, 6 + 4; the work ends with B of unit 0
  EXPECT_DOUBLE_EQ(length(4), 5 + 4 + 1);
}

TEST(PlayUnits, AListThatCannotRunIsOurFault) {
  const Pipeline p = make_pipeline("1f1b", {2, 1, 1});
  std::vector<ActionList> lists = refined(p, 1, false, false);
  lists[0].erase(lists[0].begin());  // the first stage never sends
  EXPECT_THROW(play_units(p, lists, [](int64_t, const Action&) { return 1.0; }, 0), LogicError);
}

}  // namespace
}  // namespace orthant
