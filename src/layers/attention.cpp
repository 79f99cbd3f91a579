// See attention.hpp.
#include "layers/attention.hpp"

#include <cmath>

#include "layers/dropout.hpp"
#include "layers/pieces.hpp"

namespace orthant {

Tensor make_rope_table(Context& ctx, const ModelConfig& config, int64_t positions) {
  RopeTable freq = rope_frequencies(config);
  int64_t half = config.head_dim / 2;
  Tensor table = ctx.be.alloc(ctx.A, positions, config.head_dim, MemoryKind::workspace);
  if (ctx.be.shapes_only()) return table;
  // Angles in double, rounded once: neighbouring positions stay apart at any length.
  auto fill = [&](auto* data) {
    using F = std::remove_pointer_t<decltype(data)>;
    for (int64_t p = 0; p < positions; ++p)
      for (int64_t i = 0; i < half; ++i) {
        double angle = static_cast<double>(p) * freq.inverse_frequencies[static_cast<size_t>(i)];
        data[p * config.head_dim + i] = static_cast<F>(std::cos(angle) * freq.attention_factor);
        data[p * config.head_dim + half + i] = static_cast<F>(std::sin(angle) * freq.attention_factor);
      }
  };
  if (ctx.A == DType::f64) fill(Host<double>(ctx.be, table).data());
  else fill(Host<float>(ctx.be, table).data());
  return table;
}

std::vector<Param> Attention::params(const std::string& prefix, const ModelConfig& c) {
  const Dim hidden{DimName::hidden, c.hidden, 1};
  const Dim heads{DimName::heads, c.heads * c.head_dim, c.head_dim}, kv{DimName::kv_heads, c.kv_heads * c.head_dim, c.head_dim};
  const Init normal{Init::normal, c.init_std}, residual{Init::normal, c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers))};
  const unsigned of_kv = over_all_tokens | over_query_heads;
  const bool bias = c.bias || c.qkv_bias;
  std::vector<Param> out;
  auto linear = [&](const char* name, Dim rows, Dim cols, unsigned contracted, Init init, bool with_bias, unsigned bias_contracted) {
    out.push_back({prefix + "." + name + ".weight", {rows, cols}, contracted, init, true, {}});
    if (with_bias) out.push_back({prefix + "." + name + ".bias", {rows}, bias_contracted, {Init::zeros, 0}, false, {}});
  };
  linear("q", heads, hidden, over_all_tokens, normal, bias, over_all_tokens);
  linear("k", kv, hidden, of_kv, normal, bias, of_kv);
  linear("v", kv, hidden, of_kv, normal, bias, of_kv);
  // the bias of the output is added to the token shard, after the sum over ranks
  linear("out", hidden, heads, over_all_tokens, residual, c.bias, over_tokens);
  if (c.family == "qwen3")
    for (const char* name : {"q_norm", "k_norm"})
      for (Param& p : Norm::params(prefix + "." + name, NormKind::rms, false, {DimName::head_dim, c.head_dim, 1}, over_all_tokens | over_heads))
        out.push_back(p);
  return out;
}

Attention::Attention(const std::string& prefix, const ModelConfig& c, ParamStore& store, const Axes& axes, const Layout& layout)
    : name_(prefix), heads_(layout.heads(c.heads).size), kv_heads_(layout.kv_heads(c.kv_heads).size), head_dim_(c.head_dim), qk_norm_(c.family == "qwen3"),
      shape_{heads_, kv_heads_, c.head_dim, layout.heads(c.heads).begin, c.heads, 1.0 / std::sqrt(static_cast<double>(c.head_dim)), prefix + ".probabilities"},
      edge_(axes, layout), shared_kv_(axes[AxisName::tp_rep]) {
  auto linear = [&](const char* name, bool bias) {
    return Linear{&store.at(prefix + "." + name + ".weight"), bias ? &store.at(prefix + "." + name + ".bias") : nullptr, c.head_dim};
  };
  q_ = linear("q", c.bias || c.qkv_bias);
  k_ = linear("k", c.bias || c.qkv_bias);
  v_ = linear("v", c.bias || c.qkv_bias);
  out_ = linear("out", c.bias);
  if (qk_norm_) {
    q_norm_ = Norm(NormKind::rms, c.norm_eps, &store.at(prefix + ".q_norm.weight"), nullptr);
    k_norm_ = Norm(NormKind::rms, c.norm_eps, &store.at(prefix + ".k_norm.weight"), nullptr);
  }
}

void Attention::rotate(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& rope, bool inverse) const {
  if (!rope) return;
  ctx.be.rope(q, {heads_, head_dim_}, ctx.batch->positions, rope, inverse);
  if (k) ctx.be.rope(k, {kv_heads_, head_dim_}, ctx.batch->positions, rope, inverse);
}

Tensor Attention::forward(Context& ctx, const Tensor& x_SD, const Tensor& rope, Saved& s) const {
  const Operand x(x_SD);
  const auto products = pieces::enter_products(ctx, edge_, x, {&q_, &k_, &v_}, "attention forward");
  s.x = x.kept();
  Tensor q = products[0], k = products[1];
  const Tensor& v = products[2];
  if (qk_norm_) {
    int64_t tokens = q.rows();
    q = q_norm_.forward(ctx, q.reshaped(tokens * heads_, head_dim_), s.q_norm).reshaped(tokens, heads_ * head_dim_);
    k = k_norm_.forward(ctx, k.reshaped(tokens * kv_heads_, head_dim_), s.k_norm).reshaped(tokens, kv_heads_ * head_dim_);
  }
  rotate(ctx, q, k, rope, false);
  s.o = context_attention(ctx)->forward(ctx, shape_, q, k, v, s.kept);
  Tensor y = pieces::leave_product(ctx, edge_, out_, s.o, "attention forward");
  if (out_.b) ctx.be.add(y, out_.b->weight.reshaped(1, y.cols()).repeated(y.rows()), y);
  return drop_hidden(ctx, y, name_);
}

Tensor Attention::backward(Context& ctx, const Tensor& dy_out, const Tensor& rope, const Saved& s) const {
  Tensor dy_SD = drop_hidden(ctx, dy_out, name_);
  if (out_.b) bias_backward(ctx, *out_.b, dy_SD);
  const auto [dy, d_o] = pieces::enter_gradient(ctx, edge_, dy_SD, out_, "attention backward");
  ctx.defer([this, &ctx, dy = dy.kept(), o = s.o] { backward_weight(ctx, *out_.w, dy, o); });

  int64_t tokens = dy.rows();
  Tensor dq, dk, dv;
  context_attention(ctx)->backward(ctx, shape_, d_o, s.kept, dq, dk, dv);
  rotate(ctx, dq, dk, rope, true);
  // After an exact sum every rank of tp_rep holds the whole dk and dv: one of them passes them on.
  const bool count_kv = !ctx.reproducible() || shared_kv_.rank() == 0;
  if (qk_norm_) {
    dq = head_norm_backward(ctx, q_norm_, heads_, dq, s.q_norm, true);
    dk = head_norm_backward(ctx, k_norm_, kv_heads_, dk, s.k_norm, count_kv);
  }
  Partial dx = make_partial(ctx, tokens, q_.w->cols());
  pieces::Entering again(ctx, edge_, s.x, {&q_, &k_, &v_}, "attention backward, input again");  // hides behind the products of dx
  const Operand of_q(dq), of_k(dk), of_v(dv);
  column_backward_input(ctx, q_, of_q, dx, true);
  if (count_kv) {
    column_backward_input(ctx, k_, of_k, dx, false);
    column_backward_input(ctx, v_, of_v, dx, false);
  }
  Leaving leaving = edge_.leave(ctx, dx, "attention backward");  // hides behind the weight gradients
  const Operand x = again.wait();
  const std::pair<const Linear*, const Operand&> products[] = {{&q_, of_q}, {&k_, of_k}, {&v_, of_v}};
  for (const auto& [l, d] : products) {
    if (l->b) bias_backward(ctx, *l->b, d.full());
    ctx.defer([l = l, &ctx, d = d.kept(), x] { backward_weight(ctx, *l->w, d, x); });
  }
  return leaving.wait();
}

Tensor Attention::head_norm_backward(Context& ctx, const Norm& norm, int64_t heads, const Tensor& dy, const Norm::Saved& s, bool count) const {
  int64_t tokens = dy.rows();
  Tensor dx = ctx.activation(tokens, heads * head_dim_);
  if (!ctx.reproducible()) {
    norm.backward_into(ctx, dy.reshaped(tokens * heads, head_dim_), {}, s, dx.reshaped(tokens * heads, head_dim_), count);
    return dx;
  }
  // Head by head, so that the order of the sum does not depend on how many heads a rank has.
  Tensor x = s.x.reshaped(tokens, heads * head_dim_), stats = s.stats.reshaped(tokens, heads * 2);
  for (int64_t h = 0; h < heads; ++h) {
    Norm::Saved one{x.col_range(h * head_dim_, head_dim_), stats.col_range(h * 2, 2)};
    norm.backward_into(ctx, dy.col_range(h * head_dim_, head_dim_), {}, one, dx.col_range(h * head_dim_, head_dim_), count);
  }
  return dx;
}

}  // namespace orthant
