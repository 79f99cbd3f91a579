// See linear.hpp.
#include "layers/linear.hpp"

#include "layers/fp8.hpp"

namespace orthant {

namespace {

/// Blocks of `block` in [0, n).
std::vector<Range> blocks_of(int64_t n, int64_t block) {
  ORTHANT_ENSURE(block > 0 || n == 0, "canonical block without a length");
  std::vector<Range> out;
  for (int64_t at = 0; at < n; at += block) out.push_back({at, std::min(block, n - at)});
  return out;
}

/// The FP8 products of a weight, or nullptr where it has others.
Fp8* fp8_of(const Context& ctx, const LocalParam& w) { return ctx.fp8 && ctx.fp8->covers(w) ? ctx.fp8 : nullptr; }

/// Whatever tp does to the layer: a rank that holds a whole operand finds the maximum that the others find.
const Axis& tp_of(const Context& ctx) { return ctx.axes[AxisName::tp]; }

}  // namespace

void column_forward_into(Context& ctx, const Linear& l, const Operand& x, const Tensor& y) {
  const Tensor& W = l.w->weight;
  const Tensor bias = l.b ? l.b->weight.reshaped(1, W.rows()) : Tensor();
  if (Fp8* fp8 = fp8_of(ctx, *l.w)) return fp8->forward(ctx, *l.w, x, y, bias, tp_of(ctx));
  ctx.be.gemm(x.full(), false, W, true, y, false, bias);
}

Tensor column_forward(Context& ctx, const Linear& l, const Operand& x) {
  const Tensor& W = l.w->weight;
  Tensor y = ctx.activation(x.rows(), W.rows());
  if (!ctx.reproducible()) {
    column_forward_into(ctx, l, x, y);
    return y;
  }
  Tensor wide = ctx.workspace(ctx.A, x.rows(), W.rows());
  ctx.be.gemm_canonical(x.full(), false, W, true, wide);
  if (l.b) ctx.be.add(wide, l.b->weight.reshaped(1, W.rows()).repeated(wide.rows()), wide);
  ctx.be.copy(y, wide);
  return y;
}

void column_forward_gelu_into(Context& ctx, const Linear& l, const Operand& x, const Activated& out) {
  // Selective recompute makes y again from pre as it is stored. That has to be the y of the forward, which the one call,
  // with gelu of a sum that is not rounded yet, does not promise.
  if (fp8_of(ctx, *l.w) || ctx.recompute == Recompute::selective) {
    column_forward_into(ctx, l, x, out.pre);
    return ctx.be.gelu_forward(out.pre, out.y);
  }
  const Tensor& W = l.w->weight;
  ctx.be.gemm_gelu(x.full(), false, W, true, l.b ? l.b->weight.reshaped(1, W.rows()) : Tensor(), out.pre, out.y);
}

Activated column_forward_gelu(Context& ctx, const Linear& l, const Operand& x) {
  Activated out;
  if (ctx.reproducible()) {
    out.pre = column_forward(ctx, l, x);
    out.y = ctx.activation(out.pre.rows(), out.pre.cols());
    ctx.be.gelu_forward(out.pre, out.y);
    return out;
  }
  out.pre = ctx.activation(x.rows(), l.w->weight.rows());
  out.y = ctx.activation(x.rows(), l.w->weight.rows());
  column_forward_gelu_into(ctx, l, x, out);
  return out;
}

void column_backward_input(Context& ctx, const Linear& l, const Operand& dy, Partial& dx, bool first) {
  const Tensor& W = l.w->weight;
  if (Fp8* fp8 = fp8_of(ctx, *l.w)) return fp8->backward_input(ctx, *l.w, dy, dx.value, !first, tp_of(ctx));
  if (!ctx.reproducible()) {
    ctx.be.gemm(dy.full(), false, W, false, dx.value, !first);
    return;
  }
  for (Range o : blocks_of(W.rows(), l.block)) {
    Tensor part = ctx.workspace(ctx.A, dy.rows(), W.cols());
    ctx.be.gemm_canonical(dy.full().col_range(o.begin, o.size), false, W.row_range(o.begin, o.size), false, part);
    ctx.be.exact_add(part, dx.exact);
  }
}

void row_forward_into(Context& ctx, const Linear& l, const Operand& a, const Tensor& y) {
  if (Fp8* fp8 = fp8_of(ctx, *l.w)) return fp8->forward(ctx, *l.w, a, y, {}, tp_of(ctx));
  ctx.be.gemm(a.full(), false, l.w->weight, true, y, false);
}

Partial row_forward(Context& ctx, const Linear& l, const Operand& a) {
  const Tensor& W = l.w->weight;
  Partial y = make_partial(ctx, a.rows(), W.rows());
  if (!ctx.reproducible()) {
    row_forward_into(ctx, l, a, y.value);
    return y;
  }
  for (Range i : blocks_of(W.cols(), l.block)) {
    Tensor part = ctx.workspace(ctx.A, a.rows(), W.rows());
    ctx.be.gemm_canonical(a.full().col_range(i.begin, i.size), false, W.col_range(i.begin, i.size), true, part);
    ctx.be.exact_add(part, y.exact);
  }
  return y;
}

void row_backward_input_into(Context& ctx, const Linear& l, const Operand& dy, const Tensor& da) {
  if (Fp8* fp8 = fp8_of(ctx, *l.w)) return fp8->backward_input(ctx, *l.w, dy, da, false, tp_of(ctx));
  ctx.be.gemm(dy.full(), false, l.w->weight, false, da, false);
}

Tensor row_backward_input(Context& ctx, const Linear& l, const Operand& dy) {
  const Tensor& W = l.w->weight;
  Tensor da = ctx.activation(dy.rows(), W.cols());
  if (!ctx.reproducible()) {
    row_backward_input_into(ctx, l, dy, da);
    return da;
  }
  Tensor wide = ctx.workspace(ctx.A, dy.rows(), W.cols());
  ctx.be.gemm_canonical(dy.full(), false, W, false, wide);
  ctx.be.copy(da, wide);
  return da;
}

void add_backward_input(Context& ctx, const Linear& l, const Operand& dy, const Tensor& dx) {
  if (Fp8* fp8 = fp8_of(ctx, *l.w)) return fp8->backward_input(ctx, *l.w, dy, dx, true, tp_of(ctx));
  if (!ctx.reproducible()) return ctx.be.gemm(dy.full(), false, l.w->weight, false, dx, true);
  ctx.be.add(dx, row_backward_input(ctx, l, dy), dx);
}

void backward_weight(Context& ctx, LocalParam& w, const Operand& dy, const Operand& x) {
  if (Fp8* fp8 = fp8_of(ctx, w)) return fp8->backward_weight(ctx, w, dy, x, tp_of(ctx));
  if (!ctx.reproducible()) {
    ctx.be.gemm(dy.full(), true, x.full(), false, w.grad, true);
    return;
  }
  for (Range t : ctx.token_blocks(dy.rows())) {
    Tensor part = ctx.workspace(ctx.A, w.rows(), w.cols());
    ctx.be.gemm_canonical(dy.full().row_range(t.begin, t.size), true, x.full().row_range(t.begin, t.size), false, part);
    ctx.be.exact_add(part, w.grad_exact);
  }
}

void bias_backward(Context& ctx, LocalParam& b, const Tensor& dy) {
  if (!ctx.reproducible()) {
    ctx.be.sum_rows(dy, b.grad.reshaped(1, b.grad.size()));
    return;
  }
  // Rows one by one would be exact; short runs of rows are summed in fp32 first, in an order that no mesh changes.
  for (Range t : ctx.token_blocks(dy.rows()))
    for (Range s : blocks_of(t.size, 128)) {
      Tensor part = ctx.workspace(ctx.A, 1, dy.cols());
      ctx.be.zero(part);
      ctx.be.sum_rows(dy.row_range(t.begin + s.begin, s.size), part);
      ctx.be.exact_add(part, b.grad_exact);
    }
}

}  // namespace orthant
