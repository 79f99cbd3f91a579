// Whole training steps of models with experts are those of one rank, whatever cuts them and their states; the norm
// counts each expert once; an expert that gets no token decays and coasts as anywhere.
// ranks: 1 2 4
// seconds: 180
#include <gtest/gtest.h>

#include <numeric>

#include "orthant/model.hpp"
#include "plan_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

const std::vector<std::string> families = {"mixtral", "deepseek"};
const std::vector<Keys> zeros = {{"zero.stage=0"}, {"zero.stage=1"},
                                 {"zero.stage=2"}, {"zero.stage=2", "zero.accumulate=full", "zero.bucket=300"},
                                 {"zero.stage=3"}, {"zero.stage=3", "zero.accumulate=full"}};

/// Every kind of mesh that this number of ranks allows.
std::vector<Keys> meshes() {
  const Keys tp = {"mesh.tp=2", "mesh.sequence_parallel=true"};
  switch (world_size()) {
    case 2:
      return {{"mesh.dp=2"},           {"mesh.dp=2", "mesh.ep=2"}, tp,           tp + Keys{"mesh.ep=2"},
              tp + Keys{"mesh.etp=2"}, {"mesh.cp=2", "mesh.ep=2"}, {"mesh.pp=2"}};
    case 4:
      return {{"mesh.dp=4"},
              {"mesh.dp=4", "mesh.ep=2"},
              {"mesh.dp=4", "mesh.ep=4"},
              tp + Keys{"mesh.dp=2"},
              tp + Keys{"mesh.dp=2", "mesh.ep=2"},
              tp + Keys{"mesh.dp=2", "mesh.ep=4"},
              tp + Keys{"mesh.dp=2", "mesh.ep=2", "mesh.etp=2"},
              tp + Keys{"mesh.cp=2", "mesh.ep=4"},
              tp + Keys{"mesh.cp=2", "mesh.ep=2", "mesh.etp=2"},
              {"mesh.cp=2", "mesh.dp=2", "mesh.ep=2", "context.method=all_gather"},
              {"mesh.cp=4", "mesh.ep=4", "context.method=all_to_all"},
              {"mesh.tp=4", "mesh.sequence_parallel=true", "mesh.ep=4"},
              {"mesh.pp=2", "mesh.dp=2", "mesh.ep=2", "pipeline.schedule=zero_bubble"},
              tp + Keys{"mesh.pp=2", "mesh.ep=2", "pipeline.schedule=interleaved", "pipeline.virtual_stages=2"},
              tp + Keys{"mesh.pp=2", "mesh.etp=2", "memory.recompute=full"}};
    default:
      return {{}};
  }
}

/// The meshes of dp alone: what ZeRO cuts lies on edp, on shard, or on both.
std::vector<Keys> data_meshes() {
  if (world_size() == 2) return {{"mesh.dp=2"}, {"mesh.dp=2", "mesh.ep=2"}};
  return {{"mesh.dp=4"}, {"mesh.dp=4", "mesh.ep=2"}, {"mesh.dp=4", "mesh.ep=4"}};
}

/// Two blocks (four, where stages need them) with every loss of the routers, and 8 sequences a step.
Keys common(const std::string& name) {
  return family(name) + Keys{"batch.global=8", "model.moe.aux_loss=0.05", "model.moe.z_loss=0.01",
                             "model.z_loss=0.001",
                             name == "deepseek" ? "model.moe.bias_rate=0.01" : "model.moe.bias_rate=0"};
}
bool has(const Keys& keys, const std::string& key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); }
Keys blocks(const Keys& mesh) { return {has(mesh, "mesh.pp=2") ? "model.layers=4" : "model.layers=2"}; }

/// What one rank has after each step with these keys, computed once.
const Whole& one_rank(const Keys& keys, bool f64, int steps) {
  static std::map<std::pair<std::string, int>, Whole> known;
  const auto key = std::pair(text(keys), 2 * steps + f64);
  auto found = known.find(key);
  if (found == known.end()) {
    const RunPlan plan = plan_of(keys, 1);
    found = known.emplace(key, run_whole(f64 ? in_f64(plan) : plan, steps)).first;
  }
  return found->second;
}

/// `steps` steps on the mesh: in fp64 to within rounding, or (`exact`) to the bit.
void compare(const std::string& name, const Keys& more, const Keys& cut, int steps, bool exact) {
  SCOPED_TRACE(name + " " + text(more + cut));
  const Keys keys = common(name) + blocks(cut) + more;
  const RunPlan plan = plan_of(keys + cut, world_size());
  const Whole& whole = one_rank(keys, !exact, steps);
  Trainer t(MPI_COMM_WORLD, exact ? plan : in_f64(plan));
  for (size_t n = 0; n < static_cast<size_t>(steps); ++n) {
    const StepResult r = t.step();
    expect_whole(t, r, whole, n, exact ? 0 : 1e-11);
    EXPECT_EQ(r.router.load, whole.results[n].router.load);
    EXPECT_NEAR(r.router.aux_loss, whole.results[n].router.aux_loss, 1e-12);
    EXPECT_EQ(r.router.dropped, whole.results[n].router.dropped);
  }
}

TEST(ExpertTraining, EveryMeshIsOneRank) {
  for (const std::string& name : families)
    for (const Keys& mesh : meshes()) compare(name, {}, mesh, 3, false);
}

// With micro-batches of two and capacity, so that some picks are dropped.
TEST(ExpertTraining, DroppedPicksAreTheSameOnEveryMesh) {
  for (const std::string& name : families) {
    const Keys limited = {"model.moe.capacity_factor=0.8"};
    EXPECT_GT(one_rank(common(name) + Keys{"model.layers=2"} + limited, true, 2).results[0].router.dropped, 0);
    for (const Keys& mesh : meshes()) {
      if (has(mesh, "mesh.pp=2")) continue;
      compare(name, limited, mesh + Keys{has(mesh, "mesh.dp=4") ? "batch.micro=1" : "batch.micro=2"}, 2, false);
    }
  }
}

TEST(ExpertTraining, StatesOfExpertsAreCutOverTheRanksThatHoldThem) {
  if (world_size() == 1) GTEST_SKIP() << "more than one rank";
  for (const std::string& name : families)
    for (const Keys& zero : zeros)
      for (const Keys& mesh : data_meshes())
        for (const std::string shard : {"zero.shard=0", "zero.shard=2"}) {
          if (shard == "zero.shard=2" && (zero == zeros[0] || world_size() == 2)) continue;
          compare(name, {}, mesh + zero + Keys{shard}, 2, false);
        }
}

TEST(ExpertTraining, StatesAreCutBesideOtherAxes) {
  if (world_size() != 4) GTEST_SKIP() << "four ranks";
  size_t turn = 0;
  for (const Keys& mesh : meshes()) {
    if (has(mesh, "mesh.dp=4")) continue;
    for (size_t z : {1 + turn % 2, 3 + turn % 3}) compare(families[turn % 2], {}, mesh + zeros[z], 2, false);
    ++turn;
  }
}

TEST(ExpertTraining, BitsOfOneRankInReproducibleMode) {
  size_t turn = 0;
  for (const std::string& name : families)
    for (const Keys& mesh : meshes()) {
      const Keys type = {turn % 2 ? "precision.compute=bf16" : "precision.compute=fp32"};
      const Keys zero = has(mesh, "mesh.dp=2") || has(mesh, "mesh.dp=4") ? zeros[turn % zeros.size()] : Keys{};
      compare(name, type + Keys{"run.reproducible=true", "model.moe.capacity_factor=1"}, mesh + zero, 2, true);
      ++turn;
    }
}

TEST(ExpertTraining, DimsLeftWholeChangeNothing) {
  if (world_size() == 1) GTEST_SKIP() << "more than one rank";
  const Keys mesh = {is("mesh.tp", world_size()), "mesh.sequence_parallel=true"};
  for (const std::string& name : families)
    for (const Keys& rule : {Keys{"layout.heads="}, Keys{"layout.ffn="}, Keys{"layout.vocab="},
                             Keys{"layout.heads=", "layout.ffn=", "layout.vocab="}})
      for (const Keys& experts : {Keys{"mesh.ep=2"}, Keys{is("mesh.etp", world_size())}}) {
        compare(name, {}, mesh + rule + experts, 2, false);
        compare(name, {"run.reproducible=true"}, mesh + rule + experts, 1, true);
      }
}

/// The gradient after the sums is g(parameter, element).
void set_gradients(Session& s, const std::function<double(const Param&, int64_t)>& g) {
  Backend& be = *s.backend;
  s.store->zero_gradients();
  for (LocalParam& p : s.store->all()) {
    if (p.copy || !p.trained() || p.own.rows * p.cols() == 0) continue;
    const Tensor t = be.alloc(DType::f32, p.own.rows, p.cols(), MemoryKind::workspace);
    {
      Host<float> h(be, t);
      for (int64_t r = 0; r < p.own.rows; ++r)
        for (int64_t c = 0; c < p.cols(); ++c)
          h[r * p.cols() + c] = static_cast<float>(g(p.param, (p.own.row + r) * p.param.cols() + p.own.col + c));
    }
    s.ctx.reproducible() ? be.exact_add(t, p.own_grad_exact) : be.copy(p.own_grad, t);
  }
}

// O037
TEST(ExpertTraining, NormCountsEachExpertOnce) {
  const auto known = [](const Param& p, int64_t e) {
    return 0.25 * std::floor(8 * number("gradient of " + p.name, e));  // its square has no rounding
  };
  size_t turn = 0;
  for (const std::string& name : families)
    for (const Keys& mesh : meshes())
      for (const std::string mode : {"run.reproducible=false", "run.reproducible=true"}) {
        const Keys keys = common(name) + blocks(mesh) + mesh + zeros[turn++ % zeros.size()] + Keys{mode};
        SCOPED_TRACE(text(keys));
        Trainer t(MPI_COMM_WORLD, plan_of(keys, world_size()));
        const auto expect = [&](const std::string& part) {
          double squares = 0;
          const auto g = [&](const Param& p, int64_t e) {
            return p.name.find(part) == std::string::npos ? 0.0 : known(p, e);
          };
          for (const Param& p : model_params(t.plan.model))
            if (p.trained)
              for (int64_t e = 0; e < p.elements(); ++e) squares += g(p, e) * g(p, e);
          EXPECT_GT(squares, 0) << part;
          set_gradients(t.session, g);
          EXPECT_EQ(gradient_norm(t.session.ctx, *t.session.store), std::sqrt(squares)) << part;
        };
        for (const char* part : {"", ".experts.0.", ".experts.3.down", ".experts.", "router.weight"}) expect(part);
        if (name == "deepseek") expect(".shared.");
      }
}

// O042: with plain descent at rate 1 a weight moves by its gradient, so a wrong factor would show.
TEST(ExpertTraining, ExpertsMoveByTheSameGradientOnEveryMesh) {
  const Keys descent = {"optimizer.name=sgd", "optimizer.momentum=0", "optimizer.weight_decay=0", "optimizer.clip=0"};
  for (const std::string& name : families)
    for (const Keys& mesh : meshes()) {
      const Keys keys = common(name) + blocks(mesh) + descent;
      SCOPED_TRACE(text(keys + mesh));
      std::map<std::string, std::vector<double>> moved;
      const auto step = [](Trainer& t) {
        std::map<std::string, std::vector<double>> delta;
        for (LocalParam& p : t.session.store->all()) delta[p.param.name] = to_host(*t.session.backend, p.own_weight);
        EXPECT_FALSE(t.step(1.0).skipped);
        for (LocalParam& p : t.session.store->all()) {
          const std::vector<double> now = to_host(*t.session.backend, p.own_weight);
          for (size_t i = 0; i < now.size(); ++i) delta[p.param.name][i] -= now[i];
        }
        return delta;
      };
      Trainer one(MPI_COMM_SELF, in_f64(plan_of(keys, 1))),
          t(MPI_COMM_WORLD, in_f64(plan_of(keys + mesh, world_size())));
      const auto whole = step(one), cut = step(t);
      int64_t experts = 0;
      for (LocalParam& p : t.session.store->all()) {
        const std::vector<double>& w = whole.at(p.param.name);
        EXPECT_LE(difference(cut.at(p.param.name), part_of(w, p.param, p.own)), 1e-12) << p.param.name;
        if (!p.expert()) continue;
        ++experts;
        EXPECT_GT(largest(w), 1e-6) << p.param.name << " has no gradient";
      }
      EXPECT_GT(experts, 0);
    }
}

/// Sets the selection bias of the routers: an expert with -10 is chosen by no token, nor are those of its group.
void set_bias(Trainer& t, double of_expert_0) {
  for (LocalParam& p : t.session.store->all())
    if (!p.trained()) Host<double>(*t.session.backend, p.weight)[0] = of_expert_0;
}

// O040: expert 0 has tokens in step 1 and none in steps 2 and 3. It goes on by its momentum and decays, on every
// mesh.
TEST(ExpertTraining, AnExpertWithoutTokensDecaysAndCoasts) {
  const Keys optimisers[] = {{"optimizer.name=sgd", "optimizer.momentum=0.5", "optimizer.clip=0"},
                             {"optimizer.name=adamw"}};
  const double lr = 0.01, decay = 1 - lr * 0.1;
  size_t turn = 0;
  for (const Keys& with : optimisers)
    for (const Keys& mesh : meshes()) {
      const Keys& zero = zeros[turn++ % zeros.size()];
      const Keys keys =
          family("deepseek") + blocks(mesh) + with + Keys{"batch.global=8", "optimizer.weight_decay=0.1"};
      SCOPED_TRACE(text(keys + mesh + zero));
      Trainer one(MPI_COMM_SELF, in_f64(plan_of(keys, 1)));
      Trainer t(MPI_COMM_WORLD, in_f64(plan_of(keys + mesh + zero, world_size())));
      std::map<std::string, std::vector<double>> before[4];  // of `one`, before step n + 1
      const auto remember = [&](int n) {
        for (LocalParam& p : one.session.store->all())
          before[n][p.param.name] = to_host(*one.session.backend, p.weight);
      };
      std::map<std::string, std::vector<double>> first_gradient;
      for (int n = 0; n < 3; ++n) {
        set_bias(one, n == 0 ? 0 : -10);
        set_bias(t, n == 0 ? 0 : -10);
        remember(n);
        const StepResult whole = one.step(lr), cut = t.step(lr);
        EXPECT_EQ(whole.router.load[0][0] > 0, n == 0);
        EXPECT_EQ(cut.router.load, whole.router.load);
        EXPECT_NEAR(cut.grad_norm, whole.grad_norm, 1e-11 * whole.grad_norm);
        for (LocalParam& p : t.session.store->all())
          EXPECT_LE(difference(to_host(*t.session.backend, p.own_weight),
                               part_of(to_host(*one.session.backend, one.session.store->at(p.param.name).weight),
                                       p.param, p.own)),
                    1e-11)
              << p.param.name << ", step " << n + 1;
        const std::string expert = "layers.1.moe.experts.0.up.weight";
        LocalParam& p = one.session.store->at(expert);
        const std::vector<double> g = own_gradient(one.session, p);
        if (n == 0) {
          EXPECT_GT(largest(g), 1e-6);
          first_gradient[expert] = g;
        } else {
          EXPECT_EQ(largest(g), 0);
        }
      }
      remember(3);
      for (const auto& [expert, g] : first_gradient) {
        const auto &w1 = before[1][expert], &w2 = before[2][expert], &w3 = before[3][expert];
        std::vector<double> want = w1;
        for (size_t i = 0; i < want.size(); ++i) {
          if (has(with, "optimizer.name=sgd")) want[i] = want[i] * decay - lr * 0.5 * g[i];
          EXPECT_NE(w2[i], w1[i] * decay) << "no momentum";
        }
        if (has(with, "optimizer.name=sgd")) {
          EXPECT_LE(difference(w2, want), 1e-12);
        }
        EXPECT_GT(difference(w3, w2), 0);
      }
    }
}

}  // namespace
}  // namespace orthant
