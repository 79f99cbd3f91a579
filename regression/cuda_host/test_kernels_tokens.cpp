// Kernels of tokens of the cuda backend against the cpu backend: embedding rows, and the pieces of the loss.
// labels: cuda-host
// seconds: 60
#include "cuda_kit.hpp"

using namespace cuda_kit;

namespace {

/// Ids of a part of the vocabulary that starts at 5: some outside on both sides, many of them equal.
Twin ids(Pair& p, DType t, int64_t rows, int64_t cols, int64_t pad, int64_t range) {
  return p.make(t, rows, cols, pad,
                [=](int64_t r, int64_t c) { return static_cast<double>((r * cols + c) * 7919 % 101 % range); });
}

TEST(CudaTokens, EmbeddingRowsComeAndGradientsGoInTokenOrder) {
  Pair p;
  const int64_t table_rows = 9, first = 5;
  for (const DType t : compute_types)
    for (const int64_t tokens : {0, 1, 90, 600})
      for (const int64_t width : {1, 35, 600}) {
        const std::string at = text(t, tokens, width);
        const Twin table = p.random(t, table_rows, width, 1), out = p.blank(t, tokens, width);
        const Twin id = ids(p, tokens == 90 ? DType::i64 : DType::i32, tokens, 1, tokens % 4, 17);
        p.run([&](Backend& be, int i) { be.embedding_forward(id[i], table[i], first, out[i]); });
        p.expect_same(out, "embedding_forward " + at);
        const Twin dy = p.random(t, tokens, width, 2), d_table = p.random(accumulator(t), table_rows, width, 3);
        p.run([&](Backend& be, int i) { be.embedding_backward(id[i], dy[i], first, d_table[i]); });
        p.expect_same(d_table, "embedding_backward " + at);
      }
}

TEST(CudaTokens, IdsMayLieInRowsWithGaps) {
  Pair p;
  for (const int64_t pad : {0, 3}) {
    const Twin id = ids(p, DType::i32, 6, 7, pad, 13), table = p.random(DType::f32, 8, 12, 1),
               out = p.blank(DType::f32, 42, 12);
    p.run([&](Backend& be, int i) { be.embedding_forward(id[i], table[i], 5, out[i]); });
    p.expect_same(out, "embedding_forward of a matrix of ids");
  }
}

TEST(CudaTokens, TheLossFromPiecesOfTheVocabulary) {
  Pair p;
  for (const DType t : compute_types)
    for (const int64_t tokens : {0, 3, 40})
      for (const int64_t n : {0, 1, 37, 3000})
        for (const double z : {0.0, 1e-2}) {
          const DType a = accumulator(t);
          const std::string at = text(t, tokens, n);
          const Twin logits = p.random(a, tokens, n, 1, 2, 4), label = ids(p, DType::i32, tokens, 1, 1, 60);
          const Twin top = p.blank(a, tokens, 1), sum = p.blank(DType::f64, tokens, 1), hit = p.blank(a, tokens, 1);
          p.run([&](Backend& be, int i) {
            be.row_max(logits[i], top[i]);
            be.pick(logits[i], label[i], 5, hit[i]);
          });
          p.expect_same(top, "row_max " + at);
          p.expect_same(hit, "pick " + at);
          p.run([&](Backend& be, int i) { be.row_sum_exp(logits[i], top[i], sum[i]); });
          p.expect_near(sum, Pair::slack(DType::f64, n), "row_sum_exp " + at);
          const Twin total = p.make(DType::f64, tokens, 1, 0, [](int64_t r, int64_t) { return 3.0 + double(r); });
          const Twin weight = p.make(a, tokens, 1, 1, [](int64_t r, int64_t) { return r % 3 == 1 ? 0.0 : 0.125; });
          const Twin d = p.blank(t, tokens, n, 5);
          p.run([&](Backend& be, int i) {
            be.softmax_backward(logits[i], top[i], total[i], label[i], 5, weight[i], z, d[i]);
          });
          p.expect_same(d, "softmax_backward " + at);
          if (t != a) continue;
          p.run([&](Backend& be, int i) {
            be.softmax_backward(logits[i], top[i], total[i], label[i], 5, weight[i], z, logits[i]);
          });
          p.expect_same(logits, "softmax_backward in place " + at);
        }
}

TEST(CudaTokens, NumbersThatAreNoneDoNotWinTheMaximum) {
  Pair p;
  const double inf = INFINITY, nan = NAN;
  const Twin logits = p.make(DType::f32, 3, 4, 0, [=](int64_t r, int64_t c) {
    const double v[3][4] = {{1, nan, 3, 2}, {-inf, -inf, -inf, -inf}, {nan, nan, nan, nan}};
    return v[r][c];
  });
  const Twin top = p.blank(DType::f32, 3, 1);
  p.run([&](Backend& be, int i) { be.row_max(logits[i], top[i]); });
  p.expect_same(top, "row_max");
}

}  // namespace
