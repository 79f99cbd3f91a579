// Attention against plain double loops and finite differences; masks with offsets, shared kv heads, bits.
// ranks: 1
// labels: smoke asan
// seconds: 60
#include <gtest/gtest.h>
#include <omp.h>

#include "attention_kit.hpp"

namespace orthant {
namespace {

using namespace attention_kit;
using kit::values;

const std::vector<AttentionShape> shapes = {
    shape(1, 1, 1, 0, 0, 1, 1, 8),       shape(3, 70, 70, 0, 0, 2, 2, 16),    shape(1, 130, 130, 0, 0, 8, 2, 8),
    shape(2, 65, 65, 0, 0, 8, 1, 64),    shape(1, 40, 200, 160, 0, 2, 1, 16), shape(1, 64, 64, 0, 64, 1, 1, 8),
    shape(2, 100, 90, 30, 77, 4, 2, 20), shape(1, 1, 150, 149, 0, 4, 2, 64),  shape(1, 30, 128, 200, 5, 2, 2, 128),
};

std::string text(const AttentionShape& s) {
  return "batch " + std::to_string(s.batch) + " q " + std::to_string(s.q_length) + " k " +
         std::to_string(s.k_length) + " heads " + std::to_string(s.heads) + ":" + std::to_string(s.kv_heads) +
         " dim " + std::to_string(s.head_dim);
}

TEST(Attention, EqualsTheDefinition) {
  auto be = make_backend("cpu");
  for (const AttentionShape& s : shapes)
    for (DType t : {DType::f64, DType::f32, DType::bf16}) {
      SCOPED_TRACE(text(s) + " " + name_of(t));
      const Tensors x = inputs(*be, s, t, s.batch == 2 ? 0 : 3);
      const Expected e = plain(*be, s, x);
      run(*be, s, x);
      // fp32 sums of up to 200 terms of size one; bf16 outputs are rounded to 2^-9 of their size
      const double bound = t == DType::f64 ? 1e-13 : t == DType::f32 ? 4e-6 : 0;
      const auto near = [&](const Tensor& got, const Numbers& want, const char* what, double bf16_bound) {
        EXPECT_LE(kit::distance(values(*be, got), want), t == DType::bf16 ? bf16_bound : bound) << what;
      };
      double dk_size = 1, dv_size = 1, dq_size = 1;
      for (double g : e.dk) dk_size = std::max(dk_size, std::abs(g));
      for (double g : e.dv) dv_size = std::max(dv_size, std::abs(g));
      for (double g : e.dq) dq_size = std::max(dq_size, std::abs(g));
      near(x.o, e.o, "o", 0.004);
      near(x.lse, e.lse, "lse", 4e-6);
      near(x.dq, e.dq, "dq", 0.01 * dq_size);
      near(x.dk, e.dk, "dk", 0.01 * dk_size);
      near(x.dv, e.dv, "dv", 0.01 * dv_size);
    }
}

TEST(Attention, RowsWithoutKeysAreZero) {
  auto be = make_backend("cpu");
  const AttentionShape s = shape(1, 80, 20, 0, 70, 2, 1, 16);  // queries 0..69 see nothing
  const Tensors x = inputs(*be, s, DType::f32, 0);
  run(*be, s, x);
  const auto o = values(*be, x.o), lse = values(*be, x.lse), dq = values(*be, x.dq), dk = values(*be, x.dk);
  for (size_t row = 0; row < 80; ++row) {
    for (size_t h = 0; h < 2; ++h) EXPECT_EQ(lse[row * 2 + h] == -INFINITY, row < 70) << "row " << row;
    for (size_t c = 0; c < 32; ++c)
      EXPECT_TRUE(row >= 70 || (o[row * 32 + c] == 0 && dq[row * 32 + c] == 0)) << "row " << row;
  }
  for (double g : dk) EXPECT_TRUE(std::isfinite(g));
  for (size_t key = 10; key < 20; ++key)  // nobody sees the last keys
    for (size_t c = 0; c < 16; ++c) EXPECT_EQ(dk[key * 16 + c], 0.0);
}

TEST(Attention, GradientEqualsFiniteDifferences) {
  auto be = make_backend("cpu");
  const AttentionShape s = shape(2, 9, 11, 3, 1, 4, 2, 6);
  expect_finite_differences(*be, s, inputs(*be, s, DType::f64, 0), 7);
}

TEST(Attention, HeadsKeptApartSumToTheKvHead) {
  auto be = make_backend("cpu");
  const AttentionShape s = shape(2, 70, 70, 0, 0, 6, 2, 8);
  const Tensors x = inputs(*be, s, DType::f64, 0), y = inputs(*be, s, DType::f64, 0, true);
  run(*be, s, x);
  run(*be, s, y);
  EXPECT_EQ(values(*be, x.dq), values(*be, y.dq));
  for (const auto& [whole_t, parts_t] : {std::pair{x.dk, y.dk}, {x.dv, y.dv}}) {
    const auto whole = values(*be, whole_t), parts = values(*be, parts_t);
    for (size_t row = 0; row < 140; ++row)
      for (size_t c = 0; c < 16; ++c) {
        double sum = 0;
        for (size_t g = 0; g < 3; ++g) sum += parts[row * 48 + (c / 8 * 3 + g) * 8 + c % 8];
        ASSERT_NEAR(whole[row * 16 + c], sum, 1e-13);
      }
  }
}

/// Columns [first, first + count) of x.
Numbers columns(Backend& be, const Tensor& x, int64_t first, int64_t count) {
  return values(be, x.col_range(first, count));
}

TEST(Attention, BitsOfAHeadDoNotDependOnTheOthersNorOnThreads) {
  const int threads = omp_get_max_threads();
  const AttentionShape s = shape(2, 150, 150, 0, 0, 4, 2, 24);
  for (DType t : {DType::f32, DType::bf16, DType::f64}) {
    omp_set_num_threads(1);
    auto be = make_backend("cpu");
    const Tensors x = inputs(*be, s, t, 0);
    run(*be, s, x);
    // one kv head with its two query heads, alone; 2 and 3 threads choose other loops of the backward pass
    for (int n : {1, 2, 3, 7}) {
      omp_set_num_threads(n);
      auto other = make_backend("cpu");
      const Tensors all = inputs(*other, s, t, 0);
      run(*other, s, all);
      AttentionShape part = s;
      part.heads = 2;
      part.kv_heads = 1;
      for (int64_t kv = 0; kv < 2; ++kv) {
        Tensors y = inputs(*other, part, t, 0);
        y.q = all.q.col_range(kv * 48, 48);
        y.k = all.k.col_range(kv * 24, 24);
        y.v = all.v.col_range(kv * 24, 24);
        y.d_o = all.d_o.col_range(kv * 48, 48);
        run(*other, part, y);
        SCOPED_TRACE(testing::Message() << name_of(t) << " kv head " << kv << ", " << n << " threads");
        EXPECT_EQ(values(*other, y.o), columns(*be, x.o, kv * 48, 48));
        EXPECT_EQ(values(*other, y.lse), columns(*be, x.lse, kv * 2, 2));
        EXPECT_EQ(values(*other, y.dq), columns(*be, x.dq, kv * 48, 48));
        EXPECT_EQ(values(*other, y.dk), columns(*be, x.dk, kv * 24, 24));
        EXPECT_EQ(values(*other, y.dv), columns(*be, x.dv, kv * 24, 24));
      }
      EXPECT_EQ(values(*other, all.dk), values(*be, x.dk)) << n << " threads";
      EXPECT_EQ(values(*other, all.dq), values(*be, x.dq)) << n << " threads";
    }
  }
  omp_set_num_threads(threads);
}

TEST(Attention, BitsOfAQueryDoNotDependOnWhereTheSequenceIsCut) {
  auto be = make_backend("cpu");
  const AttentionShape s = shape(1, 160, 160, 0, 0, 2, 2, 32);
  const Tensors x = inputs(*be, s, DType::f32, 0);
  be->attention_forward(s, x.q, x.k, x.v, x.o, x.lse);
  for (int64_t cut : {1, 40, 64, 90}) {
    AttentionShape part = s;
    part.q_begin = cut;
    part.q_length = 160 - cut;
    const Tensor o = be->alloc(DType::f32, 160 - cut, 64, MemoryKind::workspace),
                 lse = be->alloc(DType::f32, 160 - cut, 2, MemoryKind::workspace);
    be->attention_forward(part, x.q.row_range(cut, 160 - cut), x.k, x.v, o, lse);
    EXPECT_EQ(values(*be, o), values(*be, x.o.row_range(cut, 160 - cut))) << "cut at " << cut;
    EXPECT_EQ(values(*be, lse), values(*be, x.lse.row_range(cut, 160 - cut))) << "cut at " << cut;
  }
}

TEST(Attention, NotANumberIsNotHidden) {
  auto be = make_backend("cpu");
  const AttentionShape s = shape(1, 70, 70, 0, 0, 1, 1, 8);
  const Tensors x = inputs(*be, s, DType::f32, 0);
  {
    Host<float> h(*be, x.k);
    h[40 * 8] = NAN;
  }
  run(*be, s, x);
  const auto o = values(*be, x.o), dq = values(*be, x.dq);
  EXPECT_TRUE(std::isfinite(o[39 * 8]));
  EXPECT_TRUE(std::isnan(o[40 * 8]));
  EXPECT_TRUE(std::isnan(o[69 * 8]));
  EXPECT_TRUE(std::isnan(dq[69 * 8]));
}

TEST(Attention, RefusesWhatDoesNotFit) {
  auto be = make_backend("cpu");
  AttentionShape s = shape(1, 8, 8, 0, 0, 4, 2, 8);
  const Tensors x = inputs(*be, s, DType::f32, 0);
  s.kv_heads = 3;
  EXPECT_THROW(run(*be, s, x), LogicError);
  s.kv_heads = 4;
  EXPECT_THROW(run(*be, s, x), LogicError);
}

}  // namespace
}  // namespace orthant
