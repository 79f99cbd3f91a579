// y = x W^T + b, with W [out, in] cut along out (column-parallel) or along in (row-parallel).
//
// In reproducible mode a product that is a summand of a larger sum covers one canonical block of what is summed over: a
// block of the cut dim, or a token block for weight gradients; the sum over blocks is exact. Inside a product,
// Backend::gemm_canonical gives each element the same bits whatever rows and columns it is computed with (checked at
// start-up), so nothing else needs to be cut. A mesh that puts block edges between ranks changes no bit.
//
// With precision.compute = "fp8" all three products are those of layers/fp8.hpp, for the weights that it covers. An operand that
// several products take is handed to all of them as one Operand (operand.hpp); a tensor alone serves where there is one product.
#pragma once

#include "layers/operand.hpp"
#include "orthant/edges.hpp"

namespace orthant {

/// A weight with its bias (or none) and the length of a canonical block of its cut dim.
struct Linear {
  LocalParam* w = nullptr;
  LocalParam* b = nullptr;
  int64_t block = 0;  ///< along out for column-parallel, along in for row-parallel
};

/// Column-parallel: x [tokens, in] -> [tokens, out of this rank], bias included.
Tensor column_forward(Context& ctx, const Linear& l, const Operand& x);
/// The same product, and y = gelu(pre), which a backend may make at its end.
struct Activated {
  Tensor pre, y;  ///< [tokens, out of this rank]
};
Activated column_forward_gelu(Context& ctx, const Linear& l, const Operand& x);
/// dx (+)= dy W: the first product of a sum assigns, later ones add. No bias involved.
void column_backward_input(Context& ctx, const Linear& l, const Operand& dy, Partial& dx, bool first);
/// Row-parallel: a [tokens, in of this rank] -> summand of [tokens, out]. The bias is added after the sum.
Partial row_forward(Context& ctx, const Linear& l, const Operand& a);
/// da [tokens, in of this rank] = dy W.
Tensor row_backward_input(Context& ctx, const Linear& l, const Operand& dy);
/// The same into rows that exist, of type T; not for reproducible mode.
void column_forward_into(Context& ctx, const Linear& l, const Operand& x, const Tensor& y);
void column_forward_gelu_into(Context& ctx, const Linear& l, const Operand& x, const Activated& out);
void row_forward_into(Context& ctx, const Linear& l, const Operand& a, const Tensor& y);
void row_backward_input_into(Context& ctx, const Linear& l, const Operand& dy, const Tensor& da);
/// dx [tokens, in] += dy W, where another product has assigned dx.
void add_backward_input(Context& ctx, const Linear& l, const Operand& dy, const Tensor& dx);
/// dW += dy^T x, for both kinds; in reproducible mode one token block after the other.
void backward_weight(Context& ctx, LocalParam& w, const Operand& dy, const Operand& x);
/// db += sum of the rows of dy.
void bias_backward(Context& ctx, LocalParam& b, const Tensor& dy);

}  // namespace orthant
