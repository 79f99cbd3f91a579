// Attention by cuDNN, where it can; a build without cuDNN has the same interface and does nothing.
#pragma once

#include <memory>
#include <string>

#include "backends/cuda/cuda_backend.hpp"

namespace orthant {

/// Both calls have the arguments of the operations and return false where the general kernels have to do it: types but
/// bf16 and f16, dropout, query heads' gradients kept apart, canonical bits, alignments below 16 bytes, keys that lie
/// after a query, or no deterministic engine of the library for the shape.
///
/// Gradients of the accumulation type are made in the type of q and then widened: the library would add wide ones with
/// atomics, in no fixed order.
class CudaBackend::CudnnAttention {
 public:
  explicit CudnnAttention(CudaBackend& backend);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  bool forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse);
  bool backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                const Tensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv);
  /// "cuDNN 9.19.0"; empty in a build without it.
  static std::string version();
  /// "cuDNN 9.19.0 for bf16 and f16" and what it has refused so far.
  std::string describe() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace orthant
