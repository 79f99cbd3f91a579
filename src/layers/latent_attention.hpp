// Multi-head latent attention (DeepSeek-V2, V3): queries, keys and values come out of narrow latents, and positions
// turn a part of each head only, with one rotated key for all heads. Cut by heads over tp.
//
//   on the token shard   qa = x Wqa^T, qn = norm(qa);  [latent | key] = x Wkva^T, cn = norm(latent);  rotary on key
//                        [qn | cn | key] = enter: narrow rows travel, not those of x
//   per head             q = qn Wqb^T = [nope | rope], rotary on rope;  [nope | v] = cn Wkvb^T;  k = [nope | key]
//                        o = softmax(q k^T scale) v
//   y_SD = leave(o Wo^T)
//
// Without compression of queries (q_lora_rank = 0) q = x Wq^T, and x enters too. Pairs that a rotation turns may be
// neighbours or lie half a width apart (rope_interleave): q and k agree, so no order has to be restored.
//
// Talks on: tp (HeadEdge); what context parallelism does inside is in context_attention.hpp. Gradients summed over
// heads (dqn, dcn, dkey) leave the region in the narrow widths, too.
// Saved: x_SD, qa, [latent | key] and statistics of the norms, o, and what the method of context parallelism needs;
// [qn | cn] are made and gathered again in backward. Dropout: of the probabilities, and of y_SD.
// Source: DeepSeek-V3 technical report (2024), section 2.1.1; the eps of both norms is 1e-6 whatever norm_eps says,
// as in the reference implementation.
#pragma once

#include "layers/context_attention.hpp"
#include "layers/norm.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

class LatentAttention {
 public:
  struct Saved {
    Operand x;  ///< [tokens of the shard, hidden]; dropped by selective recompute
    Tensor o;   ///< [tokens, heads * v_dim]
    AttentionKept kept;
    Norm::Saved q_norm, kv_norm;
  };

  static std::vector<Param> params(const std::string& prefix, const ModelConfig& config);
  LatentAttention(const std::string& prefix, const ModelConfig& config, ParamStore& store, const Axes& axes,
                  const Layout& layout);

  /// x_SD [tokens of the shard, hidden] -> the same shape. `rope` is the table of make_rope_table, rope_dim wide.
  Tensor forward(Context& ctx, const Tensor& x, const Tensor& rope, Saved& saved) const;
  Tensor backward(Context& ctx, const Tensor& dy, const Tensor& rope, const Saved& saved) const;

 private:
  void rotate_queries(Context& ctx, const Tensor& q, const Tensor& rope, bool inverse) const;
  void rotate_key(Context& ctx, const Tensor& key, const Tensor& rope, bool inverse) const;
  void expand(Context& ctx, const Tensor& kv, const Tensor& key, Tensor& k, Tensor& v) const;
  Tensor latents_again(Context& ctx, const Saved& saved) const;
  void weight_gradients(Context& ctx, const Operand& dq, const Operand& dkv, const Saved& saved) const;
  bool compressed() const { return q_rank_ > 0; }

  std::string name_;
  int64_t heads_ = 0;  // of this rank
  int64_t q_rank_ = 0, kv_rank_ = 0, nope_ = 0, rope_ = 0, v_ = 0;
  bool interleaved_ = true;
  AttentionHeads shape_;
  Linear q_a_, q_b_;  // without compression of queries q_b_ alone, fed by x
  Linear kv_a_, kv_b_, out_;
  Norm q_norm_, kv_norm_;
  HeadEdge edge_;
};

}  // namespace orthant
