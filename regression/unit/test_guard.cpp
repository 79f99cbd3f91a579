// Bad steps: which they are, what follows from several in a row, and that a resumed run judges as one that was not stopped.
// labels: smoke asan
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "deck/check.hpp"
#include "orthant/error.hpp"
#include "train/guard.hpp"

namespace orthant {
namespace {

const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();

Deck deck(const std::vector<std::string>& overrides) {
  return Deck::parse(
      "run.steps = 100\nmodel = { family = \"llama\", layers = 4, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, vocab = 65 }\n"
      "data = { train = \"set\", sequence = 4 }\nbatch.global = 8\n",
      "small.toml", overrides);
}

/// Judges and counts a step.
std::string take(StepGuard& g, double loss, double norm = 1) {
  const std::string bad = g.judge(loss, norm);
  g.count(loss, norm, bad);
  return bad;
}

TEST(Guard, WhatIsNotFiniteIsBadWhateverTheDeckSays) {
  StepGuard g(deck({}));
  EXPECT_FALSE(g.watches_spikes());
  EXPECT_EQ(take(g, 3, 1), "");
  EXPECT_EQ(take(g, 300, 100), "");  // no factor, no spikes
  for (double x : {nan, inf, -inf}) {
    EXPECT_NE(take(g, x, 1).find("not finite"), std::string::npos);
    EXPECT_NE(take(g, 1, x).find("not finite"), std::string::npos);
  }
  EXPECT_EQ(g.bad_in_a_row(), 6);
  EXPECT_FALSE(g.wants_rollback());
}

TEST(Guard, ASpikeIsMeasuredAgainstTheMedianOfGoodSteps) {
  StepGuard g(deck({"guard.spike_factor=2"}));
  for (size_t i = 0; i + 1 < StepGuard::judges_from; ++i) EXPECT_EQ(take(g, i == 3 ? 50 : 4), "") << "too few to compare with";
  EXPECT_EQ(take(g, 4), "");
  EXPECT_EQ(take(g, 8), "");     // just the factor is none
  EXPECT_EQ(take(g, 8.001), "loss 8.001 is 2 x the median 4 of the last 9 good steps (guard.spike_factor = 2)");
  EXPECT_EQ(take(g, 4, 20), "");
  EXPECT_EQ(take(g, 4, 25), "gradient norm 25 is 25 x the median 1 of the last 10 good steps (guard.spike_factor = 2)");
  for (int i = 0; i < 200; ++i) EXPECT_NE(take(g, 9), "") << "spikes do not move the median";
  EXPECT_EQ(g.bad_in_a_row(), 201);
  EXPECT_EQ(take(g, 4), "");
  EXPECT_EQ(g.bad_in_a_row(), 0);
}

TEST(Guard, OldStepsLeaveTheMedian) {
  StepGuard g(deck({"guard.spike_factor=1.5"}));
  for (int i = 0; i < 400; ++i) EXPECT_EQ(take(g, 10 * std::pow(0.99, i)), "");  // falling: never a spike
  EXPECT_NE(take(g, 10), "");
}

TEST(Guard, MoreThanMaxSkipsEndTheRun) {
  StepGuard g(deck({"guard.max_skips=2"}));
  take(g, nan);
  take(g, nan);
  EXPECT_EQ(g.exhausted(7), "");
  take(g, nan);
  EXPECT_EQ(g.exhausted(7), "loss or gradient norm was not finite in step 7, and 3 steps in a row were not taken; guard.max_skips = 2 allows no more");
  StepGuard none(deck({"guard.max_skips=0"}));
  take(none, nan);
  EXPECT_NE(none.exhausted(1), "");
}

TEST(Guard, RollbackComesAfterAsManyBadStepsAsTheDeckSays) {
  StepGuard g(deck({"guard.rollback_after=2", "checkpoint.every=5"}));
  take(g, nan);
  EXPECT_FALSE(g.wants_rollback());
  take(g, 1);
  take(g, nan);
  EXPECT_FALSE(g.wants_rollback());
  take(g, nan);
  EXPECT_TRUE(g.wants_rollback());
}

TEST(Guard, TheSameDataAreTriedAgainOnce) {
  StepGuard g(deck({"guard.rollback_after=1", "checkpoint.every=5"}));
  take(g, nan);
  EXPECT_EQ(g.going_back(10, true), "");
  take(g, nan);
  EXPECT_EQ(g.going_back(20, true), "");  // it got further
  take(g, nan);
  EXPECT_NE(g.going_back(20, true).find("as before the run went back to step 20"), std::string::npos);
}

TEST(Guard, OtherDataAreTriedAsOftenAsMaxSkips) {
  StepGuard g(deck({"guard.rollback_after=1", "checkpoint.every=5", "guard.max_skips=3", "guard.skip_data=true"}));
  take(g, nan);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(g.going_back(10, false), "");
  EXPECT_NE(g.going_back(10, false).find("back to step 10 3 times"), std::string::npos);
  EXPECT_EQ(g.going_back(15, false), "");
}

TEST(Guard, AResumedRunJudgesAsOneThatWasNotStopped) {
  const Deck d = deck({"guard.spike_factor=1.3"});
  for (int stop = 0; stop < 150; stop += 7) {
    StepGuard straight(d), first(d), second(d);
    const auto loss = [](int i) { return 3 + std::sin(i * 1.7) + (i % 31 == 0 ? 2 : 0); };
    const auto norm = [](int i) { return 1 / (1.0 + i) + (i % 47 == 0 ? 30 : 0); };
    std::string a, b;
    for (int i = 0; i < 160; ++i) a += take(straight, loss(i), norm(i)) + "\n";
    for (int i = 0; i < stop; ++i) b += take(first, loss(i), norm(i)) + "\n";
    TrainState state;
    first.store(state);
    second.load(state);
    EXPECT_EQ(second.bad_in_a_row(), first.bad_in_a_row());
    for (int i = stop; i < 160; ++i) b += take(second, loss(i), norm(i)) + "\n";
    EXPECT_EQ(a, b) << stop;
  }
}

TEST(Guard, WithoutAFactorTheStateHoldsTheCounterAlone) {
  StepGuard g(deck({}));
  take(g, 1);
  take(g, nan);
  TrainState state;
  state.strings["guard"] = "of an earlier life";
  g.store(state);
  EXPECT_EQ(state.integers["skips"], 1);
  EXPECT_TRUE(state.strings.empty());
}

TEST(Guard, AStateThatContradictsItselfIsRefused) {
  StepGuard g(deck({"guard.spike_factor=2"}));
  for (const char* text : {"", "{}", "{\"loss\": [1], \"grad_norm\": []}", "{\"loss\": [\"a\"], \"grad_norm\": [1]}"}) {
    TrainState state;
    state.strings["guard"] = text;
    EXPECT_THROW(g.load(state), DataError) << text;
  }
}

TEST(Guard, DecksThatPromiseWhatCannotHappenAreRefused) {
  const auto problems = [](const std::vector<std::string>& keys) {
    std::string out;
    for (const std::string& p : check_values(deck(keys))) out += p + "\n";
    return out;
  };
  EXPECT_EQ(problems({"guard.rollback_after=3", "checkpoint.every=10", "guard.skip_data=true", "guard.spike_factor=2"}), "");
  EXPECT_NE(problems({"guard.rollback_after=3"}).find("checkpoint.every"), std::string::npos);
  EXPECT_NE(problems({"guard.rollback_after=11", "checkpoint.every=10"}).find("ends the run before"), std::string::npos);
  EXPECT_NE(problems({"guard.skip_data=true"}).find("guard.rollback_after"), std::string::npos);
  EXPECT_NE(problems({"guard.spike_factor=0.9"}).find("more than 1"), std::string::npos);
  EXPECT_NE(problems({"guard.spike_factor=1"}).find("more than 1"), std::string::npos);
}

}  // namespace
}  // namespace orthant
