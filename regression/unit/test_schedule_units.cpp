// The list that runs: units, gathers one use ahead, sums behind what completes them.
// labels: smoke asan
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "schedule_kit.hpp"

namespace orthant {
namespace {

constexpr Act F = Act::F, B = Act::B, W = Act::W;

std::string refined(const ActionList& list, bool split, const SumPlan& plan) {
  return units_text(with_units(list, split, plan));
}

TEST(ScheduleUnits, SumsOnceAfterTheLastMicroBatch) {
  const ActionList list = {{F, 0, 0}, {F, 0, 1}, {B, 0, 0}, {B, 0, 1}};
  EXPECT_EQ(refined(list, false, {.unit_elements = {{5, 3}}}),
            "F0/0 F0/1 F1/0 F1/1 B0/1 B0/0 B1/1 R1/1+1 B1/0 R1/0+1");
  // The last in the order of the list, whichever micro-batch that is.
  EXPECT_EQ(refined({{F, 0, 0}, {F, 0, 1}, {B, 0, 1}, {B, 0, 0}}, false, {.unit_elements = {{5, 3}}}),
            "F0/0 F0/1 F1/0 F1/1 B1/1 B1/0 B0/1 R0/1+1 B0/0 R0/0+1");
  EXPECT_EQ(refined(list, false, {.unit_elements = {{5, 3}}, .every_micro = true}),
            "F0/0 F0/1 F1/0 F1/1 B0/1 R0/1+1 B0/0 R0/0+1 B1/1 R1/1+1 B1/0 R1/0+1");
}

TEST(ScheduleUnits, BucketsTakeUnitsUntilTheyAreFull) {
  const ActionList list = {{F, 0, 0}, {B, 0, 0}};
  const auto sums = [&](std::vector<int64_t> elements, int64_t bucket) {
    return refined(list, false, {.unit_elements = {std::move(elements)}, .bucket = bucket}).substr(20);
  };
  EXPECT_EQ(sums({1, 4, 4, 4}, 8), "B0/3 B0/2 R0/2+2 B0/1 B0/0 R0/0+2");
  EXPECT_EQ(sums({1, 4, 4, 4}, 9), "B0/3 B0/2 B0/1 R0/1+3 B0/0 R0/0+1");
  EXPECT_EQ(sums({1, 4, 4, 4}, 100), "B0/3 B0/2 B0/1 B0/0 R0/0+4");
  EXPECT_EQ(sums({0, 4, 0, 0}, 1), "B0/3 B0/2 B0/1 R0/1+3 B0/0 R0/0+1");  // nothing of its own still counts
  EXPECT_EQ(sums({0, 4, 0, 0}, 0), "B0/3 R0/3+1 B0/2 R0/2+1 B0/1 R0/1+1 B0/0 R0/0+1");
}

TEST(ScheduleUnits, WhereWStandsApartItCompletesTheGradients) {
  const ActionList list = {{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {W, 0, 0}, {B, 0, 1}, {W, 0, 1}};
  EXPECT_EQ(refined(list, true, {.unit_elements = {{1, 1}}, .bucket = 2}),
            "F0/0 F0/1 B0/1 B0/0 F1/0 F1/1 W0/1 W0/0 B1/1 B1/0 W1/1 W1/0 R1/0+2");
  EXPECT_EQ(
      refined(list, true, {.unit_elements = {{1, 1}}, .gather = true, .every_micro = true, .bucket = 2}),
      "Gf0/0 Gf0/1 F0/0 Gb0/1 F0/1 Gb0/0 B0/1 Gf1/0 B0/0 Gf1/1 F1/0 Gb1/1 F1/1 W0/1 W0/0 R0/0+2 Gb1/0 B1/1 B1/0 "
      "W1/1 W1/0 R1/0+2");
}

TEST(ScheduleUnits, GathersCrossChunks) {
  const ActionList list = {{F, 0, 0}, {F, 1, 0}, {B, 1, 0}, {B, 0, 0}};
  const ActionList out = with_units(list, false, {.unit_elements = {{1}, {1}}, .gather = true});
  EXPECT_EQ(text(out, true), "G0.0 G1.0 F0.0 G1.0 F1.0 G0.0 B1.0 R1.0 B0.0 R0.0");
  EXPECT_EQ(text(forward_only(out), true), "G0.0 G1.0 F0.0 F1.0");
}

TEST(ScheduleUnits, WhatCannotBeRefined) {
  const SumPlan plan{.unit_elements = {{1, 1}}};
  EXPECT_THROW(with_units(with_units({{F, 0, 0}}, false, plan), false, plan), LogicError);
  EXPECT_THROW(with_units({{F, 1, 0}}, false, plan), LogicError);
  EXPECT_THROW(with_units({{F, 0, 0}}, false, {.unit_elements = {{}}}), LogicError);
  EXPECT_THROW(with_units({{Act::R, 0, 0}}, false, plan), LogicError);
  EXPECT_TRUE(with_units({}, false, {.unit_elements = {{1}}, .gather = true}).empty());
}

using Key = std::tuple<char, int64_t, int64_t, int64_t>;  // action, chunk, micro-batch, unit
Key key(const Action& a, Act act) { return {static_cast<char>(act), a.chunk, a.micro, a.unit}; }

/// Everything the docs of with_units and SumPlan promise, for one stage.
void check_properties(const ActionList& list, bool split, const SumPlan& plan, const std::string& label) {
  SCOPED_TRACE(label);
  const ActionList out = with_units(list, split, plan);
  const Act completes = split ? W : B;
  std::map<Key, size_t> places;  // of F, B and W
  std::vector<Action> uses;
  std::vector<size_t> gathers_before;  // each use
  std::vector<Action> gathers;
  for (size_t i = 0; i < out.size(); ++i) {
    const Action& a = out[i];
    if (a.act == Act::G) gathers.push_back(a);
    if (a.act == Act::G || a.act == Act::R) continue;
    EXPECT_TRUE(places.emplace(key(a, a.act), i).second) << "twice";
    if (a.act == W) continue;
    uses.push_back(a);
    gathers_before.push_back(gathers.size());
  }
  // Each unit of each action once, and taken out of the list again the chunks are what they were.
  size_t expected = 0;
  for (const Action& a : list) expected += plan.unit_elements[static_cast<size_t>(a.chunk)].size();
  EXPECT_EQ(places.size(), expected);
  ActionList whole;
  for (Action a : out) {
    if (a.act == Act::G || a.act == Act::R) continue;
    a.unit = -1;
    if (whole.empty() || !(whole.back() == a)) whole.push_back(a);
  }
  EXPECT_EQ(whole, list);
  // One gather a use, in the order of the uses, and before each use those of this use and of the next.
  ASSERT_EQ(gathers.size(), plan.gather ? uses.size() : 0);
  for (size_t i = 0; i < gathers.size(); ++i) {
    EXPECT_EQ(key(gathers[i], Act::G), key(uses[i], Act::G));
    EXPECT_EQ(gathers[i].backward, uses[i].act == B);
    EXPECT_EQ(gathers_before[i], std::min(i + 2, uses.size()));
  }
  // Each unit is summed once, or once a micro-batch; right behind the action that completes its lowest unit and
  // behind all others; and only the R of unit 0 may hold less than the bucket.
  std::map<std::tuple<int64_t, int64_t, int64_t>, int64_t> sums;  // chunk, unit, micro-batch or -1
  for (size_t i = 0; i < out.size(); ++i) {
    const Action& r = out[i];
    if (r.act != Act::R) continue;
    ASSERT_GT(i, 0u);
    EXPECT_EQ(key(out[i - 1], out[i - 1].act), key(r, completes));
    int64_t above = 0;  // elements of the units above the lowest
    for (int64_t u = r.unit; u < r.unit + r.units; ++u) {
      if (u > r.unit) above += plan.unit_elements[static_cast<size_t>(r.chunk)].at(static_cast<size_t>(u));
      ++sums[{r.chunk, u, plan.every_micro ? r.micro : -1}];
      for (const auto& [k, place] : places) {
        const auto& [act, chunk, micro, unit] = k;
        const bool summed = act == static_cast<char>(completes) && chunk == r.chunk && unit == u;
        if (summed && (!plan.every_micro || micro == r.micro)) {
          EXPECT_LT(place, i);
        }
      }
    }
    EXPECT_TRUE(r.units == 1 || above < plan.bucket) << "a full bucket had to wait";
    const int64_t held = above + plan.unit_elements[static_cast<size_t>(r.chunk)][static_cast<size_t>(r.unit)];
    EXPECT_TRUE(r.unit == 0 || held >= plan.bucket) << "a bucket went before it was full";
  }
  std::set<std::tuple<int64_t, int64_t, int64_t>> due;
  for (const auto& [k, place] : places)
    if (std::get<0>(k) == static_cast<char>(completes))
      due.insert({std::get<1>(k), std::get<3>(k), plan.every_micro ? std::get<2>(k) : -1});
  EXPECT_EQ(sums.size(), due.size());
  for (const auto& [what, times] : sums) EXPECT_TRUE(times == 1 && due.count(what));
}

TEST(ScheduleUnits, PropertiesOfEverySchedule) {
  const std::vector<std::vector<int64_t>> elements = {{7, 2, 0, 2, 3}, {1, 6}};
  for (const std::string& name : schedule_names())
    for (const int64_t chunks : {1, 2}) {
      if (chunks > 1 && name != "interleaved" && name != "zero_bubble") continue;
      for (const auto& [p, m] : {std::pair{1, 1}, {2, 3}, {4, 8}, {4, 2}}) {
        const Pipeline made = make_pipeline(name, {p, m, chunks});
        for (int flags = 0; flags < 4; ++flags)
          for (const int64_t bucket : {0, 1, 4, 1000})
            for (const ActionList& list : made.lists)
              check_properties(
                  list, made.split,
                  {{elements.begin(), elements.begin() + chunks}, (flags & 1) != 0, (flags & 2) != 0, bucket},
                  name + " " + std::to_string(p) + " x " + std::to_string(m));
      }
    }
}

}  // namespace
}  // namespace orthant
