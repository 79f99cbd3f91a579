// One pre-norm transformer block on the token shard of a rank.
//
//   x1 = x + attention(norm1(x));   y = x1 + mlp(norm2(x1))
//
// Recompute: none keeps everything; selective drops what one cheap pass over rows gives back (the norms' outputs and
// the activation of the mlp); full keeps the block's input alone and runs the forward again.
#pragma once

#include "layers/attention.hpp"
#include "layers/mlp.hpp"

namespace orthant {

class Block {
 public:
  struct Saved {
    Tensor input;  ///< only with full recompute
    Norm::Saved norm1, norm2;
    Attention::Saved attention;
    Mlp::Saved mlp;
  };

  static std::vector<Param> params(const std::string& prefix, const ModelConfig& config);
  Block(const std::string& prefix, const ModelConfig& config, ParamStore& store, const Axes& axes, const Layout& layout);

  Tensor forward(Context& ctx, const Tensor& x, const Tensor& rope, Saved& saved) const;
  Tensor backward(Context& ctx, const Tensor& dy, const Tensor& rope, Saved& saved) const;

 private:
  Tensor run(Context& ctx, const Tensor& x, const Tensor& rope, Saved& saved) const;
  Norm norm1_, norm2_;
  Attention attention_;
  Mlp mlp_;
};

/// LayerNorm for gpt2, else RMSNorm.
NormKind norm_kind(const ModelConfig& config);
Norm make_norm(const std::string& prefix, const ModelConfig& config, ParamStore& store);

}  // namespace orthant
