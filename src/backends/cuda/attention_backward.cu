// Causal attention on the device, backward: probabilities are made again from lse, tile by tile.
//
//   p = exp(scale q k^T - lse);  dv = p^T do;  ds = scale p (do v^T - delta), delta = rowsum(do o);  dq = ds k;
//   dk = ds^T q
//
// With dropout m = [kept] / (1 - rate) multiplies p in dv, and do v^T in ds. One kernel makes delta, one dq of a tile
// of queries along the keys, one dk and dv of a tile of keys along (query head, query): no two blocks add to one
// number.
#include "backends/check_shapes.hpp"
#include "backends/cuda/attention_kernel.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/cudnn_attention.hpp"

namespace orthant {

using namespace cuda;
using namespace cuda::attention;

namespace {

constexpr int attention_slot = 5;

/// delta of one head of one row: delta[row * heads + head].
template <class X>
struct Delta {
  using A = Accumulator<X>;
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t r = b.x() / heads, first = b.x() % heads * v_dim;
    const A sum = b.sum<A>(v_dim, [&](int64_t d) { return load(d_o(r, first + d)) * load(o(r, first + d)); });
    b.each(1, [&](int64_t) { delta[b.x()] = sum; });
  }
  int64_t heads, v_dim;
  View<const X> d_o, o;
  A* delta;
};

/// The inputs, and a tile of queries and one of keys in shared memory, with what both kernels make of them.
template <class X, int M>
struct Inputs {
  using A = Accumulator<X>;

  /// What a block holds.
  struct Held {
    ORTHANT_KERNEL Held(const Block& b, const Inputs& in)
        : ld(odd(in.s.dim)),
          v_ld(odd(in.s.v_dim)),
          p_ld(odd(in.tile.keys)),
          q(b.shared<A>(in.tile.queries * ld)),
          g(b.shared<A>(in.tile.queries * v_ld)),
          k(b.shared<A>(in.tile.keys * ld)),
          v(b.shared<A>(in.tile.keys * v_ld)),
          p(b.shared<A>(in.tile.queries * p_ld)),
          ds(b.shared<A>(in.tile.queries * p_ld)),
          lse(b.shared<A>(in.tile.queries)),
          delta(b.shared<A>(in.tile.queries)),
          of(b, in.s, in.tile.queries) {}

    int ld, v_ld, p_ld;
    A *q, *g, *k, *v;  // g: rows of d_o
    A *p, *ds, *lse, *delta;
    Queries<A> of;
  };
  static int64_t bytes(const AttentionShape& s, Tile t) {
    const int dim = odd(static_cast<int>(s.head_dim)), v_dim = odd(static_cast<int>(s.value_dim()));
    const int64_t numbers = (t.queries + t.keys) * (dim + v_dim) + t.queries * (2 * odd(t.keys) + 2);
    return numbers * static_cast<int64_t>(sizeof(A)) + 8 * 16 + Queries<A>::bytes(t.queries);
  }

  /// The rows of the queries that h.of was loaded with.
  ORTHANT_KERNEL void load_queries(const Block& b, Held& h, int64_t sequence, int64_t head) const {
    const int64_t q0 = h.of.q0;
    const int count = h.of.count;
    load_rows(b, h.q, h.ld, q, s.batch, sequence, head, q0, count, s.dim);
    load_rows(b, h.g, h.v_ld, d_o, s.batch, sequence, head, q0, count, s.v_dim);
    b.each(count, [&](int64_t i) {
      const int64_t r = s.row(q0 + i, sequence);
      const A here = lse(r, head);
      h.lse[i] = here == -infinity<A>() ? infinity<A>() : here;  // sees no key: exp(score - inf) = 0
      h.delta[i] = delta[r * s.heads + head];
    });
  }
  ORTHANT_KERNEL void load_keys(const Block& b, Held& h, int64_t sequence, int64_t kv_head, int64_t k0,
                                int keys) const {
    load_rows(b, h.k, h.ld, k, s.batch, sequence, kv_head, k0, keys, s.dim);
    load_rows(b, h.v, h.v_ld, v, s.batch, sequence, kv_head, k0, keys, s.v_dim);
  }
  /// h.p (after dropout) and h.ds [queries][keys].
  ORTHANT_KERNEL void make_ds(const Block& b, Held& h, int64_t k0, int keys) const {
    const A factor = A(1) / s.keep;
    multiply<M, A>(
        b, h.of.count, keys, s.dim, [&](int i, int d) { return h.q[i * h.ld + d]; },
        [&](int d, int j) { return h.k[j * h.ld + d]; },
        [&](int i, int j, A score) {
          h.p[i * h.p_ld + j] = h.of.sees(i, k0 + j) ? exp_(score * s.scale - h.lse[i]) : A(0);
        });
    multiply<M, A>(
        b, h.of.count, keys, s.v_dim, [&](int i, int d) { return h.g[i * h.v_ld + d]; },
        [&](int d, int j) { return h.v[j * h.v_ld + d]; },
        [&](int i, int j, A slope) {
          const A e = h.p[i * h.p_ld + j];
          const A weight = !s.drops ? A(1) : s.stays(h.of.element[i], k0 + j) ? factor : A(0);
          h.p[i * h.p_ld + j] = e * weight;
          h.ds[i * h.p_ld + j] = e * (slope * weight - h.delta[i]) * s.scale;
        });
  }

  Shape<A> s;
  Tile tile;
  View<const X> q, k, v, d_o;
  View<const A> lse;
  const A* delta;
};

/// y rows = sum [count][ld].
template <class A>
ORTHANT_KERNEL void write_rows(const Block& b, const Shape<A>& s, const AnyView& y, const A* sum, int ld,
                               int64_t sequence, int64_t head, int64_t begin, int count, int width) {
  b.each(count * width, [&](int64_t at) {
    const int i = static_cast<int>(at) / width, d = static_cast<int>(at) % width;
    y.put(s.row(begin + i, sequence), head * width + d, sum[i * ld + d]);
  });
}

/// dq of one tile of queries of one head.
template <class X, int M>
struct QueryGradient {
  using A = Accumulator<X>;

  ORTHANT_KERNEL void operator()(const Block& b) const {
    const auto& s = in.s;
    const Tile tile = in.tile;
    const int64_t tiles = (s.q_length + tile.queries - 1) / tile.queries, head = b.x() % s.heads,
                  sequence = b.x() / s.heads % s.batch, q0 = (tiles - 1 - b.x() / (s.heads * s.batch)) * tile.queries;
    const int queries = static_cast<int>(min_<int64_t>(tile.queries, s.q_length - q0));
    typename Inputs<X, M>::Held h(b, in);
    A* dq_sum = b.shared<A>(tile.queries * h.ld);

    b.each(queries * h.ld, [&](int64_t i) { dq_sum[i] = A(0); });
    h.of.load(b, sequence, head, q0, queries);
    in.load_queries(b, h, sequence, head);
    const int64_t limit = h.of.limit();
    for (int64_t k0 = h.of.first_keys(tile.keys); k0 < limit; k0 += tile.keys) {
      const int keys = static_cast<int>(min_<int64_t>(tile.keys, limit - k0));
      in.load_keys(b, h, sequence, head / s.group, k0, keys);
      in.make_ds(b, h, k0, keys);
      multiply<M, A>(
          b, queries, s.dim, keys, [&](int i, int j) { return h.ds[i * h.p_ld + j]; },
          [&](int j, int d) { return h.k[j * h.ld + d]; }, [&](int i, int d, A x) { dq_sum[i * h.ld + d] += x; });
    }
    write_rows(b, s, dq, dq_sum, h.ld, sequence, head, q0, queries, s.dim);
  }
  static int64_t bytes(const AttentionShape& s, Tile t) {
    const int dim = odd(static_cast<int>(s.head_dim));
    return Inputs<X, M>::bytes(s, t) + t.queries * dim * static_cast<int64_t>(sizeof(A)) + 16;
  }

  Inputs<X, M> in;
  AnyView dq;
};

/// dk and dv of one tile of keys of one kv head or, kept apart, of one query head.
template <class X, int M>
struct KeyGradient {
  using A = Accumulator<X>;

  ORTHANT_KERNEL void operator()(const Block& b) const {
    const auto& s = in.s;
    const Tile tile = in.tile;
    // early tiles are seen by most queries, and go first
    const int64_t output = b.x() % outputs, sequence = b.x() / outputs % s.batch,
                  k0 = b.x() / (outputs * s.batch) * tile.keys, of_output = s.heads / outputs;
    const int keys = static_cast<int>(min_<int64_t>(tile.keys, s.k_length - k0));
    typename Inputs<X, M>::Held h(b, in);
    A* dk_sum = b.shared<A>(tile.keys * h.ld);
    A* dv_sum = b.shared<A>(tile.keys * h.v_ld);

    b.each(keys * h.ld, [&](int64_t i) { dk_sum[i] = A(0); });
    b.each(keys * h.v_ld, [&](int64_t i) { dv_sum[i] = A(0); });
    in.load_keys(b, h, sequence, output * of_output / s.group, k0, keys);
    for (int64_t head = output * of_output; head < (output + 1) * of_output; ++head)
      for (int64_t q0 = s.first_query(k0) / tile.queries * tile.queries; q0 < s.q_length; q0 += tile.queries) {
        h.of.load(b, sequence, head, q0, static_cast<int>(min_<int64_t>(tile.queries, s.q_length - q0)));
        if (h.of.limit() <= k0 || !h.of.reach(k0 + keys)) continue;
        in.load_queries(b, h, sequence, head);
        in.make_ds(b, h, k0, keys);
        multiply<M, A>(
            b, keys, s.v_dim, h.of.count, [&](int j, int i) { return h.p[i * h.p_ld + j]; },
            [&](int i, int d) { return h.g[i * h.v_ld + d]; },
            [&](int j, int d, A x) { dv_sum[j * h.v_ld + d] += x; });
        multiply<M, A>(
            b, keys, s.dim, h.of.count, [&](int j, int i) { return h.ds[i * h.p_ld + j]; },
            [&](int i, int d) { return h.q[i * h.ld + d]; }, [&](int j, int d, A x) { dk_sum[j * h.ld + d] += x; });
      }
    write_rows(b, s, dk, dk_sum, h.ld, sequence, output, k0, keys, s.dim);
    write_rows(b, s, dv, dv_sum, h.v_ld, sequence, output, k0, keys, s.v_dim);
  }
  static int64_t bytes(const AttentionShape& s, Tile t) {
    const int dim = odd(static_cast<int>(s.head_dim)), v_dim = odd(static_cast<int>(s.value_dim()));
    return Inputs<X, M>::bytes(s, t) + t.keys * (dim + v_dim) * static_cast<int64_t>(sizeof(A)) + 2 * 16;
  }

  Inputs<X, M> in;
  int64_t outputs;
  AnyView dk, dv;
};

}  // namespace

void CudaBackend::attention_backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& o, const Tensor& lse, const Tensor& dq,
                                     const Tensor& dk, const Tensor& dv) {
  check::attention_backward(s, d_o, q, k, v, o, lse, dq, dk, dv);
  if (cudnn_attention_->backward(s, d_o, q, k, v, o, lse, dq, dk, dv)) return;
  with_compute(q.dtype(), [&](auto tag) {
    using X = typename decltype(tag)::type;
    using A = Accumulator<X>;
    const int64_t outputs = dk.cols() / s.head_dim, head_width = std::max(s.head_dim, s.value_dim());
    A* delta = static_cast<A*>(scratch(attention_slot, q.rows() * s.heads * static_cast<int64_t>(sizeof(A))));
    launch(stream_, {q.rows() * s.heads},
           Delta<X>{s.heads, s.value_dim(), View<const X>(d_o), View<const X>(o), delta}, 32);

    const auto run = [&]<template <class, int> class Kernel, class... Rest>(int64_t length, bool along_queries,
                                                                            const Rest&... rest) {
      const Tile tile = pick_tile(head_width, [&](Tile t) { return Kernel<X, 2>::bytes(s, t); });
      with_square(tile, [&](auto square) {
        constexpr int edge = decltype(square)::value;
        const Inputs<X, edge> in{
            Shape<A>(s),        tile, View<const X>(q), View<const X>(k), View<const X>(v), View<const X>(d_o),
            View<const A>(lse), delta};
        const int64_t tiles = blocks_of(length, along_queries ? tile.queries : tile.keys);
        launch(stream_, {tiles * s.batch * (along_queries ? s.heads : outputs)}, Kernel<X, edge>{in, rest...},
               attention::width, Kernel<X, edge>::bytes(s, tile));
      });
    };
    run.template operator()<QueryGradient>(s.q_length, true, AnyView(dq));
    run.template operator()<KeyGradient>(s.k_length, false, outputs, AnyView(dk), AnyView(dv));
  });
}

}  // namespace orthant
