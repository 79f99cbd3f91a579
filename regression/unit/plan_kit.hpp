// A whole run small enough for a test: a plan made of deck keys, a rank that takes training steps, and the same steps
// on one rank to compare with.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "mesh_kit.hpp"
#include "optim/step.hpp"
#include "train/step.hpp"

namespace orthant::kit {

using Keys = std::vector<std::string>;  ///< overrides of the deck, as "mesh.pp=2"

inline Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
inline std::string text(const Keys& keys) {
  std::string out;
  for (const auto& k : keys) out += (out.empty() ? "" : " ") + k;
  return out;
}
/// "key=value" of a number.
inline std::string is(const std::string& key, int64_t value) { return key + "=" + std::to_string(value); }

/// The deck that the keys change, as a file of this process.
class BaseDeck {
 public:
  BaseDeck() : path_(::testing::TempDir() + "orthant_plan_" + std::to_string(getpid()) + ".toml") {
    std::ofstream out(path_);
    out << "run.steps = 3\n"
           "model = { layers = 4, hidden = 16, ffn = 24, heads = 4, vocab = 65, context = 16 }\n"
           "data = { train = \"set\", sequence = 16 }\n"
           "batch = { global = 4, micro = 1 }\n";
  }
  ~BaseDeck() { std::remove(path_.c_str()); }
  BaseDeck(const BaseDeck&) = delete;
  BaseDeck& operator=(const BaseDeck&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// What a run of `ranks` ranks with these keys does.
inline RunPlan plan_of(const Keys& keys, int64_t ranks) {
  static const BaseDeck base;
  return make_plan(MPI_COMM_SELF, base.path(), keys, ranks);
}

/// For a comparison with rounding out of the way.
inline RunPlan in_f64(RunPlan plan) {
  plan.precision.compute = DType::f64;
  return plan;
}

/// gpt2 has biases and tied weights, qwen3 tied weights and norms of the heads, llama neither; mixtral has experts, and
/// deepseek latent attention, a first dense block, shared experts and groups of experts as well.
inline Keys family(const std::string& name) {
  Keys out = {"model.family=" + name};
  if (name != "gpt2" && name != "deepseek") out.push_back("model.kv_heads=2");
  if (name == "qwen3") out = out + Keys{"model.head_dim=6", "model.tie_embeddings=true"};
  if (name == "mixtral") out = out + Keys{"model.moe.experts=4", "model.moe.top_k=2", "model.moe.ffn=16"};
  if (name == "deepseek")
    out = out + Keys{"model.moe.experts=8",        "model.moe.top_k=3",     "model.moe.ffn=8",
                     "model.moe.shared_experts=1", "model.moe.groups=4",    "model.moe.top_groups=2",
                     "model.moe.scale=1.5",        "model.mla.nope_dim=6",  "model.moe.first_dense_layers=1",
                     "model.mla.rope_dim=4",       "model.mla.v_dim=8",     "model.mla.q_lora_rank=12",
                     "model.mla.kv_lora_rank=10"};
  return out;
}

/// Values of this rank's own rows: `number`s as in Rig.
inline void fill_numbers(const Param& p, const Piece& piece, float* out) {
  for (int64_t r = 0; r < piece.rows; ++r)
    for (int64_t c = 0; c < piece.cols; ++c) {
      const double x = number(p.name, (piece.row + r) * p.cols() + piece.col + c);
      *out++ = static_cast<float>(p.init.kind == Init::ones ? 1 + 0.5 * x
                                  : p.dims.size() > 1       ? 0.4 * x
                                  : p.trained               ? 0.5 * x
                                                            : 0.1 * x);
    }
}

/// Own rows of the gradient, nothing where it is not trained; the value of the exact sum in reproducible mode.
inline std::vector<double> own_gradient(Session& s, LocalParam& p) {
  if (p.own.rows * p.cols() == 0 || !p.trained()) return {};
  if (!s.ctx.reproducible()) return to_host(*s.backend, p.own_grad);
  const Tensor g = s.backend->alloc(DType::f64, p.own.rows, p.cols(), MemoryKind::workspace);
  s.backend->exact_value(p.own_grad_exact, g);
  return to_host(*s.backend, g);
}

/// A rank of a run. Every step has the same global batch.
class Trainer {
 public:
  Trainer(MPI_Comm comm, RunPlan p) : plan(std::move(p)), mesh(comm, plan.mesh), session(plan, mesh, true) {
    session.store->fill(fill_numbers);
    publish_weights(session);
  }
  StepResult step(double lr = 1e-3) {
    const int64_t global = plan.global_batch(), micro = plan.micro(), valid = valid_tokens(global, plan.sequence());
    const int64_t first = global / plan.mesh.dp * session.layout.at().dp;
    auto batch = [&](int64_t j) {
      return micro_batch(session.ctx, first + j * micro, micro, plan.model.vocab, valid);
    };
    return train_step(session, batch, valid, optimizer_settings(plan.deck), lr, ++steps_, timers);
  }

  const RunPlan plan;
  Mesh mesh;
  Session session;
  Timers timers;

 private:
  int64_t steps_ = 0;
};

/// What one rank alone has after each step.
struct Whole {
  std::vector<StepResult> results;
  std::vector<std::map<std::string, std::vector<double>>> weights, gradients;
};
inline Whole run_whole(const RunPlan& plan, int steps) {
  Trainer one(MPI_COMM_SELF, plan);
  Whole out;
  for (int n = 0; n < steps; ++n) {
    out.results.push_back(one.step());
    out.weights.emplace_back();
    out.gradients.emplace_back();
    for (LocalParam& p : one.session.store->all()) {
      out.weights.back()[p.param.name] = to_host(*one.session.backend, p.weight);
      out.gradients.back()[p.param.name] = own_gradient(one.session, p);
    }
  }
  return out;
}

/// Loss, norm, gradients and weights of a rank after its step number `n` (from 0) are those of one rank, to within
/// `tolerance` (0: bit by bit).
inline void expect_whole(Trainer& t, const StepResult& result, const Whole& whole, size_t n, double tolerance) {
  const StepResult& want = whole.results[n];
  EXPECT_NEAR(result.loss, want.loss, tolerance);
  EXPECT_NEAR(result.grad_norm, want.grad_norm, tolerance * want.grad_norm);
  EXPECT_FALSE(result.skipped);
  Backend& be = *t.session.backend;
  for (LocalParam& p : t.session.store->all()) {
    const std::vector<double>&w = whole.weights[n].at(p.param.name), &g = whole.gradients[n].at(p.param.name);
    EXPECT_LE(difference(to_host(be, p.own_weight), part_of(w, p.param, p.own)), tolerance)
        << p.param.name << ", step " << n;
    if (p.weight) {
      EXPECT_LE(difference(to_host(be, p.weight), part_of(w, p.param, p.piece)), tolerance)
          << p.param.name << ", step " << n;
    }
    if (p.copy || !p.trained()) continue;  // its sum is on the embedding's stage, or there is none
    EXPECT_LE(difference(own_gradient(t.session, p), part_of(g, p.param, p.own)), tolerance)
        << p.param.name << ", gradient of step " << n;
  }
}

/// Shapes only: the account of one rank after (and its peaks during) a training step.
class ShapeRun {
 public:
  ShapeRun(RunPlan p, const Coordinates& at) : plan(std::move(p)), session(plan, at, true) {}
  void step() {
    auto batch = [&](int64_t) { return blank_batch(session.ctx, plan.micro(), plan.sequence()); };
    train_step(session, batch, 1, optimizer_settings(plan.deck), 1e-3, 1, timers);
  }
  const MemoryAccount& account() const { return session.backend->account(); }

  const RunPlan plan;
  Session session;
  Timers timers;
};

}  // namespace orthant::kit
