// Token embedding cut by vocabulary over tp, plus learned positions (gpt2).
//
//   y_SD = leave(row id of E, zero where another rank holds it) [+ P[position]]
//
// Talks on: tp (VocabEdge). Saved: nothing but the micro-batch.
#pragma once

#include "layers/linear.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

class Embedding {
 public:
  static std::vector<Param> params(const ModelConfig& config);
  Embedding(const ModelConfig& config, ParamStore& store, const Axes& axes, const Layout& layout);

  /// -> [tokens of the shard, hidden].
  Tensor forward(Context& ctx) const;
  void backward(Context& ctx, const Tensor& dy) const;

 private:
  Range shard(const Context& ctx) const;
  LocalParam* tokens_;
  LocalParam* positions_ = nullptr;
  int64_t first_ = 0;
  VocabEdge edge_;
};

}  // namespace orthant
