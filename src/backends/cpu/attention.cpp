// Causal attention in tiles: softmax is built up key block by key block (forward) and made again from lse (backward),
// so memory is linear in the sequence.
//
//   forward   o = softmax(scale q k^T) v,  lse = log sum exp
//   backward  p = exp(scale q k^T - lse);  dv = p^T do;  ds = scale p (do v^T - rowsum(do o));  dq = ds k;
//             dk = ds^T q
//
// With dropout m = [kept] / (1 - rate) multiplies p in o and in dv, and do v^T in ds; lse is that of all keys.
//
// Heads of q and k are head_dim wide, heads of v and o value_dim() (latent attention has wider keys than values).
//
// dq of a query is one chain over the keys in order, dk and dv of a key one chain over (query head, query) in order,
// whichever of the two loops below runs: so bits depend neither on threads nor on how many heads a rank holds.
#include <omp.h>

#include "backends/check_shapes.hpp"
#include "backends/cpu/attention_tiles.hpp"
#include "backends/cpu/cpu_backend.hpp"

namespace orthant {
namespace {

using namespace attention;

int64_t blocks(int64_t n) { return (n + edge - 1) / edge; }
int64_t rounded(int64_t n) { return (n + 15) / 16 * 16; }

/// `dim` is the wider of the two widths of a head.
template <class T>
int64_t forward_elements(int64_t dim) {
  return 6 * rounded(edge * dim) + edge * edge + 4 * edge + rounded(dim) + 16 * edge;
}

template <class T, class X>
void forward_tile_row(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                      const Tensor& lse, int64_t sequence, int64_t head, int64_t block, Drops& drops, T* memory) {
  const int64_t dim = s.head_dim, v_dim = s.value_dim(), q0 = block * edge, queries = std::min(edge, s.q_length - q0);
  const int64_t lanes = tile::padded<T>(queries), kv_head = head / (s.heads / s.kv_heads);
  const Rows<X> k_in(k, s, sequence, kv_head, dim), v_in(v, s, sequence, kv_head, v_dim);
  Pieces<T> pieces{memory};
  T* rows = pieces.take(edge * std::max(dim, v_dim));
  T* q_t = pieces.take(edge * dim);
  T* k_rows = pieces.take(edge * dim);
  T* v_rows = pieces.take(edge * v_dim);
  T* sum_t = pieces.take(edge * v_dim);
  T* p = pieces.take(edge * edge);
  T* maximum = pieces.take(edge);
  T* sum = pieces.take(edge);
  T* factor = pieces.take(edge);

  load_rows(rows, dim, Rows<X>(q, s, sequence, head, dim), q0, queries, dim);
  transpose(q_t, rows, dim, dim, static_cast<T>(s.scale));
  std::fill(maximum, maximum + edge, -std::numeric_limits<T>::infinity());
  std::fill(sum, sum + edge, T(0));
  std::fill(sum_t, sum_t + edge * v_dim, T(0));
  Documents documents;
  documents.load(s, sequence, q0, queries);
  drops.load(sequence, head, q0, queries);
  const int64_t limit = visible(s, q0 + queries - 1);
  for (int64_t k0 = documents.first_keys(s); k0 < limit; k0 += edge) {
    const int64_t keys = std::min(edge, limit - k0);
    load_rows(k_rows, dim, k_in, k0, keys, dim);
    load_rows(v_rows, v_dim, v_in, k0, keys, v_dim);
    scores(s, documents, p, k_rows, k0, keys, q_t, q0, queries);
    if (online_softmax(p, keys, lanes, maximum, sum, factor)) {
      for (int64_t d = 0; d < v_dim; ++d)
#pragma omp simd
        for (int64_t j = 0; j < edge; ++j) sum_t[d * edge + j] *= factor[j];
    }
    if (drops.on()) drops.drop(p, k0, keys, lanes);
    tile::multiply(v_dim, lanes, keys, v_rows, int64_t{1}, v_dim, p, edge, sum_t, edge, true);
  }
  T* lse_out = lse.as<T>();
  const T keep = static_cast<T>(1 - s.dropout.rate);
  for (int64_t j = 0; j < queries; ++j) {
    const bool none = sum[j] == T(0);
    factor[j] = none ? T(0) : T(1) / (keep * sum[j]);
    lse_out[((q0 + j) * s.batch + sequence) * lse.ld() + head] =
        none ? -std::numeric_limits<T>::infinity() : maximum[j] + log_(sum[j]);
  }
  stored_as<T, X>(o, [&]<class Y>(Y) {
    store_columns(Rows<Y>(o, s, sequence, head, v_dim), q0, queries, sum_t, v_dim, factor, rows);
  });
}

/// What the backward pass of one thread works on: one block of queries of one head, one block of keys.
template <class T, class X>
class Backward {
 public:
  Backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
           const Tensor& o, const Tensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv, T* memory)
      : s_(s),
        d_o_(d_o),
        q_(q),
        k_(k),
        v_(v),
        o_(o),
        lse_(lse),
        dq_(dq),
        dk_(dk),
        dv_(dv),
        dim_(s.head_dim),
        v_dim_(s.value_dim()),
        width_(tile::padded<T>(dim_)),
        v_width_(tile::padded<T>(v_dim_)),
        group_(s.heads / s.kv_heads),
        apart_(dk.cols() != k.cols()),
        keep_(static_cast<T>(1 - s.dropout.rate)),
        drops_(s),
        memory_{memory} {
    // both are places of d_o in turn
    q_rows_ = memory_.take(edge * std::max(width_, v_width_));
    g_rows_ = memory_.take(edge * std::max(width_, v_width_));
    q_t_ = memory_.take(edge * dim_);
    g_t_ = memory_.take(edge * v_dim_);
    k_rows_ = memory_.take(edge * dim_);
    v_rows_ = memory_.take(edge * v_dim_);
    dq_t_ = memory_.take(edge * dim_);
    p_ = memory_.take(edge * edge);
    ds_ = memory_.take(edge * edge);
    lse_here_ = memory_.take(edge);
    delta_ = memory_.take(edge);
    ones_ = memory_.take(edge);
    row_ = memory_.take(width_);
    std::fill(ones_, ones_ + edge, T(1));
  }
  /// Elements of working memory, of which `keys` rows of dk and dv; `dim` is the wider of the two widths of a head.
  static int64_t elements(int64_t dim, int64_t keys) {
    const int64_t width = tile::padded<T>(dim);
    return 7 * edge * rounded(width) + 2 * edge * edge + 3 * edge + rounded(width) + 2 * rounded(keys * width) + 64;
  }

  /// All of one kv head (or, kept apart, of one query head): every query block in turn, dk and dv of all keys held.
  void whole_head(int64_t sequence, int64_t output) {
    const auto [first, last] = query_heads(output);
    hold(s_.k_length);
    for (int64_t head = first; head < last; ++head) {
      for (int64_t q0 = 0; q0 < s_.q_length; q0 += edge) {
        load_queries(sequence, head, q0);
        const int64_t limit = visible(s_, q0 + queries_ - 1);
        for (int64_t k0 = documents_.first_keys(s_); k0 < limit; k0 += edge) {
          load_keys(sequence, head, k0, std::min(edge, limit - k0));
          make_ds();
          add_dk_dv(k0);
          add_dq();
        }
        store_dq(sequence, head);
      }
    }
    store_dk_dv(sequence, output, 0, s_.k_length);
  }
  /// dk and dv of one block of keys.
  void key_block(int64_t sequence, int64_t output, int64_t k0) {
    const auto [first, last] = query_heads(output);
    const int64_t keys = std::min(edge, s_.k_length - k0);
    hold(keys);
    for (int64_t head = first; head < last; ++head) {
      for (int64_t q0 = first_query(s_, k0) / edge * edge; q0 < s_.q_length; q0 += edge) {
        const int64_t queries = std::min(edge, s_.q_length - q0);
        const int64_t seen = std::min(keys, visible(s_, q0 + queries - 1) - k0);
        if (seen <= 0) continue;
        documents_.load(s_, sequence, q0, queries);
        if (!documents_.reach(s_, k0, seen)) continue;
        load_queries(sequence, head, q0);
        load_keys(sequence, head, k0, seen);
        make_ds();
        add_dk_dv(0);
      }
    }
    store_dk_dv(sequence, output, k0, keys);
  }
  /// dq of one block of queries.
  void query_block(int64_t sequence, int64_t head, int64_t q0) {
    load_queries(sequence, head, q0);
    const int64_t limit = visible(s_, q0 + queries_ - 1);
    for (int64_t k0 = documents_.first_keys(s_); k0 < limit; k0 += edge) {
      load_keys(sequence, head, k0, std::min(edge, limit - k0));
      make_ds();
      add_dq();
    }
    store_dq(sequence, head);
  }

 private:
  struct Range {
    int64_t first, last;
  };
  Range query_heads(int64_t output) const {
    return apart_ ? Range{output, output + 1} : Range{output * group_, (output + 1) * group_};
  }
  void hold(int64_t keys) {
    Pieces<T> rest = memory_;
    dk_sum_ = rest.take(keys * width_);
    dv_sum_ = rest.take(keys * v_width_);
    std::fill(dk_sum_, dk_sum_ + keys * width_, T(0));
    std::fill(dv_sum_, dv_sum_ + keys * v_width_, T(0));
  }
  void load_queries(int64_t sequence, int64_t head, int64_t q0) {
    q0_ = q0;
    queries_ = std::min(edge, s_.q_length - q0);
    documents_.load(s_, sequence, q0, queries_);
    drops_.load(sequence, head, q0, queries_);
    // o is needed for the row sums alone; g_rows_ is its place until the gradient comes
    load_rows(g_rows_, v_width_, Rows<X>(o_, s_, sequence, head, v_dim_), q0, queries_, v_dim_);
    load_rows(q_rows_, v_width_, Rows<X>(d_o_, s_, sequence, head, v_dim_), q0, queries_, v_dim_);
    const T* lse = lse_.as<T>();
    for (int64_t j = 0; j < edge; ++j) {
      delta_[j] = dot(q_rows_ + j * v_width_, g_rows_ + j * v_width_, v_dim_);
      // rows that see no key, and lanes without a query: exp(score - inf) = 0
      T here = std::numeric_limits<T>::infinity();
      if (j < queries_) here = lse[((q0 + j) * s_.batch + sequence) * lse_.ld() + head];
      lse_here_[j] = here == -std::numeric_limits<T>::infinity() ? -here : here;
    }
    std::swap(q_rows_, g_rows_);
    transpose(g_t_, g_rows_, v_width_, v_dim_, T(1));
    load_rows(q_rows_, width_, Rows<X>(q_, s_, sequence, head, dim_), q0, queries_, dim_);
    transpose(q_t_, q_rows_, width_, dim_, static_cast<T>(s_.scale));
    std::fill(dq_t_, dq_t_ + dim_ * edge, T(0));
  }
  void load_keys(int64_t sequence, int64_t head, int64_t k0, int64_t keys) {
    k0_ = k0;
    keys_ = keys;
    load_rows(k_rows_, dim_, Rows<X>(k_, s_, sequence, head / group_, dim_), k0, keys, dim_);
    load_rows(v_rows_, v_dim_, Rows<X>(v_, s_, sequence, head / group_, v_dim_), k0, keys, v_dim_);
  }
  /// p_ and ds_ [keys][queries].
  void make_ds() {
    const int64_t lanes = tile::padded<T>(queries_);
    scores(s_, documents_, p_, k_rows_, k0_, keys_, q_t_, q0_, queries_);
    tile::multiply(keys_, lanes, v_dim_, v_rows_, v_dim_, int64_t{1}, g_t_, edge, ds_, edge, false);
    const T scale = static_cast<T>(s_.scale);
    if (drops_.on()) return drop_ds(lanes, scale);
    for (int64_t i = 0; i < keys_; ++i) {
      T* __restrict p = p_ + i * edge;
      T* __restrict ds = ds_ + i * edge;
      const T* __restrict lse = lse_here_;
      const T* __restrict delta = delta_;
#pragma omp simd
      for (int64_t j = 0; j < lanes; ++j) {
        const T e = exp_(p[j] - lse[j]);
        p[j] = e;
        ds[j] = e * (ds[j] - delta[j]) * scale;
      }
    }
  }
  /// The second half of make_ds with dropout.
  void drop_ds(int64_t lanes, T scale) {
    const uint32_t* words = drops_.draw(k0_, keys_);
    const uint32_t last = drops_.last();
    const T factor = T(1) / keep_;
    for (int64_t i = 0; i < keys_; ++i) {
      T* __restrict p = p_ + i * edge;
      T* __restrict ds = ds_ + i * edge;
      const uint32_t* __restrict word = words + i * edge;
      const T* __restrict lse = lse_here_;
      const T* __restrict delta = delta_;
#pragma omp simd
      for (int64_t j = 0; j < lanes; ++j) {
        const T e = exp_(p[j] - lse[j]), weight = select_(word[j] > last, factor, T(0));
        p[j] = e * weight;
        ds[j] = e * (ds[j] * weight - delta[j]) * scale;
      }
    }
  }
  void add_dk_dv(int64_t row) {
    tile::multiply(keys_, v_width_, queries_, p_, edge, int64_t{1}, g_rows_, v_width_, dv_sum_ + row * v_width_,
                   v_width_, true);
    tile::multiply(keys_, width_, queries_, ds_, edge, int64_t{1}, q_rows_, width_, dk_sum_ + row * width_, width_,
                   true);
  }
  void add_dq() {
    tile::multiply(dim_, tile::padded<T>(queries_), keys_, k_rows_, int64_t{1}, dim_, ds_, edge, dq_t_, edge, true);
  }
  void store_dq(int64_t sequence, int64_t head) {
    stored_as<T, X>(dq_, [&]<class Y>(Y) {
      store_columns(Rows<Y>(dq_, s_, sequence, head, dim_), q0_, queries_, dq_t_, dim_, ones_, row_);
    });
  }
  void store_dk_dv(int64_t sequence, int64_t output, int64_t k0, int64_t keys) {
    store_rows(dk_, dk_sum_, width_, dim_, sequence, output, k0, keys);
    store_rows(dv_, dv_sum_, v_width_, v_dim_, sequence, output, k0, keys);
  }
  void store_rows(const Tensor& y, const T* sum, int64_t width, int64_t dim, int64_t sequence, int64_t output,
                  int64_t k0, int64_t keys) {
    stored_as<T, X>(y, [&]<class Y>(Y) {
      const Rows<Y> rows(y, s_, sequence, output, dim);
      for (int64_t i = 0; i < keys; ++i) convert::run(rows[k0 + i], sum + i * width, dim);
    });
  }

  const AttentionShape& s_;
  const Tensor &d_o_, &q_, &k_, &v_, &o_, &lse_, &dq_, &dk_, &dv_;
  const int64_t dim_, v_dim_, width_, v_width_, group_;
  const bool apart_;
  const T keep_;
  Documents documents_;
  Drops drops_;
  Pieces<T> memory_;
  T *q_rows_, *g_rows_, *q_t_, *g_t_, *k_rows_, *v_rows_, *dq_t_, *p_, *ds_, *lse_here_, *delta_, *ones_, *row_;
  T *dk_sum_ = nullptr, *dv_sum_ = nullptr;
  int64_t q0_ = 0, queries_ = 0, k0_ = 0, keys_ = 0;
};

/// Calls f(compute type, storage type).
template <class F>
void by_type(DType t, F&& f) {
  if (t == DType::f64) return f(double{}, double{});
  if (t == DType::bf16) return f(float{}, bf16{});
  if (t == DType::f16) return f(float{}, f16{});
  f(float{}, float{});
}

}  // namespace

void CpuBackend::attention_forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& o, const Tensor& lse) {
  check::attention_forward(s, q, k, v, o, lse);
  by_type(q.dtype(), [&]<class T, class X>(T, X) {
    const int64_t each = forward_elements<T>(std::max(s.head_dim, s.value_dim())), q_blocks = blocks(s.q_length),
                  tasks = s.batch * s.heads * q_blocks;
    T* memory = static_cast<T*>(scratch(5, threads_ * each * static_cast<int64_t>(sizeof(T))));
    // late query blocks see most keys: they go first, so that no thread ends up with a long one alone
#pragma omp parallel num_threads(threads_) if (tasks > 1)
    {
      Drops drops(s);
#pragma omp for schedule(dynamic)
      for (int64_t t = 0; t < tasks; ++t) {
        const int64_t head = t % s.heads, sequence = t / s.heads % s.batch,
                      block = q_blocks - 1 - t / (s.heads * s.batch);
        forward_tile_row<T, X>(s, q, k, v, o, lse, sequence, head, block, drops,
                               memory + omp_get_thread_num() * each);
      }
    }
  });
}

void CpuBackend::attention_backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k,
                                    const Tensor& v, const Tensor& o, const Tensor& lse, const Tensor& dq,
                                    const Tensor& dk, const Tensor& dv) {
  check::attention_backward(s, d_o, q, k, v, o, lse, dq, dk, dv);
  by_type(q.dtype(), [&]<class T, class X>(T, X) {
    const int64_t outputs = dk.cols() / s.head_dim, heads = s.batch * outputs;
    // One loop makes dq, dk and dv together (five products a tile) but has only batch * heads tasks; where that
    // leaves threads idle, two loops over blocks (seven products) are quicker. The bits are the same.
    const bool together = heads >= 4 * threads_ || heads % threads_ == 0;
    const int64_t each =
        Backward<T, X>::elements(std::max(s.head_dim, s.value_dim()), together ? s.k_length : edge);
    T* memory = static_cast<T*>(scratch(5, threads_ * each * static_cast<int64_t>(sizeof(T))));
    const int64_t k_blocks = blocks(s.k_length), q_blocks = blocks(s.q_length);
#pragma omp parallel num_threads(threads_)
    {
      Backward<T, X> work(s, d_o, q, k, v, o, lse, dq, dk, dv, memory + omp_get_thread_num() * each);
      if (together) {
#pragma omp for schedule(dynamic)
        for (int64_t t = 0; t < heads; ++t) work.whole_head(t / outputs, t % outputs);
      } else {
#pragma omp for schedule(dynamic) nowait
        for (int64_t t = 0; t < heads * k_blocks; ++t) {
          const int64_t output = t % outputs, sequence = t / outputs % s.batch;
          work.key_block(sequence, output, t / heads * edge);
        }
#pragma omp for schedule(dynamic)
        for (int64_t t = 0; t < s.batch * s.heads * q_blocks; ++t) {
          const int64_t head = t % s.heads, sequence = t / s.heads % s.batch;
          work.query_block(sequence, head, (q_blocks - 1 - t / (s.heads * s.batch)) * edge);
        }
      }
    }
  });
}

}  // namespace orthant
