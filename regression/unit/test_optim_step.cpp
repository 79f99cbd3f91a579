// The end of a step: the norm counts every element once, clipping scales by it, and only matrices decay.
// ranks: 1 2 4
// labels: smoke
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mesh_kit.hpp"
#include "optim/step.hpp"
#include "orthant/model.hpp"

namespace orthant {
namespace {

using namespace kit;

struct Cut {
  int64_t tp, dp;
  bool sp, reproducible;
  int64_t ep = 1;
  bool whole_experts = false;  ///< etp 1, else tp
};
std::vector<Cut> cuts() {
  std::vector<Cut> out;
  for (bool reproducible : {false, true})
    for (int64_t dp = 1; dp <= world_size(); dp *= 2)
      for (bool sp : {false, true}) out.push_back({world_size() / dp, dp, sp, reproducible});
  return out;
}

MeshShape mesh_of_cut(const ModelConfig& c, const Cut& cut) {
  MeshShape m = mesh_of(c, cut.tp, cut.dp);
  m.ep = cut.ep;
  if (cut.whole_experts) m.etp = 1;
  return m;
}

class Step {
 public:
  Step(const std::string& family, const Cut& c, int slots = 2, DType compute = DType::f64)
      : config(small_model(family)),
        rig(MPI_COMM_WORLD, mesh_of_cut(config, c), model_params(config), options(c, slots, compute)) {}

  /// The whole summed gradient is g(parameter, element), as after sum_gradients.
  void set(const std::function<double(const Param&, int64_t)>& g) {
    Backend& be = *rig.backend;
    rig.store.zero_gradients();
    for (LocalParam& p : rig.store.all()) {
      if (p.rows() * p.cols() == 0 || !p.trained()) continue;
      const Tensor t = be.alloc(DType::f64, p.rows(), p.cols(), MemoryKind::workspace);
      {
        Host<double> h(be, t);
        for (int64_t r = 0; r < p.rows(); ++r)
          for (int64_t k = 0; k < p.cols(); ++k)
            h[r * p.cols() + k] = g(p.param, (p.piece.row + r) * p.param.cols() + p.piece.col + k);
      }
      rig.ctx.reproducible() ? be.exact_add(t, p.grad_exact) : be.copy(p.grad, t);
    }
  }
  double norm() { return gradient_norm(rig.ctx, rig.store); }

  static RigOptions options(const Cut& c, int slots, DType compute) {
    RigOptions o;
    o.sequence_parallel = c.sp;
    o.reproducible = c.reproducible;
    o.slots = slots;
    o.compute = c.reproducible ? DType::f32 : compute;
    return o;
  }
  ModelConfig config;
  Rig rig;
};

double known(const Param& p, int64_t e) {
  return 0.25 * std::floor(8 * number("gradient of " + p.name, e));
}  // exact in any type

double squares(const ModelConfig& c, const std::function<double(const Param&, int64_t)>& g) {
  double sum = 0;
  for (const Param& p : model_params(c))
    for (int64_t e = 0; p.trained && e < p.elements(); ++e) sum += g(p, e) * g(p, e);
  return sum;
}

// O036
TEST(OptimStep, NormCountsEveryElementOnce) {
  for (const char* family : {"gpt2", "llama", "qwen3"})
    for (const Cut& c : cuts()) {
      SCOPED_TRACE(std::string(family) + ", tp " + std::to_string(c.tp) + ", dp " + std::to_string(c.dp) +
                   (c.sp ? ", sequence parallel" : "") + (c.reproducible ? ", reproducible" : ""));
      Step s(family, c);
      s.set(known);
      EXPECT_EQ(s.norm(), std::sqrt(squares(s.config, known)));  // these squares have no rounding
      // replicated, shared and cut parameters one by one
      for (const char* only : {"norm1.weight", "attention.k.weight", "attention.out.bias", "mlp.up.weight",
                               "q_norm.weight", "embedding.tokens.weight"}) {
        auto g = [&](const Param& p, int64_t) { return p.name.find(only) != std::string::npos ? 3.0 : 0.0; };
        s.set(g);
        EXPECT_EQ(s.norm(), std::sqrt(squares(s.config, g))) << only;
      }
    }
}

/// Experts whole (ep over tp and dp) or cut by tp (ep over dp alone).
std::vector<Cut> expert_cuts() {
  std::vector<Cut> out;
  for (Cut c : cuts())
    for (c.ep = 1; c.ep <= 4; c.ep *= 2)
      for (const bool whole : {false, true}) {
        c.whole_experts = whole;
        if (c.sp && (whole ? c.tp * c.dp : c.dp) % c.ep == 0 && (c.tp > 1 || !whole)) out.push_back(c);
      }
  return out;
}

std::string text(const Cut& c) {
  return "tp " + std::to_string(c.tp) + ", dp " + std::to_string(c.dp) + ", ep " + std::to_string(c.ep) +
         (c.whole_experts ? ", whole experts" : "") + (c.reproducible ? ", reproducible" : "");
}

// O037
TEST(OptimStep, NormCountsEveryExpertOnce) {
  for (const char* family : {"mixtral", "deepseek"})
    for (const Cut& c : expert_cuts()) {
      SCOPED_TRACE(std::string(family) + ", " + text(c));
      Step s(family, c);
      s.set(known);
      EXPECT_EQ(s.norm(), std::sqrt(squares(s.config, known)));
      for (const char* only : {"experts.0.gate", "experts.3.down", ".experts.", "router", "norm1", "attention.kv_a.",
                               "attention.v.", ".shared."}) {
        auto g = [&](const Param& p, int64_t) { return p.name.find(only) != std::string::npos ? 3.0 : 0.0; };
        s.set(g);
        EXPECT_EQ(s.norm(), std::sqrt(squares(s.config, g))) << only;
      }
    }
}

// A NaN of one expert, on the ranks that hold it alone, stops all.
TEST(OptimStep, AnExpertsGradientThatIsNoNumberIsSeenByEveryRank) {
  for (const Cut& c : expert_cuts()) {
    SCOPED_TRACE(text(c));
    Step s("mixtral", c);
    for (const char* name : {"layers.0.moe.experts.0.gate.weight", "layers.1.moe.experts.3.down.weight"}) {
      s.set([&](const Param& p, int64_t e) {
        return p.name == name && e == p.elements() - 1 ? std::numeric_limits<double>::quiet_NaN() : known(p, e);
      });
      EXPECT_TRUE(std::isnan(s.norm())) << name;
    }
    s.set(known);
    EXPECT_EQ(s.norm(), std::sqrt(squares(s.config, known))) << "the flag of the step before stays";
  }
}

TEST(OptimStep, NormHasTheSameBitsOnEveryMeshInReproducibleMode) {
  auto rough = [](const Param& p, int64_t e) {
    return static_cast<double>(static_cast<float>(number(p.name, e) * 1e-3));
  };
  for (const std::string family : {"gpt2", "qwen3", "mixtral", "deepseek"}) {
    // the value of one rank, from a mesh of this rank alone
    const ModelConfig config = small_model(family);
    Rig one(MPI_COMM_SELF, mesh_of(config, 1, 1), model_params(config),
            Step::options({1, 1, false, true}, 0, DType::f32));
    for (LocalParam& p : one.store.all()) {
      if (!p.trained()) continue;
      const Tensor t = one.backend->alloc(DType::f64, p.rows(), p.cols(), MemoryKind::workspace);
      {
        Host<double> h(*one.backend, t);
        for (int64_t e = 0; e < t.size(); ++e) h[e] = rough(p.param, e);
      }
      one.backend->exact_add(t, p.grad_exact);
    }
    const double whole = gradient_norm(one.ctx, one.store);
    EXPECT_NEAR(whole, std::sqrt(squares(config, rough)), 1e-6 * whole);
    for (const Cut& c : config.moe.experts > 0 ? expert_cuts() : cuts()) {
      if (!c.reproducible) continue;
      Step s(family, c);
      s.set(rough);
      EXPECT_EQ(s.norm(), whole) << family << ", " << text(c);
    }
  }
}

TEST(OptimStep, ClipsByTheNorm) {
  OptimizerSettings settings;
  settings.momentum = 0;
  settings.weight_decay = 0;
  for (double clip : {0.0, 1.0, 1e9})
    for (const Cut& c : cuts()) {
      if (c.reproducible) continue;
      SCOPED_TRACE("clip " + std::to_string(clip) + ", tp " + std::to_string(c.tp));
      Step s("llama", c, 1);
      s.set(known);
      settings.clip = clip;
      const double norm = s.norm(), scale = clip == 1.0 ? 1 / (norm + 1e-6) : 1;
      EXPECT_GT(norm, 10);
      std::vector<std::vector<double>> before;
      for (LocalParam& p : s.rig.store.all()) before.push_back(to_host(*s.rig.backend, p.weight));
      update_parameters(s.rig.ctx, s.rig.store, optimizer("sgd"), settings, 0.5, 1, norm);
      size_t n = 0;
      for (LocalParam& p : s.rig.store.all()) {
        const std::vector<double> after = to_host(*s.rig.backend, p.weight), g = gradient(s.rig, p);
        std::vector<double> want = before[n++];
        for (size_t i = 0; i < want.size(); ++i) want[i] -= 0.5 * scale * g[i];
        EXPECT_LE(difference(after, want), 1e-13) << p.param.name;
      }
    }
}

TEST(OptimStep, AGradientThatIsNoNumberIsSeenByEveryRank) {
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (const Cut& c : cuts()) {
      if (!c.sp) continue;
      for (const char* name : {"layers.1.mlp.up.weight", "layers.0.norm1.weight", "layers.0.attention.v.weight"}) {
        Step s("llama", c);
        // the last element: on the last rank of tp where the parameter is cut
        auto g = [&](const Param& p, int64_t e) {
          return p.name == name && e == p.elements() - 1 ? bad : known(p, e);
        };
        s.set(g);
        const double norm = s.norm();
        EXPECT_FALSE(std::isfinite(norm)) << name << ", tp " << c.tp << (c.reproducible ? ", reproducible" : "");
        EXPECT_TRUE(std::isnan(norm) || !std::isnan(bad));
        s.set(known);
        EXPECT_EQ(s.norm(), std::sqrt(squares(s.config, known))) << "the flag of the step before stays";
      }
    }
}

// O117
TEST(OptimStep, OnlyMatricesDecay) {
  OptimizerSettings settings;
  settings.weight_decay = 0.1;
  for (const char* family : {"gpt2", "llama", "qwen3"})
    for (const char* name : {"adamw", "sgd"})
      for (const Cut& c : cuts()) {
        if (c.reproducible && !c.sp) continue;
        Step s(family, c, static_cast<int>(optimizer(name).slots.size()));
        s.set([](const Param&, int64_t) { return 0.0; });
        const double norm = s.norm();
        EXPECT_EQ(norm, 0.0);
        std::vector<std::vector<double>> before;
        for (LocalParam& p : s.rig.store.all()) before.push_back(to_host(*s.rig.backend, p.master));
        update_parameters(s.rig.ctx, s.rig.store, optimizer(name), settings, 0.01, 1, norm);
        size_t n = 0;
        for (LocalParam& p : s.rig.store.all()) {
          std::vector<double> want = before[n++];
          if (p.param.dims.size() > 1)
            for (double& x : want) x *= 1 - 0.001;
          const std::vector<double> after = to_host(*s.rig.backend, p.master);
          const double tolerance = p.param.dims.size() == 1 ? 0.0 : c.reproducible ? 1e-7 : 1e-15;
          EXPECT_LE(difference(after, want), tolerance) << name << " " << p.param.name;
        }
      }
}

TEST(OptimStep, RoundedWeightsFollowTheirMasters) {
  for (const char* name : {"adamw", "sgd"}) {
    Step s("llama", {world_size(), 1, false, false}, static_cast<int>(optimizer(name).slots.size()), DType::bf16);
    s.set(known);
    update_parameters(s.rig.ctx, s.rig.store, optimizer(name), {}, 0.01, 1, s.norm());
    for (LocalParam& p : s.rig.store.all()) {
      const Tensor rounded = s.rig.backend->alloc(DType::bf16, p.rows(), p.cols(), MemoryKind::workspace);
      s.rig.backend->copy(rounded, p.master);
      EXPECT_EQ(to_host(*s.rig.backend, rounded), to_host(*s.rig.backend, p.weight)) << p.param.name;
    }
  }
}

TEST(OptimStep, UnknownOptimisersAreRefused) {
  try {
    optimizer("magic");
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("optimizer.name"), std::string::npos);
  }
}

}  // namespace
}  // namespace orthant
