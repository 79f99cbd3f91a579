// What the attention kernels share: the shape as a kernel sees it, tiles of rows in shared memory, small products.
//
// A block works on a tile of queries against tiles of keys. Rows lie in shared memory in A with an odd leading dim,
// so that a warp that reads a column touches every bank once. A number of a product is one chain of fused
// multiply-adds in rising order of what is summed over. Tile sizes follow from types and widths alone, so the bits do
// not depend on the number of heads or sequences that a rank holds.
#pragma once

#include <string>

#include "backends/cuda/numbers.hpp"
#include "orthant/backend.hpp"
#include "orthant/philox.hpp"

namespace orthant::cuda::attention {

/// AttentionShape without tensors. A is the accumulation type.
template <class A>
struct Shape {
  explicit Shape(const AttentionShape& s)
      : batch(s.batch),
        q_length(s.q_length),
        k_length(s.k_length),
        q_begin(s.q_begin),
        k_begin(s.k_begin),
        heads(s.heads),
        group(s.heads / s.kv_heads),
        dim(static_cast<int>(s.head_dim)),
        v_dim(static_cast<int>(s.value_dim())),
        scale(static_cast<A>(s.scale)),
        documents(static_cast<bool>(s.starts)),
        drops(s.dropout.rate > 0),
        keep(static_cast<A>(1 - s.dropout.rate)),
        last_dropped(drops ? dropout_last(s.dropout.rate) : 0),
        key(s.dropout.key),
        step(s.dropout.step),
        first_head(s.first_head),
        all_heads(s.all_heads),
        sequence(s.sequence) {
    if (documents) starts = View<const int32_t>(s.starts);
    if (drops) tokens = View<const int64_t>(s.dropout.tokens);
  }

  /// Row of a token tensor.
  ORTHANT_HD int64_t row(int64_t place, int64_t in_batch) const { return place * batch + in_batch; }
  /// Number of keys, from the first, that query `q` may see.
  ORTHANT_HD int64_t visible(int64_t q) const { return max_<int64_t>(0, min_(q_begin + q + 1 - k_begin, k_length)); }
  /// First query that may see key `k`, at most q_length.
  ORTHANT_HD int64_t first_query(int64_t k) const { return max_<int64_t>(0, min_(k_begin + k - q_begin, q_length)); }
  /// Whether dropout keeps the probability of key `k`; `element` is that of key 0.
  ORTHANT_HD bool stays(uint64_t element, int64_t k) const {
    const uint64_t at = element + static_cast<uint64_t>(k);
    const Philox4 w = dropout_words(at / 4, key, step);
    const uint32_t word = at % 4 < 2 ? (at % 4 == 0 ? w.x0 : w.x1) : (at % 4 == 2 ? w.x2 : w.x3);
    return word > last_dropped;
  }
  /// Dropout's element of the probability of key row 0.
  ORTHANT_HD uint64_t element(int64_t token_row, int64_t head) const {
    return static_cast<uint64_t>((tokens(token_row, 0) * all_heads + first_head + head) * sequence + k_begin);
  }

  int64_t batch, q_length, k_length, q_begin, k_begin, heads;
  int64_t group;  ///< query heads of one kv head
  int dim, v_dim;
  A scale;
  bool documents, drops;
  A keep;
  uint32_t last_dropped;
  uint64_t key;
  int64_t step, first_head, all_heads, sequence;
  View<const int32_t> starts;
  View<const int64_t> tokens;
};

/// Queries and keys of a tile.
struct Tile {
  int queries, keys;
};

/// Shared memory a block may take, beside that of Block::max: two blocks fit on a multiprocessor of 228 KiB, one on
/// the smallest that are supported.
constexpr int64_t memory_limit = 90 * 1024;
constexpr int width = default_width;

/// Leading dim of rows of `n` numbers.
ORTHANT_HD int odd(int n) { return n | 1; }

/// The largest tile for which `bytes(tile)` fits. UsageError when a head is too wide for every tile.
template <class F>
Tile pick_tile(int64_t head_dim, F&& bytes) {
  for (const Tile t : {Tile{64, 64}, Tile{64, 32}, Tile{32, 32}, Tile{32, 16}, Tile{16, 16}, Tile{16, 8}, Tile{8, 8},
                       Tile{8, 4}, Tile{4, 4}})
    if (bytes(t) <= memory_limit) return t;
  throw UsageError("attention on backend cuda: a head of " + std::to_string(head_dim) +
                   " columns does not fit in the shared memory of a block; take more heads that are narrower, or "
                   "device.backend = \"cpu\"");
}
/// Calls f with the edge of the square of results that a thread makes in registers, wrapped in a constant.
template <class F>
void with_square(Tile t, F&& f) {
  if (t.queries * t.keys >= 2048) return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 2>{});
}

/// to [count][ld] = `width` columns of one head of rows begin, begin + 1, ... of a sequence.
template <class A, class X>
ORTHANT_KERNEL void load_rows(const Block& b, A* to, int ld, const View<const X>& from, int64_t batch,
                              int64_t sequence, int64_t head, int64_t begin, int count, int width) {
  const X* first = from.data + (begin * batch + sequence) * from.ld + head * width;
  const int64_t step = batch * from.ld;
  b.each(count * width, [&](int64_t at) {
    const int i = static_cast<int>(at) / width, d = static_cast<int>(at) % width;
    to[i * ld + d] = load(first[i * step + d]);
  });
}

/// out(i, j, sum over p < k of left(i, p) right(p, j)) for i < m, j < n. A thread makes M x M results that lie apart,
/// so that neighbours read neighbouring columns.
template <int M, class A, class L, class R, class O>
ORTHANT_KERNEL void multiply(const Block& b, int m, int n, int k, L&& left, R&& right, O&& out) {
  const int down = (m + M - 1) / M, across = (n + M - 1) / M;
  b.each(down * across, [&](int64_t unit) {
    const int i0 = static_cast<int>(unit) / across, j0 = static_cast<int>(unit) % across;
    int row[M], col[M];
    for (int e = 0; e < M; ++e) {  // beyond the edge the last one is made again and not given out
      row[e] = min_(i0 + e * down, m - 1);
      col[e] = min_(j0 + e * across, n - 1);
    }
    A sum[M][M] = {};
    for (int p = 0; p < k; ++p) {
      A x[M], y[M];
      for (int e = 0; e < M; ++e) x[e] = left(row[e], p);
      for (int e = 0; e < M; ++e) y[e] = right(p, col[e]);
      for (int i = 0; i < M; ++i)
        for (int j = 0; j < M; ++j) sum[i][j] = fused(x[i], y[j], sum[i][j]);
    }
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < M; ++j)
        if (i0 + i * down < m && j0 + j * across < n) out(row[i], col[j], sum[i][j]);
  });
}

/// The queries of a tile, as masks and dropout need them.
template <class A>
struct Queries {
  /// Takes its memory from the block.
  ORTHANT_KERNEL Queries(const Block& b, const Shape<A>& s, int tile)
      : shape(s), start(b.shared<int32_t>(tile)), element(b.shared<uint64_t>(tile)) {}
  static int64_t bytes(int tile) { return tile * static_cast<int64_t>(sizeof(int32_t) + sizeof(uint64_t)) + 2 * 16; }

  ORTHANT_KERNEL void load(const Block& b, int64_t in_batch, int64_t head, int64_t begin, int number) {
    q0 = begin;
    count = number;
    const bool documents = shape.documents, drops = shape.drops;
    b.each(documents || drops ? count : 0, [&](int64_t i) {
      const int64_t r = shape.row(q0 + i, in_batch);
      if (documents) start[i] = shape.starts(r, 0);
      if (drops) element[i] = shape.element(r, head);
    });
    smallest = 0;
    if (documents)
      smallest = -b.max<int64_t>(count, -(int64_t{1} << 40), [&](int64_t i) { return -int64_t{start[i]}; });
  }
  /// Keys in front of the first tile of `keys` that a query's document reaches. The tiles stay where they are without
  /// documents: where one ends shows in the bits of the online softmax.
  ORTHANT_KERNEL int64_t first_keys(int keys) const {
    return max_<int64_t>(0, smallest - shape.k_begin) / keys * keys;
  }
  /// False when the keys in front of key row `end` lie before every query's document.
  ORTHANT_KERNEL bool reach(int64_t end) const { return smallest < shape.k_begin + end; }
  /// Keys, from the first, that any of the queries may see.
  ORTHANT_KERNEL int64_t limit() const { return shape.visible(q0 + count - 1); }
  ORTHANT_KERNEL bool sees(int i, int64_t k) const {
    const int64_t place = shape.k_begin + k;
    return place <= shape.q_begin + q0 + i && (!shape.documents || place >= start[i]);
  }

  const Shape<A>& shape;
  int32_t* start;
  uint64_t* element;
  int64_t q0 = 0, smallest = 0;
  int count = 0;
};

}  // namespace orthant::cuda::attention
