// See step.hpp.
#include "optim/step.hpp"

#include <cmath>
#include <limits>

#include "optim/sharding.hpp"
#include "orthant/exact_sum.hpp"

namespace orthant {

namespace {

/// The gradient of own rows as a matrix of A: the buffer itself, or the value of its exact sum.
Tensor gradient_of(Context& ctx, LocalParam& p) {
  if (!ctx.reproducible()) return p.own_grad;
  Tensor g = ctx.workspace(ctx.A, p.own.rows, p.cols());
  ctx.be.exact_value(p.own_grad_exact, g);
  return g;
}

/// Columns of a canonical block of the dim that may be cut (reproducible mode adds along one row of one block).
int64_t block_columns(const Param& p) {
  if (p.dims.size() < 2) return std::numeric_limits<int64_t>::max();
  const Dim& d = p.dims[1];
  if (d.name == DimName::heads || d.name == DimName::kv_heads) return d.unit;
  if (d.name == DimName::ffn || d.name == DimName::expert_ffn) return (d.size + 7) / 8;
  return std::numeric_limits<int64_t>::max();
}

/// Sums of squares of each row of each canonical block of `g`, in a fixed order.
template <class Take>
void squares(Context& ctx, const Param& p, const Tensor& g, Take take) {
  // one-dim parameters are cut along rows: each element is a row of its own
  int64_t width = ctx.reproducible() ? std::min(block_columns(p), std::max<int64_t>(1, g.cols())) : std::max<int64_t>(1, g.cols());
  for (int64_t c = 0; c < g.cols(); c += width) {
    Tensor out = ctx.workspace(DType::f64, g.rows(), 1);
    ctx.be.row_squares(g.col_range(c, std::min(width, g.cols() - c)), out);
    if (ctx.be.shapes_only()) continue;
    Host<double> h(ctx.be, out);
    for (int64_t r = 0; r < g.rows(); ++r) take(h[r]);
  }
}

}  // namespace

void sum_gradients(Context& ctx, ParamStore& store) {
  Sharding sharding(ctx, store);
  sharding.sum(0, static_cast<int64_t>(store.units().size()));
  sharding.finish_sums();
}

namespace {

/// `t` (f64 or i64): summed over what holds other parameters or other rows of them.
void sum_over_holders(Context& ctx, const ParamStore& store, const Tensor& t) {
  ctx.axes[AxisName::tp].sum(t, "gradient norm").wait();
  ctx.axes[AxisName::pp].sum_control(t);
  if (store.zero().cuts_state()) ctx.axes[AxisName::shard].sum_control(t);
}

/// The same for numbers of experts: their holders are the ranks of ep, and those of tp where etp cuts them.
void sum_over_expert_holders(Context& ctx, const ParamStore& store, const Tensor& t) {
  if (ctx.layout.shape().etp > 1) ctx.axes[AxisName::tp].sum_control(t);
  ctx.axes[AxisName::ep].sum_control(t);
  ctx.axes[AxisName::pp].sum_control(t);
  if (store.zero().cuts_state()) ctx.axes[AxisName::edp_shard].sum_control(t);
}

/// Sum of the squares of all gradients of one kind (experts or all else) in exact lanes, with a third number: whether a
/// summand had no place in them.
ExactSum exact_squares(Context& ctx, ParamStore& store, bool expert, bool* lost) {
  ExactSum sum;
  for (LocalParam& p : store.all())
    if (p.counted && p.expert() == expert) squares(ctx, p.param, gradient_of(ctx, p), [&](double x) { *lost |= !sum.add(x); });
  Tensor t = ctx.workspace(DType::i64, 1, 3);
  if (!ctx.be.shapes_only()) {
    Host<int64_t> h(ctx.be, t);
    h[0] = sum.hi, h[1] = sum.lo, h[2] = *lost;
  }
  if (expert) sum_over_expert_holders(ctx, store, t);
  else sum_over_holders(ctx, store, t);
  // A place that was missing may have been seen by one replica only. Replicas have the same gradients: the sum over
  // them is a multiple, taken back exactly.
  const DataRanks& ranks = store.data_ranks(expert);
  const Axis& same = ctx.axes[store.zero().cuts_state() ? ranks.replica : ranks.shard];
  same.sum_control(t);
  if (ctx.be.shapes_only()) return {};
  Host<int64_t> h(ctx.be, t);
  *lost = h[2] != 0;
  return {h[0] / same.size(), h[1] / same.size()};
}

}  // namespace

double gradient_norm(Context& ctx, ParamStore& store, std::string* not_finite) {
  const bool experts = ctx.layout.shape().experts > 0;
  if (ctx.reproducible()) {
    bool lost = ctx.be.exact_overflow();
    ExactSum whole;
    if (experts) whole = exact_squares(ctx, store, true, &lost);  // first, so that what one rank lost is known to all below
    const ExactSum others = exact_squares(ctx, store, false, &lost);
    if (ctx.be.shapes_only()) return 0;
    if (lost) return std::numeric_limits<double>::quiet_NaN();
    whole.hi += others.hi;
    whole.lo += others.lo;
    whole.carry();
    return std::sqrt(whole.value());
  }
  // One number a parameter of the model, so that the order of the sum over parameters does not depend on which rank
  // holds what.
  const int64_t n = store.model_params();
  std::vector<const LocalParam*> names(static_cast<size_t>(n), nullptr);
  for (LocalParam& p : store.all()) names[static_cast<size_t>(p.index)] = &p;
  std::vector<double> all(static_cast<size_t>(n), 0.0);
  for (bool expert : {false, true}) {
    if (expert && !experts) break;
    std::vector<double> mine(static_cast<size_t>(n), 0.0);
    for (LocalParam& p : store.all())
      if (p.counted && p.expert() == expert) squares(ctx, p.param, p.own_grad, [&](double x) { mine[static_cast<size_t>(p.index)] += x; });
    Tensor t = ctx.workspace(DType::f64, 1, n);
    if (!ctx.be.shapes_only()) {
      Host<double> h(ctx.be, t);
      std::copy(mine.begin(), mine.end(), h.data());
    }
    if (expert) sum_over_expert_holders(ctx, store, t);
    else sum_over_holders(ctx, store, t);
    if (ctx.be.shapes_only()) continue;
    Host<double> h(ctx.be, t);
    for (int64_t i = 0; i < n; ++i) all[static_cast<size_t>(i)] += h[i];
  }
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = all[static_cast<size_t>(i)];
    const LocalParam* p = names[static_cast<size_t>(i)];
    if (not_finite && not_finite->empty() && !std::isfinite(x)) *not_finite = p ? p->param.name : "a parameter of another rank";
    sum += x;
  }
  return std::sqrt(sum);
}

void update_parameters(Context& ctx, ParamStore& store, const Optimizer& optimizer, const OptimizerSettings& s, double lr, int64_t step, double norm) {
  const double scale = (s.clip > 0 ? std::min(1.0, s.clip / (norm + 1e-6)) : 1.0) / ctx.loss_scale;
  for (LocalParam& p : store.all())
    if (!p.copy && p.trained()) optimizer.update(ctx.be, s, lr, step, scale, p, gradient_of(ctx, p));
  Sharding(ctx, store).publish();
}

}  // namespace orthant
