// The limit of a step, and the report of a hang. That a hanging job ends is shown by system.watchdog.
// ranks: 1
// labels: smoke asan
#include "train/watchdog.hpp"

#include <gtest/gtest.h>

using namespace orthant;

namespace {

std::string who(int rank) { return "rank " + std::to_string(rank) + " (dp " + std::to_string(rank) + ") on host"; }

RankState waiting(int rank, const std::string& at) { return {rank, 7, at, "\n    the call of rank " + std::to_string(rank), true}; }
RankState busy(int rank, const std::string& at) { return {rank, 7, at, "\n    the call of rank " + std::to_string(rank), false}; }

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Watchdog, LimitFollowsTheMedian) {
  EXPECT_EQ(step_limit(2.5, {1, 1, 1, 1}), 2.5);
  EXPECT_EQ(step_limit(0, {}), 600);
  EXPECT_EQ(step_limit(0, {5, 5}), 600);
  EXPECT_EQ(step_limit(0, {0.1, 0.1, 0.1}), 60);           // no alarm for a hiccup of short steps
  EXPECT_EQ(step_limit(0, {30, 20, 1000, 20, 25}), 250);   // the median: one slow step does not count
}

TEST(Watchdog, ASilentRankIsNamedFirst) {
  const std::string text = hang_report(12.3, 10, 4, {waiting(2, "in dp all_reduce #5"), waiting(0, "in dp all_reduce #5"), waiting(1, "in tp all_gather #9")}, who);
  EXPECT_TRUE(has(text, "step 7 takes longer than 12.3 s (limit 10.0 s"));
  EXPECT_TRUE(has(text, "no word from rank 3 (dp 3) on host"));
  EXPECT_TRUE(has(text, "waiting: ranks 0, 2 in dp all_reduce #5"));
  EXPECT_TRUE(has(text, "waiting: rank 1 in tp all_gather #9 [rank 1 (dp 1) on host]"));
  EXPECT_LT(text.find("no word"), text.find("waiting"));
}

TEST(Watchdog, ARankThatIsInNoCallIsNamedWithItsLastCalls) {
  std::vector<RankState> states;
  for (int r = 0; r < 8; ++r) states.push_back(r == 5 ? busy(r, "in phase \"forward\"") : waiting(r, "in dp all_reduce #5"));
  const std::string text = hang_report(12, 10, 8, states, who);
  EXPECT_FALSE(has(text, "no word"));
  EXPECT_TRUE(has(text, "elsewhere: rank 5 in phase \"forward\" [rank 5 (dp 5) on host]"));
  EXPECT_TRUE(has(text, "waiting: ranks 0-4, 6-7 in dp all_reduce #5"));
  EXPECT_TRUE(has(text, "last calls of rank 5, newest last:\n    the call of rank 5"));
  EXPECT_LT(text.find("elsewhere"), text.find("waiting"));
}

// Calls are numbered by axis, so that ranks can be compared, and what a rank waits for is marked.
TEST(Watchdog, TheRingKnowsNumbersAndWaits) {
  Traffic traffic;
  const int64_t a = traffic.record(AxisName::tp, "all_reduce", "here", 2, 64), b = traffic.record(AxisName::dp, "all_gather", "there", 4, 64);
  const int64_t c = traffic.record(AxisName::tp, "all_reduce", "again", 2, 64);
  traffic.waiting(a);
  traffic.finished(AxisName::tp, a, 0.1);
  traffic.waiting(c);
  const std::vector<CallRecord> ring = traffic.ring();
  ASSERT_EQ(ring.size(), 3u);
  EXPECT_EQ(ring[0].number, 1);
  EXPECT_EQ(ring[1].number, 1);
  EXPECT_EQ(ring[2].number, 2);
  EXPECT_TRUE(ring[0].finished && !ring[0].waiting);
  EXPECT_TRUE(!ring[1].finished && !ring[1].waiting && ring[2].waiting);
  traffic.finished(AxisName::pp, b, 0);
}

}  // namespace
