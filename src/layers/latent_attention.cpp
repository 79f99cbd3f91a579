// See latent_attention.hpp.
#include "layers/latent_attention.hpp"

#include <cmath>
#include <numeric>

#include "layers/dropout.hpp"
#include "layers/pieces.hpp"
#include "model/rope_frequencies.hpp"

namespace orthant {

namespace {

constexpr double norm_eps = 1e-6;
constexpr const char* input_again = "attention backward, input again";

/// Summands of several widths that leave a region together: side by side in one message, or in reproducible mode,
/// whose lanes run through whole matrices, one after the other.
class SideBySide {
 public:
  SideBySide(Context& ctx, int64_t tokens, std::vector<int64_t> widths) : widths_(std::move(widths)) {
    if (ctx.reproducible()) {
      for (int64_t w : widths_) parts_.push_back(make_partial(ctx, tokens, w));
      return;
    }
    const Partial all = make_partial(ctx, tokens, std::accumulate(widths_.begin(), widths_.end(), int64_t{0}));
    travels_ = {all};
    int64_t at = 0;
    for (int64_t w : widths_) {
      parts_.push_back({tokens, w, all.value.col_range(at, w), {}});
      at += w;
    }
  }
  Partial& operator[](size_t i) { return parts_[i]; }
  void leave(Context& ctx, const HeadEdge& edge, const char* site) {
    for (const Partial& p : ctx.reproducible() ? parts_ : travels_) leaving_.push_back(edge.leave(ctx, p, site));
    parts_.clear();
    travels_.clear();
  }
  /// One tensor [tokens of the shard, width] for each width.
  std::vector<Tensor> wait() {
    std::vector<Tensor> out;
    for (Leaving& l : leaving_) out.push_back(l.wait());
    if (out.size() == widths_.size()) return out;
    const Tensor all = out[0];
    out.clear();
    int64_t at = 0;
    for (int64_t w : widths_) {
      out.push_back(all.col_range(at, w));
      at += w;
    }
    return out;
  }

 private:
  std::vector<int64_t> widths_;
  std::vector<Partial> parts_, travels_;
  std::vector<Leaving> leaving_;
};

/// x [tokens, width] for every head: [tokens, heads * width], in few copies that double what is there.
Tensor for_all_heads(Context& ctx, const Tensor& x, int64_t heads) {
  const int64_t width = x.cols();
  Tensor out = ctx.activation(x.rows(), heads * width);
  ctx.be.copy(out.col_range(0, width), x);
  for (int64_t done = 1; done < heads;) {
    const int64_t more = std::min(done, heads - done);
    ctx.be.copy(out.col_range(done * width, more * width), out.col_range(0, more * width));
    done += more;
  }
  return out;
}

/// Its transpose: the sum over heads of columns [begin, begin + sum.cols) of each head of dk [tokens, heads * dim].
/// Additions halve what is left, so they are few.
void sum_over_heads(Context& ctx, const Tensor& dk, int64_t heads, int64_t begin, Partial& sum) {
  const int64_t tokens = dk.rows(), dim = dk.cols() / heads, width = sum.cols;
  if (ctx.reproducible()) {
    for (int64_t h = 0; h < heads; ++h) ctx.be.exact_add(dk.col_range(h * dim + begin, width), sum.exact);
    return;
  }
  const Tensor parts = ctx.workspace(ctx.A, tokens, heads * width);
  ctx.be.copy(parts.reshaped(tokens * heads, width), dk.reshaped(tokens * heads, dim).col_range(begin, width));
  for (int64_t left = heads; left > 1;) {
    const int64_t half = left / 2;
    const Tensor into = parts.col_range(0, half * width);
    ctx.be.add(into, parts.col_range((left - half) * width, half * width), into);
    left -= half;
  }
  ctx.be.copy(sum.value, parts.col_range(0, width));
}

}  // namespace

std::vector<Param> LatentAttention::params(const std::string& prefix, const ModelConfig& c) {
  const MlaConfig& m = c.mla;
  const Init normal{Init::normal, c.init_std};
  const Init residual{Init::normal, c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers))};
  const auto latent = [](int64_t size) { return Dim{DimName::latent, size, 1}; };
  const auto heads = [&](int64_t width) { return Dim{DimName::heads, c.heads * width, width}; };
  const Dim hidden{DimName::hidden, c.hidden, 1};
  std::vector<Param> out;
  const auto linear = [&](const char* name, Dim rows, Dim cols, unsigned contracted, Init init) {
    out.push_back({prefix + "." + name + ".weight", {rows, cols}, contracted, init, true, {}});
  };
  const auto norm = [&](const char* name, int64_t width) {
    const auto gain = Norm::params(prefix + "." + name, NormKind::rms, false, latent(width), over_tokens);
    out.insert(out.end(), gain.begin(), gain.end());
  };
  if (m.q_lora_rank > 0) {
    linear("q_a", latent(m.q_lora_rank), hidden, over_tokens, normal);
    norm("q_a_norm", m.q_lora_rank);
    linear("q_b", heads(m.qk_dim()), latent(m.q_lora_rank), over_all_tokens, normal);
  } else {
    linear("q", heads(m.qk_dim()), hidden, over_all_tokens, normal);
  }
  linear("kv_a", latent(m.kv_lora_rank + m.rope_dim), hidden, over_tokens, normal);
  norm("kv_a_norm", m.kv_lora_rank);
  linear("kv_b", heads(m.nope_dim + m.v_dim), latent(m.kv_lora_rank), over_all_tokens, normal);
  linear("out", hidden, heads(m.v_dim), over_all_tokens, residual);
  return out;
}

LatentAttention::LatentAttention(const std::string& prefix, const ModelConfig& c, ParamStore& store, const Axes& axes,
                                 const Layout& layout)
    : name_(prefix),
      heads_(layout.heads(c.heads).size),
      q_rank_(c.mla.q_lora_rank),
      kv_rank_(c.mla.kv_lora_rank),
      nope_(c.mla.nope_dim),
      rope_(c.mla.rope_dim),
      v_(c.mla.v_dim),
      interleaved_(c.mla.rope_interleave),
      edge_(axes, layout) {
  shape_.heads = shape_.kv_heads = heads_;
  shape_.head_dim = nope_ + rope_;
  shape_.v_dim = v_;
  shape_.first_head = layout.heads(c.heads).begin;
  shape_.all_heads = c.heads;
  shape_.scale = latent_attention_scale(c);
  shape_.site = prefix + ".probabilities";
  const auto linear = [&](const char* name, int64_t block) {
    return Linear{&store.at(prefix + "." + name + ".weight"), nullptr, block};
  };
  const auto norm = [&](const char* name) {
    return Norm(NormKind::rms, norm_eps, &store.at(prefix + "." + name + ".weight"), nullptr);
  };
  if (compressed()) {
    q_a_ = linear("q_a", 0);
    q_norm_ = norm("q_a_norm");
  }
  q_b_ = linear(compressed() ? "q_b" : "q", nope_ + rope_);
  kv_a_ = linear("kv_a", 0);
  kv_norm_ = norm("kv_a_norm");
  kv_b_ = linear("kv_b", nope_ + v_);
  out_ = linear("out", v_);
}

/// The last `rope` columns of each head.
void LatentAttention::rotate_queries(Context& ctx, const Tensor& q, const Tensor& rope, bool inverse) const {
  const RopeShape shape{heads_, rope_, nope_ + rope_, interleaved_};
  ctx.be.rope(q.col_range(nope_, q.cols() - nope_), shape, ctx.batch->positions, rope, inverse);
}

/// key [tokens of the shard, rope].
void LatentAttention::rotate_key(Context& ctx, const Tensor& key, const Tensor& rope, bool inverse) const {
  const int64_t begin = key.rows() < ctx.batch->tokens() ? key.rows() * edge_.tokens().rank() : 0;
  ctx.be.rope(key, {1, rope_, 0, interleaved_}, ctx.batch->positions.row_range(begin, key.rows()), rope, inverse);
}

/// kv [tokens, heads * (nope + v)], key [tokens, rope] -> k [tokens, heads * (nope + rope)], v [tokens, heads * v].
void LatentAttention::expand(Context& ctx, const Tensor& kv, const Tensor& key, Tensor& k, Tensor& v) const {
  const int64_t tokens = kv.rows(), rows = tokens * heads_;
  k = ctx.activation(tokens, heads_ * (nope_ + rope_));
  v = ctx.activation(tokens, heads_ * v_);
  const Tensor by_head = kv.reshaped(rows, nope_ + v_), k_by_head = k.reshaped(rows, nope_ + rope_);
  ctx.be.copy(k_by_head.col_range(0, nope_), by_head.col_range(0, nope_));
  ctx.be.copy(k_by_head.col_range(nope_, rope_), for_all_heads(ctx, key, heads_).reshaped(rows, rope_));
  ctx.be.copy(v.reshaped(rows, v_), by_head.col_range(nope_, v_));
}

Tensor LatentAttention::forward(Context& ctx, const Tensor& x_SD, const Tensor& rope, Saved& s) const {
  const Operand x(x_SD);
  const Tensor latents_SD = ctx.activation(x_SD.rows(), q_rank_ + kv_rank_ + rope_);
  const Tensor key_SD = latents_SD.col_range(q_rank_ + kv_rank_, rope_);
  if (compressed()) {
    const Tensor qn = q_norm_.forward(ctx, column_forward(ctx, q_a_, x), s.q_norm);
    ctx.be.copy(latents_SD.col_range(0, q_rank_), qn);
  }
  const Tensor kva = column_forward(ctx, kv_a_, x);
  s.x = compressed() ? x.kept() : Operand(x_SD);  // without compression it is gathered again, for q
  const Tensor cn = kv_norm_.forward(ctx, kva.col_range(0, kv_rank_), s.kv_norm);
  ctx.be.copy(latents_SD.col_range(q_rank_, kv_rank_), cn);
  ctx.be.copy(key_SD, kva.col_range(kv_rank_, rope_));
  rotate_key(ctx, key_SD, rope, false);

  const Tensor latents = edge_.enter(ctx, latents_SD, "attention forward");
  const Tensor in = compressed() ? latents.col_range(0, q_rank_) : edge_.enter(ctx, x_SD, "attention forward");
  const Tensor q = column_forward(ctx, q_b_, in);
  const Tensor kv = column_forward(ctx, kv_b_, latents.col_range(q_rank_, kv_rank_));
  rotate_queries(ctx, q, rope, false);
  Tensor k, v;
  expand(ctx, kv, latents.col_range(q_rank_ + kv_rank_, rope_), k, v);
  s.o = context_attention(ctx)->forward(ctx, shape_, q, k, v, s.kept);
  const Tensor y_SD = pieces::leave_product(ctx, edge_, out_, s.o, "attention forward");
  return drop_hidden(ctx, y_SD, name_);
}

Tensor LatentAttention::backward(Context& ctx, const Tensor& dy_out, const Tensor& rope, const Saved& s) const {
  const auto [dy, d_o] = pieces::enter_gradient(ctx, edge_, drop_hidden(ctx, dy_out, name_), out_, "attention backward");
  ctx.defer([this, &ctx, dy = dy.kept(), o = s.o] { backward_weight(ctx, *out_.w, dy, o); });

  const int64_t tokens = dy.rows(), rows = tokens * heads_;
  Tensor dq, dk, dv;
  context_attention(ctx)->backward(ctx, shape_, d_o, s.kept, dq, dk, dv);
  rotate_queries(ctx, dq, rope, true);
  const Tensor dkv = ctx.activation(tokens, heads_ * (nope_ + v_)), dkv_by_head = dkv.reshaped(rows, nope_ + v_);
  ctx.be.copy(dkv_by_head.col_range(0, nope_), dk.reshaped(rows, nope_ + rope_).col_range(0, nope_));
  ctx.be.copy(dkv_by_head.col_range(nope_, v_), dv.reshaped(rows, v_));

  // Sums over this rank's heads. The key is turned back after the sum, once for all heads.
  SideBySide sums(ctx, tokens, {q_b_.w->cols(), kv_rank_, rope_});
  const Operand of_q(dq), of_kv(dkv);
  column_backward_input(ctx, q_b_, of_q, sums[0], true);
  column_backward_input(ctx, kv_b_, of_kv, sums[1], true);
  sum_over_heads(ctx, dk, heads_, nope_, sums[2]);
  dk = dv = Tensor();
  sums.leave(ctx, edge_, "attention backward");  // hides behind the weight gradients
  weight_gradients(ctx, of_q, of_kv, s);
  const std::vector<Tensor> d = sums.wait();

  Tensor dx;
  if (compressed()) {
    const Operand dqa = q_norm_.backward(ctx, d[0], {}, s.q_norm);
    dx = row_backward_input(ctx, q_a_, dqa);
    ctx.defer([this, &ctx, dqa = dqa.kept(), x = s.x] { backward_weight(ctx, *q_a_.w, dqa, x); });
  } else {
    ctx.be.copy(dx = ctx.activation(d[0].rows(), d[0].cols()), d[0]);
  }
  const Tensor dkva = ctx.activation(dx.rows(), kv_rank_ + rope_), dkey = dkva.col_range(kv_rank_, rope_);
  kv_norm_.backward_into(ctx, d[1], {}, s.kv_norm, dkva.col_range(0, kv_rank_), true);
  ctx.be.copy(dkey, d[2]);
  rotate_key(ctx, dkey, rope, true);
  const Operand of_kva(dkva);
  add_backward_input(ctx, kv_a_, of_kva, dx);
  ctx.defer([this, &ctx, dkva = of_kva.kept(), x = s.x] { backward_weight(ctx, *kv_a_.w, dkva, x); });
  return dx;
}

/// [qn | cn] of all tokens, out of what the norms saved.
Tensor LatentAttention::latents_again(Context& ctx, const Saved& s) const {
  if (!compressed()) return edge_.enter(ctx, kv_norm_.again(ctx, s.kv_norm), input_again);
  const Tensor latents_SD = ctx.activation(s.q_norm.x.rows(), q_rank_ + kv_rank_);
  ctx.be.copy(latents_SD.col_range(0, q_rank_), q_norm_.again(ctx, s.q_norm));
  ctx.be.copy(latents_SD.col_range(q_rank_, kv_rank_), kv_norm_.again(ctx, s.kv_norm));
  return edge_.enter(ctx, latents_SD, input_again);
}

/// Of the weights inside the region: q_b and kv_b.
void LatentAttention::weight_gradients(Context& ctx, const Operand& dq, const Operand& dkv, const Saved& s) const {
  const Tensor latents = latents_again(ctx, s);
  const Tensor cn = latents.col_range(q_rank_, kv_rank_);
  const Tensor in = compressed() ? latents.col_range(0, q_rank_) : edge_.enter(ctx, s.x.full(), input_again);
  ctx.defer([this, &ctx, dq = dq.kept(), in] { backward_weight(ctx, *q_b_.w, dq, in); });
  ctx.defer([this, &ctx, dkv = dkv.kept(), cn] { backward_weight(ctx, *kv_b_.w, dkv, cn); });
}

}  // namespace orthant
