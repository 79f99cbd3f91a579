// Dropout in whole models: the same elements go on every mesh and in recompute; other ones in another step, sample,
// or rank of dp.
// ranks: 1 2 4
#include <gtest/gtest.h>

#include "model_kit.hpp"
#include "plan_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

const char* const families[] = {"gpt2", "llama", "qwen3"};
const ContextMethod methods[] = {ContextMethod::ring, ContextMethod::all_gather, ContextMethod::all_to_all};

RigOptions dropping(double rate = 0.1) {
  RigOptions o;
  o.dropout = rate;
  return o;
}

struct Cut {
  int64_t tp, cp, dp;
  bool sp;
};
std::vector<Cut> cuts() {
  if (world_size() == 1) return {};
  if (world_size() == 2) return {{2, 1, 1, false}, {2, 1, 1, true}, {1, 2, 1, false}, {1, 1, 2, false}};
  return {{4, 1, 1, true}, {2, 1, 2, false}, {1, 4, 1, false}, {2, 2, 1, false}, {2, 2, 1, true}, {1, 2, 2, false}};
}

ModelBench bench(MPI_Comm comm, const std::string& family, const Cut& c, RigOptions o) {
  const ModelConfig m = small_model(family);
  o.sequence_parallel = c.sp;
  return {comm, mesh_of(m, c.tp, c.dp, c.cp), m, o};
}
ModelBench one_rank(const std::string& family, const RigOptions& o) {
  return bench(MPI_COMM_SELF, family, {1, 1, 1, false}, o);
}
std::string text(const Cut& c) {
  return "tp " + std::to_string(c.tp) + ", cp " + std::to_string(c.cp) + ", dp " + std::to_string(c.dp) +
         (c.sp ? ", sequence parallel" : "");
}

TEST(DropoutModel, EveryMeshDropsTheSame) {
  for (const char* family : families) {
    ModelBench whole = one_rank(family, dropping());
    const double loss = whole.run(2, true);
    EXPECT_GT(std::abs(loss - one_rank(family, {}).run(2, false)), 1e-3) << "nothing was dropped";
    EXPECT_NEAR(one_rank(family, dropping()).run(4, false), loss, 1e-12) << "another micro-batch";
    for (const Cut& c : cuts())
      for (ContextMethod m : methods) {
        if (c.cp == 1 && m != methods[0]) continue;
        SCOPED_TRACE(std::string(family) + ", " + text(c) + ", method " + std::to_string(static_cast<int>(m)));
        RigOptions o = dropping();
        o.method = m;
        ModelBench cut = bench(MPI_COMM_WORLD, family, c, o);
        EXPECT_NEAR(cut.run(1, true), loss, 1e-12 * loss);
        expect_gradients(cut, whole, 1e-11);
      }
  }
}

TEST(DropoutModel, GradientsAreFiniteDifferences) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const char* family : families) {
    SCOPED_TRACE(family);
    ModelBench m = one_rank(family, dropping(0.3));
    expect_finite_differences(m, 1);
  }
}

// O016
TEST(DropoutModel, RecomputeDropsTheSame) {
  const Cut one{1, 1, 1, false};
  std::vector<Cut> meshes = cuts();
  if (meshes.empty()) meshes = {one};
  for (DType type : {DType::f32, DType::bf16})
    for (const char* family : families)
      for (const Cut& c : meshes) {
        SCOPED_TRACE(std::string(family) + ", " + text(c) + ", " + name_of(type));
        RigOptions o = dropping();
        o.compute = type;
        ModelBench none = bench(MPI_COMM_WORLD, family, c, o);
        const double loss = none.run(1, true);
        for (Recompute r : {Recompute::selective, Recompute::full}) {
          o.recompute = r;
          ModelBench again = bench(MPI_COMM_WORLD, family, c, o);
          EXPECT_EQ(again.run(1, true), loss);
          for (LocalParam& p : none.rig.store.all())
            EXPECT_EQ(gradient(none.rig, p), gradient(again.rig, again.rig.store.at(p.param.name))) << p.param.name;
        }
      }
}

// O014: what every rank of tp holds whole stays the same on each of them, after each unit.
TEST(DropoutModel, ResidualStreamIsTheSameOnEveryTpRank) {
  if (world_size() == 1) GTEST_SKIP() << "several ranks";
  for (const char* family : families) {
    RigOptions o = dropping();
    o.compute = DType::f32;
    ModelBench m = bench(MPI_COMM_WORLD, family, {world_size(), 1, 1, false}, o);
    int64_t unit = 0;
    for (const Tensor& x : m.hidden(0, 2)) {
      const std::vector<double> mine = to_host(*m.rig.backend, x);
      std::vector<double> first = mine;
      MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_DOUBLE, 0, MPI_COMM_WORLD);
      EXPECT_EQ(mine, first) << family << ", unit " << unit++;
    }
  }
}

/// Which elements of the embedding's output [tokens, hidden] go, in sequences [first, first + count).
std::vector<double> dropped(ModelBench& m, int64_t first, int64_t count) {
  std::vector<double> x = to_host(*m.rig.backend, m.hidden(first, count).front());
  for (double& e : x) e = e == 0 ? 1 : 0;
  return x;
}
/// Share of the elements that go in one of two masks alone; 2 rate (1 - rate) when they have nothing to do with each
/// other.
double apart(const std::vector<double>& a, const std::vector<double>& b) {
  double n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += std::abs(a[i] - b[i]);
  return a.size() == b.size() ? n / static_cast<double>(a.size()) : INFINITY;
}

// O015: every rank of dp has the same tokens here.
TEST(DropoutModel, RanksOfDpDropOthers) {
  if (world_size() == 1) GTEST_SKIP() << "several ranks";
  for (double rate : {0.0, 0.5}) {
    ModelBench m = bench(MPI_COMM_WORLD, "llama", {1, 1, world_size(), false}, dropping(rate));
    const int64_t each = global_batch / world_size(), first = each * world_rank();
    m.tokens.id = [=](int64_t s, int64_t t, int64_t vocab) { return fixed_token(s % each, t, vocab); };
    const std::vector<double> mine = dropped(m, first, each);
    EXPECT_EQ(dropped(m, first, each), mine) << "the same seed, step and tokens";
    std::vector<double> all(mine.size() * static_cast<size_t>(world_size()));
    const int size = static_cast<int>(mine.size());
    MPI_Allgather(mine.data(), size, MPI_DOUBLE, all.data(), size, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int r = 1; r < world_size(); ++r)
      EXPECT_NEAR(apart({all.begin(), all.begin() + size}, {all.begin() + r * size, all.begin() + (r + 1) * size}),
                  rate == 0 ? 0 : 0.5, 0.1)
          << "ranks 0 and " << r;
  }
}

// O015, and what a step that is repeated (after a resume, in recompute) can rely on
TEST(DropoutModel, AnotherStepSeedOrSequenceDropsOthers) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  ModelBench m = one_rank("gpt2", dropping(0.5));
  const std::vector<double> first = dropped(m, 0, 2);
  EXPECT_NEAR(largest(first), 1, 0);
  EXPECT_NEAR(apart(dropped(m, 2, 2), first), 0.5, 0.1);
  m.rig.ctx.step = 2;
  EXPECT_NEAR(apart(dropped(m, 0, 2), first), 0.5, 0.1);
  m.rig.ctx.step = 1;
  m.rig.ctx.seed = 8;
  EXPECT_NEAR(apart(dropped(m, 0, 2), first), 0.5, 0.1);
  m.rig.ctx.seed = 7;
  EXPECT_EQ(dropped(m, 0, 2), first);
}

TEST(DropoutModel, TrainingStepsOnEveryMeshHaveTheSameBits) {
  const std::vector<Keys> all[] = {
      {{"memory.recompute=full"}, {"memory.recompute=selective"}},
      {{"mesh.tp=2", "mesh.sequence_parallel=true"},
       {"mesh.cp=2", "context.method=all_gather"},
       {"mesh.cp=2", "context.method=all_to_all", "memory.recompute=full"},
       {"mesh.dp=2", "zero.stage=3"},
       {"mesh.pp=2"},
       {"mesh.pp=2", "memory.recompute=full"},  // O016: with two micro-batches in flight
       {"mesh.pp=2", "memory.recompute=selective", "pipeline.schedule=zero_bubble"}},
      {{"mesh.tp=2", "mesh.pp=2", "mesh.sequence_parallel=true", "memory.recompute=full"},
       {"mesh.cp=2", "mesh.tp=2", "mesh.sequence_parallel=true", "context.method=ring"},
       {"mesh.cp=2", "mesh.pp=2", "context.method=all_to_all"},
       {"mesh.cp=2", "mesh.dp=2", "zero.stage=2"},
       {"mesh.cp=4", "memory.recompute=full"}}};
  const std::vector<Keys>& here = all[world_size() == 1 ? 0 : world_size() == 2 ? 1 : 2];
  for (const std::string name : {"gpt2", "llama"}) {
    const Keys common = family(name) + Keys{"model.dropout=0.1", "run.reproducible=true", "model.layers=2"};
    const Whole whole = run_whole(kit::plan_of(common, 1), 2);
    for (const Keys& mesh : here) {
      SCOPED_TRACE(name + " " + kit::text(mesh));
      Trainer t(MPI_COMM_WORLD, kit::plan_of(common + mesh, world_size()));
      for (size_t n = 0; n < 2; ++n) expect_whole(t, t.step(), whole, n, 0);
    }
    Trainer without(MPI_COMM_SELF, kit::plan_of(common + Keys{"model.dropout=0"}, 1));
    EXPECT_NE(without.step().loss, whole.results[0].loss);
  }
}

}  // namespace
}  // namespace orthant
