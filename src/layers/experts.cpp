// See experts.hpp.
#include "layers/experts.hpp"

#include <algorithm>
#include <cmath>

#include "layers/fp8.hpp"

namespace orthant {

std::vector<Param> Experts::params(const std::string& prefix, const ModelConfig& c) {
  const Dim hidden{DimName::hidden, c.hidden, 1}, ffn{DimName::expert_ffn, c.moe.ffn, 1};
  const Init normal{Init::normal, c.init_std};
  const Init residual{Init::normal, c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers))};
  std::vector<Param> out;
  for (int64_t e = 0; e < c.moe.experts; ++e) {
    const std::string name = prefix + "." + std::to_string(e);
    auto linear = [&](const char* which, Dim rows, Dim cols, Init init) {
      out.push_back({name + "." + which + ".weight", {rows, cols}, over_all_tokens, init, true, {}, e});
    };
    linear("gate", ffn, hidden, normal);
    linear("up", ffn, hidden, normal);
    linear("down", hidden, ffn, residual);
  }
  return out;
}

Experts::Experts(const std::string& prefix, const ModelConfig& c, ParamStore& store, const Axes& axes,
                 const Layout& layout)
    : hidden_(c.hidden), block_((c.moe.ffn + 7) / 8), edge_(axes, layout) {
  const Range mine = layout.experts();
  for (int64_t e = mine.begin; e < mine.begin + mine.size; ++e) {
    const std::string name = prefix + "." + std::to_string(e);
    experts_.push_back(
        {&store.at(name + ".gate.weight"), &store.at(name + ".up.weight"), &store.at(name + ".down.weight")});
  }
  ORTHANT_ENSURE(!experts_.empty(), "a rank without an expert");
  ffn_ = experts_[0].gate->rows();
}

std::vector<Range> Experts::blocks() const {
  std::vector<Range> out;
  for (int64_t at = 0; at < ffn_; at += block_) out.push_back({at, std::min(block_, ffn_ - at)});
  return out;
}

Tensor Experts::activate(Context& ctx, const Saved& s) const {
  Tensor a = ctx.activation(s.gate.rows(), ffn_);
  ctx.be.swiglu_forward(s.gate, s.up, a);
  return a;
}

/// The FP8 products, or nullptr where the layer has others; all experts of a layer are alike in this.
Fp8* Experts::fp8_of(const Context& ctx) const { return ctx.fp8 && ctx.fp8->covers(*experts_[0].gate) ? ctx.fp8 : nullptr; }

Experts::Rows Experts::Rows::kept() const {
  Rows out;
  for (const Operand& r : runs) out.runs.push_back(r.kept());
  if (runs.empty()) out.all = all;
  return out;
}

Experts::Rows Experts::rows_of(Context& ctx, const Dispatch& d, const Tensor& x) const {
  Rows out{x, {}};
  if (fp8_of(ctx))
    for (size_t e = 0; e < experts_.size(); ++e) out.runs.emplace_back(x.row_range(d.runs[e].begin, d.runs[e].size));
  return out;
}

/// op(W) of each expert on its rows, along a dim that no rank cuts: [received, width] in T.
Tensor Experts::across(Context& ctx, const Dispatch& d, const Rows& rows, Weight w, bool transpose,
                       int64_t width) const {
  const Tensor& x = rows.all;
  Tensor y = ctx.activation(x.rows(), width);
  if (Fp8* fp8 = fp8_of(ctx)) {
    for (size_t e = 0; e < experts_.size(); ++e) {
      const Range r = d.runs[e];
      if (r.size == 0) continue;
      const LocalParam& p = *(experts_[e].*w);
      const Operand& from = rows.runs[e];
      const Tensor to = y.row_range(r.begin, r.size);
      if (transpose) fp8->forward(ctx, p, from, to, {}, edge_.cut());
      else fp8->backward_input(ctx, p, from, to, false, edge_.cut());
    }
    return y;
  }
  if (!ctx.reproducible()) {
    std::vector<Product> products;
    for (size_t e = 0; e < experts_.size(); ++e) {
      const Range r = d.runs[e];
      products.push_back({x.row_range(r.begin, r.size), false, (experts_[e].*w)->weight, transpose,
                          y.row_range(r.begin, r.size), false});
    }
    ctx.be.grouped_gemm(products);
    return y;
  }
  for (size_t e = 0; e < experts_.size(); ++e) {
    const Range r = d.runs[e];
    if (r.size == 0) continue;
    Tensor wide = ctx.workspace(ctx.A, r.size, width);
    ctx.be.gemm_canonical(x.row_range(r.begin, r.size), false, (experts_[e].*w)->weight, transpose, wide);
    ctx.be.copy(y.row_range(r.begin, r.size), wide);
  }
  return y;
}

/// sum += x W (gate, up) or x W^T (down), a canonical block of the inner width after the other.
void Experts::add_exactly(Context& ctx, const Dispatch& d, const Tensor& x, Weight w, const Tensor& sum) const {
  const bool transpose = w == &Expert::down;
  for (size_t e = 0; e < experts_.size(); ++e) {
    const Range r = d.runs[e];
    if (r.size == 0) continue;
    const Tensor rows = x.row_range(r.begin, r.size), W = (experts_[e].*w)->weight;
    for (Range b : blocks()) {
      Tensor part = ctx.workspace(ctx.A, r.size, hidden_);
      ctx.be.gemm_canonical(rows.col_range(b.begin, b.size), false,
                            transpose ? W.col_range(b.begin, b.size) : W.row_range(b.begin, b.size), transpose, part);
      ctx.be.exact_add(part, sum.col_range(r.begin * hidden_, r.size * hidden_));
    }
  }
}

/// An exact sum of the ranks' summands for each row, rounded once; the same on all of them.
Tensor Experts::rounded_sum(Context& ctx, const Dispatch& d, const Tensor& exact, DType type, int64_t cols,
                            const char* site) const {
  const int64_t rows = exact.cols() / cols;
  Tensor out = ctx.be.alloc(type, rows, cols, MemoryKind::activations);
  ctx.be.exact_carry(exact);
  if (edge_.cut().size() > 1) {
    // a plan has memory for the worst routing, but the traffic of an even one: as many rows as it sends
    edge_.cut().sum(ctx.be.shapes_only() ? exact.col_range(0, std::min(rows, d.rows) * cols) : exact, site).wait();
    ctx.be.exact_carry(exact);
  }
  ctx.be.exact_value(exact, out);
  return out;
}

Tensor Experts::forward(Context& ctx, const Dispatch& d, const Tensor& x, const Tensor& weights, Saved& s,
                        Tensor& a) const {
  const Rows rows = rows_of(ctx, d, x);
  s.weights = weights;
  s.gate = across(ctx, d, rows, &Expert::gate, true, ffn_);
  s.up = across(ctx, d, rows, &Expert::up, true, ffn_);
  s.x = rows.kept();
  a = activate(ctx, s);
  Tensor weighted = ctx.activation(a.rows(), a.cols());
  ctx.be.scale_rows(a, weights, weighted);
  if (!ctx.reproducible()) return across(ctx, d, rows_of(ctx, d, weighted), &Expert::down, true, hidden_);
  Partial y = make_partial(ctx, x.rows(), hidden_);
  add_exactly(ctx, d, weighted, &Expert::down, y.exact);
  return rounded_sum(ctx, d, y.exact, ctx.T, hidden_, "experts forward: sum over the inner width");
}

/// dw [received, 1] = a . da', over the inner width.
Tensor Experts::weight_gradient(Context& ctx, const Dispatch& d, const Tensor& a, const Tensor& da) const {
  Tensor dots = ctx.workspace(DType::f64, a.rows(), 1);
  if (!ctx.reproducible()) {
    Tensor dw = ctx.statistic(a.rows(), 1);
    ctx.be.row_dots(a, da, dots);
    ctx.be.copy(dw, dots);
    return dw;
  }
  Tensor sum = ctx.workspace(DType::i64, 2, a.rows());
  ctx.be.zero(sum);
  for (Range b : blocks()) {
    ctx.be.row_dots(a.col_range(b.begin, b.size), da.col_range(b.begin, b.size), dots);
    ctx.be.exact_add(dots, sum);
  }
  return rounded_sum(ctx, d, sum, ctx.A, 1, "experts backward: gradients of weights");
}

Tensor Experts::input_gradient(Context& ctx, const Dispatch& d, const Rows& dg, const Rows& du) const {
  if (ctx.reproducible()) {
    Partial dx = make_partial(ctx, dg.all.rows(), hidden_);
    add_exactly(ctx, d, dg.all, &Expert::gate, dx.exact);
    add_exactly(ctx, d, du.all, &Expert::up, dx.exact);
    return rounded_sum(ctx, d, dx.exact, ctx.T, hidden_, "experts backward: sum over the inner width");
  }
  Tensor dx = across(ctx, d, dg, &Expert::gate, false, hidden_);
  if (Fp8* fp8 = fp8_of(ctx)) {
    for (size_t e = 0; e < experts_.size(); ++e) {
      const Range r = d.runs[e];
      if (r.size > 0) fp8->backward_input(ctx, *experts_[e].up, du.runs[e], dx.row_range(r.begin, r.size), true, edge_.cut());
    }
    return dx;
  }
  std::vector<Product> products;
  for (size_t e = 0; e < experts_.size(); ++e) {
    const Range r = d.runs[e];
    products.push_back(
        {du.all.row_range(r.begin, r.size), false, experts_[e].up->weight, false, dx.row_range(r.begin, r.size), true});
  }
  ctx.be.grouped_gemm(products);
  return dx;
}

/// W += dy^T x for each expert; one without rows keeps its gradient as it is.
void Experts::defer_gradient(Context& ctx, const Dispatch& d, Weight w, const Rows& of_dy, const Rows& of_x) const {
  if (Fp8* fp8 = fp8_of(ctx)) {
    ctx.defer([this, fp8, &ctx, runs = d.runs, w, dy = of_dy.kept().runs, x = of_x.kept().runs] {
      for (size_t e = 0; e < experts_.size(); ++e) {
        const Range r = runs[e];
        if (r.size > 0) fp8->backward_weight(ctx, *(experts_[e].*w), dy[e], x[e], edge_.cut());
      }
    });
    return;
  }
  const Tensor &dy = of_dy.all, &x = of_x.all;
  if (!ctx.reproducible()) {
    ctx.defer([this, &ctx, runs = d.runs, w, dy, x] {
      std::vector<Product> products;
      for (size_t e = 0; e < experts_.size(); ++e) {
        const Range r = runs[e];
        if (r.size > 0)
          products.push_back({dy.row_range(r.begin, r.size), true, x.row_range(r.begin, r.size), false,
                              (experts_[e].*w)->grad, true});
      }
      ctx.be.grouped_gemm(products);
    });
    return;
  }
  ctx.defer([this, &ctx, segments = d.segments, w, dy, x] {
    for (const Segment& s : segments) {
      LocalParam& p = *(experts_[static_cast<size_t>(s.expert)].*w);
      Tensor part = ctx.workspace(ctx.A, p.rows(), p.cols());
      ctx.be.gemm_canonical(dy.row_range(s.rows.begin, s.rows.size), true, x.row_range(s.rows.begin, s.rows.size),
                            false, part);
      ctx.be.exact_add(part, p.grad_exact);
    }
  });
}

Experts::Gradients Experts::backward(Context& ctx, const Dispatch& d, const Tensor& dy_rows, const Saved& s,
                                     const Tensor& kept) const {
  const Tensor a = kept ? kept : activate(ctx, s);
  Tensor weighted = ctx.activation(a.rows(), a.cols());
  ctx.be.scale_rows(a, s.weights, weighted);
  const Rows dy = rows_of(ctx, d, dy_rows);
  Tensor da = across(ctx, d, dy, &Expert::down, false, ffn_);
  defer_gradient(ctx, d, &Expert::down, dy, rows_of(ctx, d, weighted));
  Gradients out;
  out.dw = weight_gradient(ctx, d, a, da);
  ctx.be.scale_rows(da, s.weights, da);
  const Rows dg = rows_of(ctx, d, ctx.activation(da.rows(), ffn_)), du = rows_of(ctx, d, ctx.activation(da.rows(), ffn_));
  ctx.be.swiglu_backward(da, s.gate, s.up, dg.all, du.all);
  out.dx = input_gradient(ctx, d, dg, du);
  defer_gradient(ctx, d, &Expert::gate, dg, s.x);
  defer_gradient(ctx, d, &Expert::up, du, s.x);
  return out;
}

}  // namespace orthant
