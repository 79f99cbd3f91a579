// Which rows travel: sorted, counted, regrouped and dropped, against tables by hand.
// ranks: 1
// labels: smoke asan
#include <gtest/gtest.h>

#include <set>

#include "layers/routing.hpp"
#include "mesh_kit.hpp"

namespace orthant {
namespace {

using Ints = std::vector<int32_t>;
using Counts = std::vector<int64_t>;

RoutingShape shape(int64_t tokens, int64_t top_k, int64_t experts, int64_t ranks, int64_t block_rows = 0) {
  return {tokens, top_k, experts, ranks, block_rows};
}

TEST(Routing, RowsLeaveByExpertThenToken) {
  const Ints chosen = {1, 3, 0, 1, 2, 3, 0, 3};  // tokens 0..3
  const Departure d = plan_departure(chosen.data(), shape(4, 2, 4, 2));
  EXPECT_EQ(d.token, (Ints{1, 3, 0, 1, 2, 0, 2, 3}));
  EXPECT_EQ(d.pick, (Ints{2, 6, 0, 3, 4, 1, 5, 7}));
  EXPECT_EQ(d.slot, (Ints{2, 5, 0, 3, 4, 6, 1, 7}));
  EXPECT_EQ(d.send_rows, (Counts{4, 4}));
  EXPECT_EQ(d.counts, (Counts{2, 2, 1, 3}));
}

TEST(Routing, DroppedPicksHaveNoRow) {
  const Ints chosen = {-1, 3, 0, -1, -1, -1};
  const Departure d = plan_departure(chosen.data(), shape(3, 2, 4, 4));
  EXPECT_EQ(d.token, (Ints{1, 0}));
  EXPECT_EQ(d.slot, (Ints{-1, 1, 0, -1, -1, -1}));
  EXPECT_EQ(d.send_rows, (Counts{1, 0, 0, 1}));
}

TEST(Routing, NoTokensAndNoPicksAreLegal) {
  const Departure none = plan_departure(nullptr, shape(0, 2, 4, 2));
  EXPECT_TRUE(none.token.empty());
  EXPECT_EQ(none.send_rows, (Counts{0, 0}));
  EXPECT_EQ(none.counts, (Counts{0, 0, 0, 0}));
  const Ints dropped(4, -1);
  EXPECT_EQ(plan_departure(dropped.data(), shape(2, 2, 4, 1)).send_rows, Counts{0});
  const Counts nothing(4, 0);
  const Arrival a = plan_arrival(nothing.data(), shape(5, 1, 4, 2));
  EXPECT_EQ(a.receive_rows, (Counts{0, 0}));
  EXPECT_EQ(a.runs.size(), 2u);
  EXPECT_TRUE(a.regroup.empty());
  EXPECT_TRUE(a.segments.empty());
}

TEST(Routing, ChoicesThatAreNoExpertsAreRefused) {
  const Ints high = {4}, low = {-2};
  EXPECT_THROW(plan_departure(high.data(), shape(1, 1, 4, 1)), LogicError);
  EXPECT_THROW(plan_departure(low.data(), shape(1, 1, 4, 1)), LogicError);
  EXPECT_THROW(plan_departure(low.data(), shape(1, 1, 4, 3)), LogicError);
}

TEST(Routing, CountsAreKeptForEachBlock) {
  const Ints chosen = {0, 1, 1, 0, 1};  // blocks of two tokens: {0, 1}, {1, 0}, {1}
  const RoutingShape s = shape(5, 1, 2, 1, 2);
  EXPECT_EQ(s.blocks(), 3);
  EXPECT_EQ(plan_departure(chosen.data(), s).counts, (Counts{1, 1, 0, 1, 1, 1}));
}

TEST(Routing, ArrivalsAreRegroupedByExpert) {
  // two ranks send to two experts here: rank 0 sends 2 and 1 rows, rank 1 sends 0 and 2
  const Counts counts = {2, 1, 0, 2};
  const Arrival a = plan_arrival(counts.data(), shape(3, 2, 4, 2));
  EXPECT_EQ(a.receive_rows, (Counts{3, 2}));
  EXPECT_EQ(a.regroup, (Ints{0, 1, 2, 3, 4}));
  const Counts mixed = {1, 2, 2, 1};
  const Arrival b = plan_arrival(mixed.data(), shape(3, 2, 4, 2));
  EXPECT_EQ(b.regroup, (Ints{0, 3, 4, 1, 2, 5}));
  EXPECT_EQ(b.ungroup, (Ints{0, 3, 4, 1, 2, 5}));
  ASSERT_EQ(b.runs.size(), 2u);
  EXPECT_EQ(b.runs[1].begin, 3);
  EXPECT_EQ(b.runs[1].size, 3);
  ASSERT_EQ(b.segments.size(), 4u);
  EXPECT_EQ(b.segments[1].expert, 0);
  EXPECT_EQ(b.segments[1].rows.begin, 1);
  EXPECT_EQ(b.segments[1].rows.size, 2);
}

TEST(Routing, SegmentsAreBlocksOfSources) {
  // one expert, two ranks, two blocks each
  const Counts counts = {2, 0, 1, 3};
  const Arrival a = plan_arrival(counts.data(), shape(4, 1, 2, 2, 2));
  ASSERT_EQ(a.segments.size(), 3u);  // the empty block is none
  const int64_t begins[] = {0, 2, 3}, sizes[] = {2, 1, 3};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(a.segments[i].rows.begin, begins[i]);
    EXPECT_EQ(a.segments[i].rows.size, sizes[i]);
  }
}

// What leaves a rank comes to the expert it was meant for, in order, and finds its way back.
TEST(Routing, TheWayThereAndBack) {
  const int64_t ranks = 3, tokens = 7, top_k = 2, experts = 6;
  std::vector<Departure> out;
  const RoutingShape s = shape(tokens, top_k, experts, ranks, 3);
  std::vector<Ints> chosen;
  for (int64_t r = 0; r < ranks; ++r) {
    chosen.emplace_back();
    for (int64_t t = 0; t < tokens; ++t) {
      const auto e = static_cast<int32_t>((kit::number("chosen", r * 100 + t) + 1) / 2 * 5);
      chosen.back().push_back(e);
      chosen.back().push_back(t == 4 ? -1 : e + 1);
    }
    out.push_back(plan_departure(chosen.back().data(), s));
  }
  for (int64_t me = 0; me < ranks; ++me) {
    Counts counts;
    std::vector<std::array<int64_t, 3>> arrived;  // expert, source, token
    for (int64_t r = 0; r < ranks; ++r) {
      const Departure& d = out[static_cast<size_t>(r)];
      const auto cells = s.local_experts() * s.blocks();
      counts.insert(counts.end(), d.counts.begin() + me * cells, d.counts.begin() + (me + 1) * cells);
      int64_t begin = 0;
      for (int64_t q = 0; q < me; ++q) begin += d.send_rows[static_cast<size_t>(q)];
      for (int64_t i = begin; i < begin + d.send_rows[static_cast<size_t>(me)]; ++i) {
        const auto pick = static_cast<size_t>(d.pick[static_cast<size_t>(i)]);
        EXPECT_EQ(d.slot[pick], i);
        arrived.push_back({chosen[static_cast<size_t>(r)][pick], r, d.token[static_cast<size_t>(i)]});
      }
    }
    const Arrival a = plan_arrival(counts.data(), s);
    ASSERT_EQ(a.regroup.size(), arrived.size());
    EXPECT_LE(static_cast<int64_t>(arrived.size()), most_received(s));
    std::vector<std::array<int64_t, 3>> grouped;
    for (int32_t from : a.regroup) grouped.push_back(arrived[static_cast<size_t>(from)]);
    EXPECT_TRUE(std::is_sorted(grouped.begin(), grouped.end()));
    for (size_t i = 0; i < grouped.size(); ++i)
      EXPECT_EQ(a.regroup[static_cast<size_t>(a.ungroup[i])], static_cast<int32_t>(i));
    for (size_t e = 0; e < a.runs.size(); ++e)
      for (int64_t i = a.runs[e].begin; i < a.runs[e].begin + a.runs[e].size; ++i)
        EXPECT_EQ(grouped[static_cast<size_t>(i)][0], me * 2 + static_cast<int64_t>(e));
    for (const Segment& g : a.segments) {
      std::set<std::array<int64_t, 3>> places;  // expert, source, block
      for (int64_t i = g.rows.begin; i < g.rows.begin + g.rows.size; ++i) {
        auto row = grouped[static_cast<size_t>(i)];
        row[2] /= 3;
        places.insert(row);
      }
      EXPECT_EQ(places.size(), 1u);
    }
  }
}

TEST(Routing, MostRowsThatCanCome) {
  EXPECT_EQ(most_received(shape(10, 2, 8, 4)), 4 * 10 * 2);
  EXPECT_EQ(most_received(shape(10, 4, 8, 4)), 4 * 10 * 2);  // a token has one pick for an expert
  EXPECT_EQ(most_received(shape(10, 3, 8, 1)), 30);
}

// O041: neither more than there are tokens, nor none.
TEST(Capacity, LiesBetweenOneAndTheLength) {
  EXPECT_EQ(expert_capacity(16, 2, 4, 1.0), 8);
  EXPECT_EQ(expert_capacity(16, 2, 4, 1.25), 10);
  EXPECT_EQ(expert_capacity(10, 1, 4, 1.0), 3);
  EXPECT_EQ(expert_capacity(8, 2, 4, 4.0), 8);
  EXPECT_EQ(expert_capacity(8, 2, 4, 1e300), 8);
  EXPECT_EQ(expert_capacity(8, 2, 4, 1e-9), 1);
}

TEST(Capacity, LaterPositionsAreDroppedFirst) {
  // two sequences, four positions, all choose expert 0; sequence 1 chooses expert 1 too
  Ints chosen = {0, 2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1};
  const RoutingShape s = shape(8, 2, 3, 1);
  const TokenRun all{0, {0, 8}};
  EXPECT_EQ(count_run(chosen.data(), s, all, 2), (Counts{4, 0, 4, 4, 4, 0}));
  EXPECT_EQ(drop_beyond(chosen.data(), s, all, 2, 3, Counts{0, 0, 0, 1, 0, 0}), 1 + 1 + 2 + 1);
  EXPECT_EQ(chosen, (Ints{0, 2, 0, 1, 0, 2, 0, 1, 0, 2, -1, 1, -1, -1, -1, -1}));
  EXPECT_EQ(drop_beyond(chosen.data(), s, all, 2, 3, Counts(6, 0)), 0);
}

TEST(Capacity, RunsOfAShardThatStraddlesTwoChunks) {
  // positions 0..3 and 12..15, three sequences: rows 0..11 and 12..23; the shard holds rows 6..17
  const std::vector<Range> runs = {{0, 4}, {12, 4}};
  const auto parts = token_runs(runs, 3, 6, 12);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].start, 2);
  EXPECT_EQ(parts[0].rows.begin, 0);
  EXPECT_EQ(parts[0].rows.size, 6);
  EXPECT_EQ(parts[1].start, 12);
  EXPECT_EQ(parts[1].rows.begin, 6);
  EXPECT_EQ(parts[1].rows.size, 6);
  const auto late = token_runs(runs, 3, 12, 12);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].start, 12);
  EXPECT_EQ(late[0].rows.begin, 0);
  EXPECT_THROW(token_runs(runs, 3, 7, 6), LogicError);
}

}  // namespace
}  // namespace orthant
