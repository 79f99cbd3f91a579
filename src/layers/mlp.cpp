// See mlp.hpp.
#include "layers/mlp.hpp"

#include <cmath>

#include "layers/dropout.hpp"
#include "layers/pieces.hpp"

namespace orthant {

std::vector<Param> Mlp::params(const std::string& prefix, const ModelConfig& c) {
  const Dim hidden{DimName::hidden, c.hidden, 1}, ffn{DimName::ffn, c.ffn, 1};
  const Init normal{Init::normal, c.init_std}, residual{Init::normal, c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers))};
  std::vector<Param> out;
  auto linear = [&](const char* name, Dim rows, Dim cols, Init init, unsigned bias_contracted) {
    out.push_back({prefix + "." + name + ".weight", {rows, cols}, over_all_tokens, init, true, {}});
    if (c.bias) out.push_back({prefix + "." + name + ".bias", {rows}, bias_contracted, {Init::zeros, 0}, false, {}});
  };
  if (c.family != "gpt2") linear("gate", ffn, hidden, normal, over_all_tokens);
  linear("up", ffn, hidden, normal, over_all_tokens);
  linear("down", hidden, ffn, residual, over_tokens);  // its bias is added to the token shard
  return out;
}

Mlp::Mlp(const std::string& prefix, const ModelConfig& c, ParamStore& store, const Axes& axes, const Layout& layout)
    : name_(prefix), gated_(c.family != "gpt2"), edge_(axes, layout) {
  auto linear = [&](const char* name) {
    return Linear{&store.at(prefix + "." + name + ".weight"), c.bias ? &store.at(prefix + "." + name + ".bias") : nullptr, (c.ffn + 7) / 8};
  };
  if (gated_) gate_ = linear("gate");
  up_ = linear("up");
  down_ = linear("down");
}

Tensor Mlp::activate(Context& ctx, const Saved& s) const {
  Tensor a = ctx.activation(s.h.rows(), s.h.cols());
  if (gated_) ctx.be.swiglu_forward(s.gate, s.h, a);
  else ctx.be.gelu_forward(s.h, a);
  return a;
}

Tensor Mlp::forward(Context& ctx, const Tensor& x_SD, Saved& s) const {
  const Operand x(x_SD);
  Operand a;
  if (gated_) {
    const auto products = pieces::enter_products(ctx, edge_, x, {&gate_, &up_}, "mlp forward");
    s.gate = products[0];
    s.h = products[1];
    a = activate(ctx, s);
  } else {
    const Activated up = pieces::enter_gelu(ctx, edge_, x, up_, "mlp forward");
    s.h = up.pre;
    a = up.y;
  }
  s.x = x.kept();
  Tensor y = pieces::leave_product(ctx, edge_, down_, a, "mlp forward");
  s.a = a.kept();
  if (down_.b) ctx.be.add(y, down_.b->weight.reshaped(1, y.cols()).repeated(y.rows()), y);
  return drop_hidden(ctx, y, name_);
}

Tensor Mlp::backward(Context& ctx, const Tensor& dy_out, const Saved& s) const {
  Tensor dy_SD = drop_hidden(ctx, dy_out, name_);
  if (down_.b) bias_backward(ctx, *down_.b, dy_SD);
  const auto [dy, da] = pieces::enter_gradient(ctx, edge_, dy_SD, down_, "mlp backward");
  ctx.defer([this, &ctx, dy = dy.kept(), a = s.a ? s.a : Operand(activate(ctx, s))] { backward_weight(ctx, *down_.w, dy, a); });
  const Operand dh(ctx.activation(da.rows(), da.cols())), dg = gated_ ? Operand(ctx.activation(da.rows(), da.cols())) : Operand();
  Partial dx = make_partial(ctx, dy.rows(), up_.w->cols());
  const std::vector<const Linear*> of_x = gated_ ? std::vector<const Linear*>{&gate_, &up_} : std::vector<const Linear*>{&up_};
  pieces::Entering again(ctx, edge_, s.x, of_x, "mlp backward, input again");  // hides behind the products of dx
  if (gated_) {
    ctx.be.swiglu_backward(da, s.gate, s.h, dg.full(), dh.full());
    column_backward_input(ctx, gate_, dg, dx, true);
  } else {
    ctx.be.gelu_backward(da, s.h, dh.full());
  }
  column_backward_input(ctx, up_, dh, dx, !gated_);
  Leaving leaving = edge_.leave(ctx, dx, "mlp backward");  // hides behind the weight gradients
  const Operand x = again.wait();
  for (const auto& [l, d] : {std::pair<const Linear*, const Operand&>{gated_ ? &gate_ : nullptr, dg}, {&up_, dh}}) {
    if (!l) continue;
    if (l->b) bias_backward(ctx, *l->b, d.full());
    ctx.defer([l = l, &ctx, d = d.kept(), x] { backward_weight(ctx, *l->w, d, x); });
  }
  return leaving.wait();
}

}  // namespace orthant
