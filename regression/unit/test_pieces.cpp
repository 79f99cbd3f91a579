// comm.chunks: products and collectives in pieces give loss and gradients of one rank, send the same bytes in more calls,
// and have a piece under way while another is multiplied.
// ranks: 2 4
// labels: smoke
// seconds: 60
#include <gtest/gtest.h>

#include "layers/pieces.hpp"
#include "model_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

ModelBench bench(MPI_Comm comm, const std::string& family, int64_t tp, bool sequence_parallel, int64_t chunks, const std::string& backend) {
  const ModelConfig c = small_model(family);
  RigOptions o;
  o.sequence_parallel = sequence_parallel;
  o.backend = backend;
  o.chunks = chunks;
  return {comm, mesh_of(c, tp, 1, 1), c, o};
}

struct Sent {
  int64_t calls = 0, bytes = 0;
};
Sent sent_on_tp(const Traffic& t) {
  Sent out;
  for (const auto& [key, e] : t.entries())
    if (key.first == AxisName::tp) {
      out.calls += e.calls;
      out.bytes += e.scaled_bytes;
    }
  return out;
}

// 2 sequences of 16 tokens over 2 or 4 ranks: shards of 16 or 8 rows; 3 and 5 do not divide them, 64 is more than there are
TEST(Pieces, AnyNumberGivesTheModelOfOneRank) {
  for (const char* family : {"gpt2", "llama", "qwen3"}) {
    ModelBench whole = bench(MPI_COMM_SELF, family, 1, false, 1, "cpu");
    const double loss = whole.run(2, true);
    for (const bool sequence_parallel : {false, true}) {
      Sent one;
      for (const int64_t chunks : {1, 2, 3, 5, 64}) {
        SCOPED_TRACE(std::string(family) + (sequence_parallel ? ", sequence parallel, " : ", ") + std::to_string(chunks) + " pieces");
        ModelBench cut = bench(MPI_COMM_WORLD, family, world_size(), sequence_parallel, chunks, chunks == 3 ? "debug" : "cpu");
        EXPECT_NEAR(cut.run(2, true), loss, 1e-12 * loss);
        expect_gradients(cut, whole, 1e-11);
        const Sent sent = sent_on_tp(cut.rig.axes.traffic());
        if (chunks == 1) one = sent;
        EXPECT_EQ(sent.bytes, one.bytes);
        if (chunks > 1) { EXPECT_GT(sent.calls, one.calls); }
      }
    }
  }
}

// While piece i of a `leave` is multiplied those before it travel.
TEST(Pieces, OneTravelsWhileAnotherIsMultiplied) {
  ModelBench m = bench(MPI_COMM_WORLD, "llama", world_size(), true, 4, "cpu");
  Context& ctx = m.rig.ctx;
  MicroBatch mb = micro_batch(ctx, 0, 2, m.config.vocab, 1);
  ctx.batch = &mb;
  const Axis& tp = ctx.axes[AxisName::tp];
  const HeadEdge edge(ctx.axes, ctx.layout);
  const auto under_way = [&] {
    int n = 0;
    for (const CallRecord& r : m.rig.axes.traffic().ring()) n += r.axis == AxisName::tp && !r.finished;
    return n;
  };
  const int64_t tokens = mb.tokens();
  const Tensor a = tensor_of_numbers(*m.rig.backend, ctx.T, "a", 0, tokens, 8);
  std::vector<int> seen;
  Tensor out = pieces::leave_rows(ctx, edge, tokens, 8,
                                  [&](Range rows, const Tensor& y) {
                                    if (rows.begin < tokens / tp.size()) seen.push_back(under_way());
                                    ctx.be.copy(y, a.row_range(rows.begin, rows.size));
                                  },
                                  "test")
                   .wait();
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(under_way(), 0);
  // every rank gave the same rows, so the sum is so many times its own part
  const std::vector<double> got = to_host(*m.rig.backend, out), all = to_host(*m.rig.backend, a);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], tp.size() * all[static_cast<size_t>(tp.rank()) * got.size() + i]);
  ctx.batch = nullptr;
}

}  // namespace
}  // namespace orthant
