// Document masks and dropout of attention: the definition, finite differences, and that a document's numbers do not
// depend on the documents before it, bit for bit.
// labels: smoke asan
// seconds: 60
#include <gtest/gtest.h>
#include <omp.h>

#include "attention_kit.hpp"

namespace orthant {
namespace {

using namespace attention_kit;
using kit::values;

/// Documents of uneven lengths that begin anywhere in a tile; another pattern in every sequence.
int64_t uneven(int64_t place, int64_t sequence) {
  int64_t start = 0;
  for (int64_t next : {3, 17, 64, 65, 130, 131}) {
    const int64_t at = next + 5 * sequence;
    if (at <= place) start = at;
  }
  return start;
}

std::unique_ptr<Backend> backend_with(int threads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  auto be = make_backend("cpu");
  omp_set_num_threads(before);
  return be;
}

struct Case {
  AttentionShape s;
  bool documents;
  double rate;
  int64_t sequence;  // not always a multiple of four: then the queries' draws lie differently
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [documents, rate] : {std::pair{true, 0.0}, {false, 0.3}, {true, 0.3}}) {
    all.push_back({shape(1, 1, 1, 0, 0, 1, 1, 8), documents, rate, 1});
    all.push_back({shape(2, 150, 150, 0, 0, 4, 2, 8), documents, rate, 152});
    all.push_back({shape(1, 150, 150, 0, 0, 4, 1, 20), documents, rate, 151});
    all.push_back({shape(2, 70, 60, 80, 3, 2, 2, 16), documents, rate, 150});
    all.push_back({shape(1, 30, 128, 200, 5, 2, 2, 64), documents, rate, 233});
    all.push_back({shape(1, 80, 20, 40, 90, 2, 1, 16), documents, rate, 120});  // 50 queries see nothing
  }
  return all;
}

TEST(AttentionMasks, EqualTheDefinition) {
  for (int threads : {1, 3}) {  // both loops of the backward pass
    auto be = backend_with(threads);
    for (Case c : cases())
      for (DType t : {DType::f64, DType::f32, DType::bf16}) {
        if (c.documents) set_documents(*be, c.s, uneven);
        if (c.rate > 0) set_dropout(*be, c.s, c.rate, c.sequence, c.s.heads + 3, 2);
        SCOPED_TRACE(testing::Message() << name_of(t) << " q " << c.s.q_length << " from " << c.s.q_begin << " heads "
                                        << c.s.heads << ":" << c.s.kv_heads << (c.documents ? " documents" : "")
                                        << " rate " << c.rate << " threads " << threads);
        const Tensors x = inputs(*be, c.s, t, 3);
        const Expected e = plain(*be, c.s, x);
        run(*be, c.s, x);
        const auto near = [&](const Tensor& got, const Numbers& want, double bf16_bound) {
          double size = 1;
          for (double w : want) size = std::isfinite(w) ? std::max(size, std::abs(w)) : size;
          const double bound = t == DType::f64 ? 1e-13 : t == DType::f32 ? 4e-6 : bf16_bound;
          return testing::AssertionResult(kit::distance(values(*be, got), want) <= bound * size);
        };
        EXPECT_TRUE(near(x.o, e.o, 0.004)) << "o";
        EXPECT_TRUE(near(x.lse, e.lse, 4e-6)) << "lse";
        EXPECT_TRUE(near(x.dq, e.dq, 0.01)) << "dq";
        EXPECT_TRUE(near(x.dk, e.dk, 0.01)) << "dk";
        EXPECT_TRUE(near(x.dv, e.dv, 0.01)) << "dv";
      }
  }
}

TEST(AttentionMasks, GradientEqualsFiniteDifferences) {
  auto be = backend_with(1);
  for (const auto& [documents, rate] : {std::pair{true, 0.0}, {false, 0.25}, {true, 0.25}}) {
    SCOPED_TRACE(testing::Message() << (documents ? "documents " : "") << "rate " << rate);
    AttentionShape s = shape(2, 9, 11, 3, 1, 4, 2, 6);
    if (documents) set_documents(*be, s, [](int64_t place, int64_t b) { return place < 7 ? b : int64_t{7}; });
    if (rate > 0) set_dropout(*be, s, rate, 13, 4, 0);
    expect_finite_differences(*be, s, inputs(*be, s, DType::f64, 0), 5);
  }
}

/// Rows [begin, begin + count) positions of x.
Numbers rows(Backend& be, const AttentionShape& s, const Tensor& x, int64_t begin, int64_t count) {
  return values(be, x.row_range(begin * s.batch, count * s.batch));
}

TEST(AttentionMasks, ADocumentDoesNotSeeTheOneBefore) {
  for (int threads : {1, 3, 5}) {
    for (DType t : {DType::f32, DType::bf16, DType::f64})
      for (double rate : {0.0, 0.2})
        for (int64_t cut : {8, 64, 75, 140}) {
          SCOPED_TRACE(testing::Message() << name_of(t) << " threads " << threads << " rate " << rate << " cut " << cut);
          auto be = backend_with(threads);
          AttentionShape s = shape(1, 150, 150, 0, 0, 4, 2, 16);
          set_documents(*be, s, [cut](int64_t place, int64_t) { return place < cut ? 0 : cut; });
          if (rate > 0) set_dropout(*be, s, rate, 150, 4, 0);
          const Tensors x = inputs(*be, s, t, 0), y = inputs(*be, s, t, 0);
          for (const Tensor& a : {y.q, y.k, y.v, y.d_o})  // other tokens in the first document
            be->copy(a.row_range(0, cut), kit::random(*be, t, cut, a.cols(), 77));
          run(*be, s, x);
          run(*be, s, y);
          const int64_t rest = 150 - cut;
          EXPECT_NE(rows(*be, s, x.o, 0, cut), rows(*be, s, y.o, 0, cut));
          EXPECT_EQ(rows(*be, s, x.o, cut, rest), rows(*be, s, y.o, cut, rest));
          EXPECT_EQ(rows(*be, s, x.lse, cut, rest), rows(*be, s, y.lse, cut, rest));
          EXPECT_EQ(rows(*be, s, x.dq, cut, rest), rows(*be, s, y.dq, cut, rest));
          EXPECT_EQ(rows(*be, s, x.dk, cut, rest), rows(*be, s, y.dk, cut, rest));
          EXPECT_EQ(rows(*be, s, x.dv, cut, rest), rows(*be, s, y.dv, cut, rest));
          if (cut != 64) continue;
          // and at the border of a key tile it has the bits of the document alone
          AttentionShape alone = shape(1, rest, rest, cut, cut, 4, 2, 16);
          if (rate > 0) set_dropout(*be, alone, rate, 150, 4, 0);
          Tensors z = inputs(*be, alone, t, 0);
          z.q = x.q.row_range(cut, rest);
          z.k = x.k.row_range(cut, rest);
          z.v = x.v.row_range(cut, rest);
          z.d_o = x.d_o.row_range(cut, rest);
          run(*be, alone, z);
          EXPECT_EQ(rows(*be, s, x.o, cut, rest), values(*be, z.o));
          EXPECT_EQ(rows(*be, s, x.lse, cut, rest), values(*be, z.lse));
          EXPECT_EQ(rows(*be, s, x.dq, cut, rest), values(*be, z.dq));
          EXPECT_EQ(rows(*be, s, x.dk, cut, rest), values(*be, z.dk));
          EXPECT_EQ(rows(*be, s, x.dv, cut, rest), values(*be, z.dv));
        }
  }
}

TEST(AttentionMasks, OneDocumentHasTheBitsOfNone) {
  auto be = make_backend("cpu");
  AttentionShape s = shape(2, 130, 130, 0, 0, 2, 1, 16);
  const Tensors x = inputs(*be, s, DType::f32, 0), y = inputs(*be, s, DType::f32, 0);
  run(*be, s, x);
  set_documents(*be, s, [](int64_t, int64_t) { return 0; });
  run(*be, s, y);
  for (const auto& [a, b] : {std::pair{x.o, y.o}, {x.lse, y.lse}, {x.dq, y.dq}, {x.dk, y.dk}, {x.dv, y.dv}})
    EXPECT_EQ(values(*be, a), values(*be, b));
}

/// Probabilities after dropout, [query][head][key]: scores are equal, and values show who was kept.
Numbers mask_of(Backend& be, AttentionShape s) {
  const Tensors x = inputs(be, s, DType::f64, 0);
  be.zero(x.q);
  be.copy(x.v, kit::make(be, DType::f64, x.v.rows(), x.v.cols(), 0, [&](int64_t r, int64_t c) {
            return r / s.batch == c ? 1.0 : 0.0;  // o[c] is the probability of key c
          }));
  be.attention_forward(s, x.q, x.k, x.v, x.o, x.lse);
  return values(be, x.o);
}

TEST(AttentionDropout, MaskIsAFunctionOfSeedSiteStepAndToken) {
  auto be = make_backend("cpu");
  AttentionShape s = shape(1, 64, 64, 0, 0, 2, 1, 64);
  set_dropout(*be, s, 0.4, 64, 8, 2);
  const Numbers first = mask_of(*be, s);
  EXPECT_EQ(first, mask_of(*be, s));
  int64_t kept = 0, all = 0;
  for (int64_t i = 0; i < 64; ++i)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j <= i; ++j, ++all) {
        const double p = first[static_cast<size_t>((i * 2 + h) * 64 + j)];
        const double want = drop_factor(s.dropout, ((5 * 64 + i) * 8 + 2 + h) * 64 + j) / static_cast<double>(i + 1);
        ASSERT_NEAR(p, want, 1e-15) << "query " << i << " head " << h << " key " << j;
        kept += p != 0;
      }
  // 4160 draws: standard deviation 32
  EXPECT_NEAR(static_cast<double>(kept), 0.6 * static_cast<double>(all), 130);

  AttentionShape other = s;
  other.dropout.step = 4;
  EXPECT_NE(first, mask_of(*be, other)) << "step";
  other = s;
  other.dropout.key ^= uint64_t{1} << 40;
  EXPECT_NE(first, mask_of(*be, other)) << "site";
  other = s;
  other.first_head = 4;
  EXPECT_NE(first, mask_of(*be, other)) << "head";
  set_dropout(*be, other, 0.4, 64, 8, 2);
  {
    Host<int64_t> tokens(*be, other.dropout.tokens);
    for (int64_t i = 0; i < 64; ++i) tokens[i] += 64;
  }
  EXPECT_NE(first, mask_of(*be, other)) << "sequence of the stream";
}

TEST(AttentionMasks, RefuseWhatDoesNotFit) {
  auto be = make_backend("cpu");
  const AttentionShape good = shape(1, 8, 8, 0, 0, 4, 2, 8);
  const Tensors x = inputs(*be, good, DType::f32, 0);
  const auto refused = [&](const std::function<void(AttentionShape&)>& change) {
    AttentionShape s = good;
    set_documents(*be, s, [](int64_t, int64_t) { return 0; });
    set_dropout(*be, s, 0.5, 8, 4, 0);
    be->attention_forward(s, x.q, x.k, x.v, x.o, x.lse);
    change(s);
    EXPECT_THROW(be->attention_forward(s, x.q, x.k, x.v, x.o, x.lse), LogicError);
    EXPECT_THROW(be->attention_backward(s, x.d_o, x.q, x.k, x.v, x.o, x.lse, x.dq, x.dk, x.dv), LogicError);
  };
  refused([](AttentionShape& s) { s.starts = s.starts.row_range(0, 7); });
  refused([](AttentionShape& s) { s.starts = s.dropout.tokens; });
  refused([](AttentionShape& s) { s.dropout.tokens = s.starts; });
  refused([](AttentionShape& s) { s.dropout.tokens = {}; });
  refused([](AttentionShape& s) { s.dropout.rate = 1; });
  refused([](AttentionShape& s) { s.first_head = 1; });
  refused([](AttentionShape& s) { s.sequence = 7; });
}

}  // namespace
}  // namespace orthant
