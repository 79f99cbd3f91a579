// How often a run should save, and two months with the stops that a run on 16384 GPUs had, on a clock of the test's own.
// seconds: 60
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "goodput_kit.hpp"
#include "train/goodput_advice.hpp"

using namespace orthant;
using namespace orthant::testing_goodput;

namespace {

TEST(GoodputAdvice, YoungAndDaly) {
  EXPECT_DOUBLE_EQ(young_interval(5, 1440), 120);
  // Daly's own examples (figures 3 to 5 of his paper: save 5 min; 24 h, 6 h and 15 min between failures): 117, 57, 9.1 min
  EXPECT_NEAR(daly_interval(5, 24 * 60), 117, 0.5);
  EXPECT_NEAR(daly_interval(5, 6 * 60), 57, 0.5);
  EXPECT_NEAR(daly_interval(5, 15), 9.1, 0.05);
  EXPECT_DOUBLE_EQ(daly_interval(30, 15), 15);
  EXPECT_DOUBLE_EQ(daly_interval(31, 15), 15);
  // and it is close to the top of the expected share, which is below 1
  for (const double mtbf : {300.0, 3000.0, 100000.0})
    for (const double save : {0.5, 5.0, 50.0}) {
      double best = 0;
      for (double tau = 1; tau < 5 * mtbf; tau *= 1.01) best = std::max(best, expected_share(tau, save, mtbf, 60));
      const double share = expected_share(daly_interval(save, mtbf), save, mtbf, 60);
      EXPECT_LT(share, 1);
      EXPECT_GT(share, 0.998 * best) << mtbf << " " << save;
      EXPECT_LE(share, best * (1 + 1e-3));
    }
  // Rare failures: 1 - d / tau - (tau / 2 + R) / M
  EXPECT_NEAR(expected_share(1000, 1, 1e6, 100), 1 - 1e-3 - 600e-6, 1e-5);
}

TEST(GoodputAdvice, AdviceNeedsARateAndAPrice) {
  Replay r("advice");
  r.begin(0);
  r.ready(0, 0);
  for (int i = 0; i < 100; ++i) r.step(2);
  EXPECT_FALSE(advise(r.run->ledger(), r.run->bins(), 100, {}, 1.0));
  EXPECT_FALSE(advise(r.run->ledger(), r.run->bins(), 100, 1e4, {}));
  const auto given = advise(r.run->ledger(), r.run->bins(), 100, 1e4, 2.0);
  ASSERT_TRUE(given);
  EXPECT_DOUBLE_EQ(given->young, 200);
  EXPECT_EQ(given->young_steps, 100);
  EXPECT_FALSE(given->measured_mtbf || given->measured_save);
  r.run->save(100, Wait::save);
  r.stall(3, Wait::save);
  r.run->saved(500);
  r.end(97, "failed", "hang", 4);
  const auto measured = advise(r.run->ledger(), r.run->bins(), 100, {}, {});
  ASSERT_TRUE(measured);
  EXPECT_NEAR(measured->mtbf, 300, 1e-4);
  EXPECT_NEAR(measured->save, 3, 1e-9);
  EXPECT_NEAR(measured->daly, daly_interval(3, 300), 1e-3);
  EXPECT_EQ(measured->interval, 500) << "a save has to be complete before the next begins";
  EXPECT_NEAR(failures_per_1000_node_hours(r.run->ledger(), r.run->bins(), 1), 1000 / (300 * 2 / 3600.0), 1e-3);
}

// Stops at the rate of the largest published record: 466 in 54 days, 419 of them unplanned, on 16384 GPUs ("The Llama 3 Herd
// of Models", 2024, section 3.3.4, which reports more than 90 % effective training time). What one stop and one save cost is
// assumed, and not on the kind side:
//   detection 60 s   the shortest limit of the watchdog, which is the worst case: a dead rank ends a job in seconds
//   requeue  121 s   how long Slurm holds a requeued job (credential life of 120 s and one second), as measured
//   start     60 s   launcher and communicators of some thousand nodes
//   load      60 s   parallel read of the checkpoint
//   save       5 s   training waits for the copy of an asynchronous save, complete after 60 s
//   step      10 s
// Checkpoints come at the interval that `orthant report` advises, asked anew in each life.
TEST(GoodputAdvice, TwoMonthsWithTheStopsOfLlama3) {
  const double days = 54 * 86400.0, detection = 60, requeue = 121, start = 60, load = 60, save = 5, durable = 60, step = 10;
  const int unplanned = 419, planned = 47;
  std::mt19937_64 random(20240731);
  const auto exponential = [&](double mean) { return -mean * std::log1p(-static_cast<double>(random() >> 11) * 0x1p-53); };
  Replay r("llama3");
  int left[2] = {unplanned, planned};
  int64_t good = 0, saves = 0;
  const auto advised = [&] {
    const auto a = advise(r.run->ledger(), r.run->bins(), r.at(), static_cast<int>(r.stops().size()) < 20 ? std::optional(days / unplanned) : std::nullopt,
                          saves < 20 ? std::optional(save) : std::nullopt);
    return std::max<int64_t>(1, a && a->interval_steps > 0 ? a->interval_steps : std::llround(daly_interval(save, days / unplanned) / step));
  };
  // Training time is what remains of the 54 days; stops are spread over the wall time by drawing the next one at the mean
  // of what is left, so that all of them come.
  while (true) {
    if (r.lives > 0) r.script("begin", r.t + requeue, "");
    r.begin(r.lives == 0 ? 0 : requeue);
    if (r.lives == 1) r.script("begin", r.t, "");
    r.start(start);
    r.ready(good, good == 0 ? 0 : load);
    const int64_t every = advised();
    const int stops = left[0] + left[1];
    const double wall = r.t - epoch;
    const double until = stops == 0 ? days : std::min(days, wall + exponential(std::max(1.0, days - wall) / (stops + 1)));
    double stall = 0;
    while (r.t - epoch + step <= until) {
      r.step(step, stall);
      if (stall > 0) r.run->saved(durable);
      stall = 0;
      if (r.at() % every) continue;
      r.run->save(r.at(), Wait::save);
      good = r.at();
      ++saves;
      stall = save;
    }
    if (stops == 0) break;
    const bool fails = static_cast<int>(random() % static_cast<uint64_t>(stops)) < left[0];
    --left[fails ? 0 : 1];
    if (fails) {  // in the midst of a step; rank 0 is gone, and nobody writes an end
      r.status();
      r.t += detection;
      r.want.detection += detection;
      r.script("end", r.t, "\t137\tagain");
    } else {
      r.run->save(r.at(), Wait::final_save);
      good = r.at();
      r.stall(save, Wait::final_save);
      r.end(1, "stopped", "signal 10", 75);
      r.script("end", r.t, "\t75\tagain");
    }
  }
  const TimeBins b = r.run->bins();
  const StopTable table = table_of(r.stops());
  EXPECT_EQ(table.unplanned.count, unplanned);
  EXPECT_EQ(table.planned.count, planned);
  EXPECT_EQ(table.kinds[static_cast<size_t>(StopKind::rank)].count, unplanned);
  EXPECT_NEAR(table.unplanned.detection, detection, 1e-3);
  EXPECT_NEAR(table.unplanned.gap, requeue, 1e-3);
  expect_bins(r, b, 1e-2);
  EXPECT_EQ(left[0] + left[1], 0);
  EXPECT_NEAR(b.total(), days, 400) << "the last stop may come at the very end";
  expect_whole(r, b);
  const double own = trained(r) / (r.t - epoch);
  EXPECT_NEAR(b.effective(), own, 1e-9);
  EXPECT_GE(b.effective(), 0.90);
  EXPECT_NEAR(read_goodput(r.folder.string()).bins.effective(), own, 1e-5) << "from the file alone";
  // the model behind the advice comes close, and saving twice as often or half as often is no better by it
  const auto a = advise(r.run->ledger(), b, r.at(), {}, {});
  ASSERT_TRUE(a);
  EXPECT_NEAR(a->save, save, 0.2) << "some lives end before they have waited for their last save";
  const double down = table.unplanned.down();
  EXPECT_NEAR(down, detection + requeue + start + load, 1);
  EXPECT_NEAR(a->expected, own, 0.01);
  for (const double factor : {0.5, 2.0}) EXPECT_LT(expected_share(factor * a->interval, a->save, a->mtbf, down), a->expected);
  RecordProperty("effective", std::to_string(b.effective()));
  std::printf("54 days, %d unplanned and %d planned stops, a save every %lld steps: %.2f %% effective training time (%.2f %% expected)\n", unplanned, planned,
              static_cast<long long>(a->interval_steps), 100 * b.effective(), 100 * a->expected);
}

}  // namespace
