// The bytes of a step: closed form, counted on shapes, and counted on a real mesh are the same numbers.
// ranks: 1 2 4
#include <gtest/gtest.h>

#include "orthant/model.hpp"
#include "traffic_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

/// Cuts by tp and dp, in both modes and types.
std::vector<Setting> layers_cut() {
  std::vector<Setting> out;
  for (const auto& [tp, dp] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}, {4, 2}})
    for (const char* sp : {"false", "true"}) {
      if (tp == 1 && sp == std::string("true")) continue;
      for (const char* reproducible : {"false", "true"})
        for (const char* compute : {"fp32", "bf16"})
          for (const std::string recompute : {"none", "selective", "full"}) {
            const Keys keys = {is("mesh.tp", tp),
                               is("mesh.dp", dp),
                               std::string("mesh.sequence_parallel=") + sp,
                               std::string("run.reproducible=") + reproducible,
                               std::string("precision.compute=") + compute,
                               "memory.recompute=" + recompute,
                               "model.layers=2"};
            out.push_back(setting("llama", keys, tp * dp));
            if (recompute != "selective") out.push_back(setting("gpt2", keys, tp * dp));
            if (recompute == "none") out.push_back(setting("qwen3", keys + Keys{"model.kv_heads=1"}, tp * dp));
          }
    }
  return out;
}

const std::vector<Keys> pipelines = {{"pipeline.schedule=gpipe"},
                                     {"pipeline.schedule=1f1b"},
                                     {"pipeline.schedule=interleaved", "pipeline.virtual_stages=2"},
                                     {"pipeline.schedule=zero_bubble"},
                                     {"pipeline.schedule=zero_bubble", "pipeline.virtual_stages=2"}};

/// Stages of the pipeline and cuts of states; families, modes and types take turns.
std::vector<Setting> stages_cut() {
  std::vector<Setting> out;
  const char* families[] = {"gpt2", "llama", "qwen3"};
  size_t turn = 0;
  auto add = [&](const Keys& keys, int64_t ranks) {
    const Keys more[] = {{}, {"run.reproducible=true"}, {"precision.compute=bf16"}};
    out.push_back(setting(families[turn % 3], keys + more[turn / 3 % 3], ranks));
    ++turn;
  };
  for (const Keys& zero : zeros)
    for (int64_t shard : {0, 2})
      for (int64_t dp : {2, 4}) {
        if (shard == 2 && zero == zeros[0]) continue;
        for (int64_t tp : {1, 2})
          add(zero +
                  Keys{is("zero.shard", shard), is("mesh.dp", dp), is("mesh.tp", tp), "mesh.sequence_parallel=true"},
              dp * tp);
      }
  for (const Keys& pipeline : pipelines)
    for (int64_t pp : {2, 3, 4}) {
      if (pp == 4 && pipeline.size() == 2) continue;  // 8 chunks of 4 blocks
      add(pipeline + Keys{is("mesh.pp", pp)}, pp);
      add(pipeline + Keys{is("mesh.pp", pp), "mesh.tp=2", "memory.recompute=full"}, 2 * pp);
      add(pipeline + Keys{is("mesh.pp", pp), "mesh.tp=2", "mesh.sequence_parallel=true"}, 2 * pp);
      for (const Keys& zero : zeros) add(pipeline + zero + Keys{is("mesh.pp", pp), "mesh.dp=2"}, 2 * pp);
    }
  for (const Keys& zero : zeros) add(zero + Keys{"mesh.pp=2", "mesh.dp=2", "mesh.tp=2", "zero.bucket=100"}, 8);
  add({"mesh.pp=2", "mesh.dp=4", "zero.stage=1", "zero.shard=2"}, 8);
  return out;
}

/// Sequences cut by every method, alone and beside other axes; kv heads below and above the ranks that share them.
/// Types and kinds of recompute take turns.
std::vector<Setting> contexts_cut() {
  const Keys others[] = {{},
                         {"mesh.tp=2"},
                         {"mesh.tp=2", "mesh.sequence_parallel=true"},
                         {"mesh.pp=2"},
                         {"mesh.dp=2", "zero.stage=3"},
                         {"mesh.dp=2", "zero.stage=2", "zero.shard=2"}};
  const Keys turns[] = {{}, {"precision.compute=bf16"}, {"memory.recompute=full"}, {"memory.recompute=selective"}};
  std::vector<Setting> out;
  size_t turn = 0;
  for (const std::string method : {"ring", "all_gather", "all_to_all"})
    for (const char* mode : {"run.reproducible=false", "run.reproducible=true"})
      for (const Keys& other : others)
        for (int64_t cp : {2, 4}) {
          const Keys keys =
              other + Keys{is("mesh.cp", cp), "context.method=" + method, mode, "model.layers=2", "model.heads=8"};
          const int64_t ranks = other.empty() ? cp : 2 * cp;
          const bool beside = !other.empty() && other[0] != "mesh.tp=2";
          for (int64_t kv : beside ? std::vector<int64_t>{2} : std::vector<int64_t>{1, 2, 8})
            out.push_back(setting(kv == 2 ? "qwen3" : "llama",
                                  keys + turns[turn++ % 4] + Keys{is("model.kv_heads", kv)}, ranks));
          if (beside) out.push_back(setting("gpt2", keys + turns[turn++ % 4], ranks));
        }
  return out;
}

/// FP8 beside sequence parallelism: what travels are FP8 numbers where a tensor has one scale, but not of blocks that stay in
/// bf16. Kinds of recompute take turns.
std::vector<Setting> operands_in_fp8() {
  const char* turns[] = {"memory.recompute=none", "memory.recompute=full", "memory.recompute=selective"};
  std::vector<Setting> out;
  size_t turn = 0;
  for (const auto& [tp, more] : {std::pair<int64_t, Keys>{2, {}}, {4, {}}, {2, {"mesh.pp=2", "pipeline.schedule=zero_bubble"}}})
    for (const char* recipe : {"delayed", "current"})
      for (int64_t keep : {0, 1})
        for (const char* name : {"llama", "gpt2", "qwen3"}) {
          const Keys keys = {is("mesh.tp", tp), "mesh.sequence_parallel=true", "precision.compute=fp8", std::string("precision.fp8_recipe=") + recipe,
                             is("precision.fp8_keep_ends", keep), turns[turn++ % 3], "model.hidden=64", "model.ffn=64", "model.head_dim=16"};
          out.push_back(setting(name, keys + more, more.empty() ? tp : 2 * tp));
        }
  return out;
}

std::vector<Setting> all_cuts() {
  std::vector<Setting> out;
  for (const auto& list : {layers_cut(), stages_cut(), contexts_cut(), operands_in_fp8()})
    out.insert(out.end(), list.begin(), list.end());
  return out;
}

TEST(Traffic, CountedOnShapesIsTheClosedForm) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const Setting& s : all_cuts()) expect_planned_step(s);
}

// By hand, for llama on tp 2 in fp32 without sequence parallelism: an all-reduce of S bytes costs 2 (n - 1) S over
// its group; a micro-batch leaves a region once for the embedding, twice a block forward and twice backward, once for
// the head; the loss takes three numbers a token; gradients need no sum; the norm takes one double a parameter.
TEST(Traffic, ClosedFormIsTheHandCount) {
  const int64_t layers = 4, hidden = 16, tokens = 2 * 16, activation = tokens * hidden * 4, micros = 4;
  const RunPlan plan = plan_of(setting("llama", {"mesh.tp=2"}, 2));
  const int64_t parameters = 1 + 9 * layers + 2;
  ASSERT_EQ(static_cast<int64_t>(model_params(plan.model).size()), parameters);
  const int64_t bytes = 2 * (micros * ((1 + 4 * layers + 1) * activation + 3 * tokens * 4) + parameters * 8);
  const TrafficTable table = expected_step(plan);
  ASSERT_EQ(table.size(), 1u);
  EXPECT_EQ(table.at({AxisName::tp, "all_reduce"}), bytes);

  // sequence parallel: gathers and scatter-sums cost (n - 1) S; norms are summed over tp
  const TrafficTable cut = expected_step(plan_of(setting("llama", {"mesh.tp=2", "mesh.sequence_parallel=true"}, 2)));
  EXPECT_EQ(cut.at({AxisName::tp, "reduce_scatter"}), micros * (1 + 4 * layers + 1) * activation);
  EXPECT_EQ(cut.at({AxisName::tp, "all_gather"}), micros * (1 + 2 * layers + 4 * layers + 1) * activation);
  EXPECT_EQ(cut.at({AxisName::tp, "all_reduce"}),
            2 * (micros * 3 * tokens * 4 + parameters * 8 + (2 * layers + 1) * hidden * 4));
}

// Two gathers a block forward and four backward, a byte a number; the head's input and the embedding's gradient are bf16.
TEST(Traffic, Fp8NumbersAreGatheredInTheirOperandsStead) {
  const int64_t numbers = 2 * 16 * 256, micros = 4;
  const auto gathered = [&](const Keys& keys) {
    const Keys all = Keys{"mesh.tp=2", "mesh.sequence_parallel=true", "precision.compute=fp8", "model.hidden=256", "model.ffn=256", "model.head_dim=128"} + keys;
    return expected_step(plan_of(setting("llama", all, 2))).at({AxisName::tp, "all_gather"});
  };
  EXPECT_EQ(gathered({}), micros * numbers * (2 * 2 + 4 * 6));
  EXPECT_EQ(gathered({"precision.fp8_recipe=current"}), micros * numbers * (2 * 2 + 4 * 6));
  EXPECT_EQ(gathered({"precision.fp8_keep_ends=1"}), micros * numbers * (2 * 2 + 2 * 6 + 2 * 6 * 2));
  EXPECT_EQ(gathered({"precision.fp8_recipe=blockwise"}), micros * numbers * (2 * 2 + 4 * 6 * 2));
}

/// What is sent on the axes of dp, in units of (n - 1) / n times the bytes of all parameters a rank.
std::map<std::string, double> in_parameters(const Keys& zero, int64_t dp, int64_t micros) {
  const RunPlan plan =
      kit::plan_of(family("llama") + zero + Keys{is("mesh.dp", dp), is("batch.global", dp * micros)}, dp);
  int64_t elements = 0;
  for (const Param& p : model_params(plan.model)) elements += p.elements();
  std::map<std::string, double> out;
  for (const auto& [key, bytes] : expected_step(plan)) {
    EXPECT_TRUE(key.first == AxisName::shard || key.first == AxisName::replica);
    out[key.second] += static_cast<double>(bytes) / static_cast<double>((dp - 1) * elements * 4);
  }
  return out;
}

// Gradients are summed once a step, or after each micro-batch where only own rows of the sum stay; weights are
// gathered once a step, or twice a micro-batch where they do not stay.
TEST(Traffic, StatesCutOverDpCostWhatTheirStageSays) {
  using Units = std::map<std::string, double>;
  for (int64_t dp : {2, 4, 8})
    for (int64_t m : {1, 2, 4, 7}) {
      const double n = static_cast<double>(m);
      SCOPED_TRACE("dp " + std::to_string(dp) + ", m " + std::to_string(m));
      EXPECT_EQ(in_parameters(zeros[0], dp, m), (Units{{"all_reduce", 2}}));
      EXPECT_EQ(in_parameters(zeros[1], dp, m), (Units{{"reduce_scatter", 1}, {"all_gather", 1}}));
      EXPECT_EQ(in_parameters(zeros[2], dp, m), (Units{{"reduce_scatter", n}, {"all_gather", 1}}));
      EXPECT_EQ(in_parameters(zeros[3], dp, m), (Units{{"reduce_scatter", 1}, {"all_gather", 1}}));
      EXPECT_EQ(in_parameters(zeros[4], dp, m), (Units{{"reduce_scatter", n}, {"all_gather", 2 * n}}));
      EXPECT_EQ(in_parameters(zeros[5], dp, m), (Units{{"reduce_scatter", 1}, {"all_gather", 2 * n}}));
    }
}

// With two replicas of the cut: two groups of dp / 2 ranks send P (dp / 2 - 1) each, and the sums meet once a step.
TEST(Traffic, ReplicasOfACutMeetOnceAStep) {
  for (int64_t m : {1, 4}) {
    const RunPlan plan = kit::plan_of(
        family("llama") + Keys{"mesh.dp=4", "zero.shard=2", "zero.stage=2", is("batch.global", 4 * m)}, 4);
    int64_t elements = 0;
    for (const Param& p : model_params(plan.model)) elements += p.elements();
    const TrafficTable table = expected_step(plan);
    EXPECT_EQ(table.size(), 3u);
    EXPECT_EQ(table.at({AxisName::shard, "reduce_scatter"}), m * 2 * elements * 4);
    EXPECT_EQ(table.at({AxisName::shard, "all_gather"}), 2 * elements * 4);
    EXPECT_EQ(table.at({AxisName::replica, "all_reduce"}), 2 * elements * 4);
  }
}

// b s h numbers cross each boundary between virtual stages once a micro-batch and direction; the bend of a V lies
// inside a rank. Ranks of tp send the same numbers each, or a share of them with sequence parallelism.
TEST(Traffic, ABoundaryIsCrossedOnceEachWay) {
  const int64_t activation = 2 * 16 * 16, micros = 4;
  auto crossings = [&](const Keys& keys, int64_t ranks, int64_t width) {
    const TrafficTable table = expected_step(plan_of(setting("llama", keys + Keys{"model.layers=8"}, ranks)));
    const int64_t bytes = table.at({AxisName::pp, "shift"}), unit = 2 * micros * activation * width;
    EXPECT_EQ(bytes % unit, 0);
    return bytes / unit;
  };
  for (int64_t pp : {2, 4}) {
    const Keys stages = {is("mesh.pp", pp)}, two = stages + Keys{"pipeline.virtual_stages=2"};
    EXPECT_EQ(crossings(stages, pp, 4), pp - 1);
    EXPECT_EQ(crossings(stages + Keys{"pipeline.schedule=gpipe"}, pp, 4), pp - 1);
    EXPECT_EQ(crossings(stages + Keys{"pipeline.schedule=zero_bubble"}, pp, 4), pp - 1);
    EXPECT_EQ(crossings(stages + Keys{"precision.compute=bf16"}, pp, 2), pp - 1);
    EXPECT_EQ(crossings(two + Keys{"pipeline.schedule=interleaved"}, pp, 4), 2 * pp - 1);
    EXPECT_EQ(crossings(two + Keys{"pipeline.schedule=zero_bubble"}, pp, 4), 2 * pp - 2);
    EXPECT_EQ(crossings(stages + Keys{"mesh.tp=2"}, 2 * pp, 4), 2 * (pp - 1));
    EXPECT_EQ(crossings(stages + Keys{"mesh.tp=2", "mesh.sequence_parallel=true"}, 2 * pp, 4), pp - 1);
  }
}

// The head's stage sends its sums of [vocab, hidden] to the embedding's and gets the weights back: on each rank of
// dp, or, where states are cut, each rank its own rows.
TEST(Traffic, ATiedWeightTravelsOnceEachWay) {
  const int64_t table = 65 * 16;
  auto tie = [&](const Keys& keys) {
    const TrafficTable t = expected_step(plan_of(setting("gpt2", keys + Keys{"mesh.pp=2", "mesh.dp=2"}, 4)));
    const auto found = t.find({AxisName::tie, "shift"});
    return found == t.end() ? 0 : found->second;
  };
  EXPECT_EQ(tie({}), 2 * table * (4 + 4));
  EXPECT_EQ(tie({"precision.compute=bf16"}), 2 * table * (4 + 2));
  EXPECT_EQ(tie({"run.reproducible=true"}), 2 * table * (16 + 4));
  EXPECT_EQ(tie({"zero.stage=1"}), table * (4 + 4));
  EXPECT_EQ(tie({"zero.stage=3"}), table * (4 + 4));
  EXPECT_EQ(tie({"model.tie_embeddings=false"}), 0);
  EXPECT_EQ(tie({"pipeline.schedule=zero_bubble", "pipeline.virtual_stages=2"}), 0);  // both ends on stage 0
}

// By hand, for attention of 8 query heads and `kv` kv heads of 6 numbers, 16 places and 2 sequences in a micro-batch.
// A shard is K (or V) of one rank's places.
class ContextTraffic : public ::testing::Test {
 protected:
  struct Bytes {
    int64_t forward = 0, backward = 0;  ///< of a rank, in one block and micro-batch
  };
  static Bytes bytes(const std::string& method, int64_t cp, int64_t kv, const char* op, const Keys& more = {},
                     int64_t tp = 1) {
    const RunPlan plan =
        plan_of(setting("llama",
                        Keys{is("mesh.cp", cp), is("mesh.tp", tp), "context.method=" + method, "model.layers=3",
                             "model.heads=8", "model.head_dim=6", is("model.kv_heads", kv)} +
                            more,
                        cp * tp));
    const int64_t blocks = 3 * plan.micros() * cp * tp;
    const auto of = [&](const TrafficTable& t) {
      const auto found = t.find({AxisName::cp, op});
      return found == t.end() ? 0 : found->second;
    };
    const int64_t forward = of(expected_eval_traffic(traffic_plan(plan))), all = of(expected_step(plan));
    EXPECT_EQ(forward % blocks, 0);
    EXPECT_EQ(all % blocks, 0);
    return {forward / blocks, (all - forward) / blocks};
  }
  static int64_t shard(int64_t cp, int64_t heads) { return 2 * 16 / cp * heads * 6; }  // numbers
};

TEST_F(ContextTraffic, ARingSendsEachShardOnAndItsGradientHome) {
  for (int64_t cp : {2, 4, 8})
    for (int64_t kv : {1, 2, 8}) {
      SCOPED_TRACE("cp " + std::to_string(cp) + ", kv heads " + std::to_string(kv));
      const int64_t s = shard(cp, kv);
      const Bytes full = bytes("ring", cp, kv, "shift"),
                  half = bytes("ring", cp, kv, "shift", {"precision.compute=bf16"});
      EXPECT_EQ(full.forward, (cp - 1) * 2 * s * 4);
      EXPECT_EQ(full.backward, (cp - 1) * 2 * s * 4 + cp * 2 * s * 4);
      EXPECT_EQ(half.forward, (cp - 1) * 2 * s * 2);
      EXPECT_EQ(half.backward, (cp - 1) * 2 * s * 2 + cp * 2 * s * 4);  // dK, dV in fp32
      // the forward pass again
      EXPECT_EQ(bytes("ring", cp, kv, "shift", {"memory.recompute=full"}).backward, full.forward + full.backward);
    }
}

TEST_F(ContextTraffic, AllGatherSendsEveryShardToEveryRank) {
  for (int64_t cp : {2, 4, 8})
    for (const std::string method : {"all_gather", "ring"}) {
      const bool exact =
          method == "ring";  // a ring works as all_gather does in reproducible mode: two int64 a number
      const Keys more = {exact ? "run.reproducible=true" : "precision.compute=bf16"};
      const int64_t s = shard(cp, 2), t = exact ? 4 : 2;
      const Bytes gather = bytes(method, cp, 2, "all_gather", more),
                  scatter = bytes(method, cp, 2, "reduce_scatter", more);
      EXPECT_EQ(gather.forward, (cp - 1) * 2 * s * t);
      EXPECT_EQ(gather.backward, (cp - 1) * 2 * s * t);
      EXPECT_EQ(scatter.forward, 0);
      EXPECT_EQ(scatter.backward, (cp - 1) * 2 * s * (exact ? 16 : 4));
    }
}

TEST_F(ContextTraffic, AllToAllSendsHeads) {
  for (int64_t cp : {2, 4, 8}) {
    const int64_t head = shard(cp, 1);
    // q and o: all ranks but this one get 8 / cp heads each; k and v the same of 8
    const Bytes all = bytes("all_to_all", cp, 8, "exchange");
    EXPECT_EQ(all.forward, (cp - 1) * (8 / cp) * 4 * head * 4);
    EXPECT_EQ(all.backward, (cp - 1) * (8 / cp) * 4 * head * 4);
    // one kv head goes to each rank, and comes back as a summand in fp32
    const Bytes one = bytes("all_to_all", cp, 1, "exchange", {"precision.compute=bf16"});
    EXPECT_EQ(one.forward, (cp - 1) * (8 / cp * 2 + 2) * head * 2);
    EXPECT_EQ(one.backward, (cp - 1) * (8 / cp * 2 * head * 2 + 2 * head * 4));
  }
  // tp 2 leaves four query heads and one kv head to a rank
  const Bytes beside = bytes("all_to_all", 2, 2, "exchange", {}, 2);
  EXPECT_EQ(beside.forward, (2 * 2 + 2) * shard(2, 1) * 4);
}

TEST(Traffic, ValidationIsTheForwardPass) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const Setting& s : all_cuts()) expect_planned_validation(s);
}

TEST(Traffic, AMeshSendsWhatWasCountedOnShapes) {
  for (const Setting& s : layers_cut())
    if (std::count(s.keys.begin(), s.keys.end(), "precision.compute=bf16")) expect_planned_bytes(s);
  for (const Setting& s : stages_cut()) expect_planned_bytes(s);
  for (const Setting& s : contexts_cut()) expect_planned_bytes(s);
  for (const Setting& s : operands_in_fp8()) expect_planned_bytes(s);
}

}  // namespace
}  // namespace orthant
