// See router.hpp.
#include "layers/router.hpp"

#include "layers/capacity.hpp"
#include "layers/linear.hpp"
#include "orthant/router_stats.hpp"

namespace orthant {

namespace {

/// x in A.
Tensor widened(Context& ctx, const Tensor& x) {
  if (x.dtype() == ctx.A) return x;
  Tensor wide = ctx.workspace(ctx.A, x.rows(), x.cols());
  ctx.be.copy(wide, x);
  return wide;
}

void product(Context& ctx, const Tensor& a, const Tensor& b, bool transpose_b, const Tensor& c) {
  if (ctx.reproducible())
    ctx.be.gemm_canonical(a, false, b, transpose_b, c);
  else
    ctx.be.gemm(a, false, b, transpose_b, c, false);
}

}  // namespace

std::vector<Param> Router::params(const std::string& prefix, const ModelConfig& c) {
  const Dim experts{DimName::experts, c.moe.experts, 1}, hidden{DimName::hidden, c.hidden, 1};
  std::vector<Param> out;
  out.push_back({prefix + ".weight", {experts, hidden}, over_tokens, {Init::normal, c.init_std}, true, {}});
  if (c.selection_bias())
    out.push_back({prefix + ".bias", {experts}, over_tokens, {Init::zeros, 0}, false, {}, -1, false});
  return out;
}

Router::Router(const std::string& prefix, const ModelConfig& c, int64_t layer, ParamStore& store)
    : weight_(&store.at(prefix + ".weight")),
      layer_(layer),
      aux_loss_(c.moe.aux_loss),
      z_loss_(c.moe.z_loss),
      capacity_factor_(c.moe.capacity_factor) {
  if (c.selection_bias()) bias_ = &store.at(prefix + ".bias");
  shape_.experts = c.moe.experts;
  shape_.top_k = c.moe.top_k;
  shape_.sigmoid = c.moe.sigmoid;
  shape_.groups = c.moe.groups;
  shape_.top_groups = c.moe.top_groups;
  shape_.normalise = c.moe.norm_topk;
  shape_.scale = c.moe.scale;
}

/// The gradient of coefficient * mean over sequences of E sum_i f_i P_i by a token's share of each expert. `counts`
/// are those of whole sequences, and have no gradient.
Tensor Router::balance_of(Context& ctx, const Tensor& counts) const {
  Tensor balance = ctx.statistic(counts.rows(), counts.cols());
  if (ctx.be.shapes_only()) return balance;
  const double length = static_cast<double>(ctx.sequence), picks = length * static_cast<double>(shape_.top_k);
  const double each =
      ctx.loss_scale * aux_loss_ * static_cast<double>(shape_.experts) / (length * static_cast<double>(ctx.global_sequences));
  Tensor wide = ctx.workspace(DType::f64, counts.rows(), counts.cols());
  {
    Host<int64_t> n(ctx.be, counts);
    Host<double> out(ctx.be, wide);
    for (int64_t i = 0; i < counts.size(); ++i) out[i] = each * (static_cast<double>(n[i]) / picks);
  }
  ctx.be.copy(balance, wide);
  return balance;
}

/// Loads and shares for the report of the step, and the balance that backward needs.
void Router::report(Context& ctx, const Tensor& shares, Saved& s) const {
  const int64_t sequences = ctx.batch->sequences, cells = sequences * shape_.experts;
  const bool whole = aux_loss_ > 0;
  s.z = ctx.loss_scale * z_loss_ / (static_cast<double>(ctx.global_sequences) * static_cast<double>(ctx.sequence));
  if (ctx.again && !whole) return;
  Tensor counts = ctx.be.alloc(DType::i64, sequences, shape_.experts, MemoryKind::activations);
  ctx.be.zero(counts);
  ctx.be.count_choices(s.chosen, counts);
  if (whole) {
    if (ctx.layout.sequence_parallel()) ctx.axes[AxisName::tp].sum_control(counts);
    ctx.axes[AxisName::cp].sum_control(counts);
    s.balance = balance_of(ctx, counts);
  }
  if (ctx.again) return;
  const Tensor by_position = shares.reshaped(shares.rows() / sequences, cells);
  Tensor sums;
  if (ctx.reproducible()) {
    sums = ctx.be.alloc(DType::i64, 2, cells, MemoryKind::activations);
    ctx.be.zero(sums);
    for (int64_t p = 0; p < by_position.rows(); ++p) ctx.be.exact_add(by_position.row_range(p, 1), sums);
  } else {
    sums = ctx.statistic(1, cells);
    ctx.be.zero(sums);
    ctx.be.sum_rows(by_position, sums);
    sums = sums.reshaped(sequences, shape_.experts);
  }
  ctx.router_stats->add(layer_, counts, whole, sums);
}

Router::Choice Router::forward(Context& ctx, const Tensor& x, Saved& s) const {
  s.logits = ctx.statistic(x.rows(), shape_.experts);
  product(ctx, widened(ctx, x), widened(ctx, weight_->weight), true, s.logits);
  s.chosen = ctx.be.alloc(DType::i32, x.rows(), shape_.top_k, MemoryKind::activations);
  Choice c;
  c.weights = ctx.statistic(x.rows(), shape_.top_k);
  Tensor shares = ctx.workspace(ctx.A, x.rows(), shape_.experts);
  ctx.be.router_forward(shape_, s.logits, bias_ ? bias_->weight.reshaped(1, shape_.experts) : Tensor(), s.chosen,
                        c.weights, shares);
  if (ctx.router_stats) report(ctx, shares, s);
  c.chosen = capacity_factor_ > 0 ? drop_over_capacity(ctx, s.chosen, shape_.experts, capacity_factor_, c.dropped)
                                  : s.chosen;
  return c;
}

void Router::backward(Context& ctx, const Tensor& x, const Tensor& d_weights, const Saved& s,
                      const Tensor& dx) const {
  Tensor d_logits = ctx.statistic(x.rows(), shape_.experts);
  ctx.be.router_backward(shape_, s.logits, s.chosen, d_weights, s.balance, s.z, d_logits);
  Tensor part = ctx.workspace(ctx.A, x.rows(), x.cols());
  product(ctx, d_logits, widened(ctx, weight_->weight), false, part);
  ctx.be.add(dx, part, dx);
  ctx.defer([this, &ctx, d_logits, x] { backward_weight(ctx, *weight_, d_logits, widened(ctx, x)); });
}

}  // namespace orthant
