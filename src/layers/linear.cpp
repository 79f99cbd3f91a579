// See linear.hpp.
#include "layers/linear.hpp"

namespace orthant {

namespace {

/// Blocks of `block` in [0, n).
std::vector<Range> blocks_of(int64_t n, int64_t block) {
  ORTHANT_ENSURE(block > 0 || n == 0, "canonical block without a length");
  std::vector<Range> out;
  for (int64_t at = 0; at < n; at += block) out.push_back({at, std::min(block, n - at)});
  return out;
}

/// Elements [begin, begin + n) of an exact sum.
Tensor exact_range(const Tensor& sum, int64_t begin, int64_t n) { return sum.col_range(begin, n); }

/// Rows [r.begin, r.begin + r.size) of a summand += tile (all columns).
void exact_add_rows(Context& ctx, Partial& sum, const Tensor& tile, Range r) {
  ctx.be.exact_add(tile, exact_range(sum.exact, r.begin * sum.cols, r.size * sum.cols));
}

}  // namespace

void exact_add_block(Context& ctx, LocalParam& p, const Tensor& tile, int64_t row, int64_t col) {
  if (tile.cols() == p.cols()) {
    ctx.be.exact_add(tile, exact_range(p.grad_exact, row * p.cols(), tile.rows() * tile.cols()));
    return;
  }
  for (int64_t r = 0; r < tile.rows(); ++r)
    ctx.be.exact_add(tile.row_range(r, 1), exact_range(p.grad_exact, (row + r) * p.cols() + col, tile.cols()));
}

Tensor column_forward(Context& ctx, const Linear& l, const Tensor& x) {
  const Tensor& W = l.w->weight;
  Tensor y = ctx.activation(x.rows(), W.rows());
  if (!ctx.reproducible()) {
    ctx.be.gemm(x, false, W, true, y, false, l.b ? l.b->weight.reshaped(1, W.rows()) : Tensor());
    return y;
  }
  for (Range t : ctx.token_blocks(x.rows()))
    for (Range o : blocks_of(W.rows(), l.block)) {
      Tensor tile = ctx.workspace(ctx.A, t.size, o.size);
      ctx.be.gemm_canonical(x.row_range(t.begin, t.size), false, W.row_range(o.begin, o.size), true, tile);
      if (l.b) {
        ctx.be.add(tile, l.b->weight.reshaped(1, W.rows()).col_range(o.begin, o.size).repeated(t.size), tile);
      }
      ctx.be.copy(y.row_range(t.begin, t.size).col_range(o.begin, o.size), tile);
    }
  return y;
}

void column_backward_input(Context& ctx, const Linear& l, const Tensor& dy, Partial& dx, bool first) {
  const Tensor& W = l.w->weight;
  if (!ctx.reproducible()) {
    ctx.be.gemm(dy, false, W, false, dx.value, !first);
    return;
  }
  for (Range t : ctx.token_blocks(dy.rows()))
    for (Range o : blocks_of(W.rows(), l.block)) {
      Tensor tile = ctx.workspace(ctx.A, t.size, W.cols());
      ctx.be.gemm_canonical(dy.row_range(t.begin, t.size).col_range(o.begin, o.size), false, W.row_range(o.begin, o.size), false, tile);
      exact_add_rows(ctx, dx, tile, t);
    }
}

Partial row_forward(Context& ctx, const Linear& l, const Tensor& a) {
  const Tensor& W = l.w->weight;
  Partial y = make_partial(ctx, a.rows(), W.rows());
  if (!ctx.reproducible()) {
    ctx.be.gemm(a, false, W, true, y.value, false);
    return y;
  }
  for (Range t : ctx.token_blocks(a.rows()))
    for (Range i : blocks_of(W.cols(), l.block)) {
      Tensor tile = ctx.workspace(ctx.A, t.size, W.rows());
      ctx.be.gemm_canonical(a.row_range(t.begin, t.size).col_range(i.begin, i.size), false, W.col_range(i.begin, i.size), true, tile);
      exact_add_rows(ctx, y, tile, t);
    }
  return y;
}

Tensor row_backward_input(Context& ctx, const Linear& l, const Tensor& dy) {
  const Tensor& W = l.w->weight;
  Tensor da = ctx.activation(dy.rows(), W.cols());
  if (!ctx.reproducible()) {
    ctx.be.gemm(dy, false, W, false, da, false);
    return da;
  }
  for (Range t : ctx.token_blocks(dy.rows()))
    for (Range i : blocks_of(W.cols(), l.block)) {
      Tensor tile = ctx.workspace(ctx.A, t.size, i.size);
      ctx.be.gemm_canonical(dy.row_range(t.begin, t.size), false, W.col_range(i.begin, i.size), false, tile);
      ctx.be.copy(da.row_range(t.begin, t.size).col_range(i.begin, i.size), tile);
    }
  return da;
}

void column_backward_weight(Context& ctx, const Linear& l, const Tensor& dy, const Tensor& x) {
  if (!ctx.reproducible()) {
    ctx.be.gemm(dy, true, x, false, l.w->grad, true);
    return;
  }
  for (Range t : ctx.token_blocks(dy.rows()))
    for (Range o : blocks_of(l.w->rows(), l.block)) {
      Tensor tile = ctx.workspace(ctx.A, o.size, l.w->cols());
      ctx.be.gemm_canonical(dy.row_range(t.begin, t.size).col_range(o.begin, o.size), true, x.row_range(t.begin, t.size), false, tile);
      exact_add_block(ctx, *l.w, tile, o.begin, 0);
    }
}

void row_backward_weight(Context& ctx, const Linear& l, const Tensor& dy, const Tensor& a) {
  if (!ctx.reproducible()) {
    ctx.be.gemm(dy, true, a, false, l.w->grad, true);
    return;
  }
  for (Range t : ctx.token_blocks(dy.rows()))
    for (Range i : blocks_of(l.w->cols(), l.block)) {
      Tensor tile = ctx.workspace(ctx.A, l.w->rows(), i.size);
      ctx.be.gemm_canonical(dy.row_range(t.begin, t.size), true, a.row_range(t.begin, t.size).col_range(i.begin, i.size), false, tile);
      exact_add_block(ctx, *l.w, tile, 0, i.begin);
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
