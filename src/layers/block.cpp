// See block.hpp.
#include "layers/block.hpp"

namespace orthant {

NormKind norm_kind(const ModelConfig& c) { return c.family == "gpt2" ? NormKind::layer : NormKind::rms; }

Norm make_norm(const std::string& prefix, const ModelConfig& c, ParamStore& store) {
  bool bias = norm_kind(c) == NormKind::layer && c.bias;
  return Norm(norm_kind(c), c.norm_eps, &store.at(prefix + ".weight"), bias ? &store.at(prefix + ".bias") : nullptr);
}

namespace {

bool latent(const ModelConfig& c) { return c.mla.kv_lora_rank > 0; }

template <class Layer, class Saved>
typename Layer::Saved& of(Saved& saved) {
  if (!std::holds_alternative<typename Layer::Saved>(saved)) saved = typename Layer::Saved{};
  return std::get<typename Layer::Saved>(saved);
}

}  // namespace

std::vector<Param> Block::params(const std::string& prefix, const ModelConfig& c, int64_t layer) {
  const Dim hidden{DimName::hidden, c.hidden, 1};
  std::vector<Param> out;
  auto append = [&](std::vector<Param> more) { out.insert(out.end(), more.begin(), more.end()); };
  append(Norm::params(prefix + ".norm1", norm_kind(c), c.bias, hidden, over_tokens));
  append(latent(c) ? LatentAttention::params(prefix + ".attention", c) : Attention::params(prefix + ".attention", c));
  append(Norm::params(prefix + ".norm2", norm_kind(c), c.bias, hidden, over_tokens));
  append(c.mixture(layer) ? Moe::params(prefix + ".moe", c) : Mlp::params(prefix + ".mlp", c));
  return out;
}

Block::Block(const std::string& prefix, const ModelConfig& c, int64_t layer, ParamStore& store, const Axes& axes, const Layout& layout)
    : norm1_(make_norm(prefix + ".norm1", c, store)), norm2_(make_norm(prefix + ".norm2", c, store)),
      attention_([&]() -> std::variant<Attention, LatentAttention> {
        if (latent(c)) return LatentAttention(prefix + ".attention", c, store, axes, layout);
        return Attention(prefix + ".attention", c, store, axes, layout);
      }()),
      mlp_([&]() -> std::variant<Mlp, Moe> {
        if (c.mixture(layer)) return Moe(prefix + ".moe", c, layer, store, axes, layout);
        return Mlp(prefix + ".mlp", c, store, axes, layout);
      }()) {}

Tensor Block::run(Context& ctx, const Tensor& x, const Tensor& rope, Saved& s) const {
  Tensor n1 = norm1_.forward(ctx, x, s.norm1);
  Tensor x1 = std::visit([&]<class L>(const L& l) { return l.forward(ctx, n1, rope, of<L>(s.attention)); }, attention_);
  n1 = Tensor();  // what of it is needed is saved
  ctx.be.add(x, x1, x1);
  Tensor n2 = norm2_.forward(ctx, x1, s.norm2);
  Tensor y = std::visit([&]<class L>(const L& l) { return l.forward(ctx, n2, of<L>(s.mlp)); }, mlp_);
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
    std::visit([](auto& saved) { saved.x = Tensor(); }, s.attention);
    std::visit([](auto& saved) { saved.x = saved.a = Tensor(); }, s.mlp);
  }
  return y;
}

Tensor Block::backward(Context& ctx, const Tensor& dy, const Tensor& rope, Saved& s) const {
  if (ctx.recompute == Recompute::full) {
    ctx.again = true;
    run(ctx, s.input, rope, s);
    ctx.again = false;
  }
  const bool selective = ctx.recompute == Recompute::selective;
  if (selective) std::visit([&](auto& saved) { saved.x = norm2_.again(ctx, s.norm2); }, s.mlp);
  Tensor dn2 = std::visit([&]<class L>(const L& l) { return l.backward(ctx, dy, of<L>(s.mlp)); }, mlp_);
  s.mlp = {};
  Tensor dx1 = norm2_.backward(ctx, dn2, dy, s.norm2);
  if (selective) std::visit([&](auto& saved) { saved.x = norm1_.again(ctx, s.norm1); }, s.attention);
  Tensor dn1 = std::visit([&]<class L>(const L& l) { return l.backward(ctx, dx1, rope, of<L>(s.attention)); }, attention_);
  Tensor dx = norm1_.backward(ctx, dn1, dx1, s.norm1);
  s = {};
  return dx;
}

}  // namespace orthant
