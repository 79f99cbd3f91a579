// See moe.hpp.
#include "layers/moe.hpp"

#include <algorithm>

#include "layers/dropout.hpp"
#include "orthant/router_stats.hpp"

namespace orthant {

namespace {

/// The shared experts are one feed-forward layer.
ModelConfig shared_config(const ModelConfig& c) {
  ModelConfig shared = c;
  shared.ffn = c.moe.shared_experts * c.moe.ffn;
  return shared;
}

/// Rows of this rank's part of the sequence.
Tensor own_rows(Context& ctx, const Axis& tp, const Tensor& x) {
  if (!ctx.layout.sequence_parallel() || tp.size() == 1) return x;
  const int64_t rows = x.rows() / tp.size();
  Tensor out = ctx.be.alloc(x.dtype(), rows, x.cols(), MemoryKind::activations);
  ctx.be.copy(out, x.row_range(tp.rank() * rows, rows));
  return out;
}

}  // namespace

std::vector<Param> Moe::params(const std::string& prefix, const ModelConfig& c) {
  std::vector<Param> out = Router::params(prefix + ".router", c);
  auto append = [&](std::vector<Param> more) { out.insert(out.end(), more.begin(), more.end()); };
  append(Experts::params(prefix + ".experts", c));
  if (c.moe.shared_experts > 0) append(Mlp::params(prefix + ".shared", shared_config(c)));
  return out;
}

Moe::Moe(const std::string& prefix, const ModelConfig& c, int64_t layer, ParamStore& store, const Axes& axes,
         const Layout& layout)
    : name_(prefix),
      moe_(c.moe),
      router_(prefix + ".router", c, layer, store),
      experts_(prefix + ".experts", c, store, axes, layout),
      ep_(&axes[AxisName::ep]),
      edge_(axes, layout) {
  if (c.moe.shared_experts > 0) shared_.emplace(prefix + ".shared", shared_config(c), store, axes, layout);
  ORTHANT_ENSURE(layout.shape().experts == c.moe.experts, "the mesh was made for another number of experts");
  // Ranks of tp with copies of the same tokens would each send them, and experts would learn from them tp times.
  ORTHANT_ENSURE(layout.shape().tp == 1 || layout.shape().etp > 1 || layout.sequence_parallel(),
                 "experts that tp does not cut need sequence parallelism");
}

/// Bound of the rows that come to this rank: all picks of all tokens of its group, or what the capacity leaves.
int64_t Moe::most_rows(const Context& ctx, const RoutingShape& s) const {
  const int64_t all = most_received(s);
  if (moe_.capacity_factor == 0) return all;
  const MeshShape& mesh = ctx.layout.shape();
  const int64_t places = mesh.cp * (mesh.etp > 1 ? 1 : mesh.tp);  // of ep that share sequences
  const int64_t first = edp_of(mesh, ctx.layout.at()) * s.ranks;
  const int64_t groups = (first + s.ranks - 1) / places - first / places + 1;
  return std::min(all, groups * ctx.batch->sequences * s.local_experts() *
                           expert_capacity(ctx.sequence, s.top_k, s.experts, moe_.capacity_factor));
}

/// What every rank of tp routes: the whole tokens where tp cuts the experts, else its own.
Tensor Moe::enter(Context& ctx, const Tensor& x, const char* site) const {
  return cut() ? edge_.enter(ctx, x, site) : x;
}

/// Its transpose. In reproducible mode the summands of the ranks were added exactly where the experts are.
Leaving Moe::leave(Context& ctx, const Tensor& y, const char* site) const {
  if (!cut()) return Leaving(y, Pending());
  if (ctx.reproducible()) return Leaving(own_rows(ctx, edge_.tokens(), y), Pending());
  return edge_.leave(ctx, Partial{y.rows(), y.cols(), y, {}}, site);
}

/// The gradient of the weights of the shard's picks.
Tensor Moe::own_picks(Context& ctx, const Tensor& d_weights) const {
  if (!cut()) return d_weights;
  if (ctx.reproducible()) return own_rows(ctx, edge_.tokens(), d_weights);
  const char* site = "mixture backward: gradients of weights";
  if (!ctx.layout.sequence_parallel()) {
    edge_.cut().sum(d_weights, site).wait();
    return d_weights;
  }
  Tensor own = ctx.statistic(d_weights.rows() / edge_.cut().size(), d_weights.cols());
  edge_.cut().scatter_sum(d_weights, own, site).wait();
  return own;
}

Tensor Moe::forward(Context& ctx, const Tensor& x_SD, Saved& s) const {
  s.x = x_SD;
  const Router::Choice choice = router_.forward(ctx, x_SD, s.router);
  const Tensor x = enter(ctx, x_SD, "mixture forward");
  const Tensor chosen = enter(ctx, choice.chosen, "mixture forward: choices");
  const Tensor weights = enter(ctx, choice.weights, "mixture forward: weights");

  RoutingShape shape{x.rows(), moe_.top_k, moe_.experts, ep_->size(), 0};
  if (ctx.reproducible()) shape.block_rows = (ctx.sequence + 15) / 16 * ctx.batch->sequences;
  s.dispatch = plan_dispatch(ctx, *ep_, shape, chosen, most_rows(ctx, shape));
  const Dispatch& d = s.dispatch;
  if (ctx.router_stats && !ctx.again) {
    const bool copies = !ctx.layout.sequence_parallel() && edge_.tokens().rank() > 0;
    ctx.router_stats->add_rows(copies ? 0 : choice.dropped, d.off_rank);
  }

  Tensor shared, arrived, arrived_weights;
  {
    Leaving rows = send_rows(*ep_, ctx, d, "exchange", rows_of_tokens(ctx, d, x), "mixture forward");
    Leaving row_weights =
        send_rows(*ep_, ctx, d, "exchange_weights", rows_of_picks(ctx, d, weights), "mixture forward");
    if (shared_) {  // while the rows travel
      shared = shared_->forward(ctx, x_SD, s.shared);
      s.shared.x = Tensor();
      if (ctx.recompute == Recompute::selective) s.shared.a = Tensor();
    }
    arrived = regroup(ctx, d, rows.wait());
    arrived_weights = regroup(ctx, d, row_weights.wait());
  }
  const Tensor y_rows = experts_.forward(ctx, d, arrived, arrived_weights, s.experts, s.a);
  const Tensor back = return_rows(*ep_, ctx, d, "exchange", y_rows, "mixture forward").wait();
  Tensor y = leave(ctx, tokens_of_rows(ctx, d, back), "mixture forward").wait();
  y = drop_hidden(ctx, y, name_);
  if (shared_) ctx.be.add(y, shared, y);
  return y;
}

Tensor Moe::backward(Context& ctx, const Tensor& dy_out, const Saved& s) const {
  const Dispatch& d = s.dispatch;
  const Tensor dy = enter(ctx, drop_hidden(ctx, dy_out, name_), "mixture backward");
  Tensor shared, arrived;
  {
    Leaving rows = send_rows(*ep_, ctx, d, "exchange", rows_of_tokens(ctx, d, dy), "mixture backward");
    if (shared_) {
      Mlp::Saved with_x = s.shared;
      with_x.x = s.x;
      shared = shared_->backward(ctx, dy_out, with_x);
    }
    arrived = regroup(ctx, d, rows.wait());
  }
  const Experts::Gradients g = experts_.backward(ctx, d, arrived, s.experts, s.a);
  Leaving dx_rows = return_rows(*ep_, ctx, d, "exchange", g.dx, "mixture backward");
  Leaving dw_rows = return_rows(*ep_, ctx, d, "exchange_weights", g.dw, "mixture backward");
  const Tensor dx_whole = tokens_of_rows(ctx, d, dx_rows.wait());
  Leaving leaving = leave(ctx, dx_whole, "mixture backward");
  const Tensor d_weights = own_picks(ctx, picks_of_rows(ctx, d, dw_rows.wait()));
  Tensor dx = leaving.wait();
  if (shared_) ctx.be.add(dx, shared, dx);
  router_.backward(ctx, s.x, d_weights, s.router, dx);
  return dx;
}

}  // namespace orthant
