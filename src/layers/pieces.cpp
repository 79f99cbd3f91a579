// See pieces.hpp.
#include "layers/pieces.hpp"

#include "layers/fp8.hpp"

namespace orthant::pieces {

namespace {

/// Rows of a shard, cut into comm.chunks parts of about the same length; no part is empty unless all are.
std::vector<Range> parts_of(const Context& ctx, int64_t rows) {
  const int64_t n = ctx.reproducible() ? 1 : std::max<int64_t>(1, std::min(ctx.chunks, rows));
  std::vector<Range> out;
  for (int64_t i = 0; i < n; ++i) out.push_back({rows * i / n, rows * (i + 1) / n - rows * i / n});
  return out;
}

bool gathers(const Context& ctx, const Ends& edge) { return ctx.layout.sequence_parallel() && edge.tp.size() > 1; }

/// Whether FP8 numbers travel in the stead of a part of x, or of dy (`gradient`); they are made here.
bool travels_in_fp8(Context& ctx, const Ends& edge, const Operand& part, const std::vector<const Linear*>& layers, bool gradient) {
  if (!ctx.fp8) return false;
  std::vector<const LocalParam*> weights;
  for (const Linear* l : layers) weights.push_back(l->w);
  return ctx.fp8->can_travel(ctx, weights, gradient ? Fp8::gradient : Fp8::input, part, edge.tp);
}

/// Calls f(rows of a rank in a piece, the same rows in the whole) as the pieces of a gather arrive; the next piece is under
/// way meanwhile.
template <class F>
void gather_in_pieces(Context& ctx, const Axis& tp, const Operand& x_SD, bool fp8, const char* site, F&& f) {
  const Tensor& moved = x_SD.moved(fp8);
  const int64_t ranks = tp.size(), shard = moved.rows();
  const std::vector<Range> parts = parts_of(ctx, shard);
  Tensor arriving;
  Pending pending;
  const auto start = [&](const Range& part) {
    arriving = ctx.be.alloc(moved.dtype(), part.size * ranks, moved.cols(), MemoryKind::activations);
    pending = tp.gather(moved.row_range(part.begin, part.size), arriving, site);
  };
  start(parts.front());
  for (size_t i = 0; i < parts.size(); ++i) {
    pending.wait();
    const Tensor piece = arriving;
    if (i + 1 < parts.size()) start(parts[i + 1]);
    for (int64_t r = 0; r < ranks; ++r)
      f(x_SD.with(piece.row_range(r * parts[i].size, parts[i].size), fp8), Range{r * shard + parts[i].begin, parts[i].size});
  }
}

}  // namespace

std::vector<Tensor> enter_products(Context& ctx, const Ends& edge, const Operand& x_SD, const std::vector<const Linear*>& layers,
                                   const char* site) {
  std::vector<Tensor> out;
  const auto products = [&](const Operand& x) {
    for (const Linear* l : layers) out.push_back(column_forward(ctx, *l, x));
    return out;
  };
  if (!gathers(ctx, edge)) return products(x_SD);
  if (parts_of(ctx, x_SD.rows()).size() == 1) return products(Entering(ctx, edge, x_SD, layers, site).wait());
  for (const Linear* l : layers) out.push_back(ctx.activation(x_SD.rows() * edge.tp.size(), l->w->weight.rows()));
  const bool fp8 = travels_in_fp8(ctx, edge, x_SD, layers, false);
  gather_in_pieces(ctx, edge.tp, x_SD, fp8, site, [&](const Operand& rows, Range to) {
    for (size_t i = 0; i < layers.size(); ++i) column_forward_into(ctx, *layers[i], rows, out[i].row_range(to.begin, to.size));
  });
  return out;
}

Activated enter_gelu(Context& ctx, const Ends& edge, const Operand& x_SD, const Linear& layer, const char* site) {
  if (!gathers(ctx, edge)) return column_forward_gelu(ctx, layer, x_SD);
  if (parts_of(ctx, x_SD.rows()).size() == 1) return column_forward_gelu(ctx, layer, Entering(ctx, edge, x_SD, {&layer}, site).wait());
  const int64_t tokens = x_SD.rows() * edge.tp.size(), cols = layer.w->weight.rows();
  Activated out{ctx.activation(tokens, cols), ctx.activation(tokens, cols)};
  const bool fp8 = travels_in_fp8(ctx, edge, x_SD, {&layer}, false);
  gather_in_pieces(ctx, edge.tp, x_SD, fp8, site, [&](const Operand& rows, Range to) {
    column_forward_gelu_into(ctx, layer, rows, {out.pre.row_range(to.begin, to.size), out.y.row_range(to.begin, to.size)});
  });
  return out;
}

Gradient enter_gradient(Context& ctx, const Ends& edge, const Tensor& dy_SD, const Linear& layer, const char* site) {
  const Operand part(dy_SD);
  if (!gathers(ctx, edge) || parts_of(ctx, dy_SD.rows()).size() == 1) {
    const Operand dy = Entering(ctx, edge, part, {&layer}, site, true).wait();
    const Tensor da = row_backward_input(ctx, layer, dy);
    return {dy, da};
  }
  const int64_t tokens = dy_SD.rows() * edge.tp.size();
  const bool fp8 = travels_in_fp8(ctx, edge, part, {&layer}, true);
  const Operand dy = part.with(ctx.be.alloc(part.moved(fp8).dtype(), tokens, dy_SD.cols(), MemoryKind::activations), fp8);
  const Tensor da = ctx.activation(tokens, layer.w->weight.cols());
  gather_in_pieces(ctx, edge.tp, part, fp8, site, [&](const Operand& rows, Range to) {
    row_backward_input_into(ctx, layer, rows, da.row_range(to.begin, to.size));
    ctx.be.copy(dy.moved(fp8).row_range(to.begin, to.size), rows.moved(fp8));  // whole, for the weight gradient
  });
  return {dy, da};
}

Leaving leave_rows(Context& ctx, const Ends& edge, int64_t tokens, int64_t cols, const Rows& product, const char* site) {
  ORTHANT_ENSURE(!ctx.reproducible(), "sums of pieces are not exact sums");
  if (!edge.cut) {
    Partial whole = make_partial(ctx, tokens, cols);
    product({0, tokens}, whole.value);
    return Leaving(detail::own_part(ctx, edge.tp, whole), Pending());
  }
  auto sums = std::make_shared<std::vector<Pending>>();
  const auto all = [sums] {
    for (Pending& p : *sums) p.wait();
  };
  const auto arrived = [sums] {
    bool done = true;
    for (Pending& p : *sums) done = p.done() && done;
    return done;
  };
  if (!gathers(ctx, edge)) {
    const Tensor y = ctx.activation(tokens, cols);
    for (const Range& part : parts_of(ctx, tokens)) {
      const Tensor rows = y.row_range(part.begin, part.size);
      product(part, rows);
      sums->push_back(edge.tp.sum(rows, site));
    }
    return Leaving(y, Pending(all, arrived));
  }
  const int64_t ranks = edge.tp.size(), shard = tokens / ranks;
  const Tensor out = ctx.activation(shard, cols);
  for (const Range& part : parts_of(ctx, shard)) {
    const Tensor piece = ctx.activation(part.size * ranks, cols);
    for (int64_t r = 0; r < ranks; ++r) product({r * shard + part.begin, part.size}, piece.row_range(r * part.size, part.size));
    sums->push_back(edge.tp.scatter_sum(piece, out.row_range(part.begin, part.size), site));
  }
  return Leaving(out, Pending(all, arrived));
}

Tensor leave_product(Context& ctx, const Ends& edge, const Linear& layer, const Operand& a, const char* site) {
  const int64_t cols = layer.w->weight.rows();
  if (!edge.cut || parts_of(ctx, a.rows()).size() == 1) {
    const Partial y = row_forward(ctx, layer, a);
    if (!edge.cut) return detail::own_part(ctx, edge.tp, y);
    auto left = detail::edge_leave(ctx, edge.tp, y, site);
    left.pending.wait();
    return left.out;
  }
  return leave_rows(ctx, edge, a.rows(), cols,
                    [&](Range rows, const Tensor& out) { row_forward_into(ctx, layer, a.full().row_range(rows.begin, rows.size), out); }, site)
      .wait();
}

Entering::Entering(Context& ctx, const Ends& edge, const Operand& x_SD, const std::vector<const Linear*>& layers, const char* site, bool gradient)
    : x_(x_SD) {
  if (!gathers(ctx, edge)) return;
  const bool fp8 = travels_in_fp8(ctx, edge, x_SD, layers, gradient);
  const Tensor& part = x_SD.moved(fp8);
  const Tensor whole = ctx.be.alloc(part.dtype(), part.rows() * edge.tp.size(), part.cols(), MemoryKind::activations);
  pending_ = edge.tp.gather(part, whole, site);
  x_ = x_SD.with(whole, fp8);
}

}  // namespace orthant::pieces
