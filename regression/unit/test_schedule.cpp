// Schedules as data: the lists themselves, what they keep, how long they idle, and what the checker finds.
// labels: smoke asan
#include <gtest/gtest.h>

#include "schedule_kit.hpp"

namespace orthant {
namespace {

/// "name 4 x 8 x 2" of stages, micro-batches and chunks, for messages.
std::string label(const Pipeline& made) {
  return made.name + " " + std::to_string(made.shape.stages) + " x " + std::to_string(made.shape.micros) + " x " +
         std::to_string(made.shape.chunks);
}

struct Case {
  const char* name;
  int64_t chunks;
};

/// The shapes of the exhaustive tests: up to 8 stages and 20 micro-batches, and some larger ones.
template <class Test>
void each_shape(const std::vector<Case>& cases, Test test) {
  const auto run = [&](int64_t p, int64_t m) {
    for (const Case& c : cases) test(make_pipeline(c.name, {p, m, c.chunks}));  // make_pipeline checks what it made
  };
  for (int64_t p = 1; p <= 8; ++p)
    for (int64_t m = 1; m <= 20; ++m) run(p, m);
  for (const auto& [p, m] : {std::pair{16, 64}, {16, 61}, {16, 5}, {32, 128}, {13, 39}}) run(p, m);
}

TEST(Schedule, TheListsOfSmallShapes) {
  const auto list = [](const char* name, const ScheduleShape& shape, size_t stage) {
    return text(make_pipeline(name, shape).lists[stage], shape.chunks > 1);
  };
  EXPECT_EQ(list("gpipe", {2, 3, 1}, 0), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(list("1f1b", {1, 3, 1}, 0), "F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(list("1f1b", {4, 5, 1}, 0), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4");
  EXPECT_EQ(list("1f1b", {4, 5, 1}, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
  EXPECT_EQ(list("1f1b", {4, 2, 1}, 0), "F0 F1 B0 B1");  // fewer micro-batches than stages
  EXPECT_EQ(list("interleaved", {2, 2, 2}, 0), "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1");
  EXPECT_EQ(list("interleaved", {2, 2, 2}, 1), "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 B0.0 B0.1");
  EXPECT_EQ(list("interleaved", {2, 1, 2}, 0), "F0.0 F1.0 B1.0 B0.0");  // a group that is not full
  EXPECT_EQ(list("zero_bubble", {2, 3, 1}, 0), "F0 F1 B0 W0 F2 B1 W1 B2 W2");
  EXPECT_EQ(list("zero_bubble", {2, 3, 1}, 1), "F0 B0 F1 B1 W0 F2 B2 W1 W2");
  EXPECT_EQ(list("zero_bubble", {1, 2, 2}, 0), "F0.0 F1.0 B1.0 W1.0 F0.1 B0.0 W0.0 F1.1 B1.1 W1.1 B0.1 W0.1");
}

TEST(Schedule, ThePlacementsAreOneToOne) {
  for (const bool vee : {false, true}) {
    const Pipeline made = make_pipeline(vee ? "zero_bubble" : "interleaved", {4, 1, 2});
    ASSERT_EQ(made.vee, vee);
    for (int64_t virtual_stage = 0; virtual_stage < made.virtual_stages(); ++virtual_stage)
      EXPECT_EQ(made.virtual_stage(made.stage_of(virtual_stage), made.chunk_of(virtual_stage)), virtual_stage);
    EXPECT_EQ(made.stage_of(7), vee ? 0 : 3);
  }
}

TEST(Schedule, GpipeKeepsEverythingAnd1f1bLittle) {
  each_shape({{"gpipe", 1}, {"1f1b", 1}}, [](const Pipeline& made) {
    const auto [p, m, v] = made.shape;
    const ScheduleReport report = check_pipeline(made);
    for (int64_t r = 0; r < p; ++r)
      EXPECT_EQ(report.peak_stash[static_cast<size_t>(r)], made.name == "gpipe" ? m : std::min(m, p - r))
          << label(made);
    const Timeline time = play(made, {});
    EXPECT_EQ(time.length, static_cast<double>(3 * (m + p - 1))) << label(made);
    EXPECT_NEAR(time.idle_share, static_cast<double>(p - 1) / static_cast<double>(m + p - 1), 1e-12) << label(made);
  });
}

TEST(Schedule, InterleavedDividesTheBubble) {
  each_shape({{"interleaved", 1}, {"interleaved", 2}, {"interleaved", 3}, {"interleaved", 4}},
             [](const Pipeline& made) {
               const auto [p, m, v] = made.shape;
               for (const double kept : check_pipeline(made).peak_stash) {
                 EXPECT_LE(kept, static_cast<double>(m)) << label(made);
                 EXPECT_LE(kept * static_cast<double>(v), static_cast<double>(p * v + p - 1)) << label(made);
               }
               const Timeline time = play(made, {});
               const auto length = static_cast<double>(3 * (m * v + p - 1));
               if (m % p == 0) {
                 EXPECT_EQ(time.length, length) << label(made);
                 EXPECT_NEAR(time.idle_share, static_cast<double>(p - 1) / static_cast<double>(v * m + p - 1), 1e-12)
                     << label(made);
               } else {  // never longer than the full groups it is cut from
                 const int64_t full = (m + p - 1) / p * p;
                 EXPECT_GE(time.length, static_cast<double>(3 * m * v)) << label(made);
                 EXPECT_LE(time.length, static_cast<double>(3 * (full * v + p - 1))) << label(made);
               }
             });
}

TEST(Schedule, ZeroBubbleKeepsWhatTheFirstStageOf1f1bKeepsAndIdlesLess) {
  // With F = B = W = 1 the bubble is (p - 1)(F + B - W) once m >= p; 1F1B has (p - 1)(F + B + W).
  each_shape({{"zero_bubble", 1}}, [](const Pipeline& made) {
    const auto [p, m, v] = made.shape;
    ASSERT_TRUE(made.split && !made.vee);
    for (const double kept : check_pipeline(made).peak_stash) EXPECT_EQ(kept, std::min(m, p)) << label(made);
    const Timeline time = play(made, {.forward = 1, .backward = 1, .weight = 1});
    const int64_t bubble = std::max(p - 1, 2 * (p - 1) - (m - 1));  // few micro-batches leave few W to fill in
    EXPECT_EQ(time.length, static_cast<double>(3 * m + bubble)) << label(made);
    EXPECT_NEAR(time.idle_share, static_cast<double>(bubble) / static_cast<double>(3 * m + bubble), 1e-12)
        << label(made);
  });
}

TEST(Schedule, TheVHardlyIdlesAndKeepsWhatTheFirstStageOf1f1bKeeps) {
  // Chunks of F = B = W = 1: a stage works for 6 m, and the way down to the last stage takes p - 1.
  each_shape({{"zero_bubble", 2}}, [](const Pipeline& made) {
    const auto [p, m, v] = made.shape;
    ASSERT_TRUE(made.split && made.vee);
    for (const double kept : check_pipeline(made).peak_stash) EXPECT_LE(kept, std::min(m, p)) << label(made);
    const Timeline time = play(made, {.forward = 1, .backward = 1, .weight = 1}),
                   plain = play(make_pipeline("1f1b", {p, m, 1}), {.forward = 2, .backward = 4});
    if (m >= 2 * p) {
      EXPECT_EQ(time.length, static_cast<double>(6 * m + p - 1)) << label(made);
      EXPECT_NEAR(time.idle_share, static_cast<double>(p - 1) / static_cast<double>(6 * m + p - 1), 1e-12)
          << label(made);
    } else if (p > 1) {
      EXPECT_LT(time.length, plain.length) << label(made);
    }
  });
}

TEST(Schedule, MessagesTakeTimeBetweenStagesOnly) {
  // Two stages, one micro-batch: F, message, F, B, message, B.
  EXPECT_DOUBLE_EQ(play(make_pipeline("1f1b", {2, 1, 1}), {.message = 0.5}).length, 7.0);
  // The V: down and up again with a message each way, none at the turn, and the same for the gradients.
  const Timeline v = play(make_pipeline("zero_bubble", {2, 1, 2}), {1, 1, 0, 0.5});
  EXPECT_DOUBLE_EQ(v.length, 4 + 4 + 4 * 0.5);
  const Interval& turn = v.stages[1][1];
  EXPECT_EQ(text({turn.action}, true), "F1.0");
  EXPECT_DOUBLE_EQ(turn.begin, 2.5);
  EXPECT_DOUBLE_EQ(turn.end, 3.5);
}

TEST(Schedule, EachActionOfTheTimelineFollowsTheOneBefore) {
  const Timeline time = play(make_pipeline("interleaved", {4, 6, 3}), {1.25, 2.5, 0, 0.125});
  double busy = 0;
  for (const auto& stage : time.stages)
    for (size_t i = 0; i < stage.size(); ++i) {
      EXPECT_GE(stage[i].begin, i ? stage[i - 1].end : 0);
      EXPECT_LE(stage[i].end, time.length);
      busy += stage[i].end - stage[i].begin;
    }
  EXPECT_NEAR(time.idle_share, 1 - busy / (4 * time.length), 1e-12);
  Pipeline broken = make_pipeline("1f1b", {2, 2, 1});
  broken.lists[1].pop_back();
  EXPECT_THROW(play(broken, {}), LogicError);
}

TEST(Schedule, WhatCannotBeMadeIsRefused) {
  EXPECT_TRUE(has_words(usage_error("zigzag", {2, 2, 1}), {"pipeline.schedule", "zigzag", "1f1b", "zero_bubble"}));
  for (const char* name : {"gpipe", "1f1b"})
    EXPECT_TRUE(has_words(usage_error(name, {2, 2, 2}), {"pipeline.virtual_stages = 2", name, "interleaved"}));
  EXPECT_TRUE(has_words(usage_error("zero_bubble", {2, 2, 3}), {"pipeline.virtual_stages = 3", "V form"}));
  EXPECT_THROW(make_pipeline("1f1b", {2, 0, 1}), LogicError);
  for (const std::string& name : schedule_names()) EXPECT_TRUE(is_schedule_name(name));
  EXPECT_EQ(schedule_names().size(), 4u);
  EXPECT_FALSE(is_schedule_name("order.csv"));
}

TEST(Schedule, ForwardOnly) {
  EXPECT_EQ(text(forward_only(make_pipeline("zero_bubble", {2, 3, 1}).lists[0])), "F0 F1 F2");
}

/// Problems of a schedule of two stages and three micro-batches, 1F1B but for what `change` does to it.
template <class Change>
std::vector<std::string> problems(Change change, const char* name = "1f1b") {
  Pipeline made = make_pipeline(name, {2, 3, 1});
  change(made);
  return check_pipeline(made).problems;
}

TEST(ScheduleChecker, FindsWhatIsMissingAndWhatStandsTwice) {
  for (const char* name : {"1f1b", "zero_bubble"}) {
    const Pipeline good = make_pipeline(name, {2, 3, 1});
    for (size_t stage = 0; stage < 2; ++stage)
      for (size_t i = 0; i < good.lists[stage].size(); ++i) {
        const std::string where = "stage " + std::to_string(stage), action = text({good.lists[stage][i]});
        const auto missing = problems(
            [&](Pipeline& x) { x.lists[stage].erase(x.lists[stage].begin() + static_cast<int64_t>(i)); }, name);
        EXPECT_TRUE(mentions(missing, {where, action, "is missing"})) << action;
        const auto twice = problems([&](Pipeline& x) { x.lists[stage].push_back(good.lists[stage][i]); }, name);
        EXPECT_TRUE(mentions(twice, {where, action, "stands twice"})) << action;
      }
  }
}

TEST(ScheduleChecker, FindsAWrongOrder) {
  const auto b_first = problems([](Pipeline& x) { std::swap(x.lists[1][0], x.lists[1][1]); });
  EXPECT_TRUE(mentions(b_first, {"stage 1", "B0", "before its forward"}));
  const auto w_first = problems([](Pipeline& x) { std::swap(x.lists[0][2], x.lists[0][3]); }, "zero_bubble");
  EXPECT_TRUE(mentions(w_first, {"stage 0", "W0", "before its B"}));
}

TEST(ScheduleChecker, FindsWhatDoesNotBelong) {
  const auto with = [](const Action& a) { return problems([&](Pipeline& x) { x.lists[0].push_back(a); }); };
  EXPECT_TRUE(mentions(with({Act::F, 1, 0}), {"F0 of chunk 1", "chunks 0 to 0"}));
  EXPECT_TRUE(mentions(with({Act::F, -1, 0}), {"F0 of chunk -1", "chunks 0 to 0"}));
  EXPECT_TRUE(mentions(with({Act::B, 0, 3}), {"B3", "0 to 2"}));
  EXPECT_TRUE(mentions(with({Act::W, 0, 0}), {"W0", "part of B"}));
  EXPECT_TRUE(mentions(with({Act::R, 0, 0}), {"R0", "does not belong"}));
  EXPECT_TRUE(mentions(with({Act::F, 0, 0, 2}), {"F0", "whole chunks"}));
  EXPECT_TRUE(mentions(problems([](Pipeline& x) { x.lists.pop_back(); }), {"1 stages instead of 2"}));
  EXPECT_TRUE(mentions(problems([](Pipeline& x) { x.vee = true; }), {"V placement", "2 chunks"}));
  EXPECT_TRUE(mentions(problems([](Pipeline& x) { x.shape.micros = 0; }), {"at least one"}));
}

TEST(ScheduleChecker, FindsADeadlock) {
  // Stage 0 wants B1 back before it sends F2, stage 1 wants F2 before it sends B1; each list by itself is in order.
  const auto found = problems([](Pipeline& x) {
    using enum Act;
    x.lists = {{{F, 0, 0}, {F, 0, 1}, {B, 0, 0}, {B, 0, 1}, {F, 0, 2}, {B, 0, 2}},
               {{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {F, 0, 2}, {B, 0, 1}, {B, 0, 2}}};
  });
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(mentions(found, {"deadlock", "stage 0 waits at action 3", "B1 of chunk 0 of stage 1"})) << found[0];
  EXPECT_TRUE(mentions(found, {"deadlock", "stage 1 waits at action 3", "F2 of chunk 0 of stage 0"})) << found[1];
  // At the turn of the V a stage can only wait for itself: its B of chunk 0 needs its B of chunk 1.
  Pipeline turn = make_pipeline("zero_bubble", {1, 1, 2});
  ASSERT_EQ(text(turn.lists[0], true), "F0.0 F1.0 B1.0 W1.0 B0.0 W0.0");
  std::swap(turn.lists[0][2], turn.lists[0][4]);
  std::swap(turn.lists[0][3], turn.lists[0][5]);
  EXPECT_TRUE(mentions(check_pipeline(turn).problems, {"deadlock", "B0 of chunk 0", "for B0 of chunk 1 of stage 0"}));
}

TEST(ScheduleChecker, CountsFromFToW) {
  Pipeline late = make_pipeline("zero_bubble", {1, 2, 1});  // F0 B0 W0 F1 B1 W1
  EXPECT_EQ(check_pipeline(late).peak_stash, std::vector<double>{1});
  std::rotate(late.lists[0].begin() + 2, late.lists[0].begin() + 3, late.lists[0].end());  // W0 last
  EXPECT_TRUE(check_pipeline(late).problems.empty());
  EXPECT_EQ(check_pipeline(late).peak_stash, std::vector<double>{2});
}

}  // namespace
}  // namespace orthant
