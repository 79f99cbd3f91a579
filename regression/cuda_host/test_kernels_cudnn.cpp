// Attention through cuDNN's graphs against the cpu backend: bf16 and f16, grouped heads, chunks of a sequence, documents,
// results of both types; and what goes to the general kernels instead.
// labels: cuda-host
// seconds: 60
#include "backends/cuda/cuda_backend.hpp"
#include "attention_kit.hpp"

using namespace cuda_kit;

namespace {

constexpr AttentionCase cases[] = {
    {"causal", 1, 40, 40, 0, 0, 2, 2, 16, 0, false},
    {"two sequences, grouped heads", 2, 33, 33, 0, 0, 4, 2, 8, 0, false},
    {"a later chunk of queries sees all keys", 2, 16, 24, 24, 0, 2, 1, 8, 0, false},
    {"a later chunk of queries, keys up to its end", 1, 16, 40, 24, 0, 2, 1, 8, 0, false},
    {"the diagonal chunk of a ring", 1, 24, 24, 48, 48, 2, 1, 8, 0, false},
    {"values narrower than keys", 1, 24, 24, 0, 0, 2, 2, 24, 16, false},
    {"documents", 2, 40, 40, 0, 0, 4, 2, 8, 0, true},
    {"documents, the diagonal chunk", 1, 24, 24, 48, 48, 2, 2, 8, 0, true},
};

std::array<AttentionShape, 2> shapes(Pair& p, const AttentionCase& c) {
  const AttentionShape s = shape(c);
  std::array<AttentionShape, 2> both{s, s};
  if (c.documents) {
    const Twin starts = p.make(DType::i32, c.q_length * c.batch, 1, 3, [&](int64_t r, int64_t) {
      return double((c.q_begin + r / c.batch + r % c.batch) / 13 * 13 - (r % c.batch > 0 ? 1 : 0));
    });
    for (size_t i = 0; i < 2; ++i) both[i].starts = starts.view[i];
  }
  return both;
}

/// Plans in use, as the backend says it: "(3 plans)".
int64_t plans(Backend& cuda) {
  const std::string text = cuda.describe();
  const size_t at = text.find(" plans)");
  if (at == std::string::npos) return 0;
  return std::stoll(text.substr(text.rfind('(', at) + 1));
}


/// Whether the library must have a plan: it has none of documents backward for some generations.
bool has_backward(Backend& cuda, bool documents) { return !documents || cuda.describe().find("host stand-in") != std::string::npos; }

/// Largest difference of two tensors, by the largest number of the first.
double apart(Pair& p, const Twin& x) {
  const auto a = kit::values(p.be(0), x[0]), b = kit::values(p.be(1), x[1]);
  double most = 1e-30, worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(a[i]));
    worst = std::isfinite(b[i]) ? std::max(worst, std::fabs(a[i] - b[i])) : HUGE_VAL;
  }
  return worst / most;
}

/// Rows of 16-byte blocks, as the library wants them.
int64_t pad(int64_t cols) { return 8 + (8 - cols % 8) % 8; }

void check(Pair& p, const AttentionCase& c, DType t, bool wide, double tolerance) {
  SCOPED_TRACE(std::string(c.what) + (t == DType::bf16 ? " bf16" : " f16") + (wide ? " wide" : ""));
  const auto s = shapes(p, c);
  const DType out = wide ? DType::f32 : t;
  const int64_t q_rows = c.q_length * c.batch, k_rows = c.k_length * c.batch, qc = c.heads * c.dim, kc = c.kv_heads * c.dim,
                vd = s[0].value_dim(), oc = c.heads * vd, vc = c.kv_heads * vd;
  const Twin q = p.random(t, q_rows, qc, 1, pad(qc)), k = p.random(t, k_rows, kc, 2, pad(kc)), v = p.random(t, k_rows, vc, 3, pad(vc)),
             d_o = p.random(t, q_rows, oc, 4, pad(oc));
  const Twin o = p.blank(out, q_rows, oc, pad(oc)), lse = p.blank(DType::f32, q_rows, c.heads);
  const int64_t before = plans(p.be(1));
  p.run([&](Backend& be, int i) { be.attention_forward(s[static_cast<size_t>(i)], q[i], k[i], v[i], o[i], lse[i]); });
  EXPECT_EQ(plans(p.be(1)), before + 1);
  EXPECT_LT(apart(p, o), tolerance);
  EXPECT_LT(apart(p, lse), 1e-5);

  // the backward reads one forward's results, so that only its own differences are seen
  const Twin narrow = p.blank(t, q_rows, oc);
  p.run([&](Backend& be, int i) { be.copy(narrow[i], o[i]); });
  const Twin o_in = settled(p, narrow, pad(oc)), lse_in = settled(p, lse);
  const Twin dq = p.blank(out, q_rows, qc, pad(qc)), dk = p.blank(out, k_rows, kc, pad(kc)), dv = p.blank(out, k_rows, vc, pad(vc));
  p.run([&](Backend& be, int i) {
    be.attention_backward(s[static_cast<size_t>(i)], d_o[i], q[i], k[i], v[i], o_in[i], lse_in[i], dq[i], dk[i], dv[i]);
  });
  if (has_backward(p.be(1), c.documents)) EXPECT_EQ(plans(p.be(1)), before + 2);
  for (const Twin* x : {&dq, &dk, &dv}) EXPECT_LT(apart(p, *x), tolerance);
  // the padding behind the results is nobody's
  for (const Twin* x : {&o, &dq, &dk, &dv}) {
    const auto all = kit::values(p.be(1), x->whole[1]);
    const int64_t cols = x->whole[1].cols();
    for (int64_t r = 0; r < x->whole[1].rows(); ++r)
      for (int64_t col = (*x)[1].cols(); col < cols; ++col) ASSERT_EQ(all[static_cast<size_t>(r * cols + col)], 99.0);
  }
}

TEST(CudnnAttention, ForwardAndBackward) {
  for (const AttentionCase& c : cases)
    for (const bool wide : {false, true}) {
      Pair p;
      check(p, c, DType::bf16, wide, 1.2e-2);
      check(p, c, DType::f16, wide, 2e-3);
    }
}

/// The backward of three sequences and four groups of heads, in slices of whole sequences, of heads, and of all at once.
TEST(CudnnAttention, SlicesOfTheBackward) {
  const AttentionCase c{"slices", 3, 40, 40, 0, 0, 8, 4, 8, 0, true};
  constexpr int64_t one = 2 * 64 * 128 * 2;  // a group of two query heads
  std::vector<std::vector<double>> first;
  for (const int64_t groups : {100, 8, 4, 3, 1}) {
    Pair p;
    dynamic_cast<CudaBackend&>(p.be(1)).attention_slice(groups * one);
    const auto s = shapes(p, c);
    const Twin q = p.random(DType::bf16, 120, 64, 1, 8), k = p.random(DType::bf16, 120, 32, 2, 8), v = p.random(DType::bf16, 120, 32, 3, 8),
               d_o = p.random(DType::bf16, 120, 64, 4, 8), o = p.random(DType::bf16, 120, 64, 5, 8);
    const Twin lse = p.random(DType::f32, 120, 8, 6), dq = p.random(DType::bf16, 120, 64, 7, 8), dk = p.random(DType::bf16, 120, 32, 8, 8),
               dv = p.random(DType::bf16, 120, 32, 9, 8);
    p.be(1).attention_backward(s[1], d_o[1], q[1], k[1], v[1], o[1], lse[1], dq[1], dk[1], dv[1]);
    std::vector<std::vector<double>> made;
    for (const Twin* x : {&dq, &dk, &dv}) made.push_back(kit::values(p.be(1), (*x)[1]));
    if (first.empty()) first = made;
    EXPECT_EQ(made, first) << groups;
    if (has_backward(p.be(1), c.documents)) EXPECT_EQ(plans(p.be(1)), groups == 8 || groups == 3 ? 2 : 1) << groups;  // a smaller slice at the end has its own
  }
}

TEST(CudnnAttention, TheRestGoesToTheGeneralKernels) {
  Pair p;
  const auto run = [&](auto&& change, DType t, int64_t behind) {
    AttentionShape s = shapes(p, cases[0])[1];
    change(s);
    const int64_t rows = s.q_length, cols = s.heads * s.head_dim;
    const Twin q = p.random(t, rows, cols, 1, behind), k = p.random(t, s.k_length, cols, 2, behind), o = p.random(t, rows, cols, 3, behind);
    const Twin lse = p.random(t == DType::f64 ? DType::f64 : DType::f32, rows, s.heads, 4);
    p.be(1).attention_forward(s, q[1], k[1], k[1], o[1], lse[1]);
    return plans(p.be(1));
  };
  EXPECT_EQ(run([](AttentionShape&) {}, DType::f32, 8), 0);
  EXPECT_EQ(run([](AttentionShape&) {}, DType::f64, 8), 0);
  EXPECT_EQ(run([](AttentionShape& s) { s.canonical = true; }, DType::bf16, 8), 0);
  EXPECT_EQ(run([](AttentionShape& s) { s.head_dim = 12; }, DType::bf16, 8), 0);
  EXPECT_EQ(run([](AttentionShape& s) { s.k_begin = 5; }, DType::bf16, 8), 0);
  EXPECT_EQ(run([](AttentionShape&) {}, DType::bf16, 3), 0);
  EXPECT_EQ(run([](AttentionShape&) {}, DType::bf16, 8), 1);
  EXPECT_EQ(run([](AttentionShape&) {}, DType::bf16, 8), 1);  // made once
}

}  // namespace
