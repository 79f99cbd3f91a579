// Feed-forward layer, cut by its inner width over tp.
//
//   gpt2:        h = enter(x_SD) Wu^T + bu;              a = gelu(h);           y_SD = leave(a Wd^T) + bd
//   llama, qwen: g = x Wg^T, u = x Wu^T;                 a = silu(g) * u;       y_SD = leave(a Wd^T)
//
// Talks on: tp (FfnEdge). Saved: x_SD, h (or g, u), a.
#pragma once

#include "layers/linear.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

class Mlp {
 public:
  struct Saved {
    Operand x;       ///< [tokens of the shard, hidden]; dropped by selective recompute
    Tensor gate, h;  ///< [tokens, ffn of this rank]
    Operand a;       ///< dropped by selective recompute
  };

  static std::vector<Param> params(const std::string& prefix, const ModelConfig& config);
  Mlp(const std::string& prefix, const ModelConfig& config, ParamStore& store, const Axes& axes, const Layout& layout);

  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  Tensor backward(Context& ctx, const Tensor& dy, const Saved& saved) const;

 private:
  Tensor activate(Context& ctx, const Saved& saved) const;

  std::string name_;
  bool gated_;
  Linear gate_, up_, down_;
  FfnEdge edge_;
};

}  // namespace orthant
