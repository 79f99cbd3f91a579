// See head.hpp.
#include "layers/head.hpp"

#include <algorithm>

#include "layers/block.hpp"
#include "orthant/elementwise.hpp"

namespace orthant {

namespace {
constexpr int64_t logit_bytes = int64_t{96} << 20;  // of one chunk: enough rows for fast products

/// Reads a column of A or f64 values as double.
std::vector<double> read(Context& ctx, const Tensor& x) {
  std::vector<double> out(static_cast<size_t>(x.size()));
  if (x.dtype() == DType::f64) {
    Host<double> h(ctx.be, x);
    for (int64_t i = 0; i < x.size(); ++i) out[static_cast<size_t>(i)] = h[i];
  } else {
    Host<float> h(ctx.be, x);
    for (int64_t i = 0; i < x.size(); ++i) out[static_cast<size_t>(i)] = static_cast<double>(h[i]);
  }
  return out;
}
}  // namespace

std::vector<Param> Head::params(const ModelConfig& c) {
  const Dim hidden{DimName::hidden, c.hidden, 1};
  std::vector<Param> out = Norm::params("final_norm", norm_kind(c), c.bias, hidden, over_tokens);
  if (!c.tie_embeddings)
    out.push_back({"head.weight", {{DimName::vocab, c.vocab, 1}, hidden}, over_all_tokens, {Init::normal, c.init_std}, true, {}});
  return out;
}

Head::Head(const ModelConfig& c, ParamStore& store, const Axes& axes, const Layout& layout)
    : norm_(make_norm("final_norm", c, store)), weight_(&store.at(c.tie_embeddings ? "embedding.tokens.weight" : "head.weight")),
      z_loss_(c.z_loss), first_(layout.vocab(c.vocab).begin), block_(vocab_block(c.vocab, layout.vocab_parts())), edge_(axes, layout) {}

int64_t Head::chunk_rows(const Context& ctx) const {
  if (ctx.reproducible()) return (ctx.sequence + 15) / 16 * ctx.batch->sequences;  // one canonical token block
  // The same chunks on every rank of tp, whatever its share of the vocabulary: each chunk is a collective call.
  int64_t width = std::max<int64_t>(1, block_ * ((16 + edge_.cut().size() - 1) / edge_.cut().size()));
  return std::max<int64_t>(64, logit_bytes / (width * size_of(ctx.A)) / 64 * 64);
}

Tensor Head::logits(Context& ctx, const Tensor& x) const {
  Tensor z = ctx.workspace(ctx.A, x.rows(), weight_->rows());
  if (!ctx.reproducible()) {
    ctx.be.gemm(x, false, weight_->weight, true, z, false);
    return z;
  }
  ctx.be.gemm_canonical(x, false, weight_->weight, true, z);
  return z;
}

LossSum Head::forward(Context& ctx, const Tensor& x_SD, bool train, Saved& s) const {
  const MicroBatch& mb = *ctx.batch;
  Tensor x = edge_.enter(ctx, norm_.forward(ctx, x_SD, s.norm), "loss forward");
  const int64_t tokens = x.rows(), step = chunk_rows(ctx);
  if (train) s.dx = make_partial(ctx, tokens, x.cols());
  LossSum total;
  for (int64_t at = 0; at < tokens; at += step) {
    const Range r{at, std::min(step, tokens - at)};
    Tensor xc = x.row_range(r.begin, r.size), labels = mb.labels.row_range(r.begin, r.size), weights = mb.weights.row_range(r.begin, r.size);
    Tensor z = logits(ctx, xc);
    Tensor max = ctx.workspace(ctx.A, r.size, 1), sum = ctx.workspace(DType::f64, r.size, 1), target = ctx.workspace(ctx.A, r.size, 1);
    ctx.be.row_max(z, max);
    edge_.cut().max(max, "loss: largest logit").wait();
    ctx.be.pick(z, labels, first_, target);
    if (ctx.reproducible()) {
      // Sums of exp over canonical vocabulary blocks, added exactly.
      Tensor exact = ctx.workspace(DType::i64, 2, r.size);
      ctx.be.zero(exact);
      for (int64_t v = 0; v < z.cols(); v += block_) {
        Tensor part = ctx.workspace(DType::f64, r.size, 1);
        ctx.be.row_sum_exp(z.col_range(v, std::min(block_, z.cols() - v)), max, part);
        ctx.be.exact_add(part, exact);
      }
      ctx.be.exact_carry(exact);
      edge_.cut().sum(exact, "loss: sum of exp").wait();
      ctx.be.exact_carry(exact);
      ctx.be.exact_value(exact, sum);
      edge_.cut().sum(target, "loss: label's logit").wait();  // one rank's number and zeros: exact as it is
    } else {
      Tensor both = ctx.workspace(ctx.A, 2, r.size);
      ctx.be.row_sum_exp(z, max, sum);
      ctx.be.copy(both.row_range(0, 1), sum.reshaped(1, r.size));
      ctx.be.copy(both.row_range(1, 1), target.reshaped(1, r.size));
      edge_.cut().sum(both, "loss: sum of exp and label's logit").wait();
      ctx.be.copy(sum.reshaped(1, r.size), both.row_range(0, 1));
      ctx.be.copy(target.reshaped(1, r.size), both.row_range(1, 1));
    }
    if (!ctx.be.shapes_only()) {
      std::vector<double> m = read(ctx, max), e = read(ctx, sum), t = read(ctx, target), w = read(ctx, weights);
      for (size_t i = 0; i < m.size(); ++i)
        if (w[i] > 0) total.add(log_(e[i]) + m[i] - t[i]);
    }
    if (train) {
      Tensor dz = ctx.T == ctx.A ? z : ctx.workspace(ctx.T, r.size, z.cols());
      ctx.be.softmax_backward(z, max, sum, labels, first_, weights, z_loss_, dz);
      backward_chunk(ctx, xc, dz, s.dx, r);
    }
  }
  return total;
}

void Head::backward_chunk(Context& ctx, const Tensor& x, const Tensor& dz, Partial& dx, Range rows) const {
  if (!ctx.reproducible()) {
    ctx.be.gemm(dz, false, weight_->weight, false, dx.value.row_range(rows.begin, rows.size), false);
    ctx.be.gemm(dz, true, x, false, weight_->grad, true);
    return;
  }
  const Tensor dx_exact = dx.exact.col_range(rows.begin * dx.cols, rows.size * dx.cols);
  for (int64_t v = 0; v < weight_->rows(); v += block_) {
    int64_t n = std::min(block_, weight_->rows() - v);
    Tensor part = ctx.workspace(ctx.A, rows.size, x.cols());
    ctx.be.gemm_canonical(dz.col_range(v, n), false, weight_->weight.row_range(v, n), false, part);
    ctx.be.exact_add(part, dx_exact);
  }
  backward_weight(ctx, *weight_, dz, x);
}

Tensor Head::backward(Context& ctx, Saved& s) const {
  Tensor dn = edge_.leave(ctx, s.dx, "loss backward").wait();
  s.dx = {};
  Tensor dx = norm_.backward(ctx, dn, {}, s.norm);
  s = {};
  return dx;
}

Tensor Head::last_logits(Context& ctx, const Tensor& x_SD) const {
  Norm::Saved scratch;
  Tensor x = edge_.enter(ctx, norm_.forward(ctx, x_SD, scratch), "logits");
  int64_t B = ctx.batch->sequences;
  return logits(ctx, x.row_range(x.rows() - B, B));
}

}  // namespace orthant
