// Final norm, projection to the vocabulary and loss, cut by vocabulary over tp; never holds all logits.
//
//   x = enter(norm(x_SD));  for each chunk of tokens: z = x W^T, loss_t = log sum exp z - z[label]
//
// The loss and its gradient come from one product a chunk: with `train`, forward also leaves d loss / d x (a summand) and
// adds to dW, since the weight of every token in the loss is known before the pass; backward only leaves and passes
// through the norm. Talks on: tp (VocabEdge): three numbers a token.
#pragma once

#include "layers/norm.hpp"
#include "orthant/model_config.hpp"
#include "orthant/stage.hpp"

namespace orthant {

class Head {
 public:
  struct Saved {
    Norm::Saved norm;
    Partial dx;
  };
  static std::vector<Param> params(const ModelConfig& config);
  Head(const ModelConfig& config, ParamStore& store, const Axes& axes, const Layout& layout);

  /// Sum of the losses of the tokens that count (weight > 0), not divided; the same on every rank of tp.
  LossSum forward(Context& ctx, const Tensor& x, bool train, Saved& saved) const;
  Tensor backward(Context& ctx, Saved& saved) const;
  /// Logits of this rank's part of the vocabulary, A [rows, vocab of this rank], for the last position of each sequence.
  Tensor last_logits(Context& ctx, const Tensor& x) const;

 private:
  int64_t chunk_rows(const Context& ctx) const;
  Tensor logits(Context& ctx, const Tensor& x) const;
  void backward_chunk(Context& ctx, const Tensor& x, const Tensor& dz, Partial& dx, Range rows) const;

  Norm norm_;
  LocalParam* weight_;
  double z_loss_ = 0;
  int64_t first_ = 0, block_ = 0;
  VocabEdge edge_;
};

}  // namespace orthant
