// See attention_graph.hpp.
#ifdef ORTHANT_HAS_CUDNN
#include "backends/cuda/attention_graph.hpp"

#include <limits>

namespace orthant::cuda::dnn {
namespace {

constexpr cudnnDataType_t f32 = CUDNN_DATA_FLOAT, i32 = CUDNN_DATA_INT32, boolean = CUDNN_DATA_BOOLEAN;

/// Builds both graphs: what they share.
struct Builder {
  Graph& g;
  const AttentionProblem& p;
  Dims scores{p.batch, p.heads, p.q_length, p.k_length};
  Dims rows{p.batch, p.heads, p.q_length, 1};

  /// Heads of `width` columns in token rows `ld` apart; transposed: [.., width, length].
  Node heads(int64_t count, int64_t length, int64_t width, int64_t ld, bool transposed = false) {
    Dims dims{p.batch, count, length, width}, strides{ld, width, p.sequences * ld, 1};
    if (transposed) {
      std::swap(dims[2], dims[3]);
      std::swap(strides[2], strides[3]);
    }
    return g.tensor(p.type, dims, strides);
  }
  Node result(int64_t count, int64_t length, int64_t width, int64_t ld) {
    return g.tensor(p.out_type, {p.batch, count, length, width}, {ld, width, p.sequences * ld, 1});
  }
  Node numbers(const Dims& dims) { return g.between(f32, dims); }
  Node made(cudnnPointwiseMode_t mode, Node x, Node b, const Dims& dims) {
    const Node y = numbers(dims);
    g.pointwise(mode, f32, x, b, y);
    return y;
  }
  Node made(cudnnPointwiseMode_t mode, Node x, const Dims& dims) {
    const Node y = numbers(dims);
    g.pointwise(mode, f32, x, y);
    return y;
  }
  Node product(Node a, Node b, const Dims& dims) {
    const Node c = numbers(dims);
    g.matmul(a, b, c);
    return c;
  }

  Node moved(Node index, int64_t by) {
    if (by == 0) return index;
    const Node y = g.between(i32, scores);
    g.pointwise(CUDNN_POINTWISE_ADD, i32, index, g.constant(static_cast<int32_t>(by)), y);
    return y;
  }
  Node along(int64_t axis, Node x) {
    const Node y = g.between(i32, scores);
    g.index(axis, x, y);
    return y;
  }
  /// x where left >= right, elsewhere nothing that a softmax would see.
  Node where(Node left, Node right, Node x) {
    const Node seen = g.between(boolean, scores), y = numbers(scores);
    g.pointwise(CUDNN_POINTWISE_CMP_GE, boolean, left, right, seen);
    g.select(x, g.constant(std::numeric_limits<float>::lowest()), seen, y);
    return y;
  }
  Node masked(Node x, AttentionNodes& n) {
    if (p.shift < p.k_length - 1) {
      const Node row = moved(along(2, x), p.shift), column = along(3, x);
      x = where(row, column, x);
    }
    if (p.documents) {
      n.starts = g.tensor(i32, {p.batch, 1, p.q_length, 1}, {p.ld_starts, 1, p.sequences * p.ld_starts, 1});
      const Node column = moved(along(3, x), p.first_key);
      x = where(column, n.starts, x);
    }
    return x;
  }
};

}  // namespace

AttentionNodes forward_graph(Graph& g, const AttentionProblem& p) {
  Builder b{g, p};
  AttentionNodes n;
  n.q = b.heads(p.heads, p.q_length, p.dim, p.ld_q);
  n.k = b.heads(p.kv_heads, p.k_length, p.dim, p.ld_k, true);
  n.v = b.heads(p.kv_heads, p.k_length, p.v_dim, p.ld_v);
  n.o = b.result(p.heads, p.q_length, p.v_dim, p.ld_o);
  n.lse = g.tensor(f32, b.rows, packed(b.rows));
  const Node scores = b.made(CUDNN_POINTWISE_MUL, b.product(n.q, n.k, b.scores), g.constant(p.scale), b.scores);
  const Node seen = b.masked(scores, n);
  const Node most = b.numbers(b.rows), sum = b.numbers(b.rows), share = g.between(p.type, b.scores);
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, seen, most);
  const Node power = b.made(CUDNN_POINTWISE_EXP, b.made(CUDNN_POINTWISE_SUB, seen, most, b.scores), b.scores);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, power, sum);
  g.pointwise(CUDNN_POINTWISE_ADD, f32, most, b.made(CUDNN_POINTWISE_LOG, sum, b.rows), n.lse);
  g.pointwise(CUDNN_POINTWISE_DIV, f32, power, sum, share);
  g.matmul(share, n.v, n.o);
  return n;
}

AttentionNodes backward_graph(Graph& g, const AttentionProblem& p) {
  Builder b{g, p};
  AttentionNodes n;
  n.q = b.heads(p.heads, p.q_length, p.dim, p.ld_q);
  n.k = b.heads(p.kv_heads, p.k_length, p.dim, p.ld_k, true);
  n.v = b.heads(p.kv_heads, p.k_length, p.v_dim, p.ld_v, true);
  n.o = b.heads(p.heads, p.q_length, p.v_dim, p.ld_o);
  n.d_o = b.heads(p.heads, p.q_length, p.v_dim, p.ld_do);
  n.dq = b.result(p.heads, p.q_length, p.dim, p.ld_dq);
  n.dk = b.result(p.kv_heads, p.k_length, p.dim, p.ld_dk);
  n.dv = b.result(p.kv_heads, p.k_length, p.v_dim, p.ld_dv);
  n.lse = g.tensor(f32, b.rows, packed(b.rows));
  n.sums = g.tensor(f32, b.rows, packed(b.rows));
  const Dims values{p.batch, p.heads, p.q_length, p.v_dim}, turned{p.batch, p.heads, p.k_length, p.q_length};
  const Dims turned_strides{p.heads * p.q_length * p.k_length, p.q_length * p.k_length, 1, p.k_length};

  // sum(do o), which every score of a row needs
  const Node both = g.between(f32, values, {p.heads * p.q_length * p.v_dim, p.q_length * p.v_dim, p.heads * p.v_dim, 1});
  g.pointwise(CUDNN_POINTWISE_MUL, f32, n.d_o, n.o, both);
  const Node raw = b.numbers(b.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, both, raw);
  g.pointwise(CUDNN_POINTWISE_MUL, f32, raw, g.constant(1.0f), n.sums);

  // the shares again, from lse
  const Node scale = g.constant(p.scale);
  const Node scores = b.made(CUDNN_POINTWISE_MUL, b.product(n.q, n.k, b.scores), scale, b.scores);
  const Node share = b.made(CUDNN_POINTWISE_EXP, b.masked(b.made(CUDNN_POINTWISE_SUB, scores, n.lse, b.scores), n), b.scores);

  // a head of k and v has the gradients of its query heads, added up
  const auto key_gradient = [&](Node left, Node right, int64_t width, Node out) {
    const Node turned_left = g.between(p.type, turned, turned_strides);
    g.reshape(left, turned_left);
    if (p.heads == p.kv_heads) return g.matmul(turned_left, right, out);
    const Node each = g.between(p.type, {p.batch, p.heads, p.k_length, width});
    g.matmul(turned_left, right, each);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, each, out);
  };
  key_gradient(share, n.d_o, p.v_dim, n.dv);
  const Node slope = b.made(CUDNN_POINTWISE_SUB, b.product(n.d_o, n.v, b.scores), n.sums, b.scores);
  const Node d_scores = b.made(CUDNN_POINTWISE_MUL, b.made(CUDNN_POINTWISE_MUL, slope, share, b.scores), scale, b.scores);
  key_gradient(d_scores, n.q, p.dim, n.dk);
  const Node keys = g.between(p.type, {p.batch, p.kv_heads, p.k_length, p.dim}, {p.ld_k, p.dim, p.sequences * p.ld_k, 1});
  g.reshape(n.k, keys);
  // straight into dq, not by way of atomic sums: the engine then keeps d_scores in its workspace and repeats its bits
  g.matmul(d_scores, keys, n.dq);
  return n;
}

}  // namespace orthant::cuda::dnn
#endif
