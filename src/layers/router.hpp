// The router of a mixture layer: which experts a token goes to, and with what weights. Always in A.
//
//   logits = x_SD W^T;   chosen, weights, shares = choose(logits [, bias])        src/README.md, number 11
//   d_logits: through the weights of the chosen, the balance of loads (auxiliary loss) and the z-loss
//
// Works on the token shard, so W's gradient is contracted over its tokens. Talks on: tp and cp, control numbers only
// (counts of picks of whole sequences). Saved: logits, chosen, and the balance.
#pragma once

#include "orthant/context.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

class Router {
 public:
  struct Saved {
    Tensor logits;   ///< A [tokens of the shard, experts]
    Tensor chosen;   ///< i32 [tokens of the shard, top_k], before any drop
    Tensor balance;  ///< A [sequences, experts]: gradient of the auxiliary loss by a token's shares; none without
    double z = 0;    ///< coefficient of each token's squared logsumexp
  };
  struct Choice {
    Tensor chosen;   ///< i32 [tokens of the shard, top_k], rising; -1: dropped
    Tensor weights;  ///< A [tokens of the shard, top_k]
    int64_t dropped = 0;
  };

  static std::vector<Param> params(const std::string& prefix, const ModelConfig& config);
  /// `layer` is the number of the block, under which loads are reported.
  Router(const std::string& prefix, const ModelConfig& config, int64_t layer, ParamStore& store);

  Choice forward(Context& ctx, const Tensor& x, Saved& saved) const;
  /// d_weights A [tokens of the shard, top_k]; dx [tokens of the shard, hidden] is added to.
  void backward(Context& ctx, const Tensor& x, const Tensor& d_weights, const Saved& saved, const Tensor& dx) const;

 private:
  void report(Context& ctx, const Tensor& shares, Saved& saved) const;
  Tensor balance_of(Context& ctx, const Tensor& counts) const;

  LocalParam *weight_, *bias_ = nullptr;
  RouterShape shape_;
  int64_t layer_;
  double aux_loss_, z_loss_, capacity_factor_;
};

}  // namespace orthant
