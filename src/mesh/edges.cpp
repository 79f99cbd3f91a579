// See edges.hpp.
#include "orthant/edges.hpp"

namespace orthant {

Partial make_partial(Context& ctx, int64_t rows, int64_t cols) {
  Partial p;
  p.rows = rows;
  p.cols = cols;
  if (ctx.reproducible()) {
    p.exact = ctx.workspace(DType::i64, 2, rows * cols);
    ctx.be.zero(p.exact);
  } else {
    p.value = ctx.activation(rows, cols);
  }
  return p;
}

namespace detail {

Tensor edge_enter(Context& ctx, const Axis& axis, const Tensor& x, const char* site) {
  if (!ctx.layout.sequence_parallel() || axis.size() == 1) return x;
  Tensor whole = ctx.be.alloc(x.dtype(), x.rows() * axis.size(), x.cols(), MemoryKind::activations);
  axis.gather(x, whole, site).wait();
  return whole;
}

/// Every rank has the whole result: its part of the sequence, or all of it.
Tensor own_part(Context& ctx, const Axis& axis, const Partial& y) {
  const int64_t parts = ctx.layout.sequence_parallel() ? axis.size() : 1;
  if (!ctx.reproducible() && parts == 1) return y.value;
  const int64_t rows = y.rows / parts, begin = parts > 1 ? axis.rank() * rows : 0;
  Tensor out = ctx.activation(rows, y.cols);
  if (!ctx.reproducible()) {
    ctx.be.copy(out, y.value.row_range(begin, rows));
    return out;
  }
  ctx.be.exact_carry(y.exact);
  const Tensor mine = ctx.workspace(DType::i64, 2, rows * y.cols);
  for (int lane = 0; lane < 2; ++lane) ctx.be.copy(mine.row_range(lane, 1), y.exact.row_range(lane, 1).col_range(begin * y.cols, rows * y.cols));
  ctx.be.exact_value(mine, out);
  return out;
}

Left edge_leave(Context& ctx, const Axis& axis, const Partial& y, const char* site) {
  bool scatter = ctx.layout.sequence_parallel() && axis.size() > 1;
  int64_t rows = scatter ? y.rows / axis.size() : y.rows;
  if (!ctx.reproducible()) {
    if (!scatter) return {y.value, axis.sum(y.value, site)};
    Tensor out = ctx.activation(rows, y.cols);
    return {out, axis.scatter_sum(y.value, out, site)};
  }
  // Exact sums: integers travel, and are rounded once at the end.
  ctx.be.exact_carry(y.exact);
  Tensor sum = y.exact;
  if (scatter) {
    sum = ctx.workspace(DType::i64, 2, rows * y.cols);
    for (int lane = 0; lane < 2; ++lane) axis.scatter_sum(y.exact.row_range(lane, 1), sum.row_range(lane, 1), site).wait();
  } else {
    axis.sum(sum, site).wait();
  }
  Tensor out = ctx.activation(rows, y.cols);
  ctx.be.exact_carry(sum);
  ctx.be.exact_value(sum, out);
  return {out, Pending()};
}

}  // namespace detail
}  // namespace orthant
