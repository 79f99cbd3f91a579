// Floating-point operations of products and of attention.
#include "backends/meta/flops.hpp"

#include <algorithm>

namespace orthant {
namespace {

double product(const Tensor& a, bool transpose_a, const Tensor& c) {
  return 2.0 * static_cast<double>(c.size()) * static_cast<double>(transpose_a ? a.rows() : a.cols());
}

/// Queries times the keys they see, over heads and sequences, without regard to documents.
double seen_pairs(const AttentionShape& s) {
  double pairs = 0;
  for (int64_t i = 0; i < s.q_length; ++i)
    pairs += static_cast<double>(std::clamp<int64_t>(s.q_begin + i - s.k_begin + 1, 0, s.k_length));
  return pairs * static_cast<double>(s.heads * s.batch);
}

}  // namespace

double Flops::gemm(const Tensor& a, bool transpose_a, const Tensor&, bool, const Tensor& c, bool, const Tensor&) {
  return product(a, transpose_a, c);
}
double Flops::gemm_canonical(const Tensor& a, bool transpose_a, const Tensor&, bool, const Tensor& c) {
  return product(a, transpose_a, c);
}
double Flops::gemm_fp8(const Quantised& a, bool transpose_a, const Quantised&, bool, const Tensor& c, bool,
                       const Tensor&) {
  return product(a.q, transpose_a, c);
}
double Flops::attention_forward(const AttentionShape& s, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                const Tensor&) {
  return 2 * seen_pairs(s) * static_cast<double>(s.head_dim + s.value_dim());
}
double Flops::attention_backward(const AttentionShape& s, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                 const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  return 2 * seen_pairs(s) * static_cast<double>(3 * s.head_dim + 2 * s.value_dim());  // the scores again, dP, dV; dQ, dK
}

}  // namespace orthant
