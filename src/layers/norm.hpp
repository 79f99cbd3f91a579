// LayerNorm or RMSNorm over the last dim, on the token shard that the rank holds: no axis of the mesh is involved.
//
//   y = (x - mean) / sqrt(var + eps) * gain + bias        (rms: mean = 0, var = mean of squares, no bias)
#pragma once

#include "layers/linear.hpp"

namespace orthant {

class Norm {
 public:
  struct Saved {
    Tensor x, stats;
  };
  Norm() = default;
  Norm(NormKind kind, double eps, LocalParam* gain, LocalParam* bias) : kind_(kind), eps_(eps), gain_(gain), bias_(bias) {}

  static std::vector<Param> params(const std::string& prefix, NormKind kind, bool bias, Dim width, unsigned contracted);

  /// x [rows, width] -> [rows, width].
  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  /// The output again, from what was saved: what selective recompute does.
  Tensor again(Context& ctx, const Saved& saved) const;
  /// Returns residual + gradient through the norm (residual may be empty).
  Tensor backward(Context& ctx, const Tensor& dy, const Tensor& residual, const Saved& saved) const;
  /// The same into `dx`, any leading dims. With `count` false the gradients of gain and bias are left alone
  /// (reproducible mode: of several ranks that hold the same whole gradient one counts).
  void backward_into(Context& ctx, const Tensor& dy, const Tensor& residual, const Saved& saved, const Tensor& dx, bool count) const;

 private:
  NormKind kind_ = NormKind::rms;
  double eps_ = 1e-5;
  LocalParam* gain_ = nullptr;
  LocalParam* bias_ = nullptr;
};

}  // namespace orthant
