// Whole steps over the stages of a pipeline are those of one rank bit by bit, in every schedule and with any number
// of micro-batches; the copies of a tied weight stay one.
// ranks: 1 2 4
#include <gtest/gtest.h>

#include <algorithm>

#include "orthant/model.hpp"
#include "plan_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

struct Order {
  std::string schedule;
  int64_t chunks = 1;
  Keys keys() const { return {"pipeline.schedule=" + schedule, is("pipeline.virtual_stages", chunks)}; }
};
const std::vector<Order> orders = {{"gpipe"}, {"1f1b"}, {"interleaved", 2}, {"zero_bubble"}, {"zero_bubble", 2}};
constexpr const char* families[] = {"gpt2", "llama", "qwen3"};
constexpr const char* all_families[] = {"gpt2", "mixtral", "llama", "deepseek", "qwen3"};

/// Eight pieces: embedding, six blocks, head. Bits do not depend on the mesh.
Keys common(const std::string& name, int64_t global) {
  return family(name) + Keys{"model.layers=6", "run.reproducible=true", is("batch.global", global)};
}

const Whole& one_rank(const std::string& name, int64_t global, int steps) {
  static std::map<std::tuple<std::string, int64_t, int>, Whole> known;
  const auto key = std::tuple(name, global, steps);
  auto found = known.find(key);
  if (found == known.end()) found = known.emplace(key, run_whole(plan_of(common(name, global), 1), steps)).first;
  return found->second;
}

void compare(const std::string& name, const Keys& cut, int64_t global, int steps) {
  SCOPED_TRACE(name + " " + text(cut) + ", batch " + std::to_string(global));
  Trainer t(MPI_COMM_WORLD, plan_of(common(name, global) + cut, world_size()));
  const Whole& whole = one_rank(name, global, steps);
  for (int n = 0; n < steps; ++n) expect_whole(t, t.step(), whole, static_cast<size_t>(n), 0);
}

// O028 (fewer micro-batches than stages), O029 (no multiple of the stages), O032 (every micro-batch counts)
TEST(Runner, EverySchedule) {
  size_t turn = 0;
  for (const Order& o : orders)
    for (int64_t m : {1, 2, 3, 4, 6, 8})
      compare(all_families[turn++ % 5], o.keys() + Keys{is("mesh.pp", world_size())}, m, 1);
}

// O029, O032: with two ranks of dp and with two of tp beside the stages
TEST(Runner, StagesBesideOtherAxes) {
  if (world_size() != 4) GTEST_SKIP() << "four ranks";
  size_t turn = 0;
  for (const Order& o : orders)
    for (int64_t m : {1, 3}) {
      compare(families[turn % 3], o.keys() + Keys{"mesh.pp=2", "mesh.dp=2"}, 2 * m, 1);
      compare(families[(turn + 1) % 3],
              o.keys() +
                  Keys{"mesh.pp=2", "mesh.tp=2", turn % 2 ? "mesh.sequence_parallel=true" : "memory.recompute=full"},
              m, 1);
      ++turn;
    }
}

// O032: gradient buffers that come and go between micro-batches
TEST(Runner, StagesWithCutStates) {
  if (world_size() != 4) GTEST_SKIP() << "four ranks";
  size_t turn = 0;
  for (const Order& o : orders)
    for (const char* zero : {"zero.stage=1", "zero.stage=2", "zero.stage=3"}) {
      const std::string name = all_families[turn++ % 5];
      const bool experts = name == "mixtral" || name == "deepseek";
      compare(name,
              o.keys() + Keys{"mesh.pp=2", "mesh.dp=2", zero, experts ? "mesh.ep=2" : "mesh.ep=1",
                              turn % 2 ? "zero.bucket=500" : "zero.bucket=40000000"},
              6, 1);
    }
}

// A schedule of one's own: all forwards, then the gradients from the last micro-batch to the first; and the same with
// the weights' gradients at the end.
TEST(Runner, AListFromAFile) {
  for (const bool split : {false, true}) {
    RunPlan plan = plan_of(common("gpt2", 3) + Keys{is("mesh.pp", world_size())}, world_size());
    std::string csv;
    auto add = [&](int64_t stage, char act, int64_t m) {
      csv += std::to_string(stage) + "," + act + ",0," + std::to_string(m) + "\n";
    };
    for (int64_t s = 0; s < world_size(); ++s) {
      for (int64_t m : {1, 0, 2}) add(s, 'F', m);
      for (int64_t m : {2, 0, 1}) add(s, 'B', m);
      for (int64_t m : {0, 1, 2})
        if (split) add(s, 'W', m);
    }
    finish_plan(plan, csv);
    EXPECT_EQ(plan.pipeline.split, split);
    Trainer t(MPI_COMM_WORLD, plan);
    expect_whole(t, t.step(), one_rank("gpt2", 3, 1), 0, 0);
  }
}

TEST(Runner, GivenBlocksOfEachStage) {
  if (world_size() != 2) GTEST_SKIP() << "two ranks";
  compare("gpt2", {"mesh.pp=2", "pipeline.stage_layers=[5,1]"}, 3, 1);
  compare("qwen3", {"mesh.pp=2", "pipeline.stage_layers=[0,6]"}, 2, 1);
  compare("llama",
          {"mesh.pp=2", "pipeline.schedule=interleaved", "pipeline.virtual_stages=3",
           "pipeline.stage_layers=[0,1,1,3,1,0]"},
          3, 1);
}

/// The tied weight on its two ends, own rows: equal, or the test fails. False where this rank has no second end.
bool expect_one_tied_weight(Trainer& t, const std::string& when) {
  const Axis& tie = (*t.session.axes)[AxisName::tie];
  if (tie.size() < 2) return false;
  LocalParam& p = t.session.store->at("embedding.tokens.weight");
  std::vector<double> mine = to_host(*t.session.backend, p.own_weight), other(mine.size());
  const int peer = 1 - t.mesh.coordinate(AxisName::tie), n = static_cast<int>(mine.size());
  MPI_Sendrecv(mine.data(), n, MPI_DOUBLE, peer, 0, other.data(), n, MPI_DOUBLE, peer, 0, t.mesh.comm(AxisName::tie),
               MPI_STATUS_IGNORE);
  EXPECT_EQ(mine, other) << when;
  EXPECT_EQ(p.copy, t.mesh.coordinate(AxisName::pp) != 0);
  EXPECT_GT(n, 0);
  if (p.weight) {
    EXPECT_EQ(to_host(*t.session.backend, p.weight.row_range(p.own_begin(), p.own.rows)), mine) << when;
  }
  return true;
}

// O006 (three steps), O007 (before the first)
TEST(Runner, TiedCopiesStayOne) {
  if (world_size() == 1) GTEST_SKIP() << "stages";
  std::vector<Keys> cuts;
  for (const Order& o : orders) cuts.push_back(o.keys() + Keys{is("mesh.pp", world_size())});
  if (world_size() == 4) {
    for (const Order& o : {orders[1], orders[2]})
      for (const char* zero : {"zero.stage=0", "zero.stage=1", "zero.stage=2", "zero.stage=3"})
        cuts.push_back(o.keys() + Keys{"mesh.pp=2", "mesh.dp=2", zero});
    cuts.push_back({"mesh.pp=2", "mesh.tp=2"});
  }
  size_t turn = 0;
  for (const Keys& cut : cuts) {
    const std::string name = turn++ % 2 ? "qwen3" : "gpt2";
    SCOPED_TRACE(name + " " + text(cut));
    Trainer t(MPI_COMM_WORLD, plan_of(common(name, 4) + cut, world_size()));
    const Whole& whole = one_rank(name, 4, 3);
    // as training begins: drawn from the seed, each rank its own rows, then sent
    fill_weights(t.session);
    publish_weights(t.session);
    int ends = expect_one_tied_weight(t, "as drawn");
    t.session.store->fill(fill_numbers);
    publish_weights(t.session);
    for (size_t n = 0; n < 3; ++n) {
      expect_whole(t, t.step(), whole, n, 0);
      expect_one_tied_weight(t, "after step " + std::to_string(n + 1));
    }
    MPI_Allreduce(MPI_IN_PLACE, &ends, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    const bool vee = t.plan.pipeline.vee;  // both ends on one rank
    EXPECT_EQ(ends, vee ? 0 : 2 * world_size() / t.plan.mesh.pp);
  }
}

// Outside reproducible mode too: every sum over micro-batches and over parameters has one order whatever the
// schedule, so stages alone change no bit of an untied model.
TEST(Runner, StagesKeepTheOrderOfSums) {
  if (world_size() == 1) GTEST_SKIP() << "stages";
  for (const auto& [name, compute] :
       {std::pair("llama", "fp32"), {"llama", "bf16"}, {"mixtral", "bf16"}, {"deepseek", "fp32"}}) {
    const Keys keys =
        family(name) + Keys{"model.layers=6", "batch.global=6", std::string("precision.compute=") + compute};
    const Whole whole = run_whole(plan_of(keys, 1), 2);
    for (const Order& o : orders) {
      SCOPED_TRACE(text(keys + o.keys()));
      Trainer t(MPI_COMM_WORLD, plan_of(keys + o.keys() + Keys{is("mesh.pp", world_size())}, world_size()));
      for (size_t n = 0; n < 2; ++n) expect_whole(t, t.step(), whole, n, 0);
    }
  }
}

}  // namespace
}  // namespace orthant
