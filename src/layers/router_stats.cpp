// See orthant/router_stats.hpp. Sums over the parts of a sequence come first, then the loss of each sequence in
// double, then exact sums over sequences, layers and ranks: no mesh changes their order.
#include "orthant/router_stats.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "orthant/exact_sum.hpp"

namespace orthant {

namespace {

/// What a layer adds to the sums over dp and pp: an exact sum, whether a value was lost to it, then loads.
constexpr int64_t lanes = 3;

Tensor summed(Context& ctx, const std::vector<int64_t>& values, std::initializer_list<AxisName> axes) {
  Tensor t = ctx.workspace(DType::i64, 1, static_cast<int64_t>(values.size()));
  {
    Host<int64_t> h(ctx.be, t);
    std::copy(values.begin(), values.end(), h.data());
  }
  for (AxisName a : axes) ctx.axes[a].sum_control(t);
  return t;
}

/// Sums over the ranks that hold parts of the same sequences.
void sum_parts_of_sequences(Context& ctx, const Tensor& t) {
  if (ctx.layout.sequence_parallel()) ctx.axes[AxisName::tp].sum_control(t);
  ctx.axes[AxisName::cp].sum_control(t);
}

}  // namespace

void RouterStats::add(int64_t layer, const Tensor& counts, bool whole, const Tensor& shares) {
  ORTHANT_ENSURE(layer >= first_ && layer < first_ + layers_,
                 "block " + std::to_string(layer) + " has no mixture layer");
  ORTHANT_ENSURE(counts.cols() == experts_, "counts of another number of experts");
  entries_.push_back({layer, counts, whole, shares});
}

void RouterStats::add_rows(int64_t dropped, int64_t off_rank_rows) {
  dropped_ += dropped;
  off_rank_rows_ += off_rank_rows;
}

RouterReport RouterStats::finish(Context& ctx) {
  RouterReport report;
  report.load.assign(static_cast<size_t>(layers_), std::vector<int64_t>(static_cast<size_t>(experts_), 0));
  const auto entries = std::move(entries_);
  entries_.clear();
  const std::vector<int64_t> rows = {std::exchange(dropped_, 0), std::exchange(off_rank_rows_, 0)};
  if (ctx.be.shapes_only()) return report;

  // One buffer of all counts that are not whole, one of all sums of shares (double, or pairs of integers). The ranks
  // of tp and cp ran the same micro-batches, so their buffers agree.
  const int64_t wide = ctx.reproducible() ? 2 : 1;
  int64_t cut = 0, cells = 0;
  for (const Entry& e : entries) {
    cells += e.counts.size();
    if (!e.whole) cut += e.counts.size();
  }
  Tensor counts = ctx.workspace(DType::i64, 1, cut);
  Tensor shares = ctx.workspace(ctx.reproducible() ? DType::i64 : DType::f64, wide, cells);
  int64_t at = 0, cut_at = 0;
  for (const Entry& e : entries) {
    const int64_t n = e.counts.size();
    if (ctx.reproducible()) ctx.be.exact_carry(e.shares);
    ctx.be.copy(shares.col_range(at, n), e.shares.reshaped(wide, n));
    if (!e.whole) ctx.be.copy(counts.col_range(cut_at, n), e.counts.reshaped(1, n)), cut_at += n;
    at += n;
  }
  if (cut > 0) sum_parts_of_sequences(ctx, counts);
  if (cells > 0) sum_parts_of_sequences(ctx, shares);
  Tensor values = shares;
  if (ctx.reproducible()) {
    values = ctx.workspace(DType::f64, 1, cells);
    ctx.be.exact_carry(shares);
    ctx.be.exact_value(shares, values);
  }

  const int64_t width = lanes + experts_;
  std::vector<ExactSum> aux(static_cast<size_t>(layers_));
  std::vector<int64_t> sums(static_cast<size_t>(layers_ * width), 0);
  at = cut_at = 0;
  for (const Entry& e : entries) {
    const auto layer = static_cast<size_t>(e.layer - first_);
    int64_t* mine = sums.data() + static_cast<int64_t>(layer) * width;
    const int64_t n = e.counts.size();
    Host<int64_t> picks(ctx.be, e.whole ? e.counts.reshaped(1, n) : counts.col_range(cut_at, n));
    Host<double> share(ctx.be, values.col_range(at, n));
    for (int64_t s = 0; s < e.counts.rows(); ++s) {
      int64_t all = 0;
      double loss = 0;
      for (int64_t i = 0; i < experts_; ++i) {
        const int64_t load = picks[s * experts_ + i];
        all += load;
        mine[lanes + i] += load;
      }
      for (int64_t i = 0; i < experts_; ++i) {
        const double f = static_cast<double>(picks[s * experts_ + i]) / static_cast<double>(all);
        loss += f * (share[s * experts_ + i] / static_cast<double>(ctx.sequence));
      }
      if (!aux[layer].add(static_cast<double>(experts_) * loss)) mine[2] = 1;
    }
    at += n;
    if (!e.whole) cut_at += n;
  }
  for (size_t l = 0; l < aux.size(); ++l) {
    sums[l * static_cast<size_t>(width)] = aux[l].hi;
    sums[l * static_cast<size_t>(width) + 1] = aux[l].lo;
  }

  // All ranks of tp and cp now know the same: what is left are other sequences and other layers.
  const Tensor whole = summed(ctx, sums, {AxisName::dp, AxisName::pp});
  Host<int64_t> h(ctx.be, whole);
  ExactSum total;
  bool lost = false;
  for (int64_t l = 0; l < layers_; ++l) {
    const int64_t* of = h.data() + l * width;
    total.hi += of[0];
    total.lo += of[1];
    total.carry();
    lost |= of[2] != 0;
    auto& load = report.load[static_cast<size_t>(l)];
    std::copy(of + lanes, of + width, load.begin());
    int64_t all = 0, most = 0;
    for (int64_t n : load) all += n, most = std::max(most, n);
    if (all > 0)
      report.load_max_over_mean =
          std::max(report.load_max_over_mean, static_cast<double>(most * experts_) / static_cast<double>(all));
  }
  report.aux_loss = lost          ? std::numeric_limits<double>::quiet_NaN()
                    : layers_ > 0 ? total.value() / static_cast<double>(layers_ * ctx.global_sequences)
                                  : 0;
  const Tensor moved = summed(ctx, rows, {AxisName::tp, AxisName::cp, AxisName::dp, AxisName::pp});
  Host<int64_t> m(ctx.be, moved);
  report.dropped = m[0];
  report.off_rank_rows = m[1];
  return report;
}

}  // namespace orthant
