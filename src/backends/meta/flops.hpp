// Floating-point operations of the operations whose time the backend meta counts: products and attention.
#pragma once

#include "orthant/backend.hpp"

namespace orthant {

struct NoTime {};

/// Every operation of the list, taking no time.
struct FreeOperations {
#define ORTHANT_OPERATION(name, parameters, arguments) \
  template <class... X>                                \
  static NoTime name(const X&...) {                    \
    return {};                                         \
  }
#include "orthant/operations.inc"
};

/// `Flops::name(arguments)` of an operation; those declared here hide their free form.
struct Flops : FreeOperations {
  static double gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                     bool accumulate, const Tensor& bias);
  static double gemm_canonical(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c);
  static double gemm_fp8(const Quantised& a, bool transpose_a, const Quantised& b, bool transpose_b, const Tensor& c,
                         bool accumulate, const Tensor& bias);
  static double attention_forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& o, const Tensor& lse);
  static double attention_backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k,
                                   const Tensor& v, const Tensor& o, const Tensor& lse, const Tensor& dq,
                                   const Tensor& dk, const Tensor& dv);
};

}  // namespace orthant
