// The bytes of models with experts, and of layouts that leave heads, feed-forward or vocabulary whole: closed form,
// count on shapes, and count on a real mesh with the rows that routing sent.
// ranks: 1 2 4
#include <gtest/gtest.h>

#include "data_fixture.hpp"
#include "orthant/model.hpp"
#include "traffic_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

/// Experts over ep and etp beside every other axis, with each ZeRO stage. Types take turns.
std::vector<Setting> experts_cut() {
  const std::vector<Keys> meshes = {
      {"mesh.dp=2", "mesh.ep=1"},
      {"mesh.dp=2", "mesh.ep=2"},
      {"mesh.dp=4", "mesh.ep=2"},
      {"mesh.dp=4", "mesh.ep=4"},
      {"mesh.tp=2"},
      {"mesh.tp=2", "mesh.ep=2"},
      {"mesh.tp=2", "mesh.etp=2"},
      {"mesh.tp=2", "mesh.dp=2", "mesh.ep=2"},
      {"mesh.tp=2", "mesh.dp=2", "mesh.ep=4"},
      {"mesh.tp=2", "mesh.dp=2", "mesh.ep=2", "mesh.etp=2"},
      {"mesh.cp=2", "mesh.ep=2"},
      {"mesh.cp=2", "mesh.dp=2", "mesh.ep=4", "context.method=all_to_all"},
      {"mesh.cp=2", "mesh.dp=2", "mesh.ep=2", "context.method=all_gather"},
      {"mesh.tp=2", "mesh.cp=2", "mesh.ep=2", "mesh.etp=2"},
      {"mesh.pp=2", "mesh.dp=2", "mesh.ep=2"},
      {"mesh.pp=2", "mesh.tp=2", "mesh.ep=2"},
      {"mesh.pp=2", "mesh.tp=2", "mesh.etp=2", "pipeline.schedule=zero_bubble"},
      {"mesh.pp=2", "mesh.dp=2", "mesh.ep=2", "pipeline.schedule=interleaved", "pipeline.virtual_stages=2"},
  };
  const auto ranks_of = [](const Keys& mesh) {
    int64_t n = 1;
    for (const std::string& k : mesh)
      if (k.starts_with("mesh.") && !k.starts_with("mesh.e")) n *= std::stoll(k.substr(k.find('=') + 1));
    return n;
  };
  const Keys types[] = {{}, {"precision.compute=bf16"}};
  std::vector<Setting> out;
  size_t turn = 0;
  const auto add = [&](const char* name, const Keys& mesh, const Keys& more) {
    const Keys sp = {std::find(mesh.begin(), mesh.end(), "mesh.tp=2") != mesh.end() ? "mesh.sequence_parallel=true"
                                                                                    : "mesh.sequence_parallel=false"};
    const bool stages = std::find(mesh.begin(), mesh.end(), "mesh.pp=2") != mesh.end();
    const Keys blocks = {is("model.layers", stages ? 4 : 2)};
    out.push_back(setting(name, mesh + sp + blocks + more + types[turn++ % 3 == 0], ranks_of(mesh)));
  };
  for (const char* name : {"mixtral", "deepseek"}) {
    for (const Keys& mesh : meshes)
      for (const std::string mode : {"false", "true"})
        for (const std::string recompute : {"none", "full"})
          add(name, mesh, {"run.reproducible=" + mode, "memory.recompute=" + recompute});
    for (const Keys& zero : zeros)
      for (size_t m : {3, 2, 8, 9, 12, 14, 6}) {
        const Keys mode = {turn % 3 ? "run.reproducible=false" : "run.reproducible=true"};
        add(name, meshes[m], zero + mode);
        if (zero != zeros[0] && m != 6) add(name, meshes[m], zero + mode + Keys{"zero.shard=2"});
      }
  }
  add("deepseek", {"mesh.tp=2", "mesh.dp=2", "mesh.ep=2"},
      {"model.mla.kv_lora_rank=7", "memory.recompute=selective"});
  for (const char* name : {"mixtral", "deepseek"})
    for (size_t m : {5, 6})
      for (const std::string recompute : {"none", "full"}) {
        turn = 1;  // the type is given
        add(name, meshes[m],
            Keys{"precision.compute=fp8", "memory.recompute=" + recompute, "model.hidden=64", "model.ffn=64", "model.moe.ffn=32"} +
                (name == std::string("mixtral") ? Keys{"model.head_dim=16"}
                                                : Keys{"model.mla.nope_dim=16", "model.mla.rope_dim=16", "model.mla.v_dim=16",
                                                       "model.mla.q_lora_rank=16", "model.mla.kv_lora_rank=16"}));
      }
  return out;
}

/// Heads, feed-forward or vocabulary whole on every rank of tp, one by one and together.
std::vector<Setting> left_whole() {
  const std::vector<Keys> rules = {{"layout.heads="},
                                   {"layout.ffn="},
                                   {"layout.vocab="},
                                   {"layout.heads=", "layout.ffn="},
                                   {"layout.heads=", "layout.ffn=", "layout.vocab="}};
  std::vector<Setting> out;
  size_t turn = 0;
  for (const Keys& rule : rules)
    for (const std::string mode : {"false", "true"})
      for (const std::string sp : {"false", "true"})
        for (const char* name : {"gpt2", "llama", "qwen3", "mixtral", "deepseek"}) {
          const bool experts = name == std::string("mixtral") || name == std::string("deepseek");
          if (experts && sp == "false") continue;
          const Keys keys = rule + Keys{"run.reproducible=" + mode, "mesh.sequence_parallel=" + sp, "model.layers=2"};
          const Keys recompute = {turn % 2 ? "memory.recompute=full" : "memory.recompute=none"};
          const Keys mesh[] = {{"mesh.tp=2"}, {"mesh.tp=4"}, {"mesh.tp=2", "mesh.dp=2", "zero.stage=2"}};
          const size_t m = turn++ % 3;
          out.push_back(
              setting(name, mesh[m] + keys + recompute + (experts ? Keys{"mesh.ep=2"} : Keys{}), m ? 4 : 2));
        }
  return out;
}

bool has_experts(const Setting& s) { return std::count(s.keys.begin(), s.keys.end(), "mesh.ep=2") > 0; }

TEST(ExpertTraffic, CountedOnShapesIsThePlan) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const auto& list : {experts_cut(), left_whole()})
    for (const Setting& s : list) expect_planned_step(s);
}

TEST(ExpertTraffic, ValidationIsTheForwardPass) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const auto& list : {experts_cut(), left_whole()})
    for (const Setting& s : list) expect_planned_validation(s);
}

TEST(ExpertTraffic, AMeshThatLeavesDimsWholeSendsWhatWasCountedOnShapes) {
  for (const Setting& s : left_whole())
    if (!has_experts(s)) expect_planned_bytes(s);
}

/// Sequences of a data set for validation, with a folder of its own on each rank.
struct HeldOut {
  HeldOut() : stream(SampleStream::train(settings())) {}
  DataSettings settings() {
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < 400; ++t) tokens.push_back(fixed_token(9, t, 65));
    DataSettings s;
    s.train = {folder.write("set", {tokens})};
    s.sequence = 16;
    s.split = "1,0,0";
    s.samples = 16;
    return s;
  }
  testing::Scratch folder;
  SampleStream stream;
};

// Where tokens go is known behind the step: the closed form of the rest plus the rows that the report counts. Steps
// with and without a validation, also with picks that no expert has a place for.
TEST(ExpertTraffic, RoutedRowsAreThoseOfTheReport) {
  HeldOut held_out;
  std::vector<Setting> settings = experts_cut();
  for (const Setting& s : left_whole())
    if (has_experts(s)) settings.push_back(s);
  int64_t compared = 0, uneven = 0, dropped = 0;
  for (size_t n = 0; n < settings.size(); ++n) {
    if (settings[n].ranks != world_size() || (world_size() == 4 && n % 3 == 1)) continue;
    Setting s = settings[n];
    const bool limited = n % 5 == 0;
    if (limited) s.keys.push_back("model.moe.capacity_factor=0.75");
    SCOPED_TRACE(text(s.keys));
    Trainer t(MPI_COMM_WORLD, plan_of(s));
    Traffic& traffic = t.session.axes->traffic();
    traffic.clear();
    const StepResult r = t.step();
    EXPECT_FALSE(r.skipped);
    EXPECT_EQ(r.router.kept() + r.router.dropped, picks(t.plan));
    EXPECT_EQ(r.router.dropped > 0, limited);
    EXPECT_EQ(r.router.off_rank_rows > 0, t.plan.mesh.ep > 1);
    const TrafficPlan form = traffic_plan(t.plan);
    expect_equal(over_world(traffic.entries()),
                 without_zeros(both(expected_step_traffic(form),
                                    routed_traffic(form, r.router.off_rank_rows, r.router.kept(), true))));
    uneven += r.router.off_rank_rows != uniform_rows(form) && t.plan.mesh.ep > 1;
    dropped += r.router.dropped;
    ++compared;

    if (n % 4) continue;
    traffic.clear();
    int64_t off_rank = 0, kept = 0, batches = 0;
    const double loss = validation_loss(t.session, held_out.stream, LossMask{}, TokenFacts{}, 2, t.timers,
                                        [&](const RouterReport& report) {
                                          off_rank += report.off_rank_rows;
                                          kept += report.kept();
                                          ++batches;
                                        });
    EXPECT_TRUE(std::isfinite(loss));
    EXPECT_EQ(batches, 2);
    TrafficTable want = evaluated(t.plan, 0, 0);
    for (auto& [key, bytes] : want) bytes *= 2;
    expect_equal(over_world(traffic.entries()),
                 without_zeros(both(want, routed_traffic(form, off_rank, kept, false))));
  }
  if (world_size() == 1) GTEST_SKIP() << "more than one rank";
  EXPECT_GE(compared, 20);
  EXPECT_GT(uneven, 0) << "every token went where uniform routing sends it: the test sees nothing";
  EXPECT_GT(dropped, 0);
}

// By hand: mixtral on dp 2, ep 2 in fp32: a row is 16 numbers, out and back in both passes, a weight and its
// gradient.
TEST(ExpertTraffic, ARoutedRowIsAHandCount) {
  const RunPlan plan = plan_of(setting("mixtral", {"mesh.dp=2", "mesh.ep=2"}, 2));
  const TrafficPlan form = traffic_plan(plan);
  EXPECT_EQ(uniform_rows(form), 8 * 16 * 2 * 4 / 2);  // half of all picks of 8 sequences in 4 layers
  const TrafficTable step = routed_traffic(form, 10, 100, true), pass = routed_traffic(form, 10, 100, false);
  EXPECT_EQ(step, (TrafficTable{{{AxisName::ep, "exchange"}, 10 * 16 * 4 * 4},
                                {{AxisName::ep, "exchange_weights"}, 10 * 4 * 2}}));
  EXPECT_EQ(pass, (TrafficTable{{{AxisName::ep, "exchange"}, 10 * 16 * 4 * 2},
                                {{AxisName::ep, "exchange_weights"}, 10 * 4}}));
  // experts are on one data rank each and send no gradient; all else is summed as ever
  int64_t elements = 0;
  for (const Param& p : model_params(plan.model))
    if (p.expert < 0) elements += p.elements();
  const TrafficTable rest = expected_step(plan);
  EXPECT_EQ(rest, (TrafficTable{{{AxisName::shard, "all_reduce"}, 2 * elements * 4}}));
  // cut by etp and in reproducible mode: two int64 for each number of y, dx and of the weights' gradients
  const RunPlan exact = plan_of(
      setting("mixtral", {"mesh.tp=2", "mesh.etp=2", "mesh.sequence_parallel=true", "run.reproducible=true"}, 2));
  EXPECT_EQ(routed_traffic(traffic_plan(exact), 0, 100, true),
            (TrafficTable{{{AxisName::tp, "all_reduce"}, 2 * 100 * 16 * (2 * 16 + 1)}}));
}

}  // namespace
}  // namespace orthant
