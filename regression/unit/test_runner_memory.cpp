// What a step keeps of its micro-batches is what its schedule says: counted by the allocator, on shapes.
// ranks: 1
#include <gtest/gtest.h>

#include <algorithm>

#include "plan_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

struct Order {
  std::string schedule;
  int64_t chunks = 1;
};

/// Two blocks a chunk.
RunPlan plan_for(const Order& o, int64_t pp, int64_t m, const Keys& more = {}) {
  return plan_of(family("llama") +
                     Keys{"model.hidden=64", "model.ffn=128", is("mesh.pp", pp), is("batch.global", m),
                          is("model.layers", 2 * pp * o.chunks), "pipeline.schedule=" + o.schedule,
                          is("pipeline.virtual_stages", o.chunks)} +
                     more,
                 pp);
}

/// Highest bytes of activations of stage `s` in a step, beyond those that stay (tables of angles).
int64_t peak(const RunPlan& plan, int64_t s) {
  ShapeRun run(plan, {0, 0, s, 0});
  const int64_t stays = run.account().now(MemoryKind::activations);
  run.step();
  EXPECT_EQ(run.account().now(MemoryKind::activations), stays) << "something of the step is kept";
  return run.account().peak(MemoryKind::activations) - stays;
}

/// Bytes that a chunk keeps of one micro-batch: from F to B, and from B to W.
struct Kept {
  int64_t forward = 0, deferred = 0;
};
Kept kept_by(const RunPlan& plan, int64_t s, size_t chunk) {
  ShapeRun run(plan, {0, 0, s, 0});
  Context& ctx = run.session.ctx;
  const MicroBatch mb = blank_batch(ctx, plan.micro(), plan.sequence());
  ctx.batch = &mb;
  const auto& units = run.session.stage->chunks[chunk].units;
  const int64_t start = run.account().now(MemoryKind::activations);
  auto fresh = [&] { return ctx.activation(plan.shard_tokens(), plan.model.hidden); };
  std::vector<std::unique_ptr<Stash>> stash(units.size());
  LossSum loss;
  Kept out;
  {
    Tensor x = run.session.plan.cut[static_cast<size_t>(plan.pipeline.virtual_stage(s, static_cast<int64_t>(chunk)))]
                       .embedding
                   ? Tensor()
                   : fresh();
    for (size_t u = 0; u < units.size(); ++u) x = units[u]->forward(ctx, x, true, stash[u], loss);
  }
  out.forward = run.account().now(MemoryKind::activations) - start;
  ctx.keep_deferred = true;
  std::vector<std::vector<std::function<void()>>> deferred;
  {
    Tensor dy = fresh();
    for (size_t u = units.size(); u-- > 0;) {
      dy = units[u]->backward(ctx, dy, stash[u]);
      deferred.push_back(ctx.take_deferred());
    }
  }
  out.deferred = run.account().now(MemoryKind::activations) - start;
  ctx.batch = nullptr;
  return out;
}

// One micro-batch more is one stage's activations more: until the warm-up is over with 1F1B, for ever with GPipe.
TEST(RunnerMemory, OneForwardOneBackwardDoesNotGrowWithTheBatch) {
  for (int64_t pp : {2, 4})
    for (int64_t s = 0; s < pp; ++s) {
      SCOPED_TRACE("stage " + std::to_string(s) + " of " + std::to_string(pp));
      const int64_t in_flight = pp - s, chunk = kept_by(plan_for({"1f1b"}, pp, 1), s, 0).forward;
      ASSERT_GT(chunk, 0);
      const int64_t settled = peak(plan_for({"1f1b"}, pp, pp), s);
      for (int64_t m : {pp + 1, 2 * pp, 2 * pp + 1, 5 * pp})
        EXPECT_EQ(peak(plan_for({"1f1b"}, pp, m), s), settled) << m << " micro-batches";
      const int64_t one = peak(plan_for({"1f1b"}, pp, 1), s);
      EXPECT_GE(settled - one, (in_flight - 1) * chunk);
      EXPECT_LT(settled - one, in_flight * chunk);

      int64_t before = peak(plan_for({"gpipe"}, pp, 2), s);
      for (int64_t m : {3, 4, 8}) {
        const int64_t now = peak(plan_for({"gpipe"}, pp, m), s), more = m == 8 ? 4 : 1;
        EXPECT_EQ(now - before, more * chunk) << m << " micro-batches";
        before = now;
      }
    }
}

TEST(RunnerMemory, GrowsWithTheStagesBefore) {
  for (int64_t pp : {2, 4, 6}) {
    const RunPlan plan = plan_for({"1f1b"}, pp, 2 * pp);
    const int64_t chunk = kept_by(plan, 1, 0).forward;  // blocks only, but for pp = 2
    for (int64_t s = 1; s + 2 < pp; ++s)
      EXPECT_EQ(peak(plan, s) - peak(plan, s + 1), chunk) << "stage " << s << " of " << pp;
  }
}

// A message is received one ahead, never more, also where a stage hands half of its inputs to itself (the bend of a
// V).
TEST(RunnerMemory, OnlyGpipeGrowsWithTheBatch) {
  for (const Order& o : {Order{"1f1b"}, Order{"interleaved", 2}, Order{"interleaved", 3}, Order{"zero_bubble"},
                         Order{"zero_bubble", 2}})
    for (int64_t pp : {1, 2, 3})
      for (int64_t s = 0; s < pp; ++s)
        EXPECT_EQ(peak(plan_for(o, pp, 12), s), peak(plan_for(o, pp, 48), s))
            << o.schedule << " x " << o.chunks << ", stage " << s << " of " << pp;
}

// What the checker counts, in bytes: stashes of chunks at their largest, and half a chunk, which is one block, for
// the unit at work and for messages.
TEST(RunnerMemory, StaysWithinTheCheckersCount) {
  for (const Order& o : {Order{"gpipe"}, Order{"1f1b"}, Order{"interleaved", 2}, Order{"interleaved", 3},
                         Order{"zero_bubble"}, Order{"zero_bubble", 2}})
    for (int64_t pp : {2, 4})
      for (int64_t m : {1, 2, 3, 4, 8, 9}) {
        const RunPlan plan = plan_for(o, pp, m);
        const ScheduleReport report = check_pipeline(plan.pipeline);
        for (int64_t s = 0; s < pp; ++s) {
          SCOPED_TRACE(o.schedule + " x " + std::to_string(o.chunks) + ", m " + std::to_string(m) + ", stage " +
                       std::to_string(s) + " of " + std::to_string(pp));
          int64_t largest = 0;
          for (int64_t c = 0; c < o.chunks; ++c) {
            const Kept kept = kept_by(plan, s, static_cast<size_t>(c));
            largest = std::max({largest, kept.forward, plan.pipeline.split ? kept.deferred : 0});
          }
          const double chunks = report.peak_stash[static_cast<size_t>(s)] * static_cast<double>(o.chunks);
          const int64_t bytes = static_cast<int64_t>(std::llround(chunks)) * largest, seen = peak(plan, s);
          EXPECT_LE(seen, bytes + largest / 2);
          EXPECT_GT(2 * seen, bytes);
        }
      }
}

}  // namespace
}  // namespace orthant
