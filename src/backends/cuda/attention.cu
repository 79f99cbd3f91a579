// Causal attention on the device, forward: softmax is built up key tile by key tile, so memory is linear in the
// sequence.
//
//   o = softmax(scale q k^T) v,  lse = log sum exp
//
// This is the general path, for what cudnn_attention.cu does not take: every type, any widths of heads, documents, dropout. With dropout [kept] / (1 - rate)
// multiplies the probabilities in o; lse is that of all keys.
#include "backends/check_shapes.hpp"
#include "backends/cuda/attention_kernel.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/cudnn_attention.hpp"

namespace orthant {

using namespace cuda;
using namespace cuda::attention;

namespace {

/// One tile of queries of one head. M is the edge of a thread's square of results.
template <class X, int M>
struct Forward {
  using A = Accumulator<X>;

  ORTHANT_KERNEL void operator()(const Block& b) const {
    // late tiles see most keys: they go first, so that no long one is left over at the end
    const int64_t tiles = (s.q_length + tile.queries - 1) / tile.queries, head = b.x() % s.heads,
                  sequence = b.x() / s.heads % s.batch, q0 = (tiles - 1 - b.x() / (s.heads * s.batch)) * tile.queries;
    const int queries = static_cast<int>(min_<int64_t>(tile.queries, s.q_length - q0));
    const int ld = odd(s.dim), v_ld = odd(s.v_dim), p_ld = odd(tile.keys);
    A* q_rows = b.shared<A>(tile.queries * ld);
    A* kv_rows = b.shared<A>(tile.keys * max_(ld, v_ld));  // keys, then, when the scores are made, values
    A* o_sum = b.shared<A>(tile.queries * v_ld);
    A* p = b.shared<A>(tile.queries * p_ld);
    A* top = b.shared<A>(tile.queries);
    A* sum = b.shared<A>(tile.queries);
    A* factor = b.shared<A>(tile.queries);
    Queries<A> of(b, s, tile.queries);

    of.load(b, sequence, head, q0, queries);
    load_rows(b, q_rows, ld, q, s.batch, sequence, head, q0, queries, s.dim);
    b.each(queries, [&](int64_t i) {
      top[i] = -infinity<A>();
      sum[i] = A(0);
    });
    b.each(queries * v_ld, [&](int64_t i) { o_sum[i] = A(0); });
    const int64_t limit = of.limit();
    for (int64_t k0 = of.first_keys(tile.keys); k0 < limit; k0 += tile.keys) {
      const int keys = static_cast<int>(min_<int64_t>(tile.keys, limit - k0));
      load_rows(b, kv_rows, ld, k, s.batch, sequence, head / s.group, k0, keys, s.dim);
      multiply<M, A>(
          b, queries, keys, s.dim, [&](int i, int d) { return q_rows[i * ld + d]; },
          [&](int d, int j) { return kv_rows[j * ld + d]; },
          [&](int i, int j, A score) { p[i * p_ld + j] = of.sees(i, k0 + j) ? score * s.scale : -infinity<A>(); });
      soften(b, p, p_ld, queries, keys, top, sum, factor);
      if (s.drops)
        b.each(queries * keys, [&](int64_t at) {
          const int i = static_cast<int>(at) / keys, j = static_cast<int>(at) % keys;
          if (!s.stays(of.element[i], k0 + j)) p[i * p_ld + j] = A(0);
        });
      load_rows(b, kv_rows, v_ld, v, s.batch, sequence, head / s.group, k0, keys, s.v_dim);
      multiply<M, A>(
          b, queries, s.v_dim, keys, [&](int i, int j) { return p[i * p_ld + j]; },
          [&](int j, int d) { return kv_rows[j * v_ld + d]; },
          [&](int i, int d, A x) { o_sum[i * v_ld + d] = fused(o_sum[i * v_ld + d], factor[i], x); });
    }
    write(b, queries, q0, sequence, head, o_sum, v_ld, top, sum);
  }

  /// One step of the online softmax: scores become exp(score - running maximum), `sum` and `top` go on, `factor` says
  /// by what earlier results must be multiplied.
  ORTHANT_KERNEL void soften(const Block& b, A* p, int ld, int queries, int keys, A* top, A* sum, A* factor) const {
    b.each(queries, [&](int64_t i) {
      A most = top[i];
      for (int j = 0; j < keys; ++j) most = max_(most, p[i * ld + j]);
      factor[i] = exp_(top[i] - level(most));
      top[i] = most;
    });
    b.each(queries * keys, [&](int64_t at) {
      const int i = static_cast<int>(at) / keys, j = static_cast<int>(at) % keys;
      p[i * ld + j] = exp_(p[i * ld + j] - level(top[i]));
    });
    b.each(queries, [&](int64_t i) {
      A added = A(0);
      for (int j = 0; j < keys; ++j) added += p[i * ld + j];
      sum[i] = sum[i] * factor[i] + added;
    });
  }
  /// What is taken off the scores: no key yet, and inf - inf is kept away.
  ORTHANT_KERNEL static A level(A most) { return most == -infinity<A>() ? A(0) : most; }

  ORTHANT_KERNEL void write(const Block& b, int queries, int64_t q0, int64_t sequence, int64_t head, const A* o_sum,
                            int ld, const A* top, const A* sum) const {
    b.each(queries * s.v_dim, [&](int64_t at) {
      const int i = static_cast<int>(at) / s.v_dim, d = static_cast<int>(at) % s.v_dim;
      const A factor = sum[i] == A(0) ? A(0) : A(1) / (s.keep * sum[i]);
      o.put(s.row(q0 + i, sequence), head * s.v_dim + d, o_sum[i * ld + d] * factor);
    });
    b.each(queries, [&](int64_t i) {
      lse(s.row(q0 + i, sequence), head) = sum[i] == A(0) ? -infinity<A>() : top[i] + log_(sum[i]);
    });
  }

  static int64_t bytes(const AttentionShape& s, Tile t) {
    const int dim = odd(static_cast<int>(s.head_dim)), v_dim = odd(static_cast<int>(s.value_dim()));
    const int64_t numbers = t.queries * (dim + v_dim + odd(t.keys) + 3) + t.keys * std::max(dim, v_dim);
    return numbers * static_cast<int64_t>(sizeof(A)) + 7 * 16 + Queries<A>::bytes(t.queries);
  }

  Shape<A> s;
  Tile tile;
  View<const X> q, k, v;
  AnyView o;
  View<A> lse;
};

}  // namespace

void CudaBackend::attention_forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& o, const Tensor& lse) {
  check::attention_forward(s, q, k, v, o, lse);
  if (cudnn_attention_->forward(s, q, k, v, o, lse)) return;
  with_compute(q.dtype(), [&](auto tag) {
    using X = typename decltype(tag)::type;
    using A = Accumulator<X>;
    const Tile tile =
        pick_tile(std::max(s.head_dim, s.value_dim()), [&](Tile t) { return Forward<X, 2>::bytes(s, t); });
    with_square(tile, [&](auto square) {
      using Kernel = Forward<X, decltype(square)::value>;
      launch(
          stream_, {blocks_of(s.q_length, tile.queries) * s.heads * s.batch},
          Kernel{Shape<A>(s), tile, View<const X>(q), View<const X>(k), View<const X>(v), AnyView(o), View<A>(lse)},
          attention::width, Kernel::bytes(s, tile));
    });
  });
}

}  // namespace orthant
