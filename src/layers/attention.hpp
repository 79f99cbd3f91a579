// Causal self-attention with grouped key/value heads, cut by heads over tp.
//
//   x = enter(x_SD);  q, k, v = x Wq^T, x Wk^T, x Wv^T;  [q, k = norm per head];  [rotary];  o = softmax(q k^T / sqrt d) v
//   y_SD = leave(o Wo^T) + bo
//
// Talks on: tp (HeadEdge); what context parallelism does inside is in context_attention.hpp.
// Saved: x_SD, o, and what the method of context parallelism needs (q, k, v as attention saw them, log-sum-exp); with q/k
// norm also q, k before it. Dropout: of the probabilities, and of y_SD.
#pragma once

#include "layers/context_attention.hpp"
#include "layers/norm.hpp"
#include "model/rope_frequencies.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

/// cos then sin of head_dim / 2 angles, a row a position: A [positions, head_dim].
Tensor make_rope_table(Context& ctx, const ModelConfig& config, int64_t positions);

class Attention {
 public:
  struct Saved {
    Operand x;  ///< [tokens of the shard, hidden]; dropped by selective recompute
    Tensor o;   ///< [tokens, heads * head_dim]
    AttentionKept kept;
    Norm::Saved q_norm, k_norm;
  };

  static std::vector<Param> params(const std::string& prefix, const ModelConfig& config);
  Attention(const std::string& prefix, const ModelConfig& config, ParamStore& store, const Axes& axes, const Layout& layout);

  /// x_SD [tokens of the shard, hidden] -> the same shape. `rope` may be empty (learned positions).
  Tensor forward(Context& ctx, const Tensor& x, const Tensor& rope, Saved& saved) const;
  Tensor backward(Context& ctx, const Tensor& dy, const Tensor& rope, const Saved& saved) const;

 private:
  void rotate(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& rope, bool inverse) const;
  Tensor head_norm_backward(Context& ctx, const Norm& norm, int64_t heads, const Tensor& dy, const Norm::Saved& saved, bool count) const;

  std::string name_;
  int64_t heads_ = 0, kv_heads_ = 0, head_dim_ = 0;  // of this rank
  bool qk_norm_ = false;
  AttentionHeads shape_;
  Linear q_, k_, v_, out_;
  Norm q_norm_, k_norm_;
  HeadEdge edge_;
  const Axis& shared_kv_;
};

}  // namespace orthant
