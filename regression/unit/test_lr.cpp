// Learning rate schedules against numbers worked out by hand.
// labels: smoke
#include <gtest/gtest.h>

#include <cmath>

#include "optim/lr.hpp"
#include "orthant/error.hpp"

using namespace orthant;

namespace {

constexpr double tiny = 1e-17;

// O116: the first step of a warm-up of 4 has a quarter of the peak, not 0; after it the peak stays.
TEST(Lr, warm_up_counts_from_one) {
  const LrSchedule s{LrKind::constant, 1e-2, 0, 4, 100, 0};
  const double want[] = {0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01};
  for (int t = 1; t <= 6; ++t) EXPECT_NEAR(lr_at(s, t), want[t - 1], tiny) << t;
}

// O116: warm-ups of 0 and 1 both start at the peak.
TEST(Lr, no_warm_up) {
  for (int64_t warmup : {0, 1})
    for (LrKind kind : {LrKind::constant, LrKind::wsd}) EXPECT_EQ(lr_at({kind, 1e-2, 0, warmup, 10, 2}, 1), 1e-2);
}

TEST(Lr, cosine) {
  const LrSchedule s{LrKind::cosine, 1.0, 0.2, 2, 10, 0};
  EXPECT_NEAR(lr_at(s, 1), 0.5, tiny);
  EXPECT_NEAR(lr_at(s, 2), 1.0, tiny);
  EXPECT_NEAR(lr_at(s, 4), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_NEAR(lr_at(s, 6), 0.6, 1e-15);
  EXPECT_NEAR(lr_at(s, 8), 0.2 + 0.8 * (1 - std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_EQ(lr_at(s, 10), 0.2);
  EXPECT_EQ(lr_at(s, 1000), 0.2);
}

TEST(Lr, linear) {
  const LrSchedule s{LrKind::linear, 1.0, 0.2, 2, 10, 0};
  EXPECT_NEAR(lr_at(s, 2), 1.0, tiny);
  EXPECT_NEAR(lr_at(s, 3), 0.9, 1e-15);
  EXPECT_NEAR(lr_at(s, 6), 0.6, 1e-15);
  EXPECT_EQ(lr_at(s, 10), 0.2);
  EXPECT_EQ(lr_at(s, 11), 0.2);
}

TEST(Lr, warm_up_stable_decay) {
  const LrSchedule s{LrKind::wsd, 1.0, 0.1, 2, 10, 4};
  EXPECT_NEAR(lr_at(s, 1), 0.5, tiny);
  for (int64_t t : {2, 3, 6}) EXPECT_EQ(lr_at(s, t), 1.0) << t;
  EXPECT_NEAR(lr_at(s, 7), 1 - 0.9 / 4, 1e-15);
  EXPECT_NEAR(lr_at(s, 8), 0.55, 1e-15);
  EXPECT_NEAR(lr_at(s, 10), 0.1, 1e-15);
  EXPECT_NEAR(lr_at(s, 50), 0.1, 1e-15);
  // without decay steps the rate falls in the step after the last
  const LrSchedule sudden{LrKind::wsd, 1.0, 0.1, 0, 10, 0};
  EXPECT_EQ(lr_at(sudden, 10), 1.0);
  EXPECT_NEAR(lr_at(sudden, 11), 0.1, 1e-15);
}

TEST(Lr, inverse_square_root) {
  const LrSchedule s{LrKind::inverse_sqrt, 1.0, 0.05, 4, 0, 0};
  EXPECT_EQ(lr_at(s, 4), 1.0);
  EXPECT_EQ(lr_at(s, 16), 0.5);
  EXPECT_EQ(lr_at(s, 400), 0.1);
  EXPECT_EQ(lr_at(s, 4000000), 0.05);
  EXPECT_EQ(lr_at({LrKind::inverse_sqrt, 1.0, 0, 0, 0, 0}, 4), 0.5);
}

// p = 1 where the decay is not longer than the warm-up
TEST(Lr, decay_inside_the_warm_up) {
  for (LrKind kind : {LrKind::cosine, LrKind::linear}) {
    EXPECT_NEAR(lr_at({kind, 1.0, 0.2, 4, 4, 0}, 4), 1.0, tiny);
    EXPECT_EQ(lr_at({kind, 1.0, 0.2, 4, 4, 0}, 5), 0.2);
    EXPECT_EQ(lr_at({kind, 1.0, 0.2, 4, 2, 0}, 5), 0.2);
  }
}

TEST(Lr, names) {
  EXPECT_EQ(lr_kind("wsd"), LrKind::wsd);
  EXPECT_EQ(lr_kind("inverse_sqrt"), LrKind::inverse_sqrt);
  try {
    lr_kind("cosin");
    FAIL() << "an unknown schedule was taken";
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("optimizer.schedule"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("cosin"), std::string::npos);
  }
  EXPECT_THROW(lr_at({}, 0), LogicError);
}

}  // namespace
