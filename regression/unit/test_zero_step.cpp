// Steps with states cut over dp are those of one rank: gradients, norm and weights, whatever the stage, the number of
// micro-batches, the size of a message and the overlap. And the norm over stages of a pipeline is one number.
// ranks: 2 4
#include <gtest/gtest.h>

#include "orthant/model.hpp"
#include "plan_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

const std::vector<Keys> zeros = {{"zero.stage=0"}, {"zero.stage=1"},
                                 {"zero.stage=2"}, {"zero.stage=2", "zero.accumulate=full"},
                                 {"zero.stage=3"}, {"zero.stage=3", "zero.accumulate=full"}};

/// Two steps on a mesh of dp ranks against two steps of one rank.
void compare(const std::string& name, const Keys& common, const Keys& cut, bool exact) {
  SCOPED_TRACE(name + " " + text(common + cut));
  const Keys keys = family(name) + common;
  auto plan = [&](const Keys& more, int64_t ranks) {
    return exact ? plan_of(keys + more + Keys{"run.reproducible=true"}, ranks) : in_f64(plan_of(keys + more, ranks));
  };
  const Whole whole = run_whole(plan({}, 1), 2);
  Trainer t(MPI_COMM_WORLD, plan(cut, world_size()));
  for (size_t n = 0; n < 2; ++n) expect_whole(t, t.step(), whole, n, exact ? 0 : 1e-11);
}

// O035: each micro-batch counts, also with sums under way
TEST(ZeroStep, EveryMicroBatchReachesTheGradient) {
  const char* buckets[] = {"zero.bucket=1", "zero.bucket=100", "zero.bucket=40000000"};
  size_t turn = 0;
  for (int64_t m : {1, 2, 3, 4})
    for (const Keys& zero : zeros)
      for (const std::string shard : {"zero.shard=0", "zero.shard=2"}) {
        if (shard == "zero.shard=2" && (zero == zeros[0] || world_size() == 2)) continue;
        const Keys cut =
            zero + Keys{shard, buckets[turn % 3], turn / 3 % 2 ? "comm.overlap=false" : "comm.overlap=true"};
        compare(turn % 2 ? "gpt2" : "llama", {"model.layers=1", is("batch.global", m * world_size())}, cut, false);
        ++turn;
      }
}

TEST(ZeroStep, BitsOfOneRankInReproducibleMode) {
  size_t turn = 0;
  for (const Keys& zero : zeros)
    for (int64_t m : {1, 3}) {
      const Keys cut = zero + Keys{turn % 2 ? "zero.bucket=100" : "zero.bucket=40000000",
                                   zero == zeros[0] || turn % 3 ? "zero.shard=0" : "zero.shard=2"};
      compare(turn % 3 ? "qwen3" : "gpt2", {"model.layers=1", is("batch.global", m * world_size())}, cut, true);
      ++turn;
    }
}

// With tp as well: the rows of a piece are cut, not those of the parameter.
TEST(ZeroStep, RowsOfAPieceOfTp) {
  if (world_size() != 4) GTEST_SKIP() << "four ranks";
  for (const Keys& zero : zeros) {
    compare("qwen3", {"model.layers=1"}, zero + Keys{"mesh.tp=2", "mesh.sequence_parallel=true"}, true);
    compare("gpt2", {"model.layers=1"}, zero + Keys{"mesh.tp=2", "zero.bucket=50"}, false);
  }
}

// The last rank of tp has a smaller part of the vocabulary (5 of 65 against 20), and yet sums with the others.
TEST(ZeroStep, RanksOfUnevenPiecesFillTheirBucketsAtOnce) {
  if (world_size() != 4) GTEST_SKIP() << "four ranks";
  for (const Keys& zero : zeros)
    for (const char* bucket : {"zero.bucket=100", "zero.bucket=300", "zero.bucket=1000"})
      compare(bucket == std::string("zero.bucket=300") ? "gpt2" : "llama", {"model.layers=2"},
              zero + Keys{"mesh.tp=4", "mesh.sequence_parallel=true", bucket}, false);
}

Param rows_of(const std::string& name, int64_t rows, int64_t cols) {
  Param p;
  p.name = name;
  p.dims = {{DimName::hidden, rows}};
  if (cols > 1) p.dims.push_back({DimName::hidden, cols});
  p.decay = cols > 1;
  return p;
}

// O033, O034: slices without a row, and numbers of rows that nothing divides, from gradients set by hand
TEST(ZeroStep, TinyParameters) {
  const std::vector<std::vector<Param>> units = {
      {rows_of("a", 3, 1), rows_of("b", 1, 5)}, {rows_of("c", 57, 1), rows_of("d", 58, 2)}, {rows_of("e", 59, 3)}};
  MeshShape shape;
  shape.dp = world_size();
  auto gradient = [](const Param& p, int64_t rank, int64_t micro, int64_t e) {  // no rounding in any sum
    return std::floor(64 * number(p.name + std::to_string(rank), 1000 * micro + e)) / 64;
  };
  OptimizerSettings settings;
  settings.momentum = 0;
  settings.weight_decay = 0.25;
  settings.clip = 1;
  for (int stage : {0, 1, 2, 3})
    for (bool full : {false, true})
      for (int64_t bucket : {1, 10, 1'000'000})
        for (bool reproducible : {false, true}) {
          SCOPED_TRACE("stage " + std::to_string(stage) + (full ? " full" : "") + ", bucket " +
                       std::to_string(bucket) + (reproducible ? ", reproducible" : ""));
          const auto backend = make_backend("cpu");
          const Mesh mesh(MPI_COMM_WORLD, shape);
          const Axes axes(*backend, mesh);
          const Layout layout(shape, {0, 0, 0, world_rank()}, false, reproducible);
          const Precision precision{reproducible ? DType::f32 : DType::f64};
          Context ctx(*backend, axes, layout, precision, 16, Recompute::none);
          StoreSettings store_settings;
          store_settings.slots = 1;
          store_settings.zero = {stage, full, bucket};
          ParamStore store(*backend, units, layout, precision, store_settings);
          store.fill(fill_numbers);
          Sharding(ctx, store).publish();
          store.zero_gradients();
          Sharding sharding(ctx, store);
          const int64_t micros = 3;
          for (int64_t m = 0; m < micros; ++m) {
            for (size_t u = 0; u < units.size(); ++u) store.open_gradients(static_cast<int64_t>(u));
            for (LocalParam& p : store.all()) {
              const Tensor g = backend->alloc(DType::f64, p.rows(), p.cols(), MemoryKind::workspace);
              {
                Host<double> h(*backend, g);
                for (int64_t e = 0; e < g.size(); ++e) h[e] = gradient(p.param, world_rank(), m, e);
              }
              if (reproducible)
                backend->exact_add(g, p.grad_exact);
              else
                backend->add(p.grad, g, p.grad);
            }
            if (store.zero().sums_every_micro() || m == micros - 1) {
              sharding.sum(0, 1);
              sharding.sum(1, 2);
            }
          }
          sharding.finish_sums();
          auto whole = [&](const Param& p, int64_t e) {
            double sum = 0;
            for (int64_t r = 0; r < world_size(); ++r)
              for (int64_t m = 0; m < micros; ++m) sum += gradient(p, r, m, e);
            return sum;
          };
          double squares = 0;
          for (const auto& unit : units)
            for (const Param& p : unit)
              for (int64_t e = 0; e < p.elements(); ++e) squares += whole(p, e) * whole(p, e);
          const double norm = gradient_norm(ctx, store);
          EXPECT_EQ(norm, std::sqrt(squares));
          update_parameters(ctx, store, optimizer("sgd"), settings, 0.5, 1, norm);
          for (LocalParam& p : store.all()) {
            if (stage == 3) sharding.gather({&p});
            if (stage == 3) sharding.need();
            std::vector<double> want;
            std::vector<float> start(static_cast<size_t>(p.param.elements()));
            fill_numbers(p.param, p.piece, start.data());
            for (int64_t e = 0; e < p.param.elements(); ++e) {
              const double w = start[static_cast<size_t>(e)], decay = p.param.decay ? 1 - 0.5 * 0.25 : 1;
              want.push_back(w * decay - 0.5 * whole(p.param, e) / (norm + 1e-6));
            }
            EXPECT_LE(difference(to_host(*backend, p.weight), want), reproducible ? 2e-7 : 1e-15) << p.param.name;
            if (stage == 3) sharding.release({&p});
          }
        }
}

/// Sets one element of the global gradient, as it lies after the sums. How many own rows of this rank it changed:
/// 0, 1.
int64_t set_gradient(Session& s, const std::string& name, int64_t element, double value) {
  for (LocalParam& p : s.store->all()) {
    const int64_t row = element / p.param.cols() - p.own.row, col = element % p.param.cols();
    if (p.param.name != name || p.copy || row < 0 || row >= p.own.rows) continue;
    const Tensor one = s.backend->alloc(p.own_grad.dtype(), 1, 1, MemoryKind::workspace);
    {
      Host<float> h(*s.backend, one);
      h[0] = static_cast<float>(value);
    }
    s.backend->copy(p.own_grad.row_range(row, 1).col_range(col, 1), one);
    return 1;
  }
  return 0;
}

// O038: stage norms of 3 and 4 are a norm of 5 everywhere, and every stage scales by 1/5
TEST(ZeroStep, StagesOfAPipelineClipByOneNorm) {
  struct Element {
    std::string name;
    int64_t element;
    double value;
  };
  struct Case {
    Keys keys;
    std::vector<Element> gradients;
  };
  const std::vector<Case> cases = {
      // stage 0: 3, stage 1: 4
      {{"pipeline.schedule=1f1b"}, {{"layers.0.mlp.up.weight", 17, 3}, {"layers.3.mlp.up.weight", 5, 4}}},
      {{"pipeline.schedule=zero_bubble"}, {{"embedding.tokens.weight", 64 * 16, 3}, {"final_norm.weight", 15, 4}}},
      // chunks of 1, 2 blocks: embedding and 0 | 1, 2 | 3, 4 | 5 and head; stage norms sqrt(1 + 8) and sqrt(7 + 9)
      {{"pipeline.schedule=interleaved", "pipeline.virtual_stages=2", "model.layers=6"},
       {{"layers.0.mlp.up.weight", 17, 1},
        {"layers.3.mlp.up.weight", 5, 2},
        {"layers.4.norm1.weight", 3, 2},
        {"layers.1.mlp.up.weight", 0, std::sqrt(7.0)},
        {"final_norm.weight", 2, 3}}},
      // the V: embedding, 0, 5, head on stage 0
      {{"pipeline.schedule=zero_bubble", "pipeline.virtual_stages=2", "model.layers=6"},
       {{"layers.0.mlp.up.weight", 17, 1},
        {"layers.5.mlp.up.weight", 5, 2},
        {"final_norm.weight", 3, 2},
        {"layers.1.mlp.up.weight", 0, std::sqrt(7.0)},
        {"layers.4.norm1.weight", 2, 3}}},
  };
  for (const Case& c : cases)
    for (const char* name : {"gpt2", "llama"})
      for (const Keys& zero : zeros) {
        const Keys keys = family(name) + c.keys + zero +
                          Keys{"mesh.pp=2", "optimizer.name=sgd", "optimizer.momentum=0", "optimizer.weight_decay=0",
                               "optimizer.clip=1"};
        SCOPED_TRACE(text(keys));
        Trainer t(MPI_COMM_WORLD, plan_of(keys, world_size()));
        Session& s = t.session;
        s.store->zero_gradients();
        int64_t holders = 0;
        for (const Element& e : c.gradients) holders += set_gradient(s, e.name, e.element, e.value);
        MPI_Allreduce(MPI_IN_PLACE, &holders, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        EXPECT_EQ(holders,
                  static_cast<int64_t>(c.gradients.size()) * (s.store->zero().cuts_state() ? 1 : t.plan.mesh.dp));
        const double norm = gradient_norm(s.ctx, *s.store);
        EXPECT_NEAR(norm, 5, 1e-6);
        std::map<std::string, std::vector<double>> before;
        for (LocalParam& p : s.store->all()) before[p.param.name] = to_host(*s.backend, p.own_weight);
        update_parameters(s.ctx, *s.store, s.optimizer, optimizer_settings(t.plan.deck), 1.0, 1, norm);
        for (LocalParam& p : s.store->all()) {
          std::vector<double> want = before[p.param.name];
          for (const Element& e : c.gradients) {
            const int64_t at = e.element - p.own.row * p.param.cols();
            if (p.param.name == e.name && at >= 0 && at < static_cast<int64_t>(want.size()))
              want[static_cast<size_t>(at)] -= e.value / 5;
          }
          EXPECT_LE(difference(to_host(*s.backend, p.own_weight), want), 1e-6) << p.param.name;
        }
      }
}

}  // namespace
}  // namespace orthant
