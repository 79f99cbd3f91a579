// The mixture layer: its definition, its gradients, and every mesh against one rank.
// ranks: 1 2 4
// labels: smoke asan
// seconds: 120
#include <gtest/gtest.h>

#include "moe_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

ModelConfig config_of(const std::string& family, double aux = 0.3, double z = 0.05) {
  ModelConfig c = small_model(family);
  c.moe.aux_loss = aux;
  c.moe.z_loss = z;
  return c;
}

MeshShape mesh(int64_t tp, int64_t cp, int64_t dp, int64_t ep, bool cut_experts = false) {
  MeshShape m;
  m.tp = tp;
  m.cp = cp;
  m.dp = dp;
  m.ep = ep;
  m.etp = cut_experts ? tp : 1;
  return m;
}

std::string text(const MeshShape& m) {
  return "tp " + std::to_string(m.tp) + ", cp " + std::to_string(m.cp) + ", dp " + std::to_string(m.dp) + ", ep " +
         std::to_string(m.ep) + ", etp " + std::to_string(m.etp);
}

/// Every kind of mesh that this number of ranks allows.
std::vector<MeshShape> meshes() {
  switch (world_size()) {
    case 2:
      return {mesh(1, 1, 2, 1), mesh(1, 1, 2, 2), mesh(1, 2, 1, 1),      mesh(1, 2, 1, 2),
              mesh(2, 1, 1, 1), mesh(2, 1, 1, 2), mesh(2, 1, 1, 1, true)};
    case 4:
      return {mesh(1, 1, 4, 1),       mesh(1, 1, 4, 2),      mesh(1, 1, 4, 4),       mesh(1, 2, 2, 2),
              mesh(1, 2, 2, 4),       mesh(2, 1, 2, 4),      mesh(2, 1, 2, 2),       mesh(2, 2, 1, 4),
              mesh(4, 1, 1, 2),       mesh(4, 1, 1, 4),      mesh(2, 1, 2, 2, true), mesh(2, 2, 1, 2, true),
              mesh(2, 1, 2, 1, true), mesh(4, 1, 1, 1, true)};
    default:
      return {mesh(1, 1, 1, 1)};
  }
}

/// One mesh of each kind, for tests that run many times.
std::vector<MeshShape> few_meshes() {
  if (world_size() != 4) return meshes();
  return {mesh(1, 1, 4, 4), mesh(1, 2, 2, 2), mesh(2, 1, 2, 4), mesh(2, 1, 2, 2, true), mesh(2, 2, 1, 2, true)};
}

RigOptions options(DType type = DType::f64, bool reproducible = false) {
  RigOptions o;
  o.compute = type;
  o.reproducible = reproducible;
  return o;
}

/// A bench on all ranks, or on this one alone.
MoeBench bench(MeshShape m, const ModelConfig& c, RigOptions o, bool alone = false) {
  m.experts = c.moe.experts;
  o.sequence_parallel = m.tp > 1;
  return MoeBench(alone ? MPI_COMM_SELF : MPI_COMM_WORLD, m, c, o);
}
struct Holder {  // benches hold references into themselves and stay where they were made
  Holder(const MeshShape& m, const ModelConfig& c, const RigOptions& o, bool alone = false)
      : b(bench(m, c, o, alone)) {}
  MoeBench b;
};

const std::vector<std::string> families = {"mixtral", "deepseek"};

TEST(Moe, OutputIsTheDefinition) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const std::string& family : families) {
    SCOPED_TRACE(family);
    Holder h({}, config_of(family), options());
    const MoeResult r = h.b.run();
    const PlainMoe plain(h.b);
    for (const auto& [token, row] : r.y)
      for (size_t c = 0; c < row.size(); ++c) EXPECT_NEAR(row[c], plain.y_at(token, static_cast<int64_t>(c)), 1e-12);
    EXPECT_NEAR(r.report.aux_loss, plain.aux_loss(), 1e-12);
    int64_t picks = 0;
    for (int64_t n : r.report.load.at(0)) {
      EXPECT_GT(n, 0) << "the other tests want every expert in use";
      picks += n;
    }
    EXPECT_EQ(picks, moe_batch * h.b.rig.ctx.sequence * h.b.config.moe.top_k);
    EXPECT_EQ(r.report.dropped, 0);
    EXPECT_EQ(r.report.off_rank_rows, 0);
  }
}

/// sum of dy y + the routers' losses, whose gradient `run` makes.
double objective(MoeBench& b) {
  const PlainMoe plain(b);
  double sum = b.config.moe.aux_loss * plain.aux_loss() + b.config.moe.z_loss * plain.z_loss();
  for (int64_t s = 0; s < moe_batch; ++s)
    for (int64_t t = 0; t < b.rig.ctx.sequence; ++t)
      for (int64_t c = 0; c < b.config.hidden; ++c) sum += b.dy_of({s, t}, c) * plain.y_at({s, t}, c);
  return sum;
}

TEST(Moe, GradientsAreFiniteDifferences) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const std::string& family : families) {
    SCOPED_TRACE(family);
    Holder holder({}, config_of(family), options());
    MoeBench& b = holder.b;
    const MoeResult r = b.run(2);
    const double h = 1e-4;
    auto slope = [&](const std::function<void(double)>& step) {
      double side[4];
      const double steps[] = {h, -h, 2 * h, -2 * h};
      for (int i = 0; i < 4; ++i) {
        step(steps[i]);
        side[i] = objective(b);
        step(-steps[i]);
      }
      return (8 * (side[0] - side[1]) - (side[2] - side[3])) / (12 * h);
    };
    for (LocalParam& p : b.rig.store.all()) {
      if (!p.param.trained) continue;
      const std::vector<double>& g = r.grad.at(p.param.name);
      for (int64_t pick = 0; pick < 3; ++pick) {
        const auto i =
            static_cast<int64_t>((number("pick " + p.param.name, pick) + 1) / 2 * static_cast<double>(g.size()));
        const double s = slope([&](double by) { Host<double>(*b.rig.backend, p.weight)[i] += by; });
        EXPECT_NEAR(g[static_cast<size_t>(i)], s, 1e-6 * std::max(1e-2, largest(g)))
            << p.param.name << " element " << i;
      }
    }
    const auto x = b.x_of;
    for (const auto& [at, c] : {std::pair<Token, int64_t>{{0, 0}, 3}, {{1, 7}, 0}, {{3, 15}, 11}, {{2, 4}, 5}}) {
      double moved = 0;
      b.x_of = [&, at = at, c = c](Token t, int64_t k) { return x(t, k) + (t == at && k == c ? moved : 0); };
      const double s = slope([&](double by) { moved += by; });
      EXPECT_NEAR(r.dx.at(at)[static_cast<size_t>(c)], s, 1e-6) << "x";
      b.x_of = x;
    }
  }
}

// O004, O005, O042: on every mesh the gradients of router, experts and x are those of one rank, none is zero or a
// multiple.
TEST(Moe, EveryMeshIsOneRank) {
  for (const std::string& family : families) {
    Holder whole({}, config_of(family), options(), true);
    const MoeResult w = whole.b.run();
    for (const LocalParam& p : whole.b.rig.store.all())
      EXPECT_TRUE(!p.param.trained || largest(w.grad.at(p.param.name)) > 1e-3) << p.param.name;
    for (const MeshShape& m : meshes()) {
      SCOPED_TRACE(family + ", " + text(m));
      Holder cut(m, config_of(family), options());
      expect_equal(cut.b, cut.b.run(), w, 1e-11);
    }
  }
}

TEST(Moe, WithoutRoutersLossesToo) {
  for (const std::string& family : families) {
    const ModelConfig c = config_of(family, 0, 0);
    Holder whole({}, c, options(), true);
    const MoeResult w = whole.b.run();
    EXPECT_GT(largest(w.grad.at(moe_prefix + ".router.weight")), 1e-3);
    for (const MeshShape& m : meshes()) {
      SCOPED_TRACE(family + ", " + text(m));
      Holder cut(m, c, options());
      expect_equal(cut.b, cut.b.run(), w, 1e-11);
    }
  }
}

TEST(Moe, ReproducibleModeGivesTheSameBitsOnEveryMesh) {
  for (DType type : {DType::f32, DType::bf16})
    for (const std::string& family : families) {
      Holder whole({}, config_of(family), options(type, true), true);
      const MoeResult w = whole.b.run(4);  // micro-batches of one sequence, as on dp 4
      for (const MeshShape& m : meshes()) {
        SCOPED_TRACE(family + ", " + name_of(type) + ", " + text(m));
        Holder cut(m, config_of(family), options(type, true));
        expect_equal(cut.b, cut.b.run(4 / m.dp), w, 0);
      }
    }
}

TEST(Moe, SinglePrecisionIsNear) {
  for (DType type : {DType::f32, DType::bf16})
    for (const std::string& family : families) {
      Holder exact({}, config_of(family), options(), true);
      const MoeResult e = exact.b.run();
      for (const MeshShape& m : few_meshes()) {
        SCOPED_TRACE(family + ", " + name_of(type) + ", " + text(m));
        Holder cut(m, config_of(family), options(type));
        const MoeResult r = cut.b.run();
        if (type == DType::f32) {
          EXPECT_EQ(r.report.load, e.report.load);
        } else if (r.report.load != e.report.load) {
          continue;  // rounded to bf16, two logits of a token may change places
        }
        for (const auto& [token, row] : r.y)
          EXPECT_LE(difference(row, e.y.at(token)), type == DType::f32 ? 1e-4 : 0.1);
      }
    }
}

TEST(Moe, RecomputeAndLateWeightGradientsChangeNoBit) {
  for (const std::string& family : families)
    for (const MeshShape& m : few_meshes())
      for (bool reproducible : {false, true}) {
        SCOPED_TRACE(family + ", " + text(m) + (reproducible ? ", reproducible" : ""));
        Holder kept(m, config_of(family), options(DType::f64, reproducible));
        RigOptions o = options(DType::f64, reproducible);
        o.recompute = Recompute::selective;
        Holder again(m, config_of(family), o);
        const MoeResult a = kept.b.run();
        for (bool late : {false, true}) {
          const MoeResult b = again.b.run(1, true, late);
          EXPECT_EQ(a.y, b.y);
          EXPECT_EQ(a.dx, b.dx);
          EXPECT_EQ(a.grad, b.grad);
        }
      }
}

/// Weights and tokens for which experts 0 and 1 take all.
void lopsided(MoeBench& b) {
  const auto x = b.x_of;
  b.x_of = [x](Token t, int64_t k) { return k == 0 ? 1.0 : x(t, k); };
  b.set("router.weight",
        [](int64_t e, int64_t k) { return k == 0 ? (e < 2 ? 9.0 : -9.0) : 0.3 * number("r", e * 100 + k); });
}

// O039, O040: all tokens go to experts 0 and 1; other ranks get no row, and their experts have a gradient that is
// zero.
TEST(Moe, RanksWithoutTokens) {
  const ModelConfig c = config_of("mixtral", 0, 0);
  for (bool reproducible : {false, true}) {
    Holder whole({}, c, options(DType::f64, reproducible), true);
    lopsided(whole.b);
    const MoeResult w = whole.b.run(4);
    EXPECT_EQ(w.report.load.at(0), (std::vector<int64_t>{64, 64, 0, 0}));
    EXPECT_DOUBLE_EQ(w.report.load_max_over_mean, 2);
    for (int e : {2, 3})
      for (const char* part : {"gate", "up", "down"}) {
        const auto& g = w.grad.at(moe_prefix + ".experts." + std::to_string(e) + "." + part + ".weight");
        EXPECT_EQ(g.size(), 24u * 16u);
        EXPECT_EQ(largest(g), 0);
      }
    for (const MeshShape& m : few_meshes()) {
      SCOPED_TRACE(text(m) + (reproducible ? ", reproducible" : ""));
      for (Recompute recompute : {Recompute::none, Recompute::selective}) {
        RigOptions o = options(DType::f64, reproducible);
        o.recompute = recompute;
        Holder cut(m, c, o);
        lopsided(cut.b);
        expect_equal(cut.b, cut.b.run(4 / m.dp, recompute == Recompute::selective), w, reproducible ? 0 : 1e-11);
      }
    }
  }
}

// O041: a capacity beyond the number of tokens is none; the smallest one keeps a pick a sequence and expert.
TEST(Moe, Capacity) {
  for (const std::string& family : families) {
    ModelConfig c = config_of(family);
    Holder free({}, c, options(), true);
    const MoeResult without = free.b.run();
    const PlainMoe plain(free.b);
    c.moe.capacity_factor = 100;
    Holder wide({}, c, options(), true);
    const MoeResult w = wide.b.run();
    EXPECT_EQ(w.y, without.y);
    EXPECT_EQ(w.grad, without.grad);
    EXPECT_EQ(w.report.dropped, 0);
    for (double factor : {1e-6, 0.7, 1.0}) {
      c.moe.capacity_factor = factor;
      Holder whole({}, c, options(), true);
      const MoeResult limited = whole.b.run();
      const int64_t capacity = expert_capacity(16, c.moe.top_k, c.moe.experts, factor);
      int64_t dropped = 0;
      for (int64_t s = 0; s < moe_batch; ++s) {
        std::vector<int64_t> used(static_cast<size_t>(c.moe.experts), 0);
        for (int64_t t = 0; t < 16; ++t) {
          bool all = true;
          for (int64_t e : plain.chosen_at({s, t})) all = ++used[static_cast<size_t>(e)] <= capacity && all;
          if (all)
            EXPECT_LE(difference(limited.y.at({s, t}), without.y.at({s, t})), 1e-13);
          else
            EXPECT_GT(difference(limited.y.at({s, t}), without.y.at({s, t})), 1e-6);
        }
        for (int64_t n : used) dropped += std::max<int64_t>(0, n - capacity);
      }
      EXPECT_GT(dropped, 0);
      EXPECT_EQ(limited.report.dropped, dropped);
      EXPECT_EQ(limited.report.load, without.report.load);  // counted before any drop
      for (const MeshShape& m : few_meshes()) {
        SCOPED_TRACE(family + ", capacity factor " + std::to_string(factor) + ", " + text(m));
        Holder cut(m, c, options());
        expect_equal(cut.b, cut.b.run(), limited, 1e-11);
      }
    }
  }
}

// A token whose picks are all dropped: nothing is added to its residual, and no gradient comes back.
TEST(Moe, DroppedTokensPassThroughTheResidual) {
  ModelConfig c = config_of("mixtral", 0, 0);
  c.moe.capacity_factor = 1e-6;
  for (const MeshShape& m : few_meshes()) {
    SCOPED_TRACE(text(m));
    Holder h(m, c, options());
    h.b.set("router.weight", [](int64_t e, int64_t) { return e < 2 ? 0.01 : 0.0; });
    h.b.x_of = [](Token t, int64_t k) { return 1.5 + number("x", t.first * 1000 + t.second * 20 + k); };
    const MoeResult r = h.b.run();
    for (const auto& [token, row] : r.y) {
      EXPECT_EQ(largest(row) == 0, token.second > 0);
      EXPECT_EQ(largest(r.dx.at(token)) == 0, token.second > 0);
    }
    EXPECT_EQ(r.report.dropped, moe_batch * 15 * 2);
  }
}

// O043: the auxiliary loss alone, whatever mesh and number of micro-batches.
TEST(Moe, AuxiliaryLossHasOneStrength) {
  for (const std::string& family : families) {
    const ModelConfig c = config_of(family, 0.01, 0);
    const auto silent = [](Token, int64_t) { return 0.0; };
    Holder whole({}, c, options(), true);
    whole.b.dy_of = silent;
    const MoeResult w = whole.b.run();
    const std::string router = moe_prefix + ".router.weight";
    const double size = largest(w.grad.at(router));
    EXPECT_GT(size, 1e-5);
    for (int64_t micros : {1, 2, 4})
      for (const MeshShape& m : meshes()) {
        if (moe_batch / m.dp % micros != 0) continue;
        SCOPED_TRACE(family + ", micro-batches " + std::to_string(micros) + ", " + text(m));
        Holder cut(m, c, options());
        cut.b.dy_of = silent;
        const MoeResult r = cut.b.run(micros);
        EXPECT_LE(difference(r.grad.at(router), w.grad.at(router)), 1e-12 * size);
        EXPECT_NEAR(r.report.aux_loss, w.report.aux_loss, 1e-13);
      }
  }
}

// O043: perfectly even routing is reported as 1.
TEST(Moe, EvenRoutingIsReportedAsOne) {
  const ModelConfig c = config_of("mixtral", 0.01, 0);
  for (bool reproducible : {false, true})
    for (const MeshShape& m : meshes()) {
      SCOPED_TRACE(text(m));
      Holder h(m, c, options(DType::f32, reproducible));
      h.b.set("router.weight", [](int64_t e, int64_t k) { return e == k ? 1.0 : 0.0; });
      h.b.x_of = [](Token t, int64_t k) { return k == t.second % 4 ? 2.0 : k == (t.second + 1) % 4 ? 1.0 : 0.0; };
      const MoeResult r = h.b.run();
      EXPECT_EQ(r.report.load.at(0), (std::vector<int64_t>{32, 32, 32, 32}));
      EXPECT_NEAR(r.report.aux_loss, 1, 1e-6);
      EXPECT_DOUBLE_EQ(r.report.load_max_over_mean, 1);
    }
}

/// Bytes that all ranks sent in an operation on ep.
int64_t exchanged(MoeBench& b, const char* op) {
  int64_t bytes = 0;
  for (const auto& [key, entry] : b.rig.axes.traffic().entries())
    if (key.first == AxisName::ep && key.second == op) bytes += entry.scaled_bytes / entry.ranks;
  MPI_Allreduce(MPI_IN_PLACE, &bytes, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  return bytes;
}

TEST(Moe, OnlyOffRankRowsTravel) {
  const ModelConfig c = config_of("mixtral");
  Holder whole({}, c, options(DType::f32), true);
  const PlainMoe plain(whole.b);
  for (const MeshShape& m : meshes()) {
    SCOPED_TRACE(text(m));
    Holder h(m, c, options(DType::f32));
    h.b.rig.axes.traffic().clear();
    const MoeResult r = h.b.run();
    if (m.tp == 1 && m.cp == 1) {  // dp rank d has sequences [4 d / dp, 4 (d + 1) / dp) and stands at d % ep
      int64_t away = 0;
      for (int64_t s = 0; s < moe_batch; ++s)
        for (int64_t t = 0; t < 16; ++t)
          for (int64_t e : plain.chosen_at({s, t})) away += e / (4 / m.ep) != s / (moe_batch / m.dp) % m.ep;
      EXPECT_EQ(r.report.off_rank_rows, away);
    }
    EXPECT_EQ(r.report.off_rank_rows > 0, m.ep > 1);
    // x and dy go out, y and dx come back; a weight goes with x, its gradient with dx
    EXPECT_EQ(exchanged(h.b, "exchange"), r.report.off_rank_rows * c.hidden * 4 * 4);
    EXPECT_EQ(exchanged(h.b, "exchange_weights"), r.report.off_rank_rows * 4 * 2);
  }
}

// Evaluation reports nothing and has no routers' losses; a forward pass that is done again has them, and reports
// nothing.
TEST(Moe, EvaluationAndRecomputeReportNothing) {
  Holder h(meshes().back(), config_of("mixtral"), options());
  const MoeResult usual = h.b.run();
  h.b.rig.ctx.router_stats = nullptr;
  const MoeResult evaluated = h.b.run();
  h.b.rig.ctx.router_stats = &h.b.stats;
  h.b.rig.ctx.again = true;
  const MoeResult again = h.b.run();
  for (const MoeResult* r : {&evaluated, &again}) {
    EXPECT_EQ(r->report.aux_loss, 0);
    EXPECT_EQ(r->report.load.at(0), std::vector<int64_t>(4, 0));
    EXPECT_EQ(r->report.off_rank_rows, 0);
    EXPECT_EQ(r->y, usual.y);
  }
  EXPECT_EQ(again.grad, usual.grad);
  const std::string router = moe_prefix + ".router.weight";
  EXPECT_GT(difference(evaluated.grad.at(router), usual.grad.at(router)), 1e-6);
}

TEST(Moe, DebugBackendGivesTheBitsOfCpu) {
  for (const std::string& family : families)
    for (const MeshShape& m : few_meshes())
      for (bool reproducible : {false, true}) {
        SCOPED_TRACE(family + ", " + text(m) + (reproducible ? ", reproducible" : ""));
        ModelConfig c = config_of(family);
        c.moe.capacity_factor = 1.0;
        RigOptions o = options(DType::bf16, reproducible);
        Holder cpu(m, c, o);
        o.backend = "debug";
        Holder debug(m, c, o);
        if (family == "mixtral") lopsided(cpu.b), lopsided(debug.b);  // ranks without rows
        const MoeResult a = cpu.b.run(), b = debug.b.run();
        EXPECT_EQ(a.y, b.y);
        EXPECT_EQ(a.dx, b.dx);
        EXPECT_EQ(a.grad, b.grad);
        EXPECT_EQ(a.report.aux_loss, b.report.aux_loss);
      }
}

/// Forward and backward of one micro-batch of the whole batch; the highest sum of activations.
int64_t most_activations(Context& ctx, const Moe& layer, const Tensor& x, const Tensor& dy) {
  MicroBatch mb;
  mb.sequences = moe_batch / ctx.layout.shape().dp;
  mb.length = 16 / ctx.layout.shape().cp;
  mb.runs = context_runs(16, ctx.layout.shape().cp, ctx.layout.at().cp);
  ctx.batch = &mb;
  ctx.be.account().reset_peak();
  const int64_t before = ctx.be.account().now(MemoryKind::activations);
  Moe::Saved saved;
  layer.forward(ctx, x, saved);
  layer.backward(ctx, dy, saved);
  ctx.batch = nullptr;
  return ctx.be.account().peak(MemoryKind::activations) - before;
}

// A plan allocates what the worst routing needs, and counts the messages of even routing.
TEST(Moe, PlansHoldTheWorstCase) {
  for (const std::string& family : families)
    for (bool reproducible : {false, true})
      for (double factor : {0.0, 0.5})
        for (const MeshShape& shape : few_meshes()) {
          SCOPED_TRACE(family + ", " + text(shape) + (reproducible ? ", reproducible" : "") + ", capacity factor " +
                       std::to_string(factor));
          ModelConfig c = config_of(family);
          c.moe.capacity_factor = factor;
          Holder real(shape, c, options(DType::f32, reproducible));
          if (family == "mixtral") lopsided(real.b);
          MoeBench& b = real.b;
          const Layout& layout = b.rig.layout;
          const MeshShape& m = layout.shape();

          auto be = make_backend("meta");
          Axes axes(m, layout.at());
          Context ctx(*be, axes, layout, Precision{DType::f32}, 16, Recompute::none);
          ParamStore store(*be, Moe::params(moe_prefix, c), layout, Precision{DType::f32}, true, 0);
          RouterStats stats(moe_block, 1, c.moe.experts);
          ctx.global_sequences = moe_batch;
          ctx.router_stats = &stats;
          const Moe layer(moe_prefix, c, moe_block, store, axes, layout);
          const int64_t rows = moe_batch * 16 / (m.dp * m.cp * m.tp);
          const Tensor nothing = ctx.workspace(ctx.T, rows, c.hidden);
          const int64_t planned = most_activations(ctx, layer, nothing, nothing);
          stats.finish(ctx);
          if (m.ep > 1) {
            const auto& e = axes.traffic().entries().at({AxisName::ep, "exchange"});
            const int64_t picks = rows * (m.etp > 1 ? m.tp : 1) * c.moe.top_k, at = ep_of(m, layout.at());
            EXPECT_EQ(e.calls, 4);
            EXPECT_EQ(e.scaled_bytes / e.ranks, 4 * (picks - picks / m.ep - (at < picks % m.ep)) * c.hidden * 4);
          }

          if (m.etp > 1 && reproducible && factor == 0) {  // lanes of y, dx and the gradients of weights
            const int64_t even = rows * m.tp * c.moe.top_k * (2 * c.hidden + 1) * 2 * 8;
            EXPECT_EQ(axes.traffic().entries().at({AxisName::tp, "all_reduce"}).scaled_bytes, 2 * (m.tp - 1) * even);
          }

          const MicroBatch mb = micro_batch(b.rig.ctx, moe_batch / m.dp * layout.at().dp, moe_batch / m.dp, 11, 1);
          const auto tokens = b.shard_tokens(mb, moe_batch / m.dp * layout.at().dp);
          const int64_t used =
              most_activations(b.rig.ctx, b.layer, b.tensor(tokens, b.x_of), b.tensor(tokens, b.dy_of));
          EXPECT_LE(used, planned);
          const Range experts = layout.experts();
          if (family == "mixtral" && factor == 0 && experts.begin == 0 && experts.size >= 2) {
            EXPECT_EQ(used, planned) << "all rows come here";
          }
        }
}

}  // namespace
}  // namespace orthant
