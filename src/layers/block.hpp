// One pre-norm transformer block on the token shard of a rank.
//
//   x1 = x + attention(norm1(x));   y = x1 + mlp(norm2(x1))
//
// Attention is plain or latent (deepseek); in place of the feed-forward layer a block may have a mixture of them
// (ModelConfig::mixture).
//
// Recompute: none keeps everything; selective drops what one cheap pass over rows gives back (the norms' outputs and
// the activation of the mlp); full keeps the block's input alone and runs the forward again.
#pragma once

#include <variant>

#include "layers/attention.hpp"
#include "layers/latent_attention.hpp"
#include "layers/mlp.hpp"
#include "layers/moe.hpp"

namespace orthant {

class Block {
 public:
  struct Saved {
    Tensor input;  ///< only with full recompute
    Norm::Saved norm1, norm2;
    std::variant<Attention::Saved, LatentAttention::Saved> attention;
    std::variant<Mlp::Saved, Moe::Saved> mlp;
  };

  /// `layer` counts blocks from 0.
  static std::vector<Param> params(const std::string& prefix, const ModelConfig& config, int64_t layer);
  Block(const std::string& prefix, const ModelConfig& config, int64_t layer, ParamStore& store, const Axes& axes, const Layout& layout);

  Tensor forward(Context& ctx, const Tensor& x, const Tensor& rope, Saved& saved) const;
  Tensor backward(Context& ctx, const Tensor& dy, const Tensor& rope, Saved& saved) const;

 private:
  Tensor run(Context& ctx, const Tensor& x, const Tensor& rope, Saved& saved) const;
  Norm norm1_, norm2_;
  std::variant<Attention, LatentAttention> attention_;
  std::variant<Mlp, Moe> mlp_;
};

/// LayerNorm for gpt2, else RMSNorm.
NormKind norm_kind(const ModelConfig& config);
Norm make_norm(const std::string& prefix, const ModelConfig& config, ParamStore& store);

}  // namespace orthant
