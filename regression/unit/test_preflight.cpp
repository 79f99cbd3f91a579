// The pre-flight check: which of some made-up nodes is named, and that the measured rates are numbers.
// ranks: 1 2 3 4
// labels: smoke
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "mesh_kit.hpp"
#include "train/preflight.hpp"

namespace orthant {
namespace {

using namespace kit;

/// Nodes n1, n2, … of 8 ranks that differ by a few percent.
std::vector<NodeRates> nodes_of(size_t count) {
  std::vector<NodeRates> out;
  for (size_t i = 0; i < count; ++i) {
    const double a_little = 1 + 0.04 * number("node", static_cast<int64_t>(i));
    out.push_back(
        {fmt::format("n{}", i + 1), 8, 90 * a_little, 200 / a_little, 40 * a_little, count > 1 ? 12 / a_little : -1});
  }
  return out;
}

std::vector<std::string> slow_lines(const std::vector<NodeRates>& rates, double bound = slow_share) {
  std::vector<std::string> out;
  for (const NodeShare& s : shares_below(compare_nodes(rates), bound)) out.push_back(share_text(rates, s));
  return out;
}

size_t lines_of(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

TEST(Preflight, NodesThatDifferALittleAreNotNamed) {
  for (const size_t count : {1U, 2U, 3U, 5U, 1000U}) EXPECT_TRUE(slow_lines(nodes_of(count)).empty()) << count;
  EXPECT_TRUE(compare_nodes(nodes_of(1)).empty());
  EXPECT_EQ(compare_nodes(nodes_of(5)).size(), 20U);
}

TEST(Preflight, ASlowNodeIsNamedWithItsRateAndTheMedian) {
  std::vector<NodeRates> rates = nodes_of(4);
  rates[0].gemm = rates[1].gemm = rates[3].gemm = 91;
  rates[2].gemm = 41;
  EXPECT_EQ(slow_lines(rates), (std::vector<std::string>{"n3: GEMM 41 GFLOP/s, 0.45 x the median of 4 nodes (91)"}));
  rates[1].memory = 20;  // the worst one first
  const std::vector<std::string> two = slow_lines(rates);
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].rfind("n2: memory 20 GB/s, 0.1", 0), 0U) << two[0];
  EXPECT_EQ(slow_lines(rates, 0.3).size(), 1U);
  EXPECT_TRUE(slow_lines(rates, 0).empty());
}

TEST(Preflight, OfTwoNodesTheSlowerIsComparedWithTheOther) {
  std::vector<NodeRates> rates = nodes_of(2);
  rates[0].inside = 40;
  rates[1].inside = 30;
  EXPECT_EQ(slow_lines(rates),
            (std::vector<std::string>{"n2: all-reduce in the node 30 GB/s, 0.75 x the better of 2 nodes (40)"}));
  rates[1].inside = 33;
  EXPECT_TRUE(slow_lines(rates).empty());
}

TEST(Preflight, NodesAreComparedWithThoseOfAsManyRanks) {
  std::vector<NodeRates> rates = nodes_of(5);
  rates[4].ranks = 4;  // the last node of a job that is not full
  rates[4].gemm = 45;
  rates[4].inside = -1;
  EXPECT_TRUE(slow_lines(rates).empty());
  for (const NodeShare& s : compare_nodes(rates)) EXPECT_NE(s.node, 4U);
  rates[3].between = 1;
  EXPECT_EQ(slow_lines(rates)[0].rfind("n4: all-reduce with neighbours 1 GB/s, 0.08", 0), 0U) << slow_lines(rates)[0];
  EXPECT_NE(slow_lines(rates)[0].find("of 4 nodes"), std::string::npos);
}

TEST(Preflight, OfManyNodesTheTableShowsTheMedianAndTheWorst) {
  std::vector<NodeRates> rates = nodes_of(1000);
  rates[417].gemm = 30;
  rates[417].memory = 60;  // behind twice, shown once
  rates[999].between = 2;
  const std::string table = preflight_table(rates, compare_nodes(rates));
  EXPECT_EQ(lines_of(table), 1 + 1 + 8 + 1U) << table;
  EXPECT_LT(table.find("n1000 "), table.find("n418 ")) << table;
  EXPECT_EQ(table.find("n418 "), table.rfind("n418 ")) << table;
  EXPECT_NE(table.find("median of 1000"), std::string::npos) << table;
  const std::vector<std::string> slow = slow_lines(rates);
  ASSERT_EQ(slow.size(), 3U);
  EXPECT_EQ(slow[0].rfind("n1000: all-reduce with neighbours 2 GB/s", 0), 0U) << slow[0];

  const std::vector<NodeRates> few = nodes_of(5);
  EXPECT_EQ(lines_of(preflight_table(few, compare_nodes(few))), 6U);
  const std::string one = preflight_table(nodes_of(1), {});
  EXPECT_NE(one.find(" -\n"), std::string::npos) << one;  // no neighbour
}

/// Measures the ranks as if they were on nodes of `per_node` ranks.
void expect_rates(int per_node, DType type) {
  PreflightSettings settings;
  settings.seconds = 0.3;
  settings.type = type;
  for (int r = 0; r < world_size(); ++r) settings.nodes.push_back(r / per_node);
  const int nodes = settings.nodes.back() + 1;
  const Measured found = measure_nodes(MPI_COMM_WORLD, settings);
  EXPECT_EQ(found.backend, "cpu");
  EXPECT_EQ(found.transport, "MPI");
  const std::vector<NodeRates>& rates = found.rates;
  if (world_rank() != 0) {
    EXPECT_TRUE(rates.empty());
    return;
  }
  ASSERT_EQ(rates.size(), static_cast<size_t>(nodes));
  const auto measured = [](double x) { return std::isfinite(x) && x > 0; };
  for (const NodeRates& n : rates) {
    const int64_t place = &n - rates.data();
    EXPECT_FALSE(n.host.empty());
    EXPECT_EQ(n.ranks, std::min<int64_t>(per_node, world_size() - place * per_node));
    EXPECT_TRUE(measured(n.gemm)) << n.gemm;
    EXPECT_TRUE(measured(n.memory)) << n.memory;
    EXPECT_TRUE(n.ranks > 1 ? measured(n.inside) : n.inside < 0) << n.inside;
    EXPECT_TRUE(nodes > 1 ? measured(n.between) : n.between < 0) << n.between;
  }
}

TEST(Preflight, RatesAreMeasuredOnOneNode) { expect_rates(world_size(), DType::f32); }
TEST(Preflight, RatesAreMeasuredOnANodeForEachRank) { expect_rates(1, DType::bf16); }
TEST(Preflight, RatesAreMeasuredOnNodesOfTwoRanks) { expect_rates(2, DType::f32); }

TEST(Preflight, ANodeBelowTheRequiredShareEndsTheRunEverywhere) {
  PreflightSettings settings;
  settings.seconds = 0.1;
  settings.require = 1;  // of any two nodes one is slower in something
  for (int r = 0; r < world_size(); ++r) settings.nodes.push_back(r);
  if (world_size() == 1) {
    EXPECT_NO_THROW(preflight(MPI_COMM_WORLD, settings));  // nobody is better
    return;
  }
  try {
    preflight(MPI_COMM_WORLD, settings);
    ADD_FAILURE() << "no node is below the others";
  } catch (const Error& e) {
    EXPECT_TRUE(e.agreed());
    EXPECT_EQ(e.code(), Exit::fault);
    EXPECT_NE(std::string(e.what()).find("--preflight-require 1 refuses"), std::string::npos) << e.what();
  }
  settings.require = 0;
  EXPECT_NO_THROW(preflight(MPI_COMM_WORLD, settings));
}

}  // namespace
}  // namespace orthant
