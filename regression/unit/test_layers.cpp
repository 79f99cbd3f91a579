// Every layer of the list: gradients against finite differences, split over tp against whole, debug against cpu.
// ranks: 1 2 4
// labels: smoke asan
#include <gtest/gtest.h>

#include "layers/attention.hpp"
#include "layers/list.hpp"
#include "mesh_kit.hpp"
#include "optim/step.hpp"

namespace orthant {
namespace {

using namespace kit;

constexpr int64_t sequences = 2;

struct Case {
  const LayerEntry* entry;
  int64_t kv_heads;  ///< 0: as the family has it
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const LayerEntry& e : layer_list()) {
    out.push_back({&e, 0});
    if (e.family != "gpt2" && e.name.find("attention") == 0) out.push_back({&e, 1});  // one kv head, shared by all
  }
  return out;
}

ModelConfig config_of(const Case& c) {
  ModelConfig m = small_model(c.entry->family);
  if (c.kv_heads) m.kv_heads = c.kv_heads;
  return m;
}

struct Result {
  std::vector<double> y, dx;  ///< of this rank's shard
  Range rows;                 ///< where the shard lies
};

/// One layer on a rig, with its input and a micro-batch for positions and shapes.
class Bench {
 public:
  Bench(MPI_Comm comm, int64_t tp, const Case& c, const RigOptions& o)
      : config(config_of(c)),
        rig(comm, mesh_of(config, tp, 1), c.entry->params(config), o),
        layer(c.entry->make(rig.ctx, config, rig.store)),
        batch(micro_batch(rig.ctx, 0, sequences, config.vocab, 1)) {
    rig.ctx.batch = &batch;
    const int64_t all = batch.tokens(), part = o.sequence_parallel ? all / tp : all;
    rows = {o.sequence_parallel ? part * rig.mesh.coordinate(AxisName::tp) : 0, part};
    x = tensor_of_numbers(*rig.backend, o.compute, "x", rows.begin, rows.size, config.hidden);
    dy = tensor_of_numbers(*rig.backend, o.compute, "dy", rows.begin, rows.size, config.hidden);
  }

  std::vector<double> forward() {
    std::shared_ptr<void> saved;
    return to_host(*rig.backend, layer->forward(rig.ctx, x, saved));
  }
  Result run() {
    std::shared_ptr<void> saved;
    Result r;
    r.rows = rows;
    r.y = to_host(*rig.backend, layer->forward(rig.ctx, x, saved));
    r.dx = to_host(*rig.backend, layer->backward(rig.ctx, dy, saved));
    sum_gradients(rig.ctx, rig.store);
    return r;
  }
  /// sum of dy * y, whose gradient `run` makes.
  double objective() {
    const std::vector<double> y = forward(), w = to_host(*rig.backend, dy);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * w[i];
    return sum;
  }
  /// Fourth-order central difference of the objective along element i of t.
  double slope(const Tensor& t, int64_t i) {
    const double h = 1e-4;
    auto at = [&](double step) {
      Host<double>(*rig.backend, t)[i] += step;
      const double f = objective();
      Host<double>(*rig.backend, t)[i] -= step;
      return f;
    };
    return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
  }

  ModelConfig config;
  Rig rig;
  std::unique_ptr<AnyLayer> layer;
  MicroBatch batch;
  Range rows;
  Tensor x, dy;
};

void check_slopes(Bench& b, const std::string& name, const Tensor& t, const std::vector<double>& gradient) {
  const double size = std::max(1e-2, largest(gradient));
  for (int64_t pick = 0; pick < 5; ++pick) {
    const auto i = static_cast<int64_t>((number("pick " + name, pick) + 1) / 2 * static_cast<double>(t.size()));
    EXPECT_NEAR(gradient[static_cast<size_t>(i)], b.slope(t, i), 1e-6 * size) << name << " element " << i;
  }
}

TEST(Layers, GradientsAreFiniteDifferences) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.entry->name + ", " + c.entry->family);
    Bench b(MPI_COMM_SELF, 1, c, {});
    const Result r = b.run();
    check_slopes(b, "x", b.x, r.dx);
    for (LocalParam& p : b.rig.store.all())
      if (p.param.trained) check_slopes(b, p.param.name, p.weight, gradient(b.rig, p));
  }
}

std::vector<double> rows_of(const std::vector<double>& whole, Range rows, int64_t width) {
  return {whole.begin() + rows.begin * width, whole.begin() + (rows.begin + rows.size) * width};
}

/// Cut over all ranks as tp, with and without sequence parallelism, against whole on this rank alone.
void expect_cut_equals_whole(const Case& c, RigOptions o, double tolerance) {
  Bench whole(MPI_COMM_SELF, 1, c, o);
  const Result w = whole.run();
  for (bool sp : {false, true}) {
    SCOPED_TRACE(c.entry->name + ", " + c.entry->family + ", " + std::to_string(whole.config.kv_heads) + " kv heads" +
                 (sp ? ", sequence parallel" : ""));
    o.sequence_parallel = sp;
    Bench cut(MPI_COMM_WORLD, world_size(), c, o);
    const Result r = cut.run();
    EXPECT_LE(difference(r.y, rows_of(w.y, r.rows, whole.config.hidden)), tolerance * largest(w.y)) << "y";
    EXPECT_LE(difference(r.dx, rows_of(w.dx, r.rows, whole.config.hidden)), tolerance * largest(w.dx)) << "dx";
    for (LocalParam& p : cut.rig.store.all()) {
      if (!p.param.trained) continue;
      const std::vector<double> g = gradient(whole.rig, whole.rig.store.at(p.param.name));
      // k's bias has no gradient but rounding under layers without rotary positions: compare with a floor
      EXPECT_LE(difference(gradient(cut.rig, p), part_of(g, p.param, p.piece)), tolerance * std::max(1.0, largest(g)))
          << p.param.name;
      EXPECT_GT(p.param.name == "layer.attention.k.bias" || p.param.name == "layer.k.bias" ? 1.0 : largest(g), 1e-3)
          << p.param.name;
    }
  }
}

TEST(Layers, CutOverTpEqualsWhole) {
  for (const Case& c : cases()) expect_cut_equals_whole(c, {}, 1e-12);
}

TEST(Layers, ReproducibleModeGivesTheSameBitsOnEveryTp) {
  RigOptions o;
  o.compute = DType::f32;
  o.reproducible = true;
  for (const Case& c : cases()) expect_cut_equals_whole(c, o, 0);
}

TEST(Layers, DebugBackendGivesTheBitsOfCpu) {
  for (DType type : {DType::f64, DType::f32, DType::bf16})
    for (const Case& c : cases()) {
      SCOPED_TRACE(c.entry->name + ", " + c.entry->family + ", " + name_of(type));
      RigOptions o;
      o.compute = type;
      o.sequence_parallel = world_size() > 1;
      Bench cpu(MPI_COMM_WORLD, world_size(), c, o);
      o.backend = "debug";
      Bench debug(MPI_COMM_WORLD, world_size(), c, o);
      const Result a = cpu.run(), b = debug.run();
      EXPECT_EQ(a.y, b.y);
      EXPECT_EQ(a.dx, b.dx);
      for (LocalParam& p : cpu.rig.store.all())
        EXPECT_EQ(gradient(cpu.rig, p), gradient(debug.rig, debug.rig.store.at(p.param.name))) << p.param.name;
    }
}

// O002: what the biases add to y is the same on a mesh as on one rank.
TEST(Layers, BiasesAreAddedOnce) {
  for (const Case& c : cases()) {
    if (c.entry->family != "gpt2" || c.entry->name == "layer norm") continue;
    SCOPED_TRACE(c.entry->name);
    auto shift = [&](MPI_Comm comm, int64_t tp) {
      Bench b(comm, tp, c, {});
      std::vector<double> with = b.forward();
      for (LocalParam& p : b.rig.store.all())
        if (p.param.dims.size() == 1 && p.param.init.kind == Init::zeros) b.rig.backend->zero(p.weight);
      const std::vector<double> without = b.forward();
      for (size_t i = 0; i < with.size(); ++i) with[i] -= without[i];
      return with;
    };
    const std::vector<double> one = shift(MPI_COMM_SELF, 1), many = shift(MPI_COMM_WORLD, world_size());
    EXPECT_GT(largest(one), 0.1);
    EXPECT_LE(difference(one, many), 1e-12);
  }
}

// O021: neighbouring positions keep apart at any length and precision.
TEST(Layers, RotaryTableIsThatOfDoubleAngles) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  ModelConfig c = small_model("llama");
  c.head_dim = 64;
  for (DType type : {DType::bf16, DType::f32, DType::f64}) {
    RigOptions o;
    o.compute = type;
    Rig rig(MPI_COMM_SELF, {}, {}, o);
    const std::vector<double> table = to_host(*rig.backend, make_rope_table(rig.ctx, c, 1026));
    std::vector<std::vector<double>> rows;
    for (int64_t p : {255, 256, 257, 258, 259, 1023, 1024, 1025}) {
      rows.emplace_back(table.begin() + p * 64, table.begin() + (p + 1) * 64);
      for (int64_t i = 0; i < 32; ++i) {
        const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * static_cast<double>(i) / 64);
        EXPECT_NEAR(rows.back()[static_cast<size_t>(i)], std::cos(angle), 1e-6);
        EXPECT_NEAR(rows.back()[static_cast<size_t>(32 + i)], std::sin(angle), 1e-6);
      }
    }
    for (size_t a = 0; a < rows.size(); ++a)
      for (size_t b = 0; b < a; ++b) EXPECT_GT(difference(rows[a], rows[b]), 0.1);
  }
}

}  // namespace
}  // namespace orthant
