// Attention over parts of the keys, as context parallelism computes it: chunk against chunk, in any order, merged; and
// queries alone against all keys, as reproducible mode does it.
// labels: smoke asan
// seconds: 120
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>

#include "attention_kit.hpp"

namespace orthant {
namespace {

using namespace attention_kit;
using kit::values;

constexpr double none = -INFINITY;

struct Masks {
  bool documents;
  double rate;
};
const Masks all_masks[] = {{false, 0}, {true, 0}, {false, 0.3}, {true, 0.3}};

/// The second document reaches into the tile of queries where the third begins, so that the third's queries have other
/// neighbours when they are cut from it.
int64_t start_of(int64_t place, int64_t sequence) {
  return place < 10 ? 0 : place < 66 + sequence ? 10 : place < 139 ? 66 + sequence : 139;
}

AttentionShape whole_shape(Backend& be, int64_t length, int64_t heads, int64_t kv, const Masks& m) {
  AttentionShape s = shape(2, length, length, 0, 0, heads, kv, 8);
  if (m.documents) set_documents(be, s, start_of);
  if (m.rate > 0) set_dropout(be, s, m.rate, length, heads, 0);
  return s;
}

struct Chunk {
  int64_t begin, count;
};
/// Rank i of cp holds chunks i and 2 cp - 1 - i of 2 cp.
std::vector<Chunk> chunks_of(int64_t length, int64_t cp, int64_t rank) {
  const int64_t c = length / (2 * cp);
  return {{rank * c, c}, {(2 * cp - 1 - rank) * c, c}};
}

/// The call of a chunk of queries against a chunk of keys.
AttentionShape between(const AttentionShape& s, const Chunk& q, const Chunk& k) {
  AttentionShape part = s;
  part.q_begin = q.begin;
  part.q_length = q.count;
  part.k_begin = k.begin;
  part.k_length = k.count;
  if (s.starts) part.starts = s.starts.row_range(q.begin * s.batch, q.count * s.batch);
  if (s.dropout.tokens) part.dropout.tokens = s.dropout.tokens.row_range(q.begin * s.batch, q.count * s.batch);
  return part;
}

Tensor cut(const AttentionShape& s, const Tensor& x, const Chunk& c) {
  return x.row_range(c.begin * s.batch, c.count * s.batch);
}

/// o, lse, dq, dk, dv of the whole from all pairs of chunks, keys in an order drawn anew for each chunk of queries. Parts
/// are A, and o is rounded to T once, before the backward pass.
Tensors by_parts(Backend& be, const AttentionShape& s, const Tensors& x, int64_t cp) {
  const DType t = x.q.dtype(), a = x.lse.dtype();
  const auto like = [&](const Tensor& y) {
    const Tensor z = be.alloc(a, y.rows(), y.cols(), MemoryKind::workspace);
    be.zero(z);
    return z;
  };
  Tensors y = x;
  const Tensor o = like(x.o);
  y.lse = like(x.lse);
  y.dq = like(x.dq);
  y.dk = like(x.dk);
  y.dv = like(x.dv);
  std::mt19937 generator(static_cast<unsigned>(cp));
  std::vector<Chunk> all;
  for (int64_t rank = 0; rank < cp; ++rank)
    for (const Chunk& c : chunks_of(s.q_length, cp, rank)) all.push_back(c);
  std::vector<Chunk> order = all;
  for (const Chunk& q : all) {
    std::shuffle(order.begin(), order.end(), generator);
    bool first = true;
    for (const Chunk& k : order) {
      const Tensor into = cut(s, o, q), lse = cut(s, y.lse, q);
      if (first) {
        be.attention_forward(between(s, q, k), cut(s, x.q, q), cut(s, x.k, k), cut(s, x.v, k), into, lse);
      } else {
        const Tensor o_part = like(into), lse_part = like(lse);
        be.attention_forward(between(s, q, k), cut(s, x.q, q), cut(s, x.k, k), cut(s, x.v, k), o_part, lse_part);
        be.attention_merge(into, lse, o_part, lse_part);
      }
      first = false;
    }
  }
  y.o = be.alloc(t, x.o.rows(), x.o.cols(), MemoryKind::workspace);
  be.copy(y.o, o);
  for (const Chunk& q : all) {
    std::shuffle(order.begin(), order.end(), generator);
    for (const Chunk& k : order) {
      const Tensor dq = like(cut(s, y.dq, q)), dk = like(cut(s, y.dk, k)), dv = like(cut(s, y.dv, k));
      be.attention_backward(between(s, q, k), cut(s, x.d_o, q), cut(s, x.q, q), cut(s, x.k, k), cut(s, x.v, k),
                            cut(s, y.o, q), cut(s, y.lse, q), dq, dk, dv);
      for (const auto& [sum, part] : {std::pair{cut(s, y.dq, q), dq}, {cut(s, y.dk, k), dk}, {cut(s, y.dv, k), dv}})
        be.add(sum, part, sum);
    }
  }
  return y;
}

TEST(AttentionParts, ZigzagChunksInAnyOrderEqualTheWhole) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);  // thousands of tiny calls
  auto be = make_backend("cpu");
  omp_set_num_threads(threads);
  for (const auto& [t, bound] : {std::pair{DType::f64, 1e-12}, {DType::f32, 1e-5}, {DType::bf16, 0.06}})
    for (int64_t kv : {2, 1})
      for (const Masks& m : all_masks) {
        if (kv == 1 && m.documents != (m.rate > 0)) continue;
        const AttentionShape s = whole_shape(*be, 160, 8, kv, m);
        const Tensors x = inputs(*be, s, t, 0);
        run(*be, s, x);
        for (int64_t cp : {1, 2, 4, 8}) {
          if (t != DType::f64 && cp != 4) continue;  // the cut is the same for every type
          SCOPED_TRACE(testing::Message() << name_of(t) << " cp " << cp << " heads 8:" << kv << " rate " << m.rate
                                          << (m.documents ? " documents" : ""));
          const Tensors y = by_parts(*be, s, x, cp);
          EXPECT_LE(kit::distance(values(*be, y.o), values(*be, x.o)), bound) << "o";
          EXPECT_LE(kit::distance(values(*be, y.lse), values(*be, x.lse)), bound) << "lse";
          EXPECT_LE(kit::distance(values(*be, y.dq), values(*be, x.dq)), bound) << "dq";
          EXPECT_LE(kit::distance(values(*be, y.dk), values(*be, x.dk)), bound) << "dk";
          EXPECT_LE(kit::distance(values(*be, y.dv), values(*be, x.dv)), bound) << "dv";
        }
      }
}

TEST(AttentionParts, QueriesAloneHaveTheBitsOfTheWhole) {
  for (int threads : {1, 3}) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    auto be = make_backend("cpu");
    omp_set_num_threads(before);
    for (DType t : {DType::f32, DType::bf16, DType::f64})
      for (const Masks& m : all_masks) {
        const AttentionShape s = whole_shape(*be, 160, 4, 2, m);
        const Tensors x = inputs(*be, s, t, 0);
        run(*be, s, x);
        for (const Chunk& q : {Chunk{0, 20}, {20, 20}, {64, 64}, {80, 80}, {159, 1}}) {
          SCOPED_TRACE(testing::Message() << name_of(t) << " queries from " << q.begin << " rate " << m.rate
                                          << (m.documents ? " documents" : "") << " threads " << threads);
          // keys up to the last query, and all of them
          for (int64_t n : {q.begin + q.count, int64_t{160}}) {
            const Chunk k{0, n};
            const AttentionShape part = between(s, q, k);
            Tensors y = inputs(*be, part, t, 0, true);
            y.q = cut(s, x.q, q);
            y.d_o = cut(s, x.d_o, q);
            y.k = cut(s, x.k, k);
            y.v = cut(s, x.v, k);
            run(*be, part, y);
            EXPECT_EQ(values(*be, y.o), values(*be, cut(s, x.o, q)));
            EXPECT_EQ(values(*be, y.lse), values(*be, cut(s, x.lse, q)));
            EXPECT_EQ(values(*be, y.dq), values(*be, cut(s, x.dq, q)));

            // dk and dv are chains over these queries alone: the whole, with no gradient from the others
            Tensors z = inputs(*be, s, t, 0, true);
            be->copy(z.o, x.o);
            be->copy(z.lse, x.lse);
            be->zero(z.d_o);
            be->copy(cut(s, z.d_o, q), cut(s, x.d_o, q));
            be->attention_backward(s, z.d_o, x.q, x.k, x.v, z.o, z.lse, z.dq, z.dk, z.dv);
            EXPECT_EQ(values(*be, y.dk), values(*be, cut(s, z.dk, k)));
            EXPECT_EQ(values(*be, y.dv), values(*be, cut(s, z.dv, k)));
          }
        }
      }
  }
}

TEST(AttentionParts, ResultsOfTypeAAreRoundedOnceToT) {
  auto be = make_backend("cpu");
  const AttentionShape s = whole_shape(*be, 70, 4, 2, {true, 0.3});
  const Tensors x = inputs(*be, s, DType::bf16, 0);
  run(*be, s, x);
  Tensors y = x;
  for (Tensor* r : {&y.o, &y.dq, &y.dk, &y.dv}) *r = be->alloc(DType::f32, r->rows(), r->cols(), MemoryKind::workspace);
  be->attention_forward(s, x.q, x.k, x.v, y.o, y.lse);
  be->attention_backward(s, x.d_o, x.q, x.k, x.v, x.o, y.lse, y.dq, y.dk, y.dv);
  for (const auto& [wide, narrow] : {std::pair{y.o, x.o}, {y.dq, x.dq}, {y.dk, x.dk}, {y.dv, x.dv}}) {
    EXPECT_NE(values(*be, wide), values(*be, narrow));
    const Tensor rounded = be->alloc(DType::bf16, wide.rows(), wide.cols(), MemoryKind::workspace);
    be->copy(rounded, wide);
    EXPECT_EQ(values(*be, rounded), values(*be, narrow));
  }
}

TEST(AttentionMerge, EqualsTheDefinitionAndRowsWithoutKeysMergeToo) {
  auto be = make_backend("cpu");
  const double lse[2][5] = {{0.5, none, 2, none, 300}, {-0.25, 1, none, none, -300}};
  for (DType t : {DType::f32, DType::f64}) {
    // each part has a row of each kind for two heads of three; rows lie in wider ones
    Tensor o[2], l[2];
    for (int64_t p = 0; p < 2; ++p) {
      l[p] = kit::make(*be, t, 5, 2, 3, [&](int64_t r, int64_t h) { return lse[p][(r + h) % 5]; });
      o[p] = kit::make(*be, t, 5, 6, 8, [&](int64_t r, int64_t c) {
        return lse[p][(r + c / 3) % 5] == none ? 0 : std::sin(static_cast<double>(7 * p + 11 * r + c));
      });
    }
    const Numbers a = values(*be, o[0]), b = values(*be, o[1]);
    be->attention_merge(o[0], l[0], o[1], l[1]);
    const Numbers got = values(*be, o[0]), got_lse = values(*be, l[0]);
    const double bound = t == DType::f64 ? 1e-15 : 3e-7;
    for (size_t i = 0; i < 30; ++i) {
      const size_t kind = (i / 6 + i % 6 / 3) % 5;
      const double mine = std::exp(lse[0][kind]), other = std::exp(lse[1][kind]);
      const double want = kind == 3 ? 0 : kind == 4 ? a[i] : (a[i] * mine + b[i] * other) / (mine + other);
      EXPECT_NEAR(got[i], want, bound) << "element " << i;
      const double want_lse = kind == 3 ? none : kind == 4 ? 300 : std::log(mine + other);
      const double at = got_lse[i / 6 * 2 + i % 6 / 3];
      EXPECT_TRUE(at == want_lse || std::abs(at - want_lse) <= bound) << at << " for " << want_lse;
    }
  }
}

TEST(AttentionMerge, RefusesWhatDoesNotFit) {
  auto be = make_backend("cpu");
  const auto other = [&](DType t, int64_t rows, int64_t cols) {
    return be->alloc(t, rows, cols, MemoryKind::workspace);
  };
  const Tensor o = other(DType::f32, 4, 6), lse = other(DType::f32, 4, 2);
  EXPECT_THROW(be->attention_merge(o, lse, other(DType::f32, 4, 5), lse), LogicError);
  EXPECT_THROW(be->attention_merge(o, lse, other(DType::bf16, 4, 6), lse), LogicError);
  EXPECT_THROW(be->attention_merge(o, lse, o, other(DType::f32, 3, 2)), LogicError);
  EXPECT_THROW(be->attention_merge(o, other(DType::f32, 4, 4), o, other(DType::f32, 4, 4)), LogicError);
}

}  // namespace
}  // namespace orthant
