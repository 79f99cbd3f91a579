// Delayed scales: what enters a history and when, the same on all ranks that hold parts of a tensor, kept by checkpoints; the
// products of each recipe on parts of a layer; what products share and what is kept of it; and which decks are refused.
// ranks: 1 2 4
// labels: smoke asan
// seconds: 90
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint_world.hpp"
#include "deck/all_keys.hpp"
#include "layers/fp8.hpp"
#include "orthant/elementwise.hpp"
#include "plan_kit.hpp"
#include "train/rollback.hpp"
#include "train/state.hpp"

namespace orthant {
namespace {

using namespace kit;

const std::string up = "layers.0.mlp.up.weight", down = "layers.0.mlp.down.weight", other = "layers.0.moe.experts.1.up.weight";
enum Role { x_role, w_role, dy_role };

std::vector<Param> some_params() {
  const Dim hidden{DimName::hidden, 16, 1}, ffn{DimName::ffn, 32, 1};
  std::vector<Param> out(3);
  out[0].name = up, out[0].dims = {ffn, hidden};
  out[1].name = down, out[1].dims = {hidden, ffn};
  out[2].name = other, out[2].dims = {ffn, hidden};
  return out;
}

/// A rank with three weights and their FP8 state.
class Bench {
 public:
  explicit Bench(const Fp8Settings& s, MeshShape mesh = {}, MPI_Comm comm = MPI_COMM_SELF, bool keep_weights = true)
      : rig(comm, mesh, some_params(), {.compute = DType::bf16}), fp8(*rig.backend, s, some_params(), keep_weights) {}
  LocalParam& at(const std::string& name) { return rig.store.at(name); }
  const Axis& tp() { return rig.axes[AxisName::tp]; }
  Tensor filled(int64_t rows, int64_t cols, float largest, double rest = 0.25) {
    const Tensor wide = rig.backend->alloc(DType::f32, rows, cols, MemoryKind::workspace);
    {
      Host<float> h(*rig.backend, wide);
      for (int64_t i = 0; i < rows * cols; ++i) h[i] = i == 3 ? largest : static_cast<float>(rest * number("x", i));
    }
    const Tensor out = rig.backend->alloc(DType::bf16, rows, cols, MemoryKind::workspace);
    rig.backend->copy(out, wide);
    return out;
  }
  void forward(const std::string& name, float largest) {
    LocalParam& w = at(name);
    fp8.forward(rig.ctx, w, filled(4, w.cols(), largest), rig.ctx.activation(4, w.rows()), {}, tp());
  }
  void backward(const std::string& name, float largest) {
    LocalParam& w = at(name);
    fp8.backward_input(rig.ctx, w, filled(4, w.rows(), largest), rig.ctx.activation(4, w.cols()), false, tp());
  }
  std::vector<float> history(const std::string& name, int role, int64_t n) { return {fp8.history(name, role), fp8.history(name, role) + n}; }

  Rig rig;
  Fp8 fp8;
};

Fp8Settings delayed(int64_t history, bool most_recent = false, int margin = 0) { return {Fp8Recipe::delayed, history, most_recent, margin, 0}; }
float weight_amax(Bench& b, const std::string& name) { return static_cast<float>(largest(to_host(*b.rig.backend, b.at(name).weight))); }

// case O052: the entry of a step is the largest of its micro-batches
TEST(Fp8History, HasOneEntryAStepTheLargestOfItsMicroBatches) {
  Bench b(delayed(2));
  EXPECT_EQ(b.fp8.scale(up, x_role), 1.0f);
  const auto step = [&](const std::vector<float>& of_micros) {
    b.fp8.record(true);
    for (float most : of_micros) {
      b.forward(up, most);
      b.backward(up, most / 1024);
      EXPECT_TRUE(b.fp8.scale(up, x_role) == 1.0f || b.fp8.scale(up, x_role) == 56.0f);  // during a step it stays
    }
    b.fp8.record(false);
    b.fp8.roll(b.rig.ctx);
  };
  step({8, 2, 1, 1});
  EXPECT_EQ(b.history(up, x_role, 2), (std::vector<float>{8, 0}));
  EXPECT_EQ(b.fp8.scale(up, x_role), 56.0f);                       // 448 / 8
  EXPECT_EQ(b.fp8.scale(up, w_role), 448.0f / weight_amax(b, up));
  step({1, 0.5f, 4, 1});
  EXPECT_EQ(b.history(up, x_role, 2), (std::vector<float>{4, 8}));
  EXPECT_EQ(b.fp8.scale(up, x_role), 56.0f);
  step({2});
  EXPECT_EQ(b.history(up, x_role, 2), (std::vector<float>{2, 4}));
  EXPECT_EQ(b.fp8.scale(up, x_role), 112.0f);  // 8 has left
}

TEST(Fp8History, MostRecentAndMarginAreAsAsked) {
  Bench b(delayed(3, true, 2));
  for (float most : {8.0f, 2.0f}) {
    b.fp8.record(true);
    b.forward(up, most);
    b.backward(up, most);
    b.fp8.record(false);
    b.fp8.roll(b.rig.ctx);
  }
  EXPECT_EQ(b.fp8.scale(up, x_role), 448.0f / 2 / 4);
  EXPECT_EQ(b.fp8.scale(up, dy_role), 57344.0f / 2 / 4);
  EXPECT_EQ(b.history(up, dy_role, 3), (std::vector<float>{2, 8, 0}));
}

// case O054
TEST(Fp8History, UnusedWeightsEvaluationRecomputeAndBadNumbersLeaveNoTrace) {
  Bench b(delayed(4));
  const auto step = [&](const std::function<void()>& work) {
    b.fp8.record(true);
    work();
    b.fp8.record(false);
    b.fp8.roll(b.rig.ctx);
  };
  step([&] { b.forward(up, 8), b.forward(other, 2); });
  const float scale = b.fp8.scale(other, x_role);
  EXPECT_EQ(scale, 224.0f);
  for (int i = 0; i < 5; ++i) step([&] { b.forward(up, 4); });  // no token for the expert
  EXPECT_EQ(b.fp8.scale(other, x_role), scale);
  EXPECT_EQ(b.history(other, x_role, 4), (std::vector<float>{2, 0, 0, 0}));
  EXPECT_EQ(b.history(up, x_role, 4), (std::vector<float>{4, 4, 4, 4}));
  EXPECT_EQ(b.fp8.scale(other, dy_role), 1.0f);

  for (int i = 0; i < 3; ++i) b.forward(up, 100);  // evaluation
  step([&] {
    b.forward(up, 4);
    b.rig.ctx.again = true;
    b.forward(up, 100);
    b.rig.ctx.again = false;
  });
  EXPECT_EQ(b.history(up, x_role, 4), (std::vector<float>{4, 4, 4, 4}));
  step([&] { b.forward(up, std::numeric_limits<float>::quiet_NaN()); });
  step([&] { b.forward(up, std::numeric_limits<float>::infinity()); });
  EXPECT_EQ(b.history(up, x_role, 4), (std::vector<float>{4, 4, 4, 4}));
  EXPECT_EQ(b.fp8.scale(up, x_role), 112.0f);
  step([&] { b.fp8.forward(b.rig.ctx, b.at(down), b.filled(4, 32, 0, 0), b.rig.ctx.activation(4, 16), {}, b.tp()); });
  EXPECT_EQ(b.fp8.scale(down, x_role), 1.0f);  // zeros
}

// case O053
TEST(Fp8History, IsTheSameOnAllRanksOfAStage) {
  std::vector<MeshShape> meshes;
  const int64_t n = world_size();
  for (int axis = 0; axis < 3; ++axis) {
    MeshShape m;
    (axis == 0 ? m.tp : axis == 1 ? m.cp : m.dp) = n;
    meshes.push_back(m);
  }
  if (n == 4) meshes.push_back({.tp = 2, .dp = 2});
  for (const MeshShape& mesh : meshes) {
    Bench b(delayed(4), mesh, MPI_COMM_WORLD);
    b.fp8.record(true);
    const bool last = world_rank() == n - 1;
    b.forward(up, last ? 100 : 1);
    if (last) b.forward(other, 7);  // an expert that one rank holds
    b.fp8.record(false);
    b.fp8.roll(b.rig.ctx);
    EXPECT_EQ(b.history(up, x_role, 2), (std::vector<float>{100, 0}));
    EXPECT_EQ(b.fp8.scale(up, x_role), 4.48f);
    EXPECT_EQ(b.fp8.scale(other, x_role), 64.0f);
    double most = 0;  // of the whole weight
    for (int64_t i = 0; i < 32 * 16; ++i) most = std::max(most, std::abs(static_cast<double>(to_float(to_bf16(static_cast<float>(0.4 * number(up, i)))))));
    EXPECT_EQ(b.history(up, w_role, 1), (std::vector<float>{static_cast<float>(most)}));
  }
}

TEST(Fp8Current, HasOneScaleForWhatTpCuts) {
  MeshShape mesh;
  mesh.tp = world_size();
  Bench b({Fp8Recipe::current, 1, false, 0, 0}, mesh, MPI_COMM_WORLD);
  Backend& be = *b.rig.backend;
  const bool last = world_rank() == world_size() - 1;
  LocalParam& w = b.at(down);
  const Tensor x = b.filled(4, w.cols(), last ? 100 : 1), y = b.rig.ctx.activation(4, w.rows()), want = b.rig.ctx.activation(4, w.rows());
  b.fp8.forward(b.rig.ctx, w, x, y, {}, b.tp());
  float most[2] = {last ? 100.0f : 1.0f, static_cast<float>(largest(to_host(be, w.weight)))};
  MPI_Allreduce(MPI_IN_PLACE, most, 2, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  const auto quantised = [&](const Tensor& t, float amax) {
    Quantised q{b.rig.ctx.workspace(DType::f8e4m3, t.rows(), t.cols()), b.rig.ctx.workspace(DType::f32, 1, 1)};
    const Tensor scale = b.rig.ctx.workspace(DType::f32, 1, 1);
    Host<float>(be, scale)[0] = 448.0f / amax;
    be.quantize(t, scale, q);
    return q;
  };
  be.gemm_fp8(quantised(x, most[0]), false, quantised(w.weight, most[1]), true, want, false);
  EXPECT_EQ(difference(to_host(be, y), to_host(be, want)), 0);
}

/// dW of one product of fresh operands.
std::vector<double> weight_gradient(Bench& b, const std::string& name, const Operand& dy, const Operand& x) {
  LocalParam& w = b.at(name);
  b.rig.backend->zero(w.grad);
  b.fp8.backward_weight(b.rig.ctx, w, dy, x, b.tp());
  return to_host(*b.rig.backend, w.grad);
}

const std::vector<Fp8Recipe> recipes = {Fp8Recipe::delayed, Fp8Recipe::current, Fp8Recipe::blockwise, Fp8Recipe::mxfp8};

TEST(Fp8Operands, WhatIsKeptGivesTheSameBits) {
  for (const Fp8Recipe recipe : recipes) {
    SCOPED_TRACE(static_cast<int>(recipe));
    Bench b({recipe, 4, false, 0, 0});
    Context& ctx = b.rig.ctx;
    LocalParam &w = b.at(up), &neighbour = b.at(other);
    const Tensor x = b.filled(4, 16, 3), dy = b.filled(4, 32, 5, 0.125), dx = ctx.activation(4, 16), again = ctx.activation(4, 16);
    for (int step = 0; step < 2; ++step) {
      const Operand input(x), gradient(dy);
      const Tensor y = ctx.activation(4, 32), z = ctx.activation(4, 32), fresh = ctx.activation(4, 32);
      b.fp8.record(true);
      b.fp8.forward(ctx, w, input, y, {}, b.tp());
      b.fp8.forward(ctx, neighbour, input, z, {}, b.tp());  // has the same input
      b.fp8.forward(ctx, neighbour, x, fresh, {}, b.tp());
      EXPECT_EQ(to_host(*b.rig.backend, z), to_host(*b.rig.backend, fresh));
      b.fp8.backward_input(ctx, w, gradient, dx, false, b.tp());
      b.fp8.backward_input(ctx, w, dy, again, false, b.tp());
      EXPECT_EQ(to_host(*b.rig.backend, dx), to_host(*b.rig.backend, again));
      const Operand kept_x = input.kept(), kept_dy = gradient.kept();
      EXPECT_EQ(kept_x.rows(), 4);
      EXPECT_EQ(kept_x.cols(), 16);
      EXPECT_EQ(weight_gradient(b, up, kept_dy, kept_x), weight_gradient(b, up, dy, x));
      EXPECT_EQ(weight_gradient(b, other, dy, kept_x), weight_gradient(b, other, dy, x));
      if (recipe == Fp8Recipe::delayed || recipe == Fp8Recipe::current) EXPECT_THROW(kept_x.full(), LogicError);
      else EXPECT_EQ(kept_x.full().data(), x.data());
      b.fp8.record(false);
      b.fp8.roll(ctx);
    }
    if (recipe != Fp8Recipe::delayed) continue;
    EXPECT_EQ(b.history(up, x_role, 2), (std::vector<float>{3, 3}));
    EXPECT_EQ(b.history(other, x_role, 2), (std::vector<float>{3, 3}));
  }
}

/// `mine` of each rank as FP8 numbers, gathered.
Operand gathered(Bench& b, const Operand& mine) {
  const Tensor& part = mine.moved(true);
  const Tensor whole = b.rig.backend->alloc(part.dtype(), part.rows() * world_size(), part.cols(), MemoryKind::activations);
  b.tp().gather(part, whole, "test").wait();
  return mine.with(whole, true);
}

TEST(Fp8Operands, TravelAsFp8NumbersWhereATensorHasOneScale) {
  const int64_t n = world_size();
  MeshShape mesh;
  mesh.tp = n;
  for (const Fp8Recipe recipe : recipes) {
    SCOPED_TRACE(static_cast<int>(recipe));
    Bench b({recipe, 4, false, 0, 0}, mesh, MPI_COMM_WORLD);
    Context& ctx = b.rig.ctx;
    LocalParam &w = b.at(up), &rows = b.at(down);
    const Tensor x = b.filled(4 * n, 16, 3), dy = b.filled(4 * n, 16, 5);  // the largest number is rank 0's
    for (int step = 0; step < 2; ++step) {
      const Operand part(x.row_range(4 * world_rank(), 4)), part_dy(dy.row_range(4 * world_rank(), 4)), whole(x), whole_dy(dy);
      b.fp8.record(true);
      const bool travels = b.fp8.can_travel(ctx, {&w, &b.at(other)}, Fp8::input, part, b.tp());
      EXPECT_EQ(travels, one_scale(recipe));
      EXPECT_EQ(b.fp8.can_travel(ctx, {&rows}, Fp8::gradient, part_dy, b.tp()), travels);
      if (!travels) {
        EXPECT_EQ(part.kept().full().data(), part.full().data());
        continue;
      }
      const Tensor y = ctx.activation(4 * n, w.rows()), z = ctx.activation(4 * n, w.rows()), dx = ctx.activation(4 * n, rows.cols()), want_y = ctx.activation(4 * n, w.rows()),
                   want_dx = ctx.activation(4 * n, rows.cols());
      const Operand there = gathered(b, part), there_dy = gathered(b, part_dy);
      b.fp8.forward(ctx, w, there, y, {}, b.tp());
      b.fp8.forward(ctx, b.at(other), there, z, {}, b.tp());
      b.fp8.backward_input(ctx, rows, there_dy, dx, false, b.tp());
      const auto again = gathered(b, part.kept());  // of what stays for the weight gradients
      const std::vector<double> dw = weight_gradient(b, up, y, again), dw_rows = weight_gradient(b, down, there_dy, dx);
      b.fp8.record(false);  // whole operands leave no trace
      b.fp8.forward(ctx, w, whole, want_y, {}, b.tp());
      b.fp8.backward_input(ctx, rows, whole_dy, want_dx, false, b.tp());
      EXPECT_EQ(to_host(*b.rig.backend, y), to_host(*b.rig.backend, want_y));
      EXPECT_EQ(to_host(*b.rig.backend, dx), to_host(*b.rig.backend, want_dx));
      EXPECT_EQ(dw, weight_gradient(b, up, want_y, whole));
      EXPECT_EQ(dw_rows, weight_gradient(b, down, whole_dy, want_dx));
      b.fp8.roll(ctx);
    }
    if (recipe != Fp8Recipe::delayed) continue;
    for (const std::string& name : {up, other}) EXPECT_EQ(b.history(name, x_role, 3), (std::vector<float>{3, 3, 0}));
    EXPECT_EQ(b.history(down, dy_role, 3), (std::vector<float>{5, 5, 0}));
  }
}

TEST(Fp8Operands, NeighboursWithOtherScalesHaveNumbersOfTheirOwn) {
  Bench b(delayed(2));
  Context& ctx = b.rig.ctx;
  for (const StatePiece& p : b.fp8.pieces(true))
    if (p.param->name == other && p.group == "fp8/scale") p.data[x_role] = 3;  // a checkpoint may say so
  b.fp8.publish();
  const Tensor x = b.filled(4, 16, 3), dy = b.filled(4, 32, 5), y = ctx.activation(4, 32), z = ctx.activation(4, 32), fresh = ctx.activation(4, 32);
  const Operand input(x);
  EXPECT_FALSE(b.fp8.can_travel(ctx, {&b.at(up), &b.at(other)}, Fp8::input, input, b.tp()));
  EXPECT_TRUE(b.fp8.can_travel(ctx, {&b.at(up), &b.at(other)}, Fp8::gradient, dy, b.tp()));
  b.fp8.forward(ctx, b.at(up), input, y, {}, b.tp());
  b.fp8.forward(ctx, b.at(other), input, z, {}, b.tp());
  b.fp8.forward(ctx, b.at(other), x, fresh, {}, b.tp());
  EXPECT_EQ(to_host(*b.rig.backend, z), to_host(*b.rig.backend, fresh));
  for (const std::string& name : {up, other}) EXPECT_EQ(weight_gradient(b, name, dy, input.kept()), weight_gradient(b, name, dy, x)) << name;
}

// A weight that is changed where nobody may change it shows whether a product looked at it.
TEST(Fp8Weights, AreQuantisedOnceAStepUnlessTheyAreGathered) {
  for (const Fp8Recipe recipe : recipes)
    for (const bool keep : {true, false}) {
      Bench b({recipe, 4, false, 0, 0}, {}, MPI_COMM_SELF, keep);
      Backend& be = *b.rig.backend;
      LocalParam& w = b.at(up);
      const Tensor x = b.filled(4, 16, 1), dy = b.filled(4, 32, 1);
      const auto products = [&] {
        const Tensor y = b.rig.ctx.activation(4, 32), dx = b.rig.ctx.activation(4, 16);
        b.fp8.forward(b.rig.ctx, w, x, y, {}, b.tp());
        b.fp8.backward_input(b.rig.ctx, w, dy, dx, false, b.tp());
        std::vector<double> out = to_host(be, y), more = to_host(be, dx);
        out.insert(out.end(), more.begin(), more.end());
        return out;
      };
      b.fp8.record(true);
      const auto before = products();
      be.zero(w.weight);
      EXPECT_EQ(products() == before, keep) << static_cast<int>(recipe);
      b.fp8.record(false);
      EXPECT_EQ(largest(products()), 0);  // evaluation
      b.fp8.record(true);
      EXPECT_EQ(largest(products()), 0);  // and the next step see the new weight
      b.fp8.record(false);
    }
}

/// Sizes that every recipe takes, on two ranks of tp too.
Keys small(const std::string& recipe) {
  return {"model.family=llama", "model.hidden=64", "model.ffn=128", "precision.compute=fp8", "precision.fp8_recipe=" + recipe};
}

/// A trainer whose matrices are small enough for a smooth start: those of the kit give losses that any rounding moves.
class Gentle : public Trainer {
 public:
  Gentle(MPI_Comm comm, const RunPlan& plan) : Trainer(comm, plan) {
    session.store->fill([](const Param& p, const Piece& piece, float* out) {
      fill_numbers(p, piece, out);
      for (int64_t i = 0; i < piece.elements() && p.dims.size() > 1; ++i) out[i] *= 0.2f;
    });
    publish_weights(session);
  }
};

TEST(Fp8Training, EachRecipeFollowsBf16AndMeshesFollowOneRank) {
  std::vector<Keys> meshes = {{"memory.recompute=full", "batch.micro=2"}};
  if (world_size() == 2) meshes = {{"mesh.tp=2", "mesh.sequence_parallel=true"}, {"mesh.pp=2"}, {"mesh.cp=2"}, {"zero.stage=3"}};
  if (world_size() == 4) meshes = {{"mesh.tp=2", "mesh.pp=2"}};
  for (const std::string recipe : {"delayed", "current", "blockwise", "mxfp8"}) {
    const Keys keys = small(recipe);
    Keys plain = keys;
    plain[3] = "precision.compute=bf16", plain.pop_back();
    Gentle one(MPI_COMM_SELF, plan_of(keys, 1)), bf16(MPI_COMM_SELF, plan_of(plain, 1));
    std::vector<StepResult> steps;
    for (int i = 0; i < 4; ++i) {
      const StepResult r = one.step(), p = bf16.step();
      steps.push_back(r);
      EXPECT_FALSE(r.skipped);
      EXPECT_NEAR(r.loss, p.loss, 0.01 * p.loss) << recipe;
      EXPECT_NE(r.loss, p.loss) << recipe;  // it is another arithmetic
      if (i == 0 && recipe == "delayed") continue;  // it fills the histories
      EXPECT_NEAR(r.grad_norm, p.grad_norm, 0.05 * p.grad_norm) << recipe;
    }
    for (const Keys& mesh : meshes) {
      if ((recipe == "blockwise" || recipe == "mxfp8") && mesh[0] == "mesh.tp=2") continue;  // heads of 16 columns and 128 on two ranks
      SCOPED_TRACE(recipe + " " + text(mesh));
      Gentle t(MPI_COMM_WORLD, plan_of(keys + mesh, world_size()));
      for (const StepResult& want : steps) {
        const StepResult r = t.step();
        EXPECT_NEAR(r.loss, want.loss, 5e-3 * want.loss);  // delayed: gradients of the first step are near the end of the format
        EXPECT_NEAR(r.grad_norm, want.grad_norm, 0.03 * want.grad_norm);
      }
    }
  }
}

TEST(Fp8Training, RecomputeChangesNoBit) {
  for (const std::string recipe : {"delayed", "mxfp8"}) {
    Trainer a(MPI_COMM_SELF, plan_of(small(recipe), 1)), b(MPI_COMM_SELF, plan_of(small(recipe) + Keys{"memory.recompute=full"}, 1));
    for (int i = 0; i < 3; ++i) {
      const StepResult x = a.step(), y = b.step();
      EXPECT_EQ(x.loss, y.loss);
      EXPECT_EQ(x.grad_norm, y.grad_norm);
    }
  }
}

TEST(Fp8Training, PlansHaveItsMemory) {
  for (const std::string recipe : {"delayed", "current", "mxfp8"}) {
    Trainer t(MPI_COMM_SELF, plan_of(small(recipe), 1));
    t.session.backend->account().reset_peak();  // of filling the weights
    t.step();
    const MemoryAccount planned = planned_memory(t.plan, {}), &real = t.session.backend->account();
    for (int k = 0; k < memory_kinds; ++k)
      if (const auto kind = static_cast<MemoryKind>(k); kind != MemoryKind::communication) {
        const double allowed = kind == MemoryKind::workspace ? 8192 : 0;  // control numbers, which plans leave out
        EXPECT_NEAR(static_cast<double>(planned.peak(kind)), static_cast<double>(real.peak(kind)), allowed)
            << recipe << " " << name_of(kind);
      }
  }
}

TEST(Fp8Training, KeepsLessThanBf16) {
  const auto activations = [](const Keys& keys) { return planned_memory(plan_of(keys, 1), {}).peak(MemoryKind::activations); };
  const Keys size = {"model.family=llama", "model.hidden=64", "model.ffn=256"};
  const int64_t bf16 = activations(size + Keys{"precision.compute=bf16"});
  for (const std::string recipe : {"delayed", "current"})
    EXPECT_LT(activations(size + Keys{"precision.compute=fp8", "precision.fp8_recipe=" + recipe}), bf16) << recipe;
}

TEST(Fp8Training, KeepEndsLeavesThemInBf16) {
  const RunPlan plan = plan_of(small("delayed") + Keys{"precision.fp8_keep_ends=1"}, 1);
  Trainer t(MPI_COMM_SELF, plan);
  for (const LocalParam& p : t.session.store->all()) {
    const bool inside = p.param.name.rfind("layers.1.", 0) == 0 || p.param.name.rfind("layers.2.", 0) == 0;
    EXPECT_EQ(t.session.fp8->covers(p), inside && p.param.dims.size() == 2) << p.param.name;
  }
}

// cases O051 and O053: a checkpoint holds one state, whatever mesh wrote it, and any mesh goes on from it
TEST(Fp8State, GoesThroughCheckpointsOfOtherMeshes) {
  const Keys keys = small("delayed") + Keys{"precision.fp8_history=4"};
  const testing::SharedFolder folder;
  Keys mesh;
  if (world_size() == 2) mesh = {"mesh.pp=2"};
  if (world_size() == 4) mesh = {"mesh.tp=2", "mesh.pp=2"};
  Trainer t(MPI_COMM_WORLD, plan_of(keys + mesh, world_size()));
  for (int i = 0; i < 3; ++i) t.step();
  std::string saved;
  {
    const StateView view(t.session);
    saved = save_checkpoint(t.mesh.cart(), folder.path, 3, "job", view.pieces(), testing::state_of(3), testing::extras_of_test(), {}).folder;
  }
  const auto load = [&](Trainer& into) {
    {
      const StateView view(into.session);
      load_checkpoint(into.mesh.cart(), saved, view.pieces(), nullptr, Trust::sizes);
    }
    publish_weights(into.session);
    into.session.fp8->publish();
  };
  Trainer one(MPI_COMM_SELF, plan_of(keys, 1)), longer(MPI_COMM_SELF, plan_of(keys + Keys{"precision.fp8_history=6"}, 1));
  load(one);
  load(longer);
  int64_t compared = 0;
  for (const LocalParam& p : t.session.store->all()) {
    if (!t.session.fp8->covers(p)) continue;
    for (int role = 0; role < 3; ++role) {
      const std::string& name = p.param.name;
      EXPECT_EQ(t.session.fp8->scale(name, role), one.session.fp8->scale(name, role)) << name;
      const float *mine = t.session.fp8->history(name, role), *others = one.session.fp8->history(name, role), *more = longer.session.fp8->history(name, role);
      for (int i = 0; i < 4; ++i) EXPECT_TRUE(mine[i] == others[i] && mine[i] == more[i] && (mine[i] > 0) == (i < 3)) << name << " " << i;
      EXPECT_EQ(more[5], 0);
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
  if (world_size() == 1) {
    const double loss = t.step().loss;
    EXPECT_EQ(one.step().loss, loss);  // to the bit
    go_back(one.mesh.cart(), one.session, saved);  // as the guard does
    EXPECT_EQ(one.step().loss, loss);
  }
}

TEST(Fp8Deck, RefusesWhatCannotBe) {
  const auto says = [&](const Keys& keys, const std::vector<std::string>& words) {
    try {
      plan_of(keys, world_size());
      ADD_FAILURE() << text(keys) << " was accepted";
    } catch (const Error& e) {
      for (const std::string& w : words) EXPECT_NE(std::string(e.what()).find(w), std::string::npos) << w << " is missing in: " << e.what();
    }
  };
  says({"precision.fp8_recipe=mxfp8"}, {"precision.fp8_recipe = \"mxfp8\"", "precision.compute"});
  says({"precision.fp8_history=16", "precision.compute=bf16"}, {"precision.fp8_history = 16", "\"bf16\""});
  says(small("mxfp8") + Keys{"precision.fp8_margin=1"}, {"precision.fp8_margin = 1", "\"current\""});
  says(small("current") + Keys{"precision.fp8_amax=most_recent"}, {"precision.fp8_amax", "\"delayed\", not \"current\""});
  says(small("delayed") + Keys{"run.reproducible=true"}, {"run.reproducible", "fp8"});
  says(small("delayed") + Keys{"precision.fp8_keep_ends=2"}, {"precision.fp8_keep_ends = 2", "model.layers = 4"});
  says(small("delayed") + Keys{"model.ffn=24"}, {"ffn", "24 is not a multiple of 16"});
  says(small("mxfp8") + Keys{"model.ffn=48"}, {"ffn", "48 is not a multiple of 32"});
  EXPECT_NO_THROW(plan_of(small("blockwise") + Keys{"model.ffn=144"}, world_size()));
  EXPECT_NO_THROW(plan_of(small("mxfp8") + Keys{"model.kv_heads=1"}, world_size()));  // 16 columns: a block that ends early
  if (world_size() == 2) says(small("mxfp8") + Keys{"mesh.tp=2", "model.kv_heads=2"}, {"kv_heads", "the cut of 32 into parts of 16 goes through blocks of 32"});
  if (world_size() == 2) says(small("blockwise") + Keys{"mesh.tp=2"}, {"mesh.tp = 2", "the cut of 128 into parts of 64 goes through blocks of 128"});
}

}  // namespace
}  // namespace orthant
