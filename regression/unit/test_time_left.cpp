// The time a job has left: Slurm's spans, where the limit comes from, the reserve, and a squeue that is slow or missing.
// labels: smoke asan
// seconds: 60
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "train/time_left.hpp"

using namespace orthant;

namespace {

struct Clock {
  double seconds = 1000000;
  std::string end_time, job, answer;  // empty: not there
  int asked = 0;

  TimeSources sources(double begun) {
    return {[this] { return seconds; }, begun,
            [this](const char* name) -> std::optional<std::string> {
              const std::string& value = std::string(name) == "SLURM_JOB_END_TIME" ? end_time : std::string(name) == "SLURM_JOB_ID" ? job : answer;
              if (value.empty()) return std::nullopt;
              return value;
            },
            [this](const std::string& of) -> std::optional<std::string> {
              ++asked;
              EXPECT_EQ(of, job);
              if (answer.empty()) return std::nullopt;
              return answer;
            }};
  }
};

TEST(TimeLeft, ReadsTheSpansThatSlurmPrints) {
  EXPECT_EQ(slurm_seconds("1-02:03:04"), 93784.0);
  EXPECT_EQ(slurm_seconds("12-00:00:00"), 1036800.0);
  EXPECT_EQ(slurm_seconds("23:59:59"), 86399.0);
  EXPECT_EQ(slurm_seconds("5:07"), 307.0);
  EXPECT_EQ(slurm_seconds("0:00"), 0.0);
  EXPECT_EQ(slurm_seconds("42"), 42.0);
  EXPECT_EQ(slurm_seconds("2-6"), 194400.0);
  EXPECT_EQ(slurm_seconds("2-6:30"), 196200.0);
  EXPECT_EQ(slurm_seconds("  59:58\n"), 3598.0);
  for (const char* no : {"UNLIMITED", "INVALID", "NOT_SET", "", "-", "1-", "::", "1:2:3:4", "1:-2", "5:0x7", "slurm_load_jobs error: Invalid job id specified"})
    EXPECT_FALSE(slurm_seconds(no)) << no;
}

TEST(TimeLeft, TheDeckComesFirstAndCountsFromTheStartOfTheProgram) {
  Clock clock;
  clock.end_time = "1000900";
  clock.job = "7";
  clock.answer = "10:00";
  TimeLeft left(100.0, clock.sources(999990));
  EXPECT_EQ(left.left(), 90.0);
  EXPECT_EQ(clock.asked, 0);
}

TEST(TimeLeft, ThenTheSchedulersVariable) {
  Clock clock;
  clock.end_time = "1000900";
  clock.job = "7";
  clock.answer = "10:00";
  TimeLeft left(std::nullopt, clock.sources(999990));
  EXPECT_EQ(left.left(), 900.0);
  EXPECT_EQ(clock.asked, 0);
}

TEST(TimeLeft, ThenTheQueueAskedOnce) {
  Clock clock;
  clock.job = "7";
  clock.answer = "10:00";
  TimeLeft left(std::nullopt, clock.sources(999990));
  EXPECT_EQ(left.left(), 600.0);
  clock.seconds += 250;
  EXPECT_EQ(left.left(), 350.0);
  EXPECT_EQ(clock.asked, 1);
}

TEST(TimeLeft, NoAnswerIsNoLimit) {
  for (const char* answer : {"", "UNLIMITED", "INVALID"}) {
    Clock clock;
    clock.job = "7";
    clock.answer = answer;
    TimeLeft left(std::nullopt, clock.sources(999990));
    EXPECT_FALSE(left.left()) << answer;
    EXPECT_FALSE(left.over(1e9, 1e9)) << answer;
    EXPECT_EQ(clock.asked, 1);
  }
  Clock clock;  // outside of any job nobody is asked
  clock.answer = "10:00";
  EXPECT_FALSE(TimeLeft(std::nullopt, clock.sources(999990)).left());
  EXPECT_EQ(clock.asked, 0);
}

TEST(TimeLeft, TheReserveIsOneAndAHalfSavesAndTwoSteps) {
  Clock clock;
  TimeLeft left(1000.0, clock.sources(clock.seconds));
  // steps of 10 s, saves of 40 s: 80 s must be left
  clock.seconds += 919;
  EXPECT_FALSE(left.over(10, 40));
  clock.seconds += 2;
  EXPECT_TRUE(left.over(10, 40));
  EXPECT_FALSE(left.over(10, 38));
  EXPECT_FALSE(left.over(9, 40));
  clock.seconds += 1000;
  EXPECT_TRUE(left.over(0, 0));
}

// A scheduler kills at its own second: some seconds before it are not used. The deck's limit is the program's own.
TEST(TimeLeft, ASchedulersLimitLeavesSecondsForTheEnd) {
  Clock clock;
  clock.job = "7";
  clock.answer = "10:00";
  TimeLeft left(std::nullopt, clock.sources(999990));
  clock.seconds += 600 - TimeLeft::closing_seconds - 1;
  EXPECT_FALSE(left.over(0, 0));
  clock.seconds += 1.5;
  EXPECT_TRUE(left.over(0, 0));
}

// A run of steps and saves against a wall: it always stops before, with a save done (the complaint of GROMACS issues 860
// and 1942 was a stop without one).
TEST(TimeLeft, TheLastSaveEndsBeforeTheWall) {
  for (double step : {0.3, 7.0, 40.0})
    for (double save : {0.1, 20.0, 90.0}) {
      Clock clock;
      const double wall = clock.seconds + 3600;
      TimeLeft left(3600.0, clock.sources(clock.seconds));
      double longest = 0;
      int steps = 0;
      for (;; ++steps) {
        clock.seconds += steps % 3 ? step : 1.4 * step;
        const bool due = steps % 10 == 0;
        const bool stop = left.over(step, due ? 2 * longest : longest);  // a save now must leave room for the last one
        if (!stop && !due) continue;
        const double took = steps % 20 ? 1.3 * save : save;  // saves vary
        clock.seconds += took;
        longest = std::max(longest, took);
        if (stop) break;
      }
      EXPECT_LE(clock.seconds, wall) << step << " " << save;
      EXPECT_GE(clock.seconds, wall - 3 * step - 3 * 1.3 * save) << "time wasted";
    }
}

TEST(TimeLeft, ACommandThatIsMissingFailsOrIsSlowSaysNothing) {
  EXPECT_EQ(first_line_of({"printf", "%s\\n%s\\n", "10:00", "more"}, 10), "10:00");
  EXPECT_EQ(first_line_of({"printf", "10:00"}, 10), "10:00");
  EXPECT_EQ(first_line_of({"true"}, 10), "");
  EXPECT_FALSE(first_line_of({"orthant-has-no-such-command"}, 10));
  EXPECT_FALSE(first_line_of({"sh", "-c", "echo 10:00; exit 1"}, 10));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(first_line_of({"sleep", "50"}, 0.2));
  EXPECT_FALSE(first_line_of({"sh", "-c", "echo 10:00; exec >&-; exec sleep 50"}, 0.2));  // the answer is there, its end is not
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20);
}

}  // namespace
