// The selection bias of deepseek's routers moves by loads alone, the same on every mesh and in fp32 whatever the
// compute type; the losses of routers reach gradients and not the logged loss.
// ranks: 1 2 4
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "plan_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

std::vector<Keys> meshes() {
  const Keys tp = {"mesh.tp=2", "mesh.sequence_parallel=true"};
  switch (world_size()) {
    case 2:
      return {{"mesh.dp=2"},
              {"mesh.dp=2", "mesh.ep=2", "zero.stage=3"},
              tp + Keys{"mesh.ep=2"},
              tp + Keys{"mesh.etp=2"},
              {"mesh.cp=2", "mesh.ep=2"},
              {"mesh.pp=2"}};
    case 4:
      return {{"mesh.dp=4", "mesh.ep=2", "zero.stage=2"},
              {"mesh.dp=4", "mesh.ep=4", "zero.stage=3"},
              tp + Keys{"mesh.dp=2", "mesh.ep=4"},
              tp + Keys{"mesh.dp=2", "mesh.ep=2", "mesh.etp=2", "zero.stage=1"},
              {"mesh.cp=2", "mesh.dp=2", "mesh.ep=2"},
              {"mesh.pp=2", "mesh.dp=2", "mesh.ep=2", "pipeline.schedule=interleaved", "pipeline.virtual_stages=2"}};
    default:
      return {{}, {"zero.stage=3"}};
  }
}

Keys deck(double rate) {
  return family("deepseek") + Keys{"batch.global=8", "model.moe.bias_rate=" + std::to_string(rate)};
}

/// Biases of the routers on this rank's stage, by block.
std::map<int64_t, std::vector<double>> biases(Session& s) {
  std::map<int64_t, std::vector<double>> out;
  for (LocalParam& p : s.store->all())
    if (!p.trained()) out[std::stoll(p.param.name.substr(7))] = to_host(*s.backend, p.weight);
  return out;
}

constexpr int64_t dense = 1;  ///< blocks before the first mixture layer

TEST(SelectionBias, MovesTowardsEvenLoad) {
  const double rate = 0.0001;
  for (const Keys& mesh : meshes())
    for (const std::string type : {"fp32", "bf16"})
      for (const std::string mode : {"false", "true"}) {
        const Keys keys = deck(rate) + mesh + Keys{"precision.compute=" + type, "run.reproducible=" + mode};
        SCOPED_TRACE(text(keys));
        Trainer t(MPI_COMM_WORLD, plan_of(keys, world_size()));
        for (const LocalParam& p : t.session.store->all())
          if (!p.trained()) {
            EXPECT_EQ(p.weight.dtype(), DType::f32);  // bf16 would swallow the steps
          }
        int64_t up = 0, down = 0, layers = 0;
        for (int step = 0; step < 3; ++step) {
          const auto before = biases(t.session);
          const StepResult r = t.step();
          EXPECT_FALSE(r.skipped);
          for (const auto& [layer, now] : biases(t.session)) {
            const std::vector<int64_t>& load = r.router.load.at(static_cast<size_t>(layer - dense));
            const int64_t picks = std::accumulate(load.begin(), load.end(), int64_t{0});
            EXPECT_EQ(picks, 8 * 16 * 3);
            ASSERT_EQ(now.size(), load.size());
            for (size_t e = 0; e < now.size(); ++e) {
              const double mean = static_cast<double>(picks) / 8,
                           sign = (static_cast<double>(load[e]) < mean) - (static_cast<double>(load[e]) > mean);
              const auto from = static_cast<float>(before.at(layer)[e]);
              EXPECT_EQ(now[e], static_cast<double>(from + static_cast<float>(rate * sign))) << "expert " << e;
              up += sign > 0;
              down += sign < 0;
            }
            ++layers;
          }
        }
        EXPECT_TRUE(layers == 0 || (up > 0 && down > 0));
        MPI_Allreduce(MPI_IN_PLACE, &layers, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
        EXPECT_GE(layers, 3);
      }
}

TEST(SelectionBias, IsTheSameOnEveryMesh) {
  for (const std::string mode : {"false", "true"}) {
    const Keys exact = {"run.reproducible=" + mode};
    const auto plan = [&](const Keys& mesh, int64_t ranks) {
      const RunPlan p = plan_of(deck(0.02) + exact + mesh, ranks);
      return mode == "true" ? p : in_f64(p);
    };
    Trainer one(MPI_COMM_SELF, plan({}, 1));
    std::vector<std::map<int64_t, std::vector<double>>> want;
    for (int step = 0; step < 4; ++step) one.step(), want.push_back(biases(one.session));
    EXPECT_NE(want[0], want[3]);
    for (const Keys& mesh : meshes()) {
      SCOPED_TRACE(text(exact + mesh));
      Trainer t(MPI_COMM_WORLD, plan(mesh, world_size()));
      for (int step = 0; step < 4; ++step) {
        EXPECT_FALSE(t.step().skipped);
        for (const auto& [layer, now] : biases(t.session))
          EXPECT_EQ(now, want[static_cast<size_t>(step)].at(layer)) << "block " << layer << ", step " << step;
      }
    }
  }
}

// A load that is the mean moves nothing, and one pick beside it is enough: loads are integers, whatever their mean
// is.
TEST(SelectionBias, TheMeanItselfStandsStill) {
  Trainer t(MPI_COMM_SELF, plan_of(deck(0.5) + Keys{"model.layers=2"}, 1));
  const auto move = [&](const std::vector<int64_t>& load) {
    std::vector<double> by = biases(t.session).at(1);
    RouterReport report;
    report.load = {load};
    update_selection_bias(t.session, report);
    const std::vector<double> now = biases(t.session).at(1);
    for (size_t e = 0; e < by.size(); ++e) by[e] = std::round(1000 * (now[e] - by[e])) / 1000;
    return by;
  };
  EXPECT_EQ(move({3, 3, 3, 3, 3, 3, 3, 3}), std::vector<double>(8, 0));
  EXPECT_EQ(move({0, 2, 4, 3, 3, 3, 5, 4}), (std::vector<double>{0.5, 0.5, -0.5, 0, 0, 0, -0.5, -0.5}));
  EXPECT_EQ(move({3, 3, 3, 3, 3, 3, 3, 4}), (std::vector<double>{0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, -0.5}));
  const int64_t much = int64_t{1} << 55;  // beyond what doubles tell apart
  EXPECT_EQ(move({much, much, much, much, much, much, much - 1, much + 1}),
            (std::vector<double>{0, 0, 0, 0, 0, 0, 0.5, -0.5}));
  EXPECT_EQ(move(std::vector<int64_t>(8, 0)), std::vector<double>(8, 0));
}

TEST(SelectionBias, ASkippedStepLeavesIt) {
  for (const Keys& mesh : meshes()) {
    SCOPED_TRACE(text(mesh));
    Trainer t(MPI_COMM_WORLD, plan_of(deck(0.01) + mesh, world_size()));
    EXPECT_FALSE(t.step().skipped);
    const auto before = biases(t.session);
    for (LocalParam& p : t.session.store->all())
      if (p.param.name == "final_norm.weight" && p.own.rows > 0)
        Host<float>(*t.session.backend, p.own_weight)[0] = std::numeric_limits<float>::quiet_NaN();
    publish_weights(t.session);
    EXPECT_TRUE(t.step().skipped);
    EXPECT_EQ(biases(t.session), before);
  }
}

// Without a rate nothing moves it: no gradient, no decay, no place in the norm or in the optimiser.
TEST(SelectionBias, IsNotTrained) {
  for (const Keys& mesh : meshes())
    for (const std::string type : {"fp32", "bf16"}) {
      const Keys keys = deck(0) + mesh + Keys{"precision.compute=" + type, "optimizer.weight_decay=0.5"};
      SCOPED_TRACE(text(keys));
      Trainer t(MPI_COMM_WORLD, plan_of(keys, world_size()));
      const auto before = biases(t.session);
      for (int step = 0; step < 2; ++step) EXPECT_FALSE(t.step(0.1).skipped);
      EXPECT_EQ(biases(t.session), before);
      for (const auto& [layer, bias] : before) EXPECT_GT(largest(bias), 0.01) << layer;
      for (const LocalParam& p : t.session.store->all())
        if (!p.trained()) {
          EXPECT_TRUE(!p.counted && !p.own_grad && p.slots.empty());
        }
    }
}

/// Loss and own gradients of a first step in fp64.
struct FirstStep {
  FirstStep(const std::string& name, const Keys& keys) {
    Trainer t(MPI_COMM_WORLD, in_f64(plan_of(family(name) + keys + Keys{"batch.global=8"}, world_size())));
    loss = t.step().loss;
    for (LocalParam& p : t.session.store->all())
      if (p.trained()) gradients[p.param.name] = own_gradient(t.session, p);
  }
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
};

std::vector<double> minus(std::vector<double> a, const std::vector<double>& b, double times = 1) {
  for (size_t i = 0; i < a.size(); ++i) a[i] = times * (a[i] - b[i]);
  return a;
}

TEST(RouterLosses, ReachGradientsAndNotTheLoggedLoss) {
  struct Case {
    std::string key, parameter;  ///< what it pulls at
  };
  for (const Case& c : {Case{"model.moe.aux_loss", "router.weight"}, Case{"model.moe.z_loss", "router.weight"},
                        Case{"model.z_loss", "head.weight"}})
    for (const std::string name : {"mixtral", "deepseek"})
      for (const Keys& mesh : meshes()) {
        SCOPED_TRACE(name + " " + c.key + " " + text(mesh));
        const FirstStep none(name, mesh + Keys{c.key + "=0"}), half(name, mesh + Keys{c.key + "=0.05"}),
            full(name, mesh + Keys{c.key + "=0.1"});
        EXPECT_EQ(half.loss, none.loss);
        EXPECT_EQ(full.loss, none.loss);
        double most = 0;
        for (const auto& [parameter, g] : none.gradients) {
          const std::vector<double> of_half = minus(half.gradients.at(parameter), g, 2),
                                    of_full = minus(full.gradients.at(parameter), g);
          EXPECT_LE(difference(of_half, of_full), 1e-12) << parameter << ": not in proportion";
          if (parameter.find(c.parameter) != std::string::npos) most = std::max(most, largest(of_full));
        }
        MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        EXPECT_GT(most, 1e-5);
      }
}

}  // namespace
}  // namespace orthant
