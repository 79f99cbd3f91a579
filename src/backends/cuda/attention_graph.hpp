// Causal attention as an operation graph of cuDNN, forward and backward.
//
//   S = scale q k^T, masked;  P = softmax(S);  o = P v;  lse = log sum exp S
//   dv = P^T do;  dS = P (do v^T - sum(do o));  dq = scale dS k;  dk = scale dS^T q
//
// The library knows this order of operations as attention and runs it as one kernel (its documentation: "Scaled dot
// product attention"); scores are never in memory.
#pragma once

#include "backends/cuda/cudnn_graph.hpp"

namespace orthant::cuda::dnn {

/// What a plan is made for. Row (place, sequence) of a token tensor is place * sequences + sequence; rows are `ld` numbers apart.
struct AttentionProblem {
  cudnnDataType_t type = CUDNN_DATA_BFLOAT16;  ///< of q, k, v, do, and o as the backward reads it
  cudnnDataType_t out_type = CUDNN_DATA_BFLOAT16;  ///< of what is made: o, or dq, dk and dv
  int64_t batch = 1, heads = 1, kv_heads = 1, q_length = 0, k_length = 0, dim = 0, v_dim = 0;
  int64_t sequences = 1;  ///< rows from one place to the next: `batch`, or more where the plan is for some sequences of a batch
  /// Query i sees keys up to i + shift, at least one: shift >= 0. k_length - 1 or more: all keys, no mask.
  int64_t shift = 0;
  /// Also only keys from starts[i] - first_key on; starts is i32, one number for each row of q.
  bool documents = false;
  int64_t first_key = 0;
  float scale = 1;
  int64_t ld_q = 0, ld_k = 0, ld_v = 0, ld_o = 0, ld_starts = 0;
  int64_t ld_do = 0, ld_dq = 0, ld_dk = 0, ld_dv = 0;  ///< backward
  auto operator<=>(const AttentionProblem&) const = default;
};

/// Nodes of the tensors in memory. lse: f32 [batch, heads, q_length]. `sums`, of the same shape, is workspace of the backward.
struct AttentionNodes {
  Node q = 0, k = 0, v = 0, o = 0, lse = 0, starts = 0;
  Node d_o = 0, dq = 0, dk = 0, dv = 0, sums = 0;
};

AttentionNodes forward_graph(Graph& g, const AttentionProblem& p);
AttentionNodes backward_graph(Graph& g, const AttentionProblem& p);

}  // namespace orthant::cuda::dnn
