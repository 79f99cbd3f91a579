// Slow ranks are found by comparison with their stage, and cores are told as ranges.
// ranks: 1 4
// labels: smoke asan
#include <gtest/gtest.h>

#include "mesh_kit.hpp"
#include "support/cores.hpp"
#include "train/stragglers.hpp"

namespace orthant {
namespace {

using namespace kit;

std::string text(const std::vector<SlowRank>& slow) {
  std::string out;
  for (const SlowRank& s : slow) out += std::to_string(s.rank) + ":" + std::to_string(s.ratio).substr(0, 4) + " ";
  return out;
}

TEST(SlowRanks, AreComparedWithTheOthersOfTheirStage) {
  EXPECT_EQ(text(slow_ranks({1, 1, 1, 2}, {0, 0, 0, 0}, 1.25)), "3:2.00 ");
  EXPECT_EQ(text(slow_ranks({2, 1}, {0, 0}, 1.25)), "0:2.00 ") << "of two the one is compared with the other";
  EXPECT_EQ(text(slow_ranks({1, 1, 3, 3}, {0, 0, 1, 1}, 1.25)), "") << "a stage with more work is not slow";
  EXPECT_EQ(text(slow_ranks({1, 1.5, 3, 9}, {0, 0, 1, 1}, 1.25)), "3:3.00 1:1.50 ") << "the slowest first";
  EXPECT_EQ(text(slow_ranks({7}, {0}, 1.25)), "");
  EXPECT_EQ(text(slow_ranks({1, 1.2, 1, 1.24, 1}, {0, 0, 0, 0, 0}, 1.25)), "");
  EXPECT_EQ(text(slow_ranks({0, 0, 0}, {0, 0, 0}, 1.25)), "") << "no time, nothing to compare";
  EXPECT_EQ(text(slow_ranks({5, 5, 1, 1, 1, 1, 5}, {0, 0, 0, 0, 0, 0, 0}, 2)), "0:5.00 1:5.00 6:5.00 ");
}

TEST(SlowRanks, TheMedianOfTheOthersIsThatOfAListWithoutTheRank) {
  std::vector<double> seconds;
  std::vector<int64_t> stage;
  for (int n = 2; n < 12; ++n) {
    seconds.clear();
    for (int r = 0; r < n; ++r) seconds.push_back(1 + (r * 7 % 5));
    stage.assign(static_cast<size_t>(n), 0);
    for (const SlowRank& s : slow_ranks(seconds, stage, 0)) {
      std::vector<double> others = seconds;
      others.erase(others.begin() + s.rank);
      std::sort(others.begin(), others.end());
      const size_t m = others.size();
      const double middle = m % 2 ? others[m / 2] : (others[m / 2 - 1] + others[m / 2]) / 2;
      EXPECT_DOUBLE_EQ(s.ratio, seconds[static_cast<size_t>(s.rank)] / middle) << n << " " << s.rank;
    }
  }
}

TEST(Stragglers, ASlowRankIsToldAfterTwoWindowsAndOnce) {
  MeshShape shape;
  shape.dp = world_size();
  const Mesh mesh(MPI_COMM_WORLD, shape);
  Stragglers s(mesh, texts_of_ranks(mesh.cart(), mesh.where()));
  const int slow = mesh.ranks() - 1;
  std::vector<std::string> told;
  const auto windows = [&](int n, double factor) {
    for (int64_t i = 0; i < n * Stragglers::window; ++i)
      for (const std::string& line : s.step(mesh.rank() == slow ? 0.01 * factor : 0.01)) told.push_back(line);
  };
  windows(1, 3);
  windows(1, 1);
  windows(1, 3);
  EXPECT_TRUE(told.empty()) << "one window is noise";
  windows(5, 3);
  const size_t once = mesh.rank() == 0 && mesh.ranks() > 1 ? 1 : 0;
  ASSERT_EQ(told.size(), once);
  if (once) {
    EXPECT_NE(told[0].find("rank " + std::to_string(slow) + " ("), std::string::npos) << told[0];
    EXPECT_NE(told[0].find(mesh.host()), std::string::npos) << told[0];
    EXPECT_NE(told[0].find("3.00 x"), std::string::npos) << told[0];
    EXPECT_EQ(s.slowest().rank, slow);
  }
  windows(2, 1);
  windows(2, 3);
  EXPECT_EQ(told.size(), 2 * once) << "told again after it had caught up";
}

TEST(Cores, AreToldAsRanges) {
  EXPECT_EQ(ranges_text({}), "");
  EXPECT_EQ(ranges_text({3}), "3");
  EXPECT_EQ(ranges_text({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
  EXPECT_FALSE(cores_allowed().empty());
}

}  // namespace
}  // namespace orthant
