// What a rank holds of weights, gradients, masters and slots: the allocator counts what the table in store.hpp says,
// between steps and, but for buffers that do not grow with the model, within them.
// ranks: 1
#include <gtest/gtest.h>

#include <numeric>

#include "orthant/model.hpp"
#include "plan_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

constexpr MemoryKind states[] = {MemoryKind::weights, MemoryKind::gradients, MemoryKind::master,
                                 MemoryKind::optimizer};

/// Rows of `n` that part `r` of `parts` owns.
int64_t own_rows(int64_t n, int64_t parts, int64_t r) { return n * (r + 1) / parts - n * r / parts; }

struct Form {
  int zero;
  bool full;
  int64_t shard;
  std::string compute;
  bool reproducible;
  Keys keys() const {
    return {is("zero.stage", zero), std::string("zero.accumulate=") + (full ? "full" : "shard"),
            is("zero.shard", shard), "precision.compute=" + compute,
            std::string("run.reproducible=") + (reproducible ? "true" : "false")};
  }
};

std::vector<Form> forms() {
  std::vector<Form> out;
  for (int zero : {0, 1, 2, 3})
    for (bool full : {false, true})
      for (int64_t shard : {0, 2})
        for (const char* compute : {"fp32", "bf16"})
          for (bool reproducible : {false, true}) {
            if (zero == 0 && shard) continue;
            out.push_back({zero, full, shard, compute, reproducible});
          }
  return out;
}

/// Bytes of each kind by the table, for stage `s` and place `d` in dp.
std::map<MemoryKind, int64_t> by_hand(const RunPlan& plan, const Form& f, int64_t s, int64_t d) {
  const int64_t parts = f.zero == 0 ? 1 : f.shard ? f.shard : plan.mesh.dp, r = d % parts;
  int64_t whole = 0, own = 0, of_copies = 0;
  for (const auto& unit : unit_params(plan.model, plan.pipeline, plan.cut, s))
    for (const Param& p : unit) {
      const int64_t mine = own_rows(p.rows(), parts, r) * p.cols();
      whole += p.elements();
      own += mine;
      if (s > 0 && p.name == "embedding.tokens.weight") of_copies += mine;  // its state is on stage 0
    }
  const bool rounded = f.compute == "bf16";
  return {{MemoryKind::weights, (f.zero == 3 ? own : whole) * (rounded ? 2 : 4)},
          {MemoryKind::gradients, (f.zero >= 2 && !f.full ? own : whole) * (f.reproducible ? 16 : 4)},
          {MemoryKind::master, rounded ? (own - of_copies) * 4 : 0},
          {MemoryKind::optimizer, (own - of_copies) * 2 * 4}};
}

void expect_states(const ShapeRun& run, const std::map<MemoryKind, int64_t>& want, const char* when) {
  for (MemoryKind kind : states) EXPECT_EQ(run.account().now(kind), want.at(kind)) << name_of(kind) << " " << when;
}

// O034: hidden 20, ffn 57, vocabulary 59 divide by none of these numbers of ranks
TEST(ZeroState, AllocatorCountsTheTable) {
  const Keys uneven = {"model.hidden=20", "model.heads=2", "model.ffn=57", "model.vocab=59", "model.layers=2"};
  for (const Form& f : forms())
    for (int64_t dp : {1, 2, 4, 8}) {
      if (f.shard && dp % f.shard) continue;
      const std::string name = dp % 4 == 0 ? "gpt2" : "llama";
      const RunPlan plan = plan_of(
          family(name) + uneven + f.keys() +
              Keys{name == "llama" ? "model.kv_heads=1" : "model.kv_heads=2", is("mesh.dp", dp), "batch.global=16"},
          dp);
      SCOPED_TRACE(text(f.keys()) + ", dp " + std::to_string(dp));
      for (int64_t d : {int64_t{0}, dp / 2, dp - 1}) {
        ShapeRun run(plan, {0, 0, 0, d});
        const auto want = by_hand(plan, f, 0, d);
        expect_states(run, want, "at the beginning");
        run.step();
        expect_states(run, want, "after a step");
        EXPECT_EQ(run.account().now(MemoryKind::communication), 0);
      }
    }
}

TEST(ZeroState, StagesHoldTheirUnitsAndATiedCopyHasNoState) {
  for (const Form& f : forms())
    for (const char* schedule : {"1f1b", "interleaved"}) {
      const std::string chunks = schedule == std::string("1f1b") ? "1" : "2";
      const RunPlan plan =
          plan_of(family("gpt2") + f.keys() +
                      Keys{"mesh.pp=2", "mesh.dp=4", "batch.global=16", std::string("pipeline.schedule=") + schedule,
                           "pipeline.virtual_stages=" + chunks},
                  8);
      SCOPED_TRACE(text(f.keys()) + ", " + schedule);
      for (int64_t s : {0, 1}) {
        ShapeRun run(plan, {0, 0, s, 3});
        const auto want = by_hand(plan, f, s, 3);
        expect_states(run, want, "at the beginning");
        run.step();
        expect_states(run, want, "after a step");
      }
    }
}

/// The same for a model with experts on dp ranks alone: rank d holds the experts of place d % ep, and their states
/// are cut over the ranks d, d +- ep, … that hold them too (as many of these as divide zero.shard, where it is
/// given).
std::map<MemoryKind, int64_t> by_hand_with_experts(const RunPlan& plan, const Form& f, int64_t d) {
  const int64_t dp = plan.mesh.dp, ep = plan.mesh.ep, edp = dp / ep, each = plan.model.moe.experts / ep;
  const int64_t of_experts = f.zero == 0 ? 1 : f.shard ? std::gcd(f.shard, edp) : edp;
  const int64_t parts = f.zero == 0 ? 1 : f.shard ? f.shard : dp;
  int64_t whole = 0, own = 0, biases = 0;
  for (const Param& p : model_params(plan.model)) {
    if (p.expert >= 0 && p.expert / each != d % ep) continue;
    if (!p.trained) {
      biases += p.elements();
      continue;
    }
    whole += p.elements();
    own += p.expert >= 0 ? own_rows(p.rows(), of_experts, d / ep % of_experts) * p.cols()
                         : own_rows(p.rows(), parts, d % parts) * p.cols();
  }
  const bool rounded = f.compute == "bf16";
  return {{MemoryKind::weights, (f.zero == 3 ? own : whole) * (rounded ? 2 : 4) + biases * 4},
          {MemoryKind::gradients, (f.zero >= 2 && !f.full ? own : whole) * (f.reproducible ? 16 : 4)},
          {MemoryKind::master, rounded ? own * 4 : 0},
          {MemoryKind::optimizer, own * 2 * 4}};
}

TEST(ZeroState, ExpertsAreCutOverTheRanksThatHoldThem) {
  const Keys uneven = {"model.hidden=20",  "model.heads=2",  "model.ffn=57",
                       "model.moe.ffn=11", "model.vocab=59", "model.layers=2"};
  for (const Form& f : forms())
    for (const auto& [dp, ep] : {std::pair<int64_t, int64_t>{2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 2}}) {
      if (f.shard && dp % f.shard) continue;
      const std::string name = ep == 2 ? "deepseek" : "mixtral";
      const RunPlan plan = plan_of(family(name) + uneven + f.keys() +
                                       Keys{is("mesh.dp", dp), is("mesh.ep", ep), "batch.global=16",
                                            name == "mixtral" ? "model.kv_heads=1" : "model.kv_heads=2"},
                                   dp);
      SCOPED_TRACE(text(f.keys()) + ", dp " + std::to_string(dp) + ", ep " + std::to_string(ep));
      for (int64_t d : {int64_t{0}, dp / 2 + 1, dp - 1}) {
        if (d >= dp) continue;
        ShapeRun run(plan, {0, 0, 0, d});
        const auto want = by_hand_with_experts(plan, f, d);
        expect_states(run, want, "at the beginning");
        run.step();
        expect_states(run, want, "after a step");
        EXPECT_EQ(run.account().now(MemoryKind::communication), 0);
      }
    }
}

// Over all ranks of a mesh with every axis each element of an expert has one state, and each rank as much as another.
TEST(ZeroState, EveryElementOfAnExpertHasOneOwner) {
  for (const Keys& cut : {Keys{"mesh.ep=1"}, Keys{"mesh.ep=2"}, Keys{"mesh.ep=4"}, Keys{"mesh.ep=2", "mesh.etp=2"},
                          Keys{"mesh.ep=4", "mesh.etp=2"}})
    for (int stage : {1, 2, 3}) {
      const Keys keys = family("deepseek") + cut + Keys{"mesh.tp=2",
                                                        "mesh.cp=2",
                                                        "mesh.pp=2",
                                                        "mesh.dp=2",
                                                        "mesh.sequence_parallel=true",
                                                        is("zero.stage", stage),
                                                        "model.moe.ffn=16"};
      SCOPED_TRACE(text(keys));
      const RunPlan plan = plan_of(keys, 16);
      std::map<std::string, int64_t> owned;
      for (int64_t r = 0; r < 16; ++r) {
        const ShapeRun run(plan, coordinates_of(plan.mesh, r));
        for (const LocalParam& p : run.session.store->all()) {
          if (!p.expert()) continue;
          owned[p.param.name] += p.own.rows * p.cols();
          EXPECT_EQ(p.rows() * p.cols() * (plan.mesh.etp), p.param.elements());
          EXPECT_LE(std::abs(p.own.rows - p.rows() / plan.mesh.expert_data()), 1);
        }
      }
      int64_t experts = 0;
      for (const Param& p : model_params(plan.model)) {
        if (p.expert < 0) continue;
        EXPECT_EQ(owned[p.name], p.elements()) << p.name;
        ++experts;
      }
      EXPECT_EQ(experts, 8 * 3 * 3);
    }
}

Param rows_of(const std::string& name, int64_t rows, int64_t cols) {
  Param p;
  p.name = name;
  p.dims = {{DimName::hidden, rows}};
  if (cols > 1) p.dims.push_back({DimName::hidden, cols});
  p.init.kind = Init::normal;
  return p;
}

// O033, O034
TEST(ZeroState, OwnRowsAreThePiecesCutOnceAlsoWhereThereAreFewerThanRanks) {
  const std::vector<Param> params = {rows_of("a", 3, 1), rows_of("b", 1, 7), rows_of("c", 57, 1), rows_of("d", 58, 2),
                                     rows_of("e", 59, 3)};
  for (int64_t dp : {2, 4, 8})
    for (int stage : {1, 2, 3}) {
      MeshShape shape;
      shape.dp = dp;
      std::map<std::string, int64_t> next;
      int64_t bytes = 0, empty = 0;
      for (int64_t d = 0; d < dp; ++d) {
        const auto backend = make_backend("meta");
        const Layout layout(shape, {0, 0, 0, d}, false, false);
        StoreSettings settings;
        settings.slots = 2;
        settings.zero.stage = stage;
        ParamStore store(*backend, {params}, layout, Precision{DType::bf16}, settings);
        for (LocalParam& p : store.all()) {
          EXPECT_EQ(p.own.row, next[p.param.name]) << p.param.name;
          next[p.param.name] += p.own.rows;
          EXPECT_LE(std::abs(p.own.rows - p.rows() / dp), 1) << p.param.name;
          EXPECT_EQ(p.own.row, store.shard_rows(p, d).begin);
          EXPECT_EQ(p.own.rows, store.shard_rows(p, d).size);
          EXPECT_EQ(p.master.rows(), p.own.rows);
          EXPECT_EQ(p.slots[1].rows(), p.own.rows);
          EXPECT_EQ(p.own_weight.rows(), p.own.rows);
          empty += p.own.rows == 0;
        }
        bytes += backend->account().now(MemoryKind::optimizer);
      }
      int64_t elements = 0;
      for (const Param& p : params) {
        EXPECT_EQ(next[p.name], p.rows()) << p.name;
        elements += p.elements();
      }
      EXPECT_EQ(bytes, 8 * elements) << "padding";
      EXPECT_EQ(empty, (dp - 1) + std::max<int64_t>(0, dp - 3));  // of b and a
    }
}

/// Elements of the largest unit, of a rank's own rows in all, and of the model.
struct Sizes {
  int64_t unit = 0, whole = 0, row = 0;
};
Sizes sizes_of(const RunPlan& plan) {
  Sizes out;
  for (const auto& unit : unit_params(plan.model, plan.pipeline, plan.cut, 0)) {
    int64_t n = 0;
    for (const Param& p : unit) {
      n += p.elements();
      out.row = std::max(out.row, p.cols());
    }
    out.unit = std::max(out.unit, n);
    out.whole += n;
  }
  return out;
}

// The model is many times larger than a bucket and a unit, so a whole copy of anything would be seen.
TEST(ZeroState, AStepNeedsBoundedBuffersBesideTheShards) {
  for (const Form& f : forms())
    for (int64_t bucket : {1, 20'000}) {
      if (f.zero == 0 || f.shard) continue;
      const int64_t dp = 8;
      const RunPlan plan = plan_of(family("llama") + f.keys() +
                                       Keys{"model.layers=60", "model.hidden=32", "model.ffn=96", is("mesh.dp", dp),
                                            "batch.global=24", is("zero.bucket", bucket)},
                                   dp);
      SCOPED_TRACE(text(f.keys()) + ", bucket " + std::to_string(bucket));
      const Sizes n = sizes_of(plan);
      const int64_t width = f.compute == "bf16" ? 2 : 4, lane = f.reproducible ? 16 : 4;
      ShapeRun run(plan, {0, 0, 0, 5});
      const auto held = by_hand(plan, f, 0, 5);
      for (int step = 0; step < 2; ++step) {
        run.step();
        const MemoryAccount& a = run.account();
        // weights: with ZeRO 3 one unit in use and one that comes
        EXPECT_LE(a.peak(MemoryKind::weights) - held.at(MemoryKind::weights), f.zero == 3 ? 2 * n.unit * width : 0);
        // gradients: of units that have not filled a bucket yet; the head's exist from its forward pass on
        const bool opens = f.zero >= 2 && !f.full;
        EXPECT_LE(a.peak(MemoryKind::gradients) - held.at(MemoryKind::gradients),
                  opens ? (bucket + 2 * n.unit) * lane : 0);
        EXPECT_EQ(a.peak(MemoryKind::master), held.at(MemoryKind::master));
        EXPECT_EQ(a.peak(MemoryKind::optimizer), held.at(MemoryKind::optimizer));
        // messages: two packed buckets (a row of every rank at least) with their results, or two units on their way
        const int64_t packed = std::max(bucket, dp * n.row), sent = packed + packed / dp + n.row;
        const int64_t buckets = 2 * sent * std::max(lane, width), units = f.zero == 3 ? 2 * 2 * n.unit * width : 0;
        EXPECT_GT(a.peak(MemoryKind::communication), 0);
        EXPECT_LE(a.peak(MemoryKind::communication), buckets + units);
        // far below another copy of anything
        EXPECT_LT(buckets + units, n.whole * lane / 3);
        EXPECT_LT((bucket + 2 * n.unit) * lane, n.whole * lane / 8);
      }
    }
}

TEST(ZeroState, PublishingGathersBucketByBucket) {
  for (const char* compute : {"fp32", "bf16"})
    for (int stage : {1, 2, 3}) {
      const int64_t dp = 4, bucket = 5'000, width = compute == std::string("bf16") ? 2 : 4;
      const RunPlan plan =
          plan_of(family("qwen3") + Keys{"model.layers=40", is("mesh.dp", dp), is("zero.stage", stage),
                                         is("zero.bucket", bucket), std::string("precision.compute=") + compute},
                  dp);
      ShapeRun run(plan, {0, 0, 0, 1});
      const int64_t weights = run.account().now(MemoryKind::weights), total = run.account().total();
      run.session.backend->account().reset_peak();
      publish_weights(run.session);
      const Sizes n = sizes_of(plan);
      EXPECT_EQ(run.account().peak(MemoryKind::weights), weights);
      EXPECT_EQ(run.account().total(), total);
      const int64_t peak = run.account().peak(MemoryKind::communication);
      EXPECT_LE(peak, 2 * (bucket + bucket / dp + n.row) * width);
      EXPECT_LT(peak, n.whole * width / 4);
      if (stage == 3)
        EXPECT_EQ(peak, 0) << "nothing is whole, nothing is sent";
      else
        EXPECT_GE(peak, bucket / 2 * width);
    }
}

// Weights are drawn or read piece by piece: a parameter of 24 million elements on 4 ranks of which each owns 6.
TEST(ZeroState, FillingNeedsABoundedHostBuffer) {
  const std::vector<Param> params = {rows_of("large", 3000, 8192), rows_of("small", 3, 1)};
  MeshShape shape;
  shape.dp = 4;
  const auto backend = make_backend("cpu");
  const Layout layout(shape, {0, 0, 0, 3}, false, false);
  StoreSettings settings;
  settings.training = false;
  settings.zero.stage = 3;
  ParamStore store(*backend, {params}, layout, Precision{DType::f32}, settings);
  const int64_t own = (750 * 8192 + 1) * 4, total = backend->account().total();
  EXPECT_GE(total, own);
  EXPECT_LT(total, own + own / 4);  // the allocator's steps
  backend->account().reset_peak();
  int64_t next = 2250, calls = 0;
  store.fill([&](const Param& p, const Piece& piece, float* out) {
    if (p.name == "large") {
      EXPECT_EQ(piece.row, next);
      next += piece.rows;
      ++calls;
    }
    for (int64_t i = 0; i < piece.elements(); ++i) out[i] = static_cast<float>(piece.row + i / piece.cols);
  });
  EXPECT_EQ(next, 3000);
  EXPECT_GE(calls, 2);
  EXPECT_LE(backend->account().total_peak() - total, 17 << 20);  // 4 Mi elements of fp32
  EXPECT_EQ(backend->account().total(), total);
  Host<float> h(*backend, store.at("large").own_weight);
  EXPECT_EQ(h[0], 2250);
  EXPECT_EQ(h[750 * 8192 - 1], 2999);
}

}  // namespace
}  // namespace orthant
