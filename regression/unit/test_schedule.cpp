// Schedules as data: the lists themselves, what they keep, and what the checker finds.
// labels: smoke
#include <gtest/gtest.h>

#include <algorithm>

#include "orthant/error.hpp"
#include "orthant/schedule.hpp"

namespace orthant {
namespace {

std::string text(const ActionList& list) {
  std::string out;
  for (const Action& a : list) {
    if (!out.empty()) out += ' ';
    out += static_cast<char>(a.act);
    if (a.act != Act::R) out += std::to_string(a.micro);
  }
  return out;
}

std::vector<ActionList> lists_of(const Schedule& s, const ScheduleShape& shape) {
  std::vector<ActionList> out;
  for (int64_t stage = 0; stage < shape.stages; ++stage) out.push_back(s.generate(shape, stage));
  return out;
}

TEST(Schedule, GpipeRunsAllForwardsThenAllBackwards) {
  EXPECT_EQ(text(schedule("gpipe").generate({1, 3}, 0)), "F0 F1 F2 B0 B1 B2 R");
  EXPECT_EQ(text(schedule("gpipe").generate({2, 2}, 1)), "F0 F1 B0 B1 R");
}

TEST(Schedule, OneForwardOneBackward) {
  EXPECT_EQ(text(schedule("1f1b").generate({1, 3}, 0)), "F0 B0 F1 B1 F2 B2 R");
  EXPECT_EQ(text(schedule("1f1b").generate({4, 5}, 0)), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4 R");
  EXPECT_EQ(text(schedule("1f1b").generate({4, 5}, 2)), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4 R");
  EXPECT_EQ(text(schedule("1f1b").generate({4, 5}, 3)), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 R");
  EXPECT_EQ(text(schedule("1f1b").generate({4, 2}, 0)), "F0 F1 B0 B1 R");  // fewer micro-batches than stages
}

TEST(Schedule, EveryShapePassesTheCheckerAndKeepsWhatItShould) {
  for (int64_t stages : {1, 2, 3, 4, 8})
    for (int64_t micros : {1, 2, 3, 4, 7, 16})
      for (const char* name : {"gpipe", "1f1b"}) {
        const ScheduleShape shape{stages, micros};
        const ScheduleReport report = check_schedule(shape, lists_of(schedule(name), shape));
        EXPECT_TRUE(report.problems.empty())
            << name << " " << stages << " x " << micros << ": " << report.problems.front();
        ASSERT_EQ(static_cast<int64_t>(report.peak_stash.size()), stages);
        for (int64_t r = 0; r < stages; ++r)
          EXPECT_EQ(report.peak_stash[static_cast<size_t>(r)],
                    std::string(name) == "gpipe" ? micros : std::min(micros, stages - r));
      }
}

TEST(Schedule, AnUnknownNameIsRefused) {
  try {
    schedule("zigzag");
    FAIL();
  } catch (const UsageError& e) {
    for (const char* word : {"pipeline.schedule", "zigzag", "1f1b", "gpipe"})
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
  }
}

/// Problems of one stage's list of three micro-batches.
std::vector<std::string> problems(const ActionList& list) { return check_schedule({1, 3}, {list}).problems; }
bool mentions(const std::vector<std::string>& all, const std::string& a, const std::string& b) {
  return std::any_of(all.begin(), all.end(), [&](const std::string& s) {
    return s.find(a) != std::string::npos && s.find(b) != std::string::npos;
  });
}

TEST(ScheduleChecker, FindsWhatIsMissing) {
  const ActionList good = schedule("1f1b").generate({1, 3}, 0);
  ASSERT_TRUE(problems(good).empty());
  for (size_t i = 0; i < good.size(); ++i) {
    ActionList bad = good;
    bad.erase(bad.begin() + static_cast<int64_t>(i));
    const std::string action =
        good[i].act == Act::R ? "R" : std::string(1, static_cast<char>(good[i].act)) + std::to_string(good[i].micro);
    EXPECT_TRUE(mentions(problems(bad), action, "missing")) << text(bad);
  }
}

TEST(ScheduleChecker, FindsWhatStandsTwice) {
  const ActionList good = schedule("gpipe").generate({1, 3}, 0);
  for (size_t i = 0; i < good.size(); ++i) {
    ActionList bad = good;
    bad.insert(bad.begin() + static_cast<int64_t>(i), good[i]);
    const std::string action =
        good[i].act == Act::R ? "R" : std::string(1, static_cast<char>(good[i].act)) + std::to_string(good[i].micro);
    EXPECT_TRUE(mentions(problems(bad), action, "twice")) << text(bad);
  }
}

TEST(ScheduleChecker, FindsAWrongOrder) {
  using enum Act;
  EXPECT_TRUE(mentions(problems({{F, 0, 0}, {B, 0, 1}, {F, 0, 1}, {B, 0, 0}, {F, 0, 2}, {B, 0, 2}, {R, 0, 0}}), "B1",
                       "before its forward"));
  EXPECT_TRUE(mentions(problems({{F, 0, 0}, {F, 0, 1}, {F, 0, 2}, {B, 0, 0}, {B, 0, 1}, {R, 0, 0}, {B, 0, 2}}), "B2",
                       "after R"));
  EXPECT_TRUE(mentions(
      problems({{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}, {F, 0, 2}, {B, 0, 2}, {F, 0, 3}, {B, 0, 3}, {R, 0, 0}}),
      "more forwards", ""));
  EXPECT_FALSE(problems({}).empty());
}

}  // namespace
}  // namespace orthant
