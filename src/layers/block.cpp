// See block.hpp.
#include "layers/block.hpp"

namespace orthant {

NormKind norm_kind(const ModelConfig& c) { return c.family == "gpt2" ? NormKind::layer : NormKind::rms; }

Norm make_norm(const std::string& prefix, const ModelConfig& c, ParamStore& store) {
  bool bias = norm_kind(c) == NormKind::layer && c.bias;
  return Norm(norm_kind(c), c.norm_eps, &store.at(prefix + ".weight"), bias ? &store.at(prefix + ".bias") : nullptr);
}

std::vector<Param> Block::params(const std::string& prefix, const ModelConfig& c) {
  const Dim hidden{DimName::hidden, c.hidden, 1};
  std::vector<Param> out;
  auto append = [&](std::vector<Param> more) { out.insert(out.end(), more.begin(), more.end()); };
  append(Norm::params(prefix + ".norm1", norm_kind(c), c.bias, hidden, over_tokens));
  append(Attention::params(prefix + ".attention", c));
  append(Norm::params(prefix + ".norm2", norm_kind(c), c.bias, hidden, over_tokens));
  append(Mlp::params(prefix + ".mlp", c));
  return out;
}

Block::Block(const std::string& prefix, const ModelConfig& c, ParamStore& store, const Axes& axes, const Layout& layout)
    : norm1_(make_norm(prefix + ".norm1", c, store)), norm2_(make_norm(prefix + ".norm2", c, store)),
      attention_(prefix + ".attention", c, store, axes, layout), mlp_(prefix + ".mlp", c, store, axes) {}

Tensor Block::run(Context& ctx, const Tensor& x, const Tensor& rope, Saved& s) const {
  Tensor n1 = norm1_.forward(ctx, x, s.norm1);
  Tensor x1 = attention_.forward(ctx, n1, rope, s.attention);
  ctx.be.add(x, x1, x1);
  Tensor n2 = norm2_.forward(ctx, x1, s.norm2);
  Tensor y = mlp_.forward(ctx, n2, s.mlp);
  ctx.be.add(x1, y, y);
  return y;
}

Tensor Block::forward(Context& ctx, const Tensor& x, const Tensor& rope, Saved& s) const {
  if (ctx.recompute == Recompute::full) {
    s.input = x;
    Saved scratch;
    return run(ctx, x, rope, scratch);
  }
  Tensor y = run(ctx, x, rope, s);
  if (ctx.recompute == Recompute::selective) {
    s.attention.x = Tensor();
    s.mlp.x = Tensor();
    s.mlp.a = Tensor();
  }
  return y;
}

Tensor Block::backward(Context& ctx, const Tensor& dy, const Tensor& rope, Saved& s) const {
  if (ctx.recompute == Recompute::full) run(ctx, s.input, rope, s);
  if (ctx.recompute == Recompute::selective) s.mlp.x = norm2_.again(ctx, s.norm2);
  Tensor dn2 = mlp_.backward(ctx, dy, s.mlp);
  s.mlp = {};
  Tensor dx1 = norm2_.backward(ctx, dn2, dy, s.norm2);
  if (ctx.recompute == Recompute::selective) s.attention.x = norm1_.again(ctx, s.norm1);
  Tensor dn1 = attention_.backward(ctx, dx1, rope, s.attention);
  Tensor dx = norm1_.backward(ctx, dn1, dx1, s.norm1);
  s = {};
  return dx;
}

}  // namespace orthant
