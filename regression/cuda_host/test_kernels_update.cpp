// Updates and exact sums of the cuda backend: the bits of the cpu backend.
// labels: cuda-host
// seconds: 60
#include "cuda_kit.hpp"

using namespace cuda_kit;

namespace {

TEST(CudaUpdate, AdamwAndSgdHaveTheBitsOfTheCpu) {
  Pair p;
  const AdamwStep adamw{1e-3, 0.9, 0.95, 1e-8, 0.1, 1 - 0.9 * 0.9, 1 - 0.95 * 0.95, 0.7};
  for (const DType a : sum_types)
    for (const DType t : compute_types)
      for (const int64_t pad : {0, 4})
        for (const bool copied : {false, true}) {
          const int64_t rows = 11, cols = 257;
          const Twin w = p.random(a, rows, cols, 1, pad), m = p.random(a, rows, cols, 2, pad, 0.1),
                     v = p.make(a, rows, cols, pad, [](int64_t r, int64_t c) { return 1e-4 * double(r + c % 5); }),
                     g = p.random(a, rows, cols, 3, pad);
          const Twin copy = copied ? p.blank(t, rows, cols, pad) : Twin{};
          p.run([&](Backend& be, int i) { be.adamw(adamw, w[i], m[i], v[i], g[i], copy[i]); });
          for (const Twin* x : {&w, &m, &v}) p.expect_same(*x, "adamw");
          if (copied) p.expect_same(copy, "adamw, copy");
          for (const bool moving : {false, true}) {
            const SgdStep sgd{1e-2, moving ? 0.9 : 0.0, 0.01, 0.5};
            const Twin velocity = moving ? m : Twin{};
            p.run([&](Backend& be, int i) { be.sgd(sgd, w[i], velocity[i], g[i], copy[i]); });
            p.expect_same(w, "sgd");
            p.expect_same(m, "sgd, velocity");
            if (copied) p.expect_same(copy, "sgd, copy");
          }
        }
}

TEST(CudaUpdate, DenseTensorsMayDifferInShape) {
  Pair p;
  const Twin w = p.random(DType::f32, 6, 20, 1, 0), v = p.random(DType::f32, 1, 120, 2, 0),
             g = p.random(DType::f32, 4, 30, 3, 0), copy = p.blank(DType::bf16, 120, 1, 0);
  p.run([&](Backend& be, int i) { be.sgd({0.1, 0.9, 0, 1}, w[i], v[i], g[i], copy[i]); });
  for (const Twin* x : {&w, &v, &copy}) p.expect_same(*x, "sgd over shapes");
}

TEST(CudaUpdate, SgdWithMomentumNeedsAVelocity) {
  Pair p;
  const Twin w = p.random(DType::f32, 2, 3, 1), g = p.random(DType::f32, 2, 3, 2);
  p.run([&](Backend& be, int i) { EXPECT_THROW(be.sgd({0.1, 0.9, 0, 1}, w[i], {}, g[i], {}), LogicError); });
}

TEST(CudaExact, SumsHaveTheBitsOfTheCpu) {
  Pair p;
  for (const DType t : compute_types)
    for (const int64_t pad : {0, 3})
      for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{0, 4}, {1, 1}, {13, 171}, {400, 3}}) {
        const Twin sum = p.make(DType::i64, 2, rows * cols, 0, [](int64_t, int64_t) { return 0.0; });
        for (unsigned round = 0; round < 5; ++round) {
          const Twin x = p.random(t, rows, cols, round, pad, round == 0 ? 1e-9 : 1e3);
          p.run([&](Backend& be, int i) { be.exact_add(x[i], sum[i]); });
        }
        p.expect_same(sum, "exact_add " + text(t, rows, cols));
        for (const DType to : compute_types) {  // before a carry and after it the same value
          const Twin early = p.blank(to, rows, cols, pad), late = p.blank(to, rows, cols, pad);
          p.run([&](Backend& be, int i) { be.exact_value(sum[i], early[i]); });
          p.expect_same(early, "exact_value");
          const Twin carried = p.make(DType::i64, 2, rows * cols, 0, [](int64_t, int64_t) { return 0.0; });
          p.run([&](Backend& be, int i) {
            be.copy(carried[i], sum[i]);
            be.exact_carry(carried[i]);
            be.exact_value(carried[i], late[i]);
          });
          p.expect_same(carried, "exact_carry");
          p.expect_same(late, "exact_value after a carry");
        }
        p.run([&](Backend& be, int) { EXPECT_FALSE(be.exact_overflow()); });
      }
}

TEST(CudaExact, EmbeddingGradients) {
  Pair p;
  for (const DType t : compute_types) {
    const int64_t tokens = 203, width = 37, table_rows = 6;
    const Twin sum = p.random(DType::i64, 2, table_rows * width, 1, 0, 1e9), dy = p.random(t, tokens, width, 2);
    const Twin id = p.make(DType::i32, tokens, 1, 0, [](int64_t r, int64_t) { return double(r * 31 % 11); });
    p.run([&](Backend& be, int i) { be.exact_embedding_backward(id[i], dy[i], 3, table_rows, sum[i]); });
    p.expect_same(sum, "exact_embedding_backward");
  }
}

TEST(CudaExact, ValuesWithoutAPlaceSetTheFlagOnce) {
  Pair p;
  for (const double bad : {0x1p18, -0x1p18, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    const Twin x = p.make(DType::f64, 1, 3, 0, [=](int64_t, int64_t c) { return c == 1 ? bad : 2.5; });
    const Twin sum = p.make(DType::i64, 2, 3, 0, [](int64_t, int64_t) { return 0.0; });
    p.run([&](Backend& be, int i) {
      be.exact_add(x[i], sum[i]);
      EXPECT_TRUE(be.exact_overflow());
      EXPECT_FALSE(be.exact_overflow());
    });
    p.expect_same(sum, "exact_add of " + std::to_string(bad));
  }
}

}  // namespace
