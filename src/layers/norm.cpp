// See norm.hpp.
#include "layers/norm.hpp"

namespace orthant {

namespace {
Tensor row_of(const LocalParam* p) { return p ? p->weight.reshaped(1, p->weight.size()) : Tensor(); }
Tensor grad_of(const LocalParam* p) { return p ? p->grad.reshaped(1, p->grad.size()) : Tensor(); }
}  // namespace

std::vector<Param> Norm::params(const std::string& prefix, NormKind kind, bool bias, Dim width, unsigned contracted) {
  std::vector<Param> out;
  out.push_back({prefix + ".weight", {width}, contracted, {Init::ones, 0}, false, {}});
  if (kind == NormKind::layer && bias) out.push_back({prefix + ".bias", {width}, contracted, {Init::zeros, 0}, false, {}});
  return out;
}

Tensor Norm::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  saved.x = x;
  saved.stats = ctx.statistic(x.rows(), 2);
  Tensor y = ctx.activation(x.rows(), x.cols());
  ctx.be.norm_forward(kind_, x, row_of(gain_), row_of(bias_), eps_, y, saved.stats);
  return y;
}

Tensor Norm::again(Context& ctx, const Saved& saved) const {
  Saved scratch;
  return forward(ctx, saved.x, scratch);
}

Tensor Norm::backward(Context& ctx, const Tensor& dy, const Tensor& residual, const Saved& saved) const {
  Tensor dx = ctx.activation(dy.rows(), dy.cols());
  backward_into(ctx, dy, residual, saved, dx, true);
  return dx;
}

void Norm::backward_into(Context& ctx, const Tensor& dy, const Tensor& residual, const Saved& saved, const Tensor& dx, bool count) const {
  if (!ctx.reproducible()) {
    ctx.be.norm_backward(kind_, dy, saved.x, row_of(gain_), saved.stats, residual, dx, grad_of(gain_), grad_of(bias_));
    return;
  }
  // Gains: short runs of rows inside a canonical token block are summed in fp32, the runs exactly.
  constexpr int64_t run = 128;
  for (Range t : ctx.token_blocks(dy.rows()))
    for (int64_t at = 0; at < t.size; at += run) {
      int64_t begin = t.begin + at, rows_here = std::min(run, t.size - at);
      auto rows = [&](const Tensor& x) { return x ? x.row_range(begin, rows_here) : Tensor(); };
      Tensor d_gain = ctx.workspace(ctx.A, 1, dy.cols()), d_bias = bias_ ? ctx.workspace(ctx.A, 1, dy.cols()) : Tensor();
      ctx.be.zero(d_gain);
      if (d_bias) ctx.be.zero(d_bias);
      ctx.be.norm_backward(kind_, rows(dy), rows(saved.x), row_of(gain_), rows(saved.stats), rows(residual), rows(dx), d_gain, d_bias);
      if (!count) continue;
      ctx.be.exact_add(d_gain, gain_->grad_exact);
      if (d_bias) ctx.be.exact_add(d_bias, bias_->grad_exact);
    }
}

}  // namespace orthant
