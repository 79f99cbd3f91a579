// Attention of a rank's queries over the keys of all ranks of cp (deck key context.method). A rank holds the chunks i and
// 2 cp - 1 - i of each sequence (data/context_cut.hpp).
//
//   local       cp = 1
//   all_gather  every rank gathers all K, V; dK, dV go home by a scatter-sum in A
//   ring        K, V travel round the ring while the shard at hand is used; parts merge by their log-sum-exp; backward
//               dK, dV travel along, in A (Liu et al. 2023)
//   all_to_all  queries, keys and values are exchanged so that each rank has whole sequences of some heads (Jacobs et
//               al. 2023, DeepSpeed-Ulysses); fewer kv heads than ranks are sent to several
//
// In reproducible mode ring works as all_gather does, and dK, dV are exact sums over query heads and blocks of queries.
// Talks on: cp; in reproducible mode also tp_rep.
#pragma once

#include <memory>
#include <string>

#include "orthant/context.hpp"

namespace orthant {

/// Heads of this rank of tp. `starts` and `dropout.tokens` are set by the method.
struct AttentionHeads {
  int64_t heads = 1, kv_heads = 1, head_dim = 1;
  int64_t first_head = 0, all_heads = 1;
  double scale = 1;
  std::string site;   ///< names the dropout of the probabilities
  int64_t v_dim = 0;  ///< width of a head of v and o; 0: head_dim
  int64_t value_dim() const { return v_dim > 0 ? v_dim : head_dim; }
};

/// What the backward pass needs, in the method's own arrangement.
struct AttentionKept {
  Tensor q, k, v, o, lse;
};

class ContextAttention {
 public:
  virtual ~ContextAttention() = default;
  /// q [tokens, heads * head_dim], k [tokens, kv_heads * head_dim], v [tokens, kv_heads * value_dim()] -> o [tokens, heads *
  /// value_dim()].
  virtual Tensor forward(Context& ctx, const AttentionHeads& h, const Tensor& q, const Tensor& k, const Tensor& v, AttentionKept& kept) const = 0;
  /// d_o like o -> dq like q, dk like k, dv like v. In reproducible mode every rank of tp_rep gets the whole dk and dv of a
  /// shared kv head.
  virtual void backward(Context& ctx, const AttentionHeads& h, const Tensor& d_o, const AttentionKept& kept, Tensor& dq, Tensor& dk, Tensor& dv) const = 0;
};

std::unique_ptr<ContextAttention> local_attention();
std::unique_ptr<ContextAttention> gather_attention();
std::unique_ptr<ContextAttention> ring_attention();
std::unique_ptr<ContextAttention> exchange_attention();
/// By context.method and the size of cp.
std::unique_ptr<ContextAttention> context_attention(const Context& ctx);

// ---- shared by the methods

/// Rows of the local tensors that run `i` covers.
Range run_rows(const MicroBatch& mb, size_t i);
/// Shape for queries at [q_begin, + q_length) and keys from place k_begin on; `rows` are the queries' rows among the local ones.
AttentionShape attention_shape(Context& ctx, const AttentionHeads& h, Range places, Range keys, Range rows);
/// [cp][local rows] (as a gather leaves them) -> rows in the order of the sequence, and back.
Tensor to_sequence_order(Context& ctx, const Tensor& by_rank);
Tensor to_rank_order(Context& ctx, const Tensor& in_sequence);
/// Exact dK, dV of queries `places` (rows `rows` of q and the like) over the keys from place 0, block by block of
/// queries, added to sums [2, key rows * kv width]; dq of these rows is assigned.
void exact_backward(Context& ctx, const AttentionHeads& h, Range places, Range rows, const Tensor& d_o, const AttentionKept& local, const Tensor& k,
                    const Tensor& v, const Tensor& starts, const Tensor& tokens, const Tensor& dq, const Tensor& dk_sum, const Tensor& dv_sum);
/// Exact sums of `elements` numbers, zero so far: i64 [2, elements].
Tensor exact_zeros(Context& ctx, int64_t elements);
/// A zeroed tensor of type A.
Tensor zeros_of_a(Context& ctx, int64_t rows, int64_t cols);
/// x (A) in T: x itself where they are the same.
Tensor rounded(Context& ctx, const Tensor& x);
/// Value in T of an exact sum over this rank, after it was summed over tp_rep: [rows, width].
Tensor exact_result(Context& ctx, const Tensor& sum, int64_t rows, int64_t width);

}  // namespace orthant
