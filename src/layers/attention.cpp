// See attention.hpp.
#include "layers/attention.hpp"

#include <cmath>

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
    : heads_(layout.heads(c.heads).size), kv_heads_(layout.kv_heads(c.kv_heads).size), head_dim_(c.head_dim), qk_norm_(c.family == "qwen3"),
      scale_(1.0 / std::sqrt(static_cast<double>(c.head_dim))), edge_(axes[AxisName::tp]), shared_kv_(axes[AxisName::tp_rep]) {
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

AttentionShape Attention::shape(const Context& ctx) const {
  AttentionShape s;
  s.batch = ctx.batch->sequences;
  s.q_length = s.k_length = ctx.batch->length;
  s.heads = heads_;
  s.kv_heads = kv_heads_;
  s.head_dim = head_dim_;
  s.scale = scale_;
  return s;
}

void Attention::rotate(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& rope, bool inverse) const {
  if (!rope) return;
  ctx.be.rope(q, heads_, head_dim_, ctx.batch->positions, rope, inverse);
  if (k) ctx.be.rope(k, kv_heads_, head_dim_, ctx.batch->positions, rope, inverse);
}

Tensor Attention::forward(Context& ctx, const Tensor& x_SD, const Tensor& rope, Saved& s) const {
  s.x = x_SD;
  Tensor x = edge_.enter(ctx, x_SD, "attention forward");
  s.q = column_forward(ctx, q_, x);
  s.k = column_forward(ctx, k_, x);
  s.v = column_forward(ctx, v_, x);
  if (qk_norm_) {
    int64_t tokens = x.rows();
    s.q = q_norm_.forward(ctx, s.q.reshaped(tokens * heads_, head_dim_), s.q_norm).reshaped(tokens, heads_ * head_dim_);
    s.k = k_norm_.forward(ctx, s.k.reshaped(tokens * kv_heads_, head_dim_), s.k_norm).reshaped(tokens, kv_heads_ * head_dim_);
  }
  rotate(ctx, s.q, s.k, rope, false);
  s.o = ctx.activation(x.rows(), heads_ * head_dim_);
  s.lse = ctx.statistic(x.rows(), heads_);
  ctx.be.attention_forward(shape(ctx), s.q, s.k, s.v, s.o, s.lse);
  Tensor y = edge_.leave(ctx, row_forward(ctx, out_, s.o), "attention forward").wait();
  if (out_.b) ctx.be.add(y, out_.b->weight.reshaped(1, y.cols()).repeated(y.rows()), y);
  return y;
}

Tensor Attention::backward(Context& ctx, const Tensor& dy_SD, const Tensor& rope, const Saved& s) const {
  if (out_.b) bias_backward(ctx, *out_.b, dy_SD);
  Tensor dy = edge_.enter(ctx, dy_SD, "attention backward");
  Tensor d_o = row_backward_input(ctx, out_, dy);
  ctx.defer([this, &ctx, dy, o = s.o] { backward_weight(ctx, *out_.w, dy, o); });

  const bool apart = ctx.reproducible();  // dk and dv by query head, summed exactly below
  int64_t tokens = dy.rows(), kv_width = (apart ? heads_ : kv_heads_) * head_dim_;
  Tensor dq = ctx.activation(tokens, heads_ * head_dim_), dk = ctx.activation(tokens, kv_width), dv = ctx.activation(tokens, kv_width);
  ctx.be.attention_backward(shape(ctx), d_o, s.q, s.k, s.v, s.o, s.lse, dq, dk, dv);
  if (apart) {
    dk = sum_query_heads(ctx, dk);
    dv = sum_query_heads(ctx, dv);
  }
  rotate(ctx, dq, dk, rope, true);
  // After an exact sum every rank of tp_rep holds the whole dk and dv: one of them passes them on.
  const bool count_kv = !apart || shared_kv_.rank() == 0;
  if (qk_norm_) {
    dq = head_norm_backward(ctx, q_norm_, heads_, dq, s.q_norm, true);
    dk = head_norm_backward(ctx, k_norm_, kv_heads_, dk, s.k_norm, count_kv);
  }
  Partial dx = make_partial(ctx, tokens, q_.w->cols());
  column_backward_input(ctx, q_, dq, dx, true);
  if (count_kv) {
    column_backward_input(ctx, k_, dk, dx, false);
    column_backward_input(ctx, v_, dv, dx, false);
  }
  Leaving leaving = edge_.leave(ctx, dx, "attention backward");  // hides behind the weight gradients
  Tensor x = edge_.enter(ctx, s.x, "attention backward, input again");
  const std::pair<const Linear*, Tensor> products[] = {{&q_, dq}, {&k_, dk}, {&v_, dv}};
  for (const auto& [l, d] : products) {
    if (l->b) bias_backward(ctx, *l->b, d);
    ctx.defer([l = l, &ctx, d = d, x] { backward_weight(ctx, *l->w, d, x); });
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

Tensor Attention::sum_query_heads(Context& ctx, const Tensor& d) const {
  int64_t tokens = d.rows(), group = heads_ / kv_heads_, width = kv_heads_ * head_dim_;
  Tensor sum = ctx.workspace(DType::i64, 2, tokens * width);
  ctx.be.zero(sum);
  for (int64_t g = 0; g < group; ++g) {
    // the g-th query head of every kv head, side by side
    Tensor part = ctx.workspace(d.dtype(), tokens, width);
    for (int64_t kv = 0; kv < kv_heads_; ++kv)
      ctx.be.copy(part.col_range(kv * head_dim_, head_dim_), d.col_range((kv * group + g) * head_dim_, head_dim_));
    ctx.be.exact_add(part, sum);
  }
  ctx.be.exact_carry(sum);
  shared_kv_.sum(sum, "query heads of a shared kv head").wait();
  ctx.be.exact_carry(sum);
  Tensor out = ctx.activation(tokens, width);
  ctx.be.exact_value(sum, out);
  return out;
}

}  // namespace orthant
