// The bytes of a step: closed form, counted on shapes, and counted on a real mesh are the same numbers.
// ranks: 1 2 4
#include <gtest/gtest.h>

#include "deck/check.hpp"
#include "mesh/expected_traffic.hpp"
#include "mesh_kit.hpp"
#include "orthant/model.hpp"
#include "train/step.hpp"

namespace orthant {
namespace {

using namespace kit;

struct Setting {
  std::string family = "llama";
  int64_t kv_heads = 2, tp = 1, dp = 1;
  bool sequence_parallel = false, reproducible = false;
  std::string compute = "fp32", recompute = "none";
  std::string text() const {
    return family + ", kv " + std::to_string(kv_heads) + ", tp " + std::to_string(tp) + ", dp " + std::to_string(dp) +
           (sequence_parallel ? ", sp" : "") + (reproducible ? ", reproducible, " : ", ") + compute + ", " +
           recompute;
  }
};

constexpr int64_t layers = 2, hidden = 32, sequence = 16, vocab = 65, micro = 2, global = 8;

RunPlan plan_of(const Setting& s) {
  auto line = [](const std::string& key, const std::string& value) { return key + " = " + value + "\n"; };
  auto number = [&](const std::string& key, int64_t value) { return line(key, std::to_string(value)); };
  std::string deck = "[run]\nsteps = 1\n" + line("reproducible", s.reproducible ? "true" : "false");
  deck += "[model]\n" + line("family", "\"" + s.family + "\"") + number("layers", layers) + number("hidden", hidden) +
          number("ffn", 48) + number("heads", 4) + (s.family == "gpt2" ? "" : number("kv_heads", s.kv_heads)) +
          number("vocab", vocab) + number("context", sequence);
  deck += "[data]\ntrain = [\"set\"]\n" + number("sequence", sequence);
  deck += "[batch]\n" + number("global", global) + number("micro", micro);
  deck += "[mesh]\n" + number("tp", s.tp) + number("dp", s.dp) +
          line("sequence_parallel", s.sequence_parallel ? "true" : "false");
  deck += "[precision]\n" + line("compute", "\"" + s.compute + "\"") + "[memory]\n" +
          line("recompute", "\"" + s.recompute + "\"");
  RunPlan p{checked_deck(deck, "test.toml", {}, s.tp * s.dp), {}, {}, false, false, {}, Recompute::none, {}};
  std::vector<std::string> problems;
  p.model = model_config(p.deck, problems);
  EXPECT_TRUE(problems.empty());
  p.mesh = mesh_of(p.model, s.tp, s.dp);
  p.sequence_parallel = s.sequence_parallel;
  p.reproducible = s.reproducible;
  p.precision.compute = s.compute == "bf16" ? DType::bf16 : DType::f32;
  p.recompute = s.recompute == "full"        ? Recompute::full
                : s.recompute == "selective" ? Recompute::selective
                                             : Recompute::none;
  return p;
}

using Entries = std::map<std::pair<AxisName, std::string>, Traffic::Entry>;

/// A step on shapes as rank `at`.
Entries counted(const RunPlan& plan, const Coordinates& at) {
  Session s(plan, at, true);
  s.axes->traffic().clear();
  Timers timers;
  train_step(
      s, [&](int64_t) { return blank_batch(s.ctx, micro, sequence); }, 1, optimizer_settings(plan.deck), 0.0, 1,
      timers);
  return s.axes->traffic().entries();
}

TrafficTable without_zeros(const TrafficTable& t) {
  TrafficTable out;
  for (const auto& [key, bytes] : t)
    if (bytes != 0) out[key] = bytes;
  return out;
}

/// Sum over the ranks of the mesh of what `entries(rank)` counted.
TrafficTable over_ranks(const RunPlan& plan, const std::function<Entries(const Coordinates&)>& entries) {
  std::map<std::pair<std::pair<AxisName, std::string>, int64_t>, int64_t> scaled;  // by axis, operation, ranks
  for (int64_t r = 0; r < plan.mesh.ranks(); ++r)
    for (const auto& [key, e] : entries(coordinates_of(plan.mesh, r))) scaled[{key, e.ranks}] += e.scaled_bytes;
  TrafficTable out;
  for (const auto& [key, bytes] : scaled) {
    EXPECT_EQ(bytes % key.second, 0);
    out[key.first] += bytes / key.second;
  }
  return without_zeros(out);
}

TrafficTable expected_step(const RunPlan& p) {
  TrafficShape shape;
  shape.micro = micro;
  shape.sequence = sequence;
  shape.micros = p.micros();
  shape.full_recompute = p.recompute == Recompute::full;
  return without_zeros(
      expected_step_traffic(p.model, p.mesh, p.sequence_parallel, p.reproducible, p.precision, shape));
}

void expect_equal(const TrafficTable& a, const TrafficTable& b) {
  for (const TrafficTable* t : {&a, &b})
    for (const auto& [key, bytes] : *t) {
      const int64_t x = a.count(key) ? a.at(key) : 0, y = b.count(key) ? b.at(key) : 0;
      EXPECT_EQ(x, y) << name_of(key.first) << " " << key.second;
    }
}

std::vector<Setting> settings() {
  std::vector<Setting> out;
  for (const auto& [tp, dp] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}, {4, 2}})
    for (bool sp : {false, true}) {
      if (sp && tp == 1) continue;
      for (bool reproducible : {false, true})
        for (const char* compute : {"fp32", "bf16"})
          for (const char* recompute : {"none", "selective", "full"}) {
            Setting s;
            s.tp = tp, s.dp = dp, s.sequence_parallel = sp, s.reproducible = reproducible, s.compute = compute,
            s.recompute = recompute;
            out.push_back(s);
            s.family = "gpt2", s.kv_heads = 4;
            if (s.recompute != "selective") out.push_back(s);
            s.family = "qwen3", s.kv_heads = 1;
            if (s.recompute == "none") out.push_back(s);
          }
    }
  return out;
}

TEST(Traffic, CountedOnShapesIsTheClosedForm) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const Setting& s : settings()) {
    SCOPED_TRACE(s.text());
    const RunPlan plan = plan_of(s);
    const TrafficTable table = expected_step(plan);
    EXPECT_EQ(table.empty(), s.tp * s.dp == 1);
    expect_equal(over_ranks(plan, [&](const Coordinates& at) { return counted(plan, at); }), table);
  }
}

// By hand, for llama on tp 2 in fp32 without sequence parallelism: an all-reduce of S bytes costs 2 (n - 1) S over
// its group; a micro-batch leaves a region once for the embedding, twice a block forward and twice backward, once for
// the head; the loss takes three numbers a token; gradients need no sum; the norm takes one double a parameter.
TEST(Traffic, ClosedFormIsTheHandCount) {
  Setting s;
  s.tp = 2;
  const RunPlan plan = plan_of(s);
  const int64_t tokens = micro * sequence, activation = tokens * hidden * 4, parameters = 1 + 9 * layers + 2,
                micros = global / micro;
  ASSERT_EQ(static_cast<int64_t>(model_params(plan.model).size()), parameters);
  const int64_t bytes = 2 * (micros * ((1 + 4 * layers + 1) * activation + 3 * tokens * 4) + parameters * 8);
  const TrafficTable table = expected_step(plan);
  ASSERT_EQ(table.size(), 1u);
  EXPECT_EQ(table.at({AxisName::tp, "all_reduce"}), bytes);

  // sequence parallel: gathers and scatter-sums cost (n - 1) S; norms are summed over tp
  s.sequence_parallel = true;
  const TrafficTable cut = expected_step(plan_of(s));
  EXPECT_EQ(cut.at({AxisName::tp, "reduce_scatter"}), micros * (1 + 4 * layers + 1) * activation);
  EXPECT_EQ(cut.at({AxisName::tp, "all_gather"}), micros * (1 + 2 * layers + 4 * layers + 1) * activation);
  EXPECT_EQ(cut.at({AxisName::tp, "all_reduce"}),
            2 * (micros * 3 * tokens * 4 + parameters * 8 + (2 * layers + 1) * hidden * 4));
}

TEST(Traffic, ValidationIsTheForwardPass) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const Setting& s : settings()) {
    if (s.recompute != "none") continue;
    SCOPED_TRACE(s.text());
    const RunPlan plan = plan_of(s);
    const TrafficTable table = over_ranks(plan, [&](const Coordinates& at) {
      Session session(plan, at, false);
      session.axes->traffic().clear();
      const MicroBatch mb = blank_batch(session.ctx, micro, sequence);
      session.ctx.batch = &mb;
      std::unique_ptr<Stash> none;
      session.stage->forward(session.ctx, false, none);
      return session.axes->traffic().entries();
    });
    TrafficShape shape;
    shape.micro = micro;
    shape.sequence = sequence;
    expect_equal(table, without_zeros(expected_eval_traffic(plan.model, plan.mesh, s.sequence_parallel,
                                                            s.reproducible, plan.precision, shape)));
  }
}

TEST(Traffic, AMeshSendsWhatWasCountedOnShapes) {
  for (const Setting& s : settings()) {
    if (s.tp * s.dp != world_size() || s.compute == "fp32") continue;
    SCOPED_TRACE(s.text());
    const RunPlan plan = plan_of(s);
    const Mesh mesh(MPI_COMM_WORLD, plan.mesh);
    Session session(plan, mesh, true);
    fill_weights(session);
    session.axes->traffic().clear();
    Timers timers;
    const int64_t valid = valid_tokens(global, sequence), first = global / s.dp * mesh.coordinate(AxisName::dp);
    const StepResult result = train_step(
        session, [&](int64_t j) { return micro_batch(session.ctx, first + j * micro, micro, vocab, valid); }, valid,
        optimizer_settings(plan.deck), 1e-3, 1, timers);
    EXPECT_NEAR(result.loss, std::log(65.0), 0.1);
    const Entries real = session.axes->traffic().entries(),
                  planned = counted(plan, coordinates_of(plan.mesh, mesh.rank()));
    EXPECT_EQ(real.size(), planned.size());
    for (const auto& [key, e] : planned) {
      const Traffic::Entry sent = real.count(key) ? real.at(key) : Traffic::Entry{};
      EXPECT_EQ(sent.calls, e.calls) << name_of(key.first) << " " << key.second;
      EXPECT_EQ(sent.scaled_bytes, e.scaled_bytes) << name_of(key.first) << " " << key.second;
      EXPECT_EQ(sent.ranks, e.ranks);
    }
  }
}

}  // namespace
}  // namespace orthant
