// Ranks on the mesh: order, strides, communicators, axes that regroup ranks, refusals.
// ranks: 1 4 8
// labels: smoke
#include <gtest/gtest.h>

#include <algorithm>

#include "mesh_kit.hpp"
#include "orthant/error.hpp"

namespace orthant {
namespace {

using namespace kit;

MeshShape shape_of(int64_t tp, int64_t cp, int64_t pp, int64_t dp, const std::string& order = "tp-cp-pp-dp") {
  MeshShape s;
  s.tp = tp, s.cp = cp, s.pp = pp, s.dp = dp;
  s.order = order;
  return s;
}

TEST(Mesh, RankThirteenOfTwoByTwoByTwoByTwo) {
  const Coordinates c = coordinates_of(shape_of(2, 2, 2, 2), 13);
  EXPECT_EQ(c.tp, 1);
  EXPECT_EQ(c.cp, 0);
  EXPECT_EQ(c.pp, 1);
  EXPECT_EQ(c.dp, 1);
}

TEST(Mesh, CoordinatesFollowTheOrder) {
  // rank = tp + TP (cp + CP (pp + PP dp)), and the same with other orders
  const MeshShape s = shape_of(3, 2, 4, 5);
  for (int64_t r = 0; r < s.ranks(); ++r) {
    const Coordinates c = coordinates_of(s, r);
    EXPECT_EQ(r, c.tp + 3 * (c.cp + 2 * (c.pp + 4 * c.dp)));
  }
  const MeshShape o = shape_of(3, 2, 4, 5, "dp-pp-tp-cp");
  for (int64_t r = 0; r < o.ranks(); ++r) {
    const Coordinates c = coordinates_of(o, r);
    EXPECT_EQ(r, c.dp + 5 * (c.pp + 4 * (c.tp + 3 * c.cp)));
  }
}

std::vector<MeshShape> shapes() {
  const int64_t n = world_size();
  std::vector<MeshShape> out = {shape_of(n, 1, 1, 1), shape_of(1, 1, 1, n), shape_of(1, n, 1, 1),
                                shape_of(1, 1, n, 1)};
  if (n == 4)
    out.insert(out.end(), {shape_of(2, 1, 1, 2), shape_of(2, 1, 1, 2, "dp-tp-cp-pp"), shape_of(1, 2, 2, 1)});
  if (n == 8)
    out.insert(out.end(),
               {shape_of(2, 1, 2, 2), shape_of(2, 2, 1, 2, "cp-dp-pp-tp"), shape_of(2, 2, 2, 1, "tp-cp-dp-pp")});
  return out;
}

TEST(Mesh, CommunicatorsHoldTheRanksOfTheirAxis) {
  for (const MeshShape& s : shapes()) {
    const Mesh mesh(MPI_COMM_WORLD, s);
    EXPECT_EQ(mesh.rank(), world_rank());  // one node: the launcher's order
    const Coordinates c = coordinates_of(s, mesh.rank());
    const int64_t at[] = {c.tp, c.cp, c.pp, c.dp}, sizes[] = {s.tp, s.cp, s.pp, s.dp};
    int64_t product = 1;
    for (size_t i = 0; i < 4; ++i) {
      const AxisPlacement& placed = mesh.placement()[i];
      const auto a = static_cast<size_t>(placed.axis);
      ASSERT_LT(a, 4u);
      EXPECT_EQ(mesh.coordinate(placed.axis), at[a]);
      EXPECT_EQ(mesh.size(placed.axis), sizes[a]);
      EXPECT_EQ(placed.size, sizes[a]);
      EXPECT_EQ(placed.stride, product);
      EXPECT_EQ(placed.nodes, 1);
      product *= placed.size;

      std::vector<int> members(static_cast<size_t>(placed.size));
      const int rank = mesh.rank();
      MPI_Allgather(&rank, 1, MPI_INT, members.data(), 1, MPI_INT, mesh.comm(placed.axis));
      for (int64_t j = 0; j < placed.size; ++j)
        EXPECT_EQ(members[static_cast<size_t>(j)], mesh.rank() + (j - at[a]) * placed.stride) << name_of(placed.axis);
    }
    EXPECT_EQ(product, mesh.ranks());
    EXPECT_EQ(mesh.size(AxisName::ep), 1);
  }
}

TEST(Mesh, FollowsTheOrderOfTheCommunicatorItIsGiven) {
  MPI_Comm reversed = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, world_size() - world_rank(), &reversed);
  {
    const Mesh mesh(reversed, shape_of(world_size(), 1, 1, 1));
    EXPECT_EQ(mesh.coordinate(AxisName::tp), world_size() - 1 - world_rank());
    const std::vector<int> nodes = node_of_ranks(reversed);
    EXPECT_EQ(nodes, std::vector<int>(static_cast<size_t>(world_size()), 0));
    EXPECT_EQ(mesh.nodes(), 1);
  }
  MPI_Comm_free(&reversed);
}

TEST(Mesh, RanksThatShareAKvHeadFormAnAxis) {
  MeshShape s = shape_of(world_size(), 1, 1, 1);
  for (int64_t kv : {1, 2, 4, 16}) {
    s.kv_heads = kv;
    const Mesh mesh(MPI_COMM_WORLD, s);
    const int group = static_cast<int>(std::max<int64_t>(1, world_size() / kv));
    EXPECT_EQ(mesh.size(AxisName::tp_rep), group);
    EXPECT_EQ(mesh.coordinate(AxisName::tp_rep), world_rank() % group);
    int first = world_rank();
    MPI_Bcast(&first, 1, MPI_INT, 0, mesh.comm(AxisName::tp_rep));
    EXPECT_EQ(first, world_rank() / group * group);
    // the counting axes know the same sizes
    const Axes counting(s, coordinates_of(s, world_rank()));
    EXPECT_EQ(counting[AxisName::tp_rep].size(), group);
    EXPECT_EQ(counting[AxisName::tp_rep].rank(), world_rank() % group);
  }
}

TEST(Mesh, DerivedCoordinatesAreArithmetic) {
  // dp x cp is a line, cp fastest; shard is its fast part, replica the slow one
  MeshShape s = shape_of(2, 2, 3, 6);
  s.shard = 4;
  EXPECT_EQ(s.data(), 12);
  EXPECT_EQ(s.shard_size(), 4);
  EXPECT_EQ(s.replicas(), 3);
  Coordinates c;
  c.tp = 1, c.cp = 1, c.pp = 2, c.dp = 4;
  EXPECT_EQ(data_index_of(s, c), 9);
  EXPECT_EQ(shard_of(s, c), 1);
  EXPECT_EQ(replica_of(s, c), 2);
  s.shard = 0;  // all of them
  EXPECT_EQ(s.shard_size(), 12);
  EXPECT_EQ(s.replicas(), 1);
  EXPECT_EQ(shard_of(s, c), 9);
  EXPECT_EQ(replica_of(s, c), 0);
  EXPECT_FALSE(on_tie(s, c));
  s.tie_head = 2;
  EXPECT_TRUE(on_tie(s, c));
  c.pp = 1;
  EXPECT_FALSE(on_tie(s, c));
  c.pp = 0;
  EXPECT_TRUE(on_tie(s, c));
  EXPECT_STREQ(name_of(AxisName::shard), "shard");
  EXPECT_STREQ(name_of(AxisName::replica), "replica");
  EXPECT_STREQ(name_of(AxisName::tie), "tie");
}

// etp x ep x edp over one stage
TEST(Mesh, ExpertCoordinatesAreArithmetic) {
  MeshShape s = shape_of(2, 2, 3, 4);
  s.experts = 8;
  Coordinates c;
  c.tp = 1, c.cp = 1, c.pp = 2, c.dp = 3;
  // etp = 1: place tp + 2 (cp + 2 dp) = 15 of 16
  s.ep = 4;
  EXPECT_EQ(expert_place_of(s, c), 15);
  EXPECT_EQ(s.expert_data(), 4);
  EXPECT_EQ(ep_of(s, c), 3);
  EXPECT_EQ(edp_of(s, c), 3);
  s.ep = 8;  // wider than cp x dp of one tp rank would be with etp = tp
  EXPECT_EQ(s.expert_data(), 2);
  EXPECT_EQ(ep_of(s, c), 7);
  EXPECT_EQ(edp_of(s, c), 1);
  // etp = tp: place cp + 2 dp = 7 of 8
  s.etp = 2;
  s.ep = 4;
  EXPECT_EQ(expert_place_of(s, c), 7);
  EXPECT_EQ(s.expert_data(), 2);
  EXPECT_EQ(ep_of(s, c), 3);
  EXPECT_EQ(edp_of(s, c), 1);
  // ZeRO cuts the states of experts over those of zero.shard's ranks that divide edp
  s.ep = 1;
  EXPECT_EQ(s.expert_data(), 8);
  s.shard = 4;
  EXPECT_EQ(s.expert_shard_size(), 4);
  EXPECT_EQ(s.expert_replicas(), 2);
  EXPECT_EQ(edp_shard_of(s, c), 3);
  EXPECT_EQ(edp_replica_of(s, c), 1);
  s.ep = 4;
  EXPECT_EQ(s.expert_shard_size(), 2);
  EXPECT_EQ(s.expert_replicas(), 1);
  s.experts = 0;
  EXPECT_EQ(s.expert_data(), 1);
  EXPECT_EQ(edp_of(s, c), 0);
}

std::vector<int> members_of(const Mesh& mesh, AxisName axis) {
  int n = 0;
  MPI_Comm_size(mesh.comm(axis), &n);
  std::vector<int> members(static_cast<size_t>(n));
  const int rank = mesh.rank();
  MPI_Allgather(&rank, 1, MPI_INT, members.data(), 1, MPI_INT, mesh.comm(axis));
  return members;
}

TEST(Mesh, ExpertAxesOfEightRanks) {
  if (world_size() != 8) GTEST_SKIP() << "written for 8 ranks";
  using Groups = std::vector<std::vector<int>>;
  struct Case {
    MeshShape shape;
    int64_t ep, etp, shard;
    Groups eps, shards, replicas;  // those of more than one rank
  };
  // rank = tp + 2 pp + 4 dp, or tp + 2 cp + 4 dp
  const std::vector<Case> cases = {
      {shape_of(2, 1, 2, 2), 2, 1, 0, {{0, 1}, {4, 5}, {2, 3}, {6, 7}}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, {}},
      {shape_of(2, 1, 2, 2), 4, 1, 0, {{0, 1, 4, 5}, {2, 3, 6, 7}}, {}, {}},
      {shape_of(2, 1, 2, 2), 2, 2, 0, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, {}, {}},
      {shape_of(2, 2, 1, 2), 2, 2, 0, {{0, 2}, {1, 3}, {4, 6}, {5, 7}}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, {}},
      {shape_of(1, 1, 1, 8), 2, 1, 2, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}, {{0, 2}, {4, 6}, {1, 3}, {5, 7}}, {{0, 4}, {2, 6}, {1, 5}, {3, 7}}},
      {shape_of(1, 1, 1, 8), 1, 1, 0, {}, {{0, 1, 2, 3, 4, 5, 6, 7}}, {}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    MeshShape s = cases[i].shape;
    s.experts = 8;
    s.ep = cases[i].ep;
    s.etp = cases[i].etp;
    s.shard = cases[i].shard;
    const Mesh mesh(MPI_COMM_WORLD, s);
    const Axes counting(s, coordinates_of(s, mesh.rank()));
    const std::pair<AxisName, const Groups*> expected[] = {{AxisName::ep, &cases[i].eps}, {AxisName::edp_shard, &cases[i].shards}, {AxisName::edp_replica, &cases[i].replicas}};
    for (const auto& [axis, groups] : expected) {
      std::vector<int> mine = {mesh.rank()};
      for (const auto& g : *groups)
        if (std::find(g.begin(), g.end(), mesh.rank()) != g.end()) mine = g;
      EXPECT_EQ(members_of(mesh, axis), mine) << name_of(axis);
      EXPECT_EQ(counting[axis].size(), mesh.size(axis)) << name_of(axis);
      EXPECT_EQ(counting[axis].rank(), mesh.coordinate(axis)) << name_of(axis);
    }
    EXPECT_EQ(mesh.size(AxisName::none), 1);
  }
}

TEST(Mesh, EightRanksAsTwoByTwoByTwo) {
  if (world_size() != 8) GTEST_SKIP() << "written for 8 ranks";
  using Groups = std::vector<std::vector<int>>;
  struct Case {
    MeshShape shape;
    int64_t shard, tie_head;
    Groups shards, replicas, ties;  // those of more than one rank
  };
  // rank = tp + 2 pp + 4 dp; and with cp: rank = cp + 2 pp + 4 dp, so dp x cp of pp 0 is 0, 1, 4, 5
  const std::vector<Case> cases = {
      {shape_of(2, 1, 2, 2), 0, 1, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, {}, {{0, 2}, {1, 3}, {4, 6}, {5, 7}}},
      {shape_of(2, 1, 2, 2), 1, 0, {}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, {}},
      {shape_of(1, 2, 2, 2), 2, 1, {{0, 1}, {4, 5}, {2, 3}, {6, 7}}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, {{0, 2}, {1, 3}, {4, 6}, {5, 7}}},
      {shape_of(1, 2, 2, 2), 4, 0, {{0, 1, 4, 5}, {2, 3, 6, 7}}, {}, {}},
      {shape_of(1, 1, 4, 2), 0, 3, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, {}, {{0, 3}, {4, 7}}},
      {shape_of(1, 1, 4, 2), 0, 2, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, {}, {{0, 2}, {4, 6}}},
      // dp fastest: rank = dp + 2 cp + 4 pp; the place in dp x cp still counts cp first
      {shape_of(1, 2, 2, 2, "dp-cp-pp-tp"), 4, 1, {{0, 2, 1, 3}, {4, 6, 5, 7}}, {}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    MeshShape s = cases[i].shape;
    s.shard = cases[i].shard;
    s.tie_head = cases[i].tie_head;
    const Mesh mesh(MPI_COMM_WORLD, s);
    auto expect = [&](AxisName axis, const Groups& groups) {
      std::vector<int> mine = {mesh.rank()};
      for (const auto& g : groups)
        if (std::find(g.begin(), g.end(), mesh.rank()) != g.end()) mine = g;
      EXPECT_EQ(members_of(mesh, axis), mine) << "case " << i << " " << name_of(axis);
      EXPECT_EQ(mesh.size(axis), static_cast<int>(mine.size()));
      EXPECT_EQ(mine.at(static_cast<size_t>(mesh.coordinate(axis))), mesh.rank());
    };
    expect(AxisName::shard, cases[i].shards);
    expect(AxisName::replica, cases[i].replicas);
    expect(AxisName::tie, cases[i].ties);
    // the counting axes know the same sizes and ranks
    const Axes counting(s, coordinates_of(s, mesh.rank()));
    for (int a = 0; a < axis_names; ++a) {
      const auto axis = static_cast<AxisName>(a);
      EXPECT_EQ(counting[axis].size(), mesh.size(axis)) << "case " << i << " " << name_of(axis);
      EXPECT_EQ(counting[axis].rank(), mesh.coordinate(axis)) << "case " << i << " " << name_of(axis);
    }
  }
}

TEST(Mesh, AShardThatDoesNotDivideIsRefused) {
  MeshShape s = shape_of(1, 1, 1, world_size());
  s.shard = world_size() + 1;
  try {
    const Mesh mesh(MPI_COMM_WORLD, s);
    FAIL() << "states of " << world_size() << " ranks over more";
  } catch (const UsageError& e) {
    EXPECT_TRUE(e.agreed());
    EXPECT_NE(std::string(e.what()).find("zero.shard = " + std::to_string(s.shard)), std::string::npos) << e.what();
  }
  s.shard = 0;
  s.tie_head = 1;  // there is no second stage
  EXPECT_THROW(Mesh(MPI_COMM_WORLD, s), LogicError);
}

TEST(Mesh, SaysWhereItIs) {
  const Mesh mesh(MPI_COMM_WORLD, shape_of(1, 1, 1, world_size()));
  const std::string start =
      "rank " + std::to_string(world_rank()) + " (tp 0, cp 0, pp 0, dp " + std::to_string(world_rank()) + ") on ";
  EXPECT_EQ(mesh.where().substr(0, start.size()), start);
  EXPECT_GT(mesh.where().size(), start.size());
}

TEST(Mesh, AProductThatIsNotTheRanksIsRefused) {
  try {
    const Mesh mesh(MPI_COMM_WORLD, shape_of(3, 1, 1, 5));
    FAIL() << "15 ranks of " << world_size();
  } catch (const UsageError& e) {
    EXPECT_TRUE(e.agreed());
    for (const std::string& word : {std::string("tp 3"), std::string("dp 5"), std::string("= 15 ranks"),
                                    std::to_string(world_size()) + " were launched"})
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
  }
}

TEST(Mesh, AnOrderMustNameEachAxisOnce) {
  for (const char* order : {"tp-cp-pp", "tp-cp-pp-pp", "tp-cp-pp-dp-tp", "", "tp-cp-pp-xx"})
    EXPECT_THROW((void)coordinates_of(shape_of(1, 1, 1, 1, order), 0), UsageError) << order;
}

}  // namespace
}  // namespace orthant
