// Loss and gradients of whole models: against finite differences, on every mesh against one rank, and in every form
// of recompute and accumulation.
// ranks: 1 2 4 8
// labels: asan
#include <gtest/gtest.h>

#include "model_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

const char* const families[] = {"gpt2", "llama", "qwen3"};

/// Heads that tp = all ranks divides.
ModelConfig model(const std::string& family, int64_t vocab = 65) {
  return small_model(family, vocab, world_size() == 8 ? 8 : 4);
}

TEST(Model, GradientsAreFiniteDifferences) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const char* family : families) {
    SCOPED_TRACE(family);
    ModelBench m(MPI_COMM_SELF, 1, 1, model(family), {});
    expect_finite_differences(m, 3);
  }
}

TEST(Model, EveryParameterHasAGradient) {
  for (const char* family : families) {
    ModelBench m(MPI_COMM_SELF, 1, 1, model(family), {});
    m.run(2, true);
    for (LocalParam& p : m.rig.store.all()) {
      // adding a constant to all keys of a query changes no softmax: without rotary positions k's bias has none
      const bool none = std::string(family) == "gpt2" && p.param.name.find("attention.k.bias") != std::string::npos;
      EXPECT_EQ(largest(gradient(m.rig, p)) > 1e-6, !none) << family << " " << p.param.name;
    }
  }
}

struct Cut {
  int64_t tp, dp;
  bool sp;
};
std::vector<Cut> cuts() {
  const int64_t n = world_size();
  std::vector<Cut> out = {{n, 1, false}, {n, 1, true}};
  if (n == 2 || n == 4) out.insert(out.end(), {{n / 2, 2, false}, {n / 2, 2, true}});
  if (n == 4) out.push_back({1, 4, false});
  return out;
}

TEST(Model, EveryMeshEqualsOneRank) {
  for (const char* family : families)
    for (int64_t vocab : {65, 257}) {
      if (world_size() == 8 && vocab != 65) continue;  // eight ranks are here for the empty shard
      ModelBench whole(MPI_COMM_SELF, 1, 1, model(family, vocab), {});
      const double loss = whole.run(2, true);
      for (const Cut& c : cuts()) {
        SCOPED_TRACE(std::string(family) + ", vocab " + std::to_string(vocab) + ", tp " + std::to_string(c.tp) +
                     ", dp " + std::to_string(c.dp) + (c.sp ? ", sequence parallel" : ""));
        RigOptions o;
        o.sequence_parallel = c.sp;
        ModelBench cut(MPI_COMM_WORLD, c.tp, c.dp, model(family, vocab), o);
        EXPECT_NEAR(cut.run(1, true), loss, 1e-12 * loss);
        expect_gradients(cut, whole, 1e-11);
      }
    }
}

TEST(Model, ReproducibleModeGivesTheSameBitsOnEveryMesh) {
  const std::pair<const char*, DType> models[] = {
      {"gpt2", DType::f32}, {"llama", DType::f32}, {"qwen3", DType::f32}, {"llama", DType::bf16}};
  for (const auto& [family, type] : models) {
    RigOptions o;
    o.compute = type;
    o.reproducible = true;
    ModelBench whole(MPI_COMM_SELF, 1, 1, model(family), o);
    whole.run(1, true);
    EXPECT_GT(whole.exact.hi, 0);
    for (const Cut& c : cuts()) {
      SCOPED_TRACE(std::string(family) + ", tp " + std::to_string(c.tp) + ", dp " + std::to_string(c.dp) +
                   (c.sp ? ", sequence parallel" : ""));
      RigOptions cut_options = o;
      cut_options.sequence_parallel = c.sp;
      ModelBench cut(MPI_COMM_WORLD, c.tp, c.dp, model(family), cut_options);
      cut.run(1, true);
      EXPECT_EQ(cut.exact.hi, whole.exact.hi);
      EXPECT_EQ(cut.exact.lo, whole.exact.lo);
      expect_gradients(cut, whole, 0);
    }
  }
}

TEST(Model, LossHasTheSameBitsOnEveryTpRank) {
  ModelBench m(MPI_COMM_WORLD, world_size(), 1, model("llama", 257), {});
  double mine = m.run(2, false), least = mine, most = mine;
  MPI_Allreduce(&mine, &least, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  EXPECT_EQ(least, most);
}

TEST(Model, RecomputeChangesNoBit) {
  if (world_size() > 4) GTEST_SKIP() << "up to four ranks";
  for (DType type : {DType::f32, DType::bf16})
    for (bool reproducible : {false, type == DType::bf16})
      for (const char* family : families) {
        RigOptions o;
        o.compute = type;
        o.reproducible = reproducible;
        o.sequence_parallel = world_size() > 1;
        ModelBench none(MPI_COMM_WORLD, world_size(), 1, model(family), o);
        const double loss = none.run(2, true);
        for (Recompute r : {Recompute::selective, Recompute::full}) {
          SCOPED_TRACE(std::string(family) + ", " + name_of(type) +
                       (r == Recompute::full ? ", full" : ", selective"));
          o.recompute = r;
          ModelBench again(MPI_COMM_WORLD, world_size(), 1, model(family), o);
          EXPECT_EQ(again.run(2, true), loss);
          for (LocalParam& p : none.rig.store.all())
            EXPECT_EQ(gradient(none.rig, p), gradient(again.rig, again.rig.store.at(p.param.name))) << p.param.name;
        }
      }
}

// O010: rows of padding would show as ln 66 or ln 128.
TEST(Model, ZeroHeadHasTheLossOfTheTrueVocabulary) {
  for (bool reproducible : {false, true})
    for (DType type : {DType::f64, DType::f32, DType::bf16}) {
      RigOptions o;
      o.compute = type;
      o.reproducible = reproducible;
      ModelBench m(MPI_COMM_WORLD, world_size(), 1, model("llama", 65), o);
      m.rig.backend->zero(m.rig.store.at("head.weight").weight);
      EXPECT_NEAR(m.run(2, true), 4.174387, 1e-6) << name_of(type);
    }
}

TEST(Model, SomeRankHasNoVocabularyOnTpEight) {
  if (world_size() != 8) GTEST_SKIP() << "eight ranks";
  ModelBench m(MPI_COMM_WORLD, 8, 1, model("llama", 65), {});
  int64_t rows = m.rig.store.at("head.weight").rows(), least = rows, all = rows;
  MPI_Allreduce(&rows, &least, 1, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&rows, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  EXPECT_EQ(least, 0);
  EXPECT_EQ(all, 65);
}

// O012, O013: one denominator for the whole global batch, under any accumulation and any split over dp.
TEST(Model, LossIsTheMeanOverTheTokensOfTheGlobalBatch) {
  if (world_size() > 4) GTEST_SKIP() << "four sequences";
  const ModelConfig c = model("llama");
  ModelBench whole(MPI_COMM_SELF, 1, 1, c, {});
  const double loss = whole.run(4, true);

  double sum = 0, mean_of_means = 0;
  for (int64_t s = 0; s < global_batch; ++s) {
    int64_t counted = 0;
    for (int64_t t = 0; t < whole.rig.ctx.sequence; ++t) counted += token_counts(s, t);
    MicroBatch mb = micro_batch(whole.rig.ctx, s, 1, c.vocab, 1);
    whole.rig.ctx.batch = &mb;
    std::unique_ptr<Stash> none;
    const double one = whole.stage->forward(whole.rig.ctx, false, none).value;
    sum += one;
    mean_of_means += one / static_cast<double>(counted) / global_batch;
  }
  whole.rig.ctx.batch = nullptr;
  EXPECT_NEAR(loss, sum / static_cast<double>(valid_tokens(global_batch, 16)), 1e-12);
  EXPECT_GT(std::abs(loss - mean_of_means), 1e-4) << "the batch would not show a mean of means";

  for (int64_t micro : {1, 2, 4}) {
    if (micro > global_batch / world_size()) continue;
    SCOPED_TRACE("micro " + std::to_string(micro));
    ModelBench cut(MPI_COMM_WORLD, 1, world_size(), c, {});
    EXPECT_NEAR(cut.run(micro, true), loss, 1e-12);
    expect_gradients(cut, whole, 1e-11);
  }
}

TEST(Model, TokensThatDoNotCountGiveNoGradient) {
  // labels -1 everywhere but in one sequence: the gradient is that of this sequence alone
  const ModelConfig c = model("qwen3");
  auto gradients = [&](int64_t count, int64_t kept) {
    ModelBench m(MPI_COMM_WORLD, world_size(), 1, c, {});
    MicroBatch mb = micro_batch(m.rig.ctx, 0, count, c.vocab, 10);
    {
      Host<int32_t> labels(*m.rig.backend, mb.labels);
      Host<double> weights(*m.rig.backend, mb.weights);
      for (int64_t i = 0; i < mb.tokens(); ++i)
        if (i % count != kept) labels[i] = -1, weights[i] = 0;
    }
    m.rig.ctx.batch = &mb;
    std::unique_ptr<Stash> stash;
    const double loss = m.stage->forward(m.rig.ctx, true, stash).value;
    m.stage->backward(m.rig.ctx, stash);
    sum_gradients(m.rig.ctx, m.rig.store);
    m.rig.ctx.batch = nullptr;
    std::vector<double> all = {loss};
    for (LocalParam& p : m.rig.store.all())
      for (double x : gradient(m.rig, p)) all.push_back(x);
    return all;
  };
  const std::vector<double> alone = gradients(1, 0), among = gradients(4, 0), none = gradients(4, -1);
  EXPECT_LE(difference(alone, among), 1e-12 * largest(alone));
  EXPECT_EQ(largest(none), 0.0);
}

}  // namespace
}  // namespace orthant
