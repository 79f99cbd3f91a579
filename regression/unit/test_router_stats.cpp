// What routers report: sums over the parts of sequences, over data ranks and stages, each thing once.
// ranks: 1 2 4
// labels: smoke asan
#include <gtest/gtest.h>

#include <limits>

#include "mesh_kit.hpp"
#include "orthant/router_stats.hpp"

namespace orthant {
namespace {

using namespace kit;

constexpr int64_t experts = 3, length = 8;

struct World {
  World(MeshShape m, bool sequence_parallel, bool reproducible, int64_t sequences)
      : rig(MPI_COMM_WORLD, with_experts(m), {}, rig_options(sequence_parallel, reproducible)) {
    rig.ctx.global_sequences = sequences;
  }
  static MeshShape with_experts(MeshShape m) {
    m.experts = experts;
    return m;
  }
  static RigOptions rig_options(bool sequence_parallel, bool reproducible) {
    RigOptions o;
    o.compute = DType::f32;
    o.sequence_parallel = sequence_parallel;
    o.reproducible = reproducible;
    o.sequence = length;
    return o;
  }
  Tensor counts(const std::vector<int64_t>& values) {
    Tensor t = rig.backend->alloc(DType::i64, static_cast<int64_t>(values.size()) / experts, experts,
                                  MemoryKind::activations);
    Host<int64_t> h(*rig.backend, t);
    std::copy(values.begin(), values.end(), h.data());
    return t;
  }
  Tensor shares(const std::vector<float>& values) {
    const auto n = static_cast<int64_t>(values.size());
    Tensor t = rig.backend->alloc(DType::f32, n / experts, experts, MemoryKind::activations);
    {
      Host<float> h(*rig.backend, t);
      std::copy(values.begin(), values.end(), h.data());
    }
    if (!rig.ctx.reproducible()) return t;
    Tensor exact = rig.backend->alloc(DType::i64, 2, n, MemoryKind::activations);
    rig.backend->zero(exact);
    rig.backend->exact_add(t, exact);
    return exact;
  }
  Rig rig;
};

MeshShape mesh(int64_t tp, int64_t cp, int64_t pp, int64_t dp) {
  MeshShape m;
  m.tp = tp, m.cp = cp, m.pp = pp, m.dp = dp;
  return m;
}

// Each sequence of 8 tokens, one pick each: counts 4, 2, 2 and sums of shares 5, 2, 1 -> 3 (20 + 4 + 2) / 64.
constexpr double one_sequence = 3.0 * 26 / 64;

TEST(RouterStats, PartsOfSequencesAreSummedOnce) {
  const int64_t n = world_size();
  std::vector<std::pair<MeshShape, bool>> cuts;  // with sequence parallelism, or copies on the ranks of tp
  cuts.push_back({mesh(n, 1, 1, 1), true});
  cuts.push_back({mesh(n, 1, 1, 1), false});
  cuts.push_back({mesh(1, n, 1, 1), false});
  if (n == 4) cuts.push_back({mesh(2, 2, 1, 1), true});
  for (const auto& [m, sp] : cuts)
    for (bool whole : {false, true})
      for (bool reproducible : {false, true}) {
        SCOPED_TRACE("tp " + std::to_string(m.tp) + ", cp " + std::to_string(m.cp) +
                     (sp ? ", sequence parallel" : "") + (whole ? ", whole counts" : ""));
        World w(m, sp, reproducible, 1);
        const bool first = w.rig.layout.at().cp == 0 && (!sp || w.rig.layout.at().tp == 0);
        const auto parts = static_cast<float>(m.cp * (sp ? m.tp : 1));
        RouterStats stats(2, 1, experts);
        // the counts of a part: all of them on the first rank; the shares in equal parts
        stats.add(2, w.counts(whole || first ? std::vector<int64_t>{4, 2, 2} : std::vector<int64_t>{0, 0, 0}), whole,
                  w.shares({5 / parts, 2 / parts, 1 / parts}));
        const RouterReport r = stats.finish(w.rig.ctx);
        EXPECT_DOUBLE_EQ(r.aux_loss, one_sequence);
        EXPECT_EQ(r.load, (std::vector<std::vector<int64_t>>{{4, 2, 2}}));
        EXPECT_DOUBLE_EQ(r.load_max_over_mean, 1.5);
      }
}

TEST(RouterStats, DataRanksHaveOtherSequences) {
  for (bool reproducible : {false, true}) {
    const int64_t n = world_size();
    World w(mesh(1, 1, 1, n), false, reproducible, 2 * n);
    RouterStats stats(0, 1, experts);
    stats.add(0, w.counts({4, 2, 2, 0, 0, 8}), false, w.shares({5, 2, 1, 0, 0, 8}));  // the second: 3
    const RouterReport r = stats.finish(w.rig.ctx);
    EXPECT_DOUBLE_EQ(r.aux_loss, (one_sequence + 3) / 2);
    EXPECT_EQ(r.load[0], (std::vector<int64_t>{4 * n, 2 * n, 10 * n}));
  }
}

// The last stage has a dense layer only, the others one or two mixture layers each.
TEST(RouterStats, StagesHaveOtherLayers) {
  const int64_t n = world_size();
  World w(mesh(1, 1, n, 1), false, false, 1);
  const int64_t stage = w.rig.layout.at().pp, layers = std::max<int64_t>(1, n - 1);
  RouterStats stats(1, layers, experts);
  if (n == 1 || stage < n - 1) stats.add(1 + stage, w.counts({4, 2, 2}), true, w.shares({5, 2, 1}));
  const RouterReport r = stats.finish(w.rig.ctx);
  EXPECT_DOUBLE_EQ(r.aux_loss, one_sequence);
  ASSERT_EQ(r.load.size(), static_cast<size_t>(layers));
  for (const auto& load : r.load) EXPECT_EQ(load, (std::vector<int64_t>{4, 2, 2}));
}

TEST(RouterStats, RowsOfAllRanksAddUpAndStartAnew) {
  const int64_t n = world_size();
  World w(n == 4 ? mesh(2, 1, 1, 2) : mesh(n, 1, 1, 1), true, false, 1);
  RouterStats stats(0, 1, experts);
  stats.add_rows(3, 10);
  stats.add_rows(1, 20 + world_rank());
  const RouterReport r = stats.finish(w.rig.ctx);
  EXPECT_EQ(r.dropped, 4 * n);
  EXPECT_EQ(r.off_rank_rows, 30 * n + n * (n - 1) / 2);
  EXPECT_EQ(r.load_max_over_mean, 0);
  const RouterReport empty = stats.finish(w.rig.ctx);
  EXPECT_EQ(empty.dropped, 0);
  EXPECT_EQ(empty.off_rank_rows, 0);
  EXPECT_EQ(empty.aux_loss, 0);
}

// Neither the order of micro-batches nor their grouping changes a bit.
TEST(RouterStats, GroupingChangesNoBit) {
  for (bool reproducible : {false, true}) {
    World w(mesh(1, 1, 1, world_size()), false, reproducible, 3 * world_size());
    const std::vector<std::vector<float>> values = {{0.1f, 3.7f, 4.2f}, {5.3f, 0.7f, 2.0f}, {1.1f, 1.3f, 5.6f}};
    double results[2];
    for (int way = 0; way < 2; ++way) {
      RouterStats stats(0, 1, experts);
      if (way == 0)
        for (const auto& v : values) stats.add(0, w.counts({3, 4, 1}), false, w.shares(v));
      else {
        std::vector<float> both = values[2];
        both.insert(both.end(), values[0].begin(), values[0].end());
        stats.add(0, w.counts({3, 4, 1, 3, 4, 1}), false, w.shares(both));
        stats.add(0, w.counts({3, 4, 1}), false, w.shares(values[1]));
      }
      results[way] = stats.finish(w.rig.ctx).aux_loss;
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_GT(results[0], 0);
  }
}

TEST(RouterStats, SharesThatAreNoNumbersAreNotHidden) {
  World w(mesh(1, 1, 1, world_size()), false, false, world_size());
  RouterStats stats(0, 1, experts);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  stats.add(0, w.counts({4, 2, 2}), false, w.shares({world_rank() == 0 ? nan : 5, 2, 1}));
  EXPECT_TRUE(std::isnan(stats.finish(w.rig.ctx).aux_loss));
}

TEST(RouterStats, OnlyMixtureLayersReport) {
  World w(mesh(1, 1, 1, world_size()), false, false, 1);
  RouterStats stats(1, 2, experts);
  EXPECT_THROW(stats.add(0, w.counts({4, 2, 2}), false, w.shares({5, 2, 1})), LogicError);
  EXPECT_THROW(stats.add(3, w.counts({4, 2, 2}), false, w.shares({5, 2, 1})), LogicError);
}

}  // namespace
}  // namespace orthant
