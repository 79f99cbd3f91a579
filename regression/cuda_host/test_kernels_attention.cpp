// Attention of the cuda backend against the cpu backend: all that AttentionShape can ask for, tiles of every size.
// labels: cuda-host
// seconds: 60
#include "attention_kit.hpp"

using namespace cuda_kit;

namespace {

constexpr AttentionCase cases[] = {
    {"one token", 1, 1, 1, 0, 0, 1, 1, 1, 0},
    {"more than a tile, odd widths", 2, 67, 67, 0, 0, 2, 2, 7, 0},
    {"several tiles, grouped heads", 1, 150, 150, 0, 0, 6, 2, 16, 0},
    {"later queries, earlier keys", 1, 40, 70, 70, 0, 2, 1, 12, 0},
    {"keys that some queries do not reach", 2, 30, 50, 20, 10, 2, 2, 8, 0},
    {"keys that no query reaches", 1, 20, 90, 0, 40, 2, 1, 8, 0},
    {"queries that see nothing", 1, 70, 20, 0, 30, 1, 1, 8, 0},
    {"no query", 2, 0, 9, 0, 0, 2, 1, 8, 0},
    {"no key", 2, 9, 0, 0, 0, 2, 1, 8, 0},
    {"values narrower than keys", 1, 75, 75, 0, 0, 4, 2, 24, 16},
    {"values wider than keys", 1, 40, 40, 0, 0, 2, 2, 5, 19},
};

/// The shape of each side, with documents that start every 13 places and with dropout.
std::array<AttentionShape, 2> shapes(Pair& p, const AttentionShape& s, bool documents, double rate) {
  std::array<AttentionShape, 2> both{s, s};
  const int64_t rows = s.q_length * s.batch;
  const auto place = [s](int64_t r) { return s.q_begin + r / s.batch; };
  const Twin starts =
      documents ? p.make(DType::i32, rows, 1, 1,
                         [&](int64_t r, int64_t) {
                           return double(std::max<int64_t>(0, (place(r) + r % s.batch) / 13 * 13 - r % s.batch));
                         })
                : Twin{};
  const Twin tokens = rate > 0
                          ? p.make(DType::i64, rows, 1, 2,
                                   [&](int64_t r, int64_t) { return double((5 + r % s.batch) * 1001 + place(r)); })
                          : Twin{};
  for (size_t i = 0; i < 2; ++i) {
    both[i].starts = starts.view[i];
    both[i].dropout = {rate, 0x0123456789abcdefu, 3, tokens.view[i]};
    both[i].first_head = 3;
    both[i].all_heads = s.heads + 5;
    both[i].sequence = 1001;
  }
  return both;
}

void check(Pair& p, const std::array<AttentionShape, 2>& s, DType t, bool wide, bool apart, const std::string& what) {
  const AttentionShape& one = s[0];
  const DType a = accumulator(t), out = wide ? a : t;
  const int64_t q_rows = one.q_length * one.batch, k_rows = one.k_length * one.batch, qc = one.heads * one.head_dim,
                kc = one.kv_heads * one.head_dim, oc = one.heads * one.value_dim(),
                vc = one.kv_heads * one.value_dim();
  const Twin q = p.random(t, q_rows, qc, 1, 5), k = p.random(t, k_rows, kc, 2, 2), v = p.random(t, k_rows, vc, 3, 0);
  const Twin o = p.blank(out, q_rows, oc), lse = p.blank(a, q_rows, one.heads, 1);
  p.run([&](Backend& be, int i) { be.attention_forward(s[static_cast<size_t>(i)], q[i], k[i], v[i], o[i], lse[i]); });
  const int64_t terms = one.k_length + one.head_dim;
  p.expect_near(o, Pair::slack(out, terms) * 2, what + ": o");
  p.expect_near(lse, Pair::slack(a, terms) * 2, what + ": lse");

  const Twin rounded = p.blank(t, q_rows, oc);
  p.run([&](Backend& be, int i) { be.copy(rounded[i], o[i]); });
  const Twin o_given = settled(p, rounded), lse_given = settled(p, lse), d_o = p.random(t, q_rows, oc, 4, 1);
  const Twin dq = p.blank(out, q_rows, qc, 2), dk = p.blank(out, k_rows, apart ? qc : kc),
             dv = p.blank(out, k_rows, apart ? oc : vc, 1);
  p.run([&](Backend& be, int i) {
    be.attention_backward(s[static_cast<size_t>(i)], d_o[i], q[i], k[i], v[i], o_given[i], lse_given[i], dq[i], dk[i],
                          dv[i]);
  });
  const double bound = Pair::slack(out, one.q_length + one.k_length + one.head_dim) * 4;
  p.expect_near(dq, bound, what + ": dq", 2);
  p.expect_near(dk, bound, what + ": dk", 2);
  p.expect_near(dv, bound, what + ": dv", 2);
}

TEST(CudaAttention, AllShapesOfFloats) {
  Pair p;
  for (const AttentionCase& c : cases)
    for (const bool documents : {false, true})
      for (const double rate : {0.0, 0.3}) {
        if (rate > 0 && c.k_begin + c.k_length > 1001) continue;
        check(p, shapes(p, shape(c), documents, rate), DType::f32, false, false,
              std::string(c.what) + (documents ? ", documents" : "") + (rate > 0 ? ", dropout" : ""));
      }
}

TEST(CudaAttention, OtherTypesAndWiderResults) {
  Pair p;
  for (const DType t : compute_types)
    for (const bool wide : {false, true})
      check(p, shapes(p, shape(cases[1]), true, 0.2), t, wide, false,
            std::string(name_of(t)) + (wide ? " to A" : ""));
}

TEST(CudaAttention, GradientsOfEachQueryHeadStayApart) {
  Pair p;
  for (const DType t : {DType::f32, DType::bf16})
    for (const int64_t c : {2, 9}) check(p, shapes(p, shape(cases[c]), false, 0), t, true, true, cases[c].what);
}

TEST(CudaAttention, WideHeadsGetSmallerTiles) {
  Pair p;
  for (const auto& [t, dim, v_dim] : {std::tuple<DType, int64_t, int64_t>{DType::f32, 64, 0},
                                      {DType::bf16, 128, 0},
                                      {DType::bf16, 192, 128},
                                      {DType::f32, 256, 0},
                                      {DType::f64, 128, 0},
                                      {DType::f64, 256, 0},
                                      {DType::f32, 576, 512}})
    check(p, shapes(p, shape({"", 1, 37, 37, 0, 0, 1, 1, dim, v_dim}), false, 0), t, false, false,
          std::string(name_of(t)) + " heads of " + std::to_string(dim));
}

TEST(CudaAttention, AHeadThatFitsNoTileIsRefused) {
  Pair p;
  const AttentionShape s = shape({"", 1, 2, 2, 0, 0, 1, 1, 5000, 0});
  const Twin x = p.random(DType::f64, 2, 5000, 1, 0), lse = p.blank(DType::f64, 2, 1);
  EXPECT_THROW(p.be(1).attention_forward(s, x[1], x[1], x[1], x[1], lse[1]), UsageError);
}

TEST(CudaAttention, BitsDoNotDependOnHowManyHeadsAndSequencesThereAre) {
  const auto cuda = cuda_backend();
  Backend& be = *cuda;
  AttentionShape s = shape({"", 2, 90, 90, 0, 0, 4, 2, 16, 0});
  const auto tensor = [&](int64_t cols, unsigned seed) { return kit::random(be, DType::f32, 180, cols, seed); };
  const Tensor q = tensor(64, 1), k = tensor(32, 2), v = tensor(32, 3), d_o = tensor(64, 4);
  const auto run = [&](const AttentionShape& a, auto&& cut) {
    const Tensor qs = cut(q, 64), ks = cut(k, 32), vs = cut(v, 32), gs = cut(d_o, 64);
    std::vector<Tensor> out;
    for (const Tensor* like : {&qs, &qs, &ks, &vs})
      out.push_back(be.alloc(DType::f32, like->rows(), like->cols(), MemoryKind::workspace));
    const Tensor lse = be.alloc(DType::f32, qs.rows(), a.heads, MemoryKind::workspace);
    be.attention_forward(a, qs, ks, vs, out[0], lse);
    be.attention_backward(a, gs, qs, ks, vs, out[0], lse, out[1], out[2], out[3]);
    return out;
  };
  const auto all = run(s, [](const Tensor& x, int64_t) { return x; });
  s.heads = 2;
  s.kv_heads = 1;
  const auto half = run(s, [](const Tensor& x, int64_t cols) { return x.col_range(cols / 2, cols / 2); });
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t cols = half[i].cols();
    EXPECT_EQ(kit::values(be, all[i].col_range(cols, cols)), kit::values(be, half[i])) << i;
  }
  // the second sequence alone: every other row
  s.batch = 1;
  const auto alone = run(s, [](const Tensor& x, int64_t cols) {
    return Tensor(x.storage(), x.as<float>() + x.ld() + cols / 2, x.dtype(), 90, cols / 2, 2 * x.ld());
  });
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t cols = alone[i].cols();
    const auto whole = kit::values(be, half[i]), part = kit::values(be, alone[i]);
    for (size_t e = 0; e < part.size(); ++e) {
      const auto width = static_cast<size_t>(cols);
      ASSERT_EQ(part[e], whole[(e / width * 2 + 1) * width + e % width]) << i << " element " << e;
    }
  }
}

TEST(CudaAttention, PartsMergeWithTheBitsOfTheCpu) {
  Pair p;
  for (const DType a : sum_types)
    for (const int64_t dim : {1, 40})
      for (const int64_t rows : {0, 31}) {
        const int64_t heads = 3;
        const auto lse = [&](int64_t hidden) {  // some rows saw nothing: in one part, in the other, in both
          return p.make(a, rows, heads, 1, [=](int64_t r, int64_t h) {
            return (r + h) % hidden == 0 ? -INFINITY : std::sin(static_cast<double>(3 * r + h + hidden)) * 9;
          });
        };
        const Twin o = p.random(a, rows, heads * dim, 1), part = p.random(a, rows, heads * dim, 2, 1), l = lse(3),
                   l_part = lse(4);
        p.run([&](Backend& be, int i) { be.attention_merge(o[i], l[i], part[i], l_part[i]); });
        p.expect_same(o, "merged o");
        p.expect_same(l, "merged lse");
      }
}

}  // namespace
