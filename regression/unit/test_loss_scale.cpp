// The loss scale of fp16: when it halves and doubles, what it changes (nothing but the range), that all ranks agree.
// ranks: 1 2 4
// labels: smoke asan
// seconds: 60
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "orthant/elementwise.hpp"
#include "plan_kit.hpp"
#include "train/loss_scale.hpp"

namespace orthant {
namespace {

using namespace kit;

LossScale scale_of(const Keys& keys) { return LossScale(plan_of(keys, 1).deck); }

TEST(LossScale, IsOneOutsideOfFp16) {
  LossScale s = scale_of({});
  EXPECT_FALSE(s.on());
  EXPECT_EQ(s.value(), 1);
  EXPECT_FALSE(s.count(false));
  EXPECT_EQ(s.value(), 1);
  TrainState state;
  s.store(state);
  EXPECT_TRUE(state.reals.empty() && state.integers.empty());
}

// case O046: down to the least factor and no further, from where on a step that is not finite is a bad step
TEST(LossScale, HalvesToOneAndThenSaysSo) {
  LossScale s = scale_of({"precision.compute=fp16"});
  for (double want = LossScale::first; want > 1; want /= 2) {
    EXPECT_EQ(s.value(), want);
    EXPECT_TRUE(s.count(false));
  }
  EXPECT_EQ(s.value(), 1);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(s.count(false));
  EXPECT_EQ(s.value(), 1);
}

TEST(LossScale, DoublesAfterAThousandGoodSteps) {
  LossScale s = scale_of({"precision.compute=fp16"});
  for (int i = 0; i < 999; ++i) s.count(true);
  EXPECT_EQ(s.value(), LossScale::first);
  s.count(true);
  EXPECT_EQ(s.value(), 2 * LossScale::first);
  for (int i = 0; i < 999; ++i) s.count(true);
  s.count(false);  // begins again
  EXPECT_EQ(s.value(), LossScale::first);
  for (int i = 0; i < 999; ++i) s.count(true);
  EXPECT_EQ(s.value(), LossScale::first);
  for (int i = 0; i < 100000; ++i) s.count(true);
  EXPECT_EQ(s.value(), LossScale::most);
}

TEST(LossScale, AFixedOneStays) {
  LossScale s = scale_of({"precision.compute=fp16", "precision.loss_scale=1024"});
  EXPECT_FALSE(s.count(false));
  for (int i = 0; i < 3000; ++i) s.count(true);
  EXPECT_EQ(s.value(), 1024);
  EXPECT_THROW(plan_of({"precision.compute=fp16", "precision.loss_scale=1000"}, 1), Error);
  EXPECT_THROW(plan_of({"precision.compute=fp16", "run.reproducible=true"}, 1), Error);
}

TEST(LossScale, AResumedRunGoesOnWithIt) {
  LossScale straight = scale_of({"precision.compute=fp16"}), first = straight, second = straight;
  for (int i = 0; i < 1500; ++i) straight.count(i != 700);
  for (int i = 0; i < 800; ++i) first.count(i != 700);
  TrainState state;
  first.store(state);
  second.load(state);
  for (int i = 800; i < 1500; ++i) second.count(true);
  EXPECT_EQ(second.value(), straight.value());
  for (int i = 0; i < 300; ++i) {
    straight.count(true);
    second.count(true);
    EXPECT_EQ(second.value(), straight.value());
  }
  state.reals["loss_scale"] = 3;
  EXPECT_THROW(second.load(state), DataError);
}

/// Meshes of this many ranks.
std::vector<Keys> meshes() {
  const Keys global = {is("batch.global", 2 * world_size())};
  if (world_size() == 1) return {global};
  std::vector<Keys> out = {global + Keys{"zero.stage=2"}, global + Keys{"mesh.pp=2"}, global + Keys{"mesh.tp=2", "mesh.sequence_parallel=true"},
                           global + Keys{"mesh.cp=2", "zero.stage=3"}};
  if (world_size() == 4) out.push_back(global + Keys{"mesh.tp=2", "mesh.pp=2", "mesh.sequence_parallel=true"});
  return out;
}

// In fp32 a power of two changes no bit of loss, norm and update.
TEST(LossScale, IsTakenBackExactly) {
  for (const std::string name : {"gpt2", "deepseek"})
    for (const Keys& keys : meshes()) {
      const Keys more = family(name) + keys + (name == "deepseek" ? Keys{"model.moe.aux_loss=0.01", "model.moe.z_loss=0.001", "model.z_loss=0.0001"} : Keys{});
      SCOPED_TRACE(text(more));
      RunPlan plain = plan_of(more, world_size()), scaled = plan_of(more + Keys{"precision.compute=fp16"}, world_size());
      scaled.precision.compute = DType::f32;  // the scale of fp16, the numbers of fp32
      Trainer a(MPI_COMM_WORLD, plain), b(MPI_COMM_WORLD, scaled);
      for (int n = 0; n < 2; ++n) {
        const StepResult x = a.step(), y = b.step();
        EXPECT_EQ(y.loss_scale, LossScale::first);
        EXPECT_EQ(x.loss, y.loss);
        EXPECT_EQ(x.grad_norm, y.grad_norm);
      }
      for (size_t i = 0; i < a.session.store->all().size(); ++i)
        EXPECT_EQ(to_host(*a.session.backend, a.session.store->all()[i].own_weight), to_host(*b.session.backend, b.session.store->all()[i].own_weight));
    }
}

// case O045: an infinity in one gradient of one rank
TEST(LossScale, AllRanksSkipTheStepThatOverflowsOnOne) {
  for (const Keys& keys : meshes()) {
    SCOPED_TRACE(text(keys));
    Trainer t(MPI_COMM_WORLD, plan_of(family("llama") + keys + Keys{"precision.compute=fp16"}, world_size()));
    const StepResult before = t.step();
    EXPECT_FALSE(before.skipped) << before.bad;
    EXPECT_EQ(before.loss_scale, LossScale::first);
    std::vector<std::vector<double>> was;
    for (LocalParam& p : t.session.store->all()) {
      was.push_back(to_host(*t.session.backend, p.own_weight));
      if (p.master) was.push_back(to_host(*t.session.backend, p.master));
      for (const Tensor& s : p.slots) was.push_back(to_host(*t.session.backend, s));
    }
    // a weight of the last rank that is no number makes its own gradients none; it is put back behind the step
    LocalParam& p = t.session.store->all().back();
    const Tensor& w = t.session.store->zero().gathers_weights() ? p.own_weight : p.weight;
    const bool here = world_rank() == world_size() - 1 && w.size() > 0;
    f16 kept{};
    if (here) {
      Host<f16> h(*t.session.backend, w);
      kept = h[0];
      h[0] = f16{0x7c00};
    }
    const StepResult r = t.step();
    if (here) Host<f16>(*t.session.backend, w)[0] = kept;
    EXPECT_TRUE(r.skipped);
    EXPECT_TRUE(r.overflow);
    size_t i = 0;
    for (LocalParam& q : t.session.store->all()) {
      EXPECT_EQ(was[i++], to_host(*t.session.backend, q.own_weight));
      if (q.master) { EXPECT_EQ(was[i++], to_host(*t.session.backend, q.master)); }
      for (const Tensor& s : q.slots) EXPECT_EQ(was[i++], to_host(*t.session.backend, s));
    }
    const StepResult after = t.step();
    EXPECT_EQ(after.loss_scale, LossScale::first / 2) << "halved once, everywhere";
    EXPECT_FALSE(after.skipped) << after.bad;
  }
}

TEST(Fp16, StepsAreNearThoseOfFp32) {
  for (const std::string name : {"gpt2", "llama", "qwen3", "mixtral", "deepseek"})
    for (const Keys& keys : meshes()) {
      SCOPED_TRACE(name + " " + text(keys));
      Trainer a(MPI_COMM_WORLD, plan_of(family(name) + keys, world_size())), b(MPI_COMM_WORLD, plan_of(family(name) + keys + Keys{"precision.compute=fp16"}, world_size()));
      for (int n = 0; n < 2; ++n) {
        const StepResult x = a.step(), y = b.step();
        EXPECT_FALSE(y.skipped) << y.bad;
        EXPECT_NEAR(y.loss / x.loss, 1, 5e-3);
        EXPECT_NEAR(y.grad_norm / x.grad_norm, 1, name == "mixtral" || name == "deepseek" ? 0.2 : 0.02);
      }
    }
}

}  // namespace
}  // namespace orthant
