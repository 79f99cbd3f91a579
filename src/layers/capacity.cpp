// See capacity.hpp.
#include "layers/capacity.hpp"

#include <algorithm>

#include "layers/routing.hpp"

namespace orthant {

namespace {

constexpr int64_t pieces = 2;  // a rank's tokens are at most the parts of two runs

/// What all ranks of `axis` hold of `mine`, one after the other.
Tensor gathered(Context& ctx, const Axis& axis, const Tensor& mine) {
  if (axis.size() == 1) return mine;
  Tensor all = ctx.workspace(DType::i64, axis.size() * mine.rows(), mine.cols());
  axis.gather_control(mine, all);
  return all;
}

}  // namespace

Tensor drop_over_capacity(Context& ctx, const Tensor& chosen, int64_t experts, double factor, int64_t& dropped) {
  Tensor out = ctx.be.alloc(DType::i32, chosen.rows(), chosen.cols(), MemoryKind::activations);
  if (ctx.be.shapes_only()) return out;
  const MicroBatch& batch = *ctx.batch;
  const Axis &tp = ctx.axes[AxisName::tp], &cp = ctx.axes[AxisName::cp];
  const bool cut = ctx.layout.sequence_parallel() && tp.size() > 1;
  RoutingShape s;
  s.tokens = chosen.rows();
  s.top_k = chosen.cols();
  s.experts = experts;
  const auto runs = token_runs(batch.runs, batch.sequences, cut ? tp.rank() * s.tokens : 0, s.tokens);
  ORTHANT_ENSURE(runs.size() <= pieces, "a rank's tokens lie in more than two runs of positions");

  // A row for each run of each rank: its first position, then its picks [sequence][expert].
  const int64_t cells = batch.sequences * experts;
  Tensor table = ctx.workspace(DType::i64, pieces, 1 + cells);
  ctx.be.zero(table);
  Host<int32_t> from(ctx.be, chosen), to(ctx.be, out);
  std::copy(from.data(), from.data() + chosen.size(), to.data());
  {
    Host<int64_t> h(ctx.be, table);
    for (size_t i = 0; i < runs.size(); ++i) {
      int64_t* row = h.data() + static_cast<int64_t>(i) * (1 + cells);
      row[0] = runs[i].start;
      const auto counts = count_run(to.data(), s, runs[i], batch.sequences);
      std::copy(counts.begin(), counts.end(), row + 1);
    }
  }
  if (cut) table = gathered(ctx, tp, table);
  table = gathered(ctx, cp, table);

  Host<int64_t> all(ctx.be, table);
  const int64_t capacity = expert_capacity(ctx.sequence, s.top_k, experts, factor);
  for (const TokenRun& run : runs) {
    std::vector<int64_t> before(static_cast<size_t>(cells), 0);
    for (int64_t r = 0; r < table.rows(); ++r) {
      const int64_t* row = all.data() + r * (1 + cells);
      if (row[0] >= run.start) continue;  // missing runs are rows of zeros
      for (int64_t c = 0; c < cells; ++c) before[static_cast<size_t>(c)] += row[1 + c];
    }
    dropped += drop_beyond(to.data(), s, run, batch.sequences, capacity, std::move(before));
  }
  return out;
}

}  // namespace orthant
