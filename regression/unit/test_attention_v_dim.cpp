// Attention whose values have another width than queries and keys, as latent attention has: against the definition,
// its slopes, in parts, and with the bits of equal widths where it comes to the same.
// labels: smoke asan
// seconds: 120
#include <gtest/gtest.h>
#include <omp.h>

#include "attention_kit.hpp"

namespace orthant {
namespace {

using namespace attention_kit;
using kit::values;

std::unique_ptr<Backend> backend_of(const char* name, int threads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  auto be = make_backend(name);
  omp_set_num_threads(before);
  return be;
}

struct Masks {
  bool documents;
  double rate;
};
const Masks all_masks[] = {{false, 0}, {true, 0}, {false, 0.3}, {true, 0.3}};

AttentionShape shape_of(Backend& be, int64_t length, int64_t heads, int64_t kv, int64_t dim, int64_t v_dim,
                        const Masks& m = {false, 0}) {
  AttentionShape s = shape(2, length, length, 0, 0, heads, kv, dim);
  s.v_dim = v_dim;
  if (m.documents)
    set_documents(be, s, [](int64_t place, int64_t b) { return place < 9 ? 0 : place < 70 ? 9 + b : 70; });
  if (m.rate > 0) set_dropout(be, s, m.rate, length, heads, 0);
  return s;
}

void expect_same(Backend& be, const Tensors& x, const Tensors& y) {
  EXPECT_EQ(values(be, x.o), values(be, y.o)) << "o";
  EXPECT_EQ(values(be, x.lse), values(be, y.lse)) << "lse";
  EXPECT_EQ(values(be, x.dq), values(be, y.dq)) << "dq";
  EXPECT_EQ(values(be, x.dk), values(be, y.dk)) << "dk";
  EXPECT_EQ(values(be, x.dv), values(be, y.dv)) << "dv";
}

TEST(AttentionValueWidth, IsTheDefinition) {
  auto be = backend_of("cpu", 2);
  struct Widths {
    int64_t head, value;
  };
  for (const auto& [t, bound] : {std::pair{DType::f64, 1e-12}, {DType::f32, 2e-5}, {DType::bf16, 0.06}})
    for (const Widths& w : {Widths{24, 16}, {16, 40}, {5, 1}, {1, 7}, {96, 64}})
      for (int64_t kv : {1, 2, 4})
        for (const Masks& m : all_masks) {
          if (kv != 2 && (t != DType::f64 || w.head != 24)) continue;  // heads are counted alike in every type
          if (w.head != 24 && m.documents != (m.rate > 0)) continue;
          SCOPED_TRACE(testing::Message() << name_of(t) << " widths " << w.head << " " << w.value << " heads 4:" << kv
                                          << " rate " << m.rate << (m.documents ? " documents" : ""));
          const AttentionShape s = shape_of(*be, 80, 4, kv, w.head, w.value, m);
          const Tensors x = inputs(*be, s, t, 3);
          const Expected e = plain(*be, s, x);
          run(*be, s, x);
          EXPECT_LE(kit::distance(values(*be, x.o), e.o), bound) << "o";
          EXPECT_LE(kit::distance(values(*be, x.lse), e.lse), bound) << "lse";
          EXPECT_LE(kit::distance(values(*be, x.dq), e.dq), bound) << "dq";
          EXPECT_LE(kit::distance(values(*be, x.dk), e.dk), 4 * bound) << "dk";
          EXPECT_LE(kit::distance(values(*be, x.dv), e.dv), 4 * bound) << "dv";
        }
}

TEST(AttentionValueWidth, GradientsAreSlopes) {
  auto be = backend_of("cpu", 1);
  for (const Masks& m : {all_masks[0], all_masks[3]})
    for (const auto& [dim, v_dim] : {std::pair<int64_t, int64_t>{6, 4}, {3, 8}}) {
      const AttentionShape s = shape_of(*be, 20, 4, 2, dim, v_dim, m);
      expect_finite_differences(*be, s, inputs(*be, s, DType::f64, 0), 7);
    }
}

TEST(AttentionValueWidth, OfTheKeysWidthHasTheBitsOfNone) {
  auto be = backend_of("cpu", 2);
  for (DType t : {DType::f32, DType::bf16, DType::f64})
    for (const Masks& m : all_masks)
      for (bool apart : {false, true}) {
        const AttentionShape none = shape_of(*be, 100, 4, 2, 24, 0, m);
        AttentionShape equal = none;
        equal.v_dim = 24;
        const Tensors x = inputs(*be, none, t, 1, apart), y = inputs(*be, equal, t, 1, apart);
        run(*be, none, x);
        run(*be, equal, y);
        expect_same(*be, x, y);
      }
}

// Columns of zeros behind every head of v and d_o add exact zeros to every chain.
TEST(AttentionValueWidth, HasTheBitsOfValuesWidenedWithZeros) {
  for (int threads : {1, 3}) {
    auto be = backend_of("cpu", threads);
    for (DType t : {DType::f32, DType::bf16, DType::f64})
      for (const Masks& m : all_masks) {
        const int64_t dim = 24, v_dim = 16;
        const AttentionShape s = shape_of(*be, 100, 4, 2, dim, v_dim, m);
        AttentionShape wide = s;
        wide.v_dim = 0;
        const Tensors x = inputs(*be, s, t, 0), y = inputs(*be, wide, t, 0);
        const auto head = [](const Tensor& z, int64_t h, int64_t width, int64_t used) {
          return z.col_range(h * width, used);
        };
        be->zero(y.v);
        be->zero(y.d_o);
        for (int64_t h = 0; h < 2; ++h) be->copy(head(y.v, h, dim, v_dim), head(x.v, h, v_dim, v_dim));
        for (int64_t h = 0; h < 4; ++h) be->copy(head(y.d_o, h, dim, v_dim), head(x.d_o, h, v_dim, v_dim));
        run(*be, s, x);
        run(*be, wide, y);
        EXPECT_EQ(values(*be, x.lse), values(*be, y.lse));
        EXPECT_EQ(values(*be, x.dq), values(*be, y.dq));
        EXPECT_EQ(values(*be, x.dk), values(*be, y.dk));
        for (int64_t h = 0; h < 4; ++h)
          EXPECT_EQ(values(*be, head(x.o, h, v_dim, v_dim)), values(*be, head(y.o, h, dim, v_dim)));
        for (int64_t h = 0; h < 2; ++h)
          EXPECT_EQ(values(*be, head(x.dv, h, v_dim, v_dim)), values(*be, head(y.dv, h, dim, v_dim)));
      }
  }
}

TEST(AttentionValueWidth, BitsDependNeitherOnThreadsNorOnTheBackend) {
  std::vector<Numbers> all[4];
  int n = 0;
  for (const auto& [name, threads] : {std::pair{"cpu", 1}, {"cpu", 3}, {"cpu", 16}, {"debug", 2}}) {
    auto be = backend_of(name, threads);
    for (DType t : {DType::f32, DType::bf16, DType::f64})
      for (bool apart : {false, true}) {
        const AttentionShape s = shape_of(*be, 130, 3, 1, 24, 16, all_masks[3]);
        const Tensors x = inputs(*be, s, t, 2, apart);
        run(*be, s, x);
        for (const Tensor& r : {x.o, x.lse, x.dq, x.dk, x.dv}) all[n].push_back(values(*be, r));
      }
    ++n;
  }
  for (int i = 1; i < n; ++i) EXPECT_EQ(all[i], all[0]) << "backend " << i;
}

TEST(AttentionValueWidth, PartsOfQueryHeadsAddUp) {
  auto be = backend_of("cpu", 2);
  const AttentionShape s = shape_of(*be, 80, 6, 2, 12, 20, all_masks[1]);
  const Tensors x = inputs(*be, s, DType::f64, 1), y = inputs(*be, s, DType::f64, 1, true);
  EXPECT_EQ(y.dk.cols(), 72);
  EXPECT_EQ(y.dv.cols(), 120);
  run(*be, s, x);
  run(*be, s, y);
  for (const auto& [whole, parts, width] : {std::tuple{x.dk, y.dk, int64_t{12}}, {x.dv, y.dv, int64_t{20}}}) {
    const Tensor sum = be->alloc(DType::f64, whole.rows(), whole.cols(), MemoryKind::workspace);
    be->zero(sum);
    for (int64_t h = 0; h < 6; ++h) {
      const Tensor to = sum.col_range(h / 3 * width, width);
      be->add(to, parts.col_range(h * width, width), to);
    }
    EXPECT_LE(kit::distance(values(*be, sum), values(*be, whole)), 1e-13);
  }
  EXPECT_EQ(values(*be, x.dq), values(*be, y.dq));
}

TEST(AttentionValueWidth, TwoPartsMerge) {
  auto be = backend_of("cpu", 2);
  for (const auto& [t, bound] : {std::pair{DType::f64, 1e-12}, {DType::f32, 1e-5}, {DType::bf16, 0.06}})
    for (const Masks& m : all_masks) {
      const int64_t length = 96, cut = 37;
      const AttentionShape s = shape_of(*be, length, 4, 2, 24, 16, m);
      const Tensors x = inputs(*be, s, t, 2);
      run(*be, s, x);
      const DType a = x.lse.dtype();
      const auto like = [&](const Tensor& z) { return be->alloc(a, z.rows(), z.cols(), MemoryKind::workspace); };
      const Tensor o[2] = {like(x.o), like(x.o)}, lse[2] = {like(x.lse), like(x.lse)},
                   dq[2] = {like(x.dq), like(x.dq)};
      AttentionShape part[2] = {s, s};
      part[0].k_length = cut;
      part[1].k_begin = cut;
      part[1].k_length = length - cut;
      const auto keys = [&](const Tensor& z, int p) {
        return z.row_range(part[p].k_begin * s.batch, part[p].k_length * s.batch);
      };
      for (int p : {0, 1}) be->attention_forward(part[p], x.q, keys(x.k, p), keys(x.v, p), o[p], lse[p]);
      be->attention_merge(o[0], lse[0], o[1], lse[1]);
      EXPECT_LE(kit::distance(values(*be, o[0]), values(*be, x.o)), bound) << "o";
      EXPECT_LE(kit::distance(values(*be, lse[0]), values(*be, x.lse)), bound) << "lse";
      const Tensor merged = be->alloc(t, x.o.rows(), x.o.cols(), MemoryKind::workspace), dk = like(x.dk),
                   dv = like(x.dv);
      be->copy(merged, o[0]);
      for (int p : {0, 1})
        be->attention_backward(part[p], x.d_o, x.q, keys(x.k, p), keys(x.v, p), merged, lse[0], dq[p], keys(dk, p),
                               keys(dv, p));
      be->add(dq[0], dq[1], dq[0]);
      EXPECT_LE(kit::distance(values(*be, dq[0]), values(*be, x.dq)), bound) << "dq";
      EXPECT_LE(kit::distance(values(*be, dk), values(*be, x.dk)), bound) << "dk";
      EXPECT_LE(kit::distance(values(*be, dv), values(*be, x.dv)), bound) << "dv";
    }
}

TEST(AttentionValueWidth, ShapesAreChecked) {
  for (const char* name : {"cpu", "meta"}) {
    auto be = make_backend(name);
    AttentionShape s = shape(1, 5, 5, 0, 0, 4, 2, 6);
    s.v_dim = 8;
    const auto x = [&](int64_t cols) {
      const Tensor z = be->alloc(DType::f32, 5, cols, MemoryKind::workspace);
      be->zero(z);
      return z;
    };
    const Tensor q = x(24), k = x(12), v = x(16), o = x(32), lse = x(4);
    be->attention_forward(s, q, k, v, o, lse);
    be->attention_backward(s, o, q, k, v, o, lse, x(24), x(12), x(16));
    be->attention_backward(s, o, q, k, v, o, lse, x(24), x(24), x(32));
    EXPECT_THROW(be->attention_forward(s, q, k, k, o, lse), LogicError);
    EXPECT_THROW(be->attention_forward(s, q, k, v, q, lse), LogicError);
    EXPECT_THROW(be->attention_backward(s, q, q, k, v, o, lse, x(24), x(12), x(16)), LogicError);
    EXPECT_THROW(be->attention_backward(s, o, q, k, v, o, lse, x(24), x(24), x(16)), LogicError);
    EXPECT_THROW(be->attention_backward(s, o, q, k, v, o, lse, x(24), x(12), x(32)), LogicError);
    s.v_dim = -8;
    EXPECT_THROW(be->attention_forward(s, q, k, k, q, lse), LogicError);
  }
}

}  // namespace
}  // namespace orthant
