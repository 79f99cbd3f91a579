// Token operations of the cpu backend: embedding rows and the pieces of a loss over a cut vocabulary.
// labels: smoke asan
#include <limits>

#include "ops_helpers.hpp"

using namespace ops;

namespace {

const DType types[] = {DType::f32, DType::bf16, DType::f64};
constexpr double inf = std::numeric_limits<double>::infinity();

class Tokens : public ::testing::Test {
 protected:
  std::unique_ptr<Backend> owner_ = backend_with(2);
  Backend& b_ = *owner_;
};

Values random_in(DType t, int64_t n, unsigned seed, double scale = 1) {
  Values v = random_values(n, seed, scale);
  for (double& x : v) x = rounded(t, x);
  return v;
}

TEST_F(Tokens, embedding) {
  const int64_t table_rows = 11, width = 70, first = 5, tokens = 400;
  for (DType index : {DType::i32, DType::i64}) {
    for (DType t : types) {
      Values ids;
      std::mt19937 engine(1);
      for (int64_t i = 0; i < tokens; ++i)
        ids.push_back(static_cast<double>(engine() % 20));  // 0-4 and 16-19 are elsewhere
      const Values table = random_in(t, table_rows * width, 1), dy = random_in(t, tokens * width, 2);
      Values want, d_want(table.size(), 1.0);
      for (int64_t i = 0; i < tokens; ++i) {
        const auto row = static_cast<int64_t>(ids[static_cast<size_t>(i)]) - first;
        for (int64_t c = 0; c < width; ++c) {
          const bool here = row >= 0 && row < table_rows;
          want.push_back(here ? table[static_cast<size_t>(row * width + c)] : 0.0);
          if (here) d_want[static_cast<size_t>(row * width + c)] += dy[static_cast<size_t>(i * width + c)];
        }
      }
      const Matrix mi(b_, index, tokens, 1, ids), mt(b_, t, table_rows, width, table, 3),
          out(b_, t, tokens, width, random_in(t, tokens * width, 9), 2);
      b_.embedding_forward(mi, mt, first, out);
      EXPECT_EQ(out.get(), want);
      const Matrix across(b_, index, 1, tokens, ids), padded(b_, index, tokens, 1, ids, 4);
      const Matrix mdy(b_, t, tokens, width, dy, 1),
          d_table(b_, accumulator(t), table_rows, width, Values(table.size(), 1.0), 5);
      b_.embedding_backward(across, mdy, first, d_table);
      expect_near(d_table.get(), d_want, 100 * unit(accumulator(t)), "d_table");
      const Matrix again(b_, accumulator(t), table_rows, width, Values(table.size(), 1.0));
      b_.embedding_backward(padded, mdy, first, again);
      EXPECT_EQ(again.get(), d_table.get());
    }
  }
}

TEST_F(Tokens, embedding_gradient_does_not_depend_on_threads) {
  Values ids;
  for (int i = 0; i < 300; ++i) ids.push_back(i * i % 13);
  const Values dy = random_values(300 * 200, 3);
  Values first;
  for (int threads : {1, 2, 5}) {
    auto b = backend_with(threads);
    const Matrix mi(*b, DType::i32, 300, 1, ids), mdy(*b, DType::f32, 300, 200, dy), d(*b, DType::f32, 13, 200);
    b->embedding_backward(mi, mdy, 0, d);
    if (threads == 1)
      first = d.get();
    else
      EXPECT_EQ(d.get(), first) << threads;
  }
}

TEST_F(Tokens, empty_shapes) {
  const Matrix no_ids(b_, DType::i32, 0, 1), table(b_, DType::f32, 4, 8), nothing(b_, DType::f32, 0, 8);
  b_.embedding_forward(no_ids, table, 0, nothing);
  b_.embedding_backward(no_ids, nothing, 0, table);
  EXPECT_EQ(table.get(), Values(32, 0.0));
  // O010: a rank may hold no column of the vocabulary
  const Matrix logits(b_, DType::f32, 3, 0), max(b_, DType::f32, 3, 1), sum(b_, DType::f64, 3, 1),
      labels(b_, DType::i32, 3, 1);
  const Matrix picked(b_, DType::f32, 3, 1, {9, 9, 9}), weight(b_, DType::f32, 3, 1, {1, 1, 1}),
      d(b_, DType::bf16, 3, 0);
  b_.row_max(logits, max);
  EXPECT_EQ(max.get(), Values(3, -inf));
  const Matrix zero(b_, DType::f32, 3, 1);
  b_.row_sum_exp(logits, zero, sum);
  EXPECT_EQ(sum.get(), Values(3, 0.0));
  b_.pick(logits, labels, 0, picked);
  EXPECT_EQ(picked.get(), Values(3, 0.0));
  b_.softmax_backward(logits, zero, sum, labels, 0, weight, 0, d);
}

struct Loss {
  double value;
  Values d_logits;
};

/// sum_t weight_t (log sum exp - logit of the label + z (log sum exp)^2) with the vocabulary in shards of the given
/// widths, as ranks would.
Loss cut_loss(Backend& b, DType a, DType t, const Values& logits, const Values& labels, const Values& weight,
              int64_t vocab, const std::vector<int64_t>& widths, double z = 0) {
  const auto tokens = static_cast<int64_t>(labels.size());
  const Matrix whole(b, a, tokens, vocab, logits, 2), ml(b, DType::i32, tokens, 1, labels),
      mw(b, a, tokens, 1, weight);
  Values top(labels.size(), -inf), total(labels.size(), 0.0), chosen(labels.size(), 0.0);
  const Matrix out_a(b, a, tokens, 1), out_d(b, DType::f64, tokens, 1);
  int64_t first = 0;
  for (int64_t w : widths) {
    b.row_max(whole.tensor().col_range(first, w), out_a);
    const Values got = out_a.get();
    for (size_t i = 0; i < top.size(); ++i) top[i] = std::max(top[i], got[i]);
    first += w;
  }
  const Matrix max(b, a, tokens, 1, top);
  first = 0;
  for (int64_t w : widths) {
    b.row_sum_exp(whole.tensor().col_range(first, w), max, out_d);
    b.pick(whole.tensor().col_range(first, w), ml, first, out_a);
    const Values sums = out_d.get(), picks = out_a.get();
    for (size_t i = 0; i < top.size(); ++i) {
      total[i] += sums[i];
      chosen[i] += picks[i];
    }
    first += w;
  }
  const Matrix sum(b, DType::f64, tokens, 1, total), d(b, t, tokens, vocab, 1);
  first = 0;
  for (int64_t w : widths) {
    b.softmax_backward(whole.tensor().col_range(first, w), max, sum, ml, first, mw, z,
                       d.tensor().col_range(first, w));
    first += w;
  }
  Loss loss{0, d.get()};
  for (size_t i = 0; i < top.size(); ++i) {
    const double lse = std::log(total[i]) + top[i];
    loss.value += weight[i] * (lse - chosen[i] + z * lse * lse);
  }
  return loss;
}

TEST_F(Tokens, loss_pieces_of_a_cut_vocabulary) {
  const int64_t vocab = 257, tokens = 12;
  const Values labels = {0, 3, 135, 136, 256, 200, 17, 0, 99, 250, 136, 5};
  Values weight(labels.size(), 0.125);
  weight[2] = 0;  // a token that does not count
  for (DType t : types) {
    SCOPED_TRACE(name_of(t));
    const DType a = accumulator(t);
    const Values logits = random_in(a, tokens * vocab, 1, 5);
    const Loss whole = cut_loss(b_, a, t, logits, labels, weight, vocab, {257});
    double want = 0;
    Values d_want;
    for (size_t i = 0; i < labels.size(); ++i) {
      double sum = 0;
      for (int64_t c = 0; c < vocab; ++c) sum += std::exp(logits[i * 257 + static_cast<size_t>(c)]);
      want += weight[i] * (std::log(sum) - logits[i * 257 + static_cast<size_t>(labels[i])]);
      for (int64_t c = 0; c < vocab; ++c)
        d_want.push_back(weight[i] * (std::exp(logits[i * 257 + static_cast<size_t>(c)]) / sum -
                                      (static_cast<double>(c) == labels[i])));
    }
    EXPECT_NEAR(whole.value, want, 100 * unit(a));
    expect_near(whole.d_logits, d_want, t == DType::bf16 ? 0x1p-8 : 20 * unit(t), "d_logits");
    const Loss cut = cut_loss(b_, a, t, logits, labels, weight, vocab, {136, 0, 100, 21});
    EXPECT_NEAR(cut.value, want, 100 * unit(a));
    expect_near(cut.d_logits, whole.d_logits, t == DType::bf16 ? 0x1p-8 : 4 * unit(t), "d_logits of the cut");
  }
}

TEST_F(Tokens, softmax_backward_is_the_derivative) {
  const int64_t vocab = 19, tokens = 4;
  const Values labels = {0, 18, 7, 7}, weight = {0.5, 0.25, 0.125, 1}, logits = random_values(tokens * vocab, 4);
  for (double z : {0.0, 0.3}) {
    const auto loss = [&](const Values& v) {
      return cut_loss(b_, DType::f64, DType::f64, v, labels, weight, vocab, {10, 9}, z);
    };
    const Loss at = loss(logits);
    for (size_t i = 0; i < logits.size(); i += 5) {
      Values up = logits, down = logits;
      up[i] += 1e-5;
      down[i] -= 1e-5;
      EXPECT_NEAR(at.d_logits[i], (loss(up).value - loss(down).value) / 2e-5, 1e-9) << i << " z " << z;
    }
  }
}

TEST_F(Tokens, softmax_backward_with_z_in_every_type) {
  const int64_t vocab = 300, tokens = 7;
  const Values labels = {0, 299, 7, 7, 150, 1, 298};
  Values weight(labels.size(), 0.125);
  weight[3] = 0;
  const double z = 1e-2;
  for (DType t : types) {
    const DType a = accumulator(t);
    const Values logits = random_in(a, tokens * vocab, 5, 2);
    const Loss got = cut_loss(b_, a, t, logits, labels, weight, vocab, {100, 200}, z);
    Values want;
    for (size_t i = 0; i < labels.size(); ++i) {
      double sum = 0;
      for (size_t c = 0; c < 300; ++c) sum += std::exp(logits[i * 300 + c]);
      for (size_t c = 0; c < 300; ++c)
        want.push_back(weight[i] * (std::exp(logits[i * 300 + c]) / sum * (1 + 2 * z * std::log(sum)) -
                                    (static_cast<double>(c) == labels[i])));
    }
    expect_near(got.d_logits, want, t == DType::bf16 ? 0x1p-8 : 20 * unit(t), name_of(t));
  }
}

TEST_F(Tokens, extremes) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const DType a = DType::f32;
  // rows: large logits, a NaN in a token that does not count, a NaN in one that does
  const Values logits = {3e38, -3e38, 0, 1, nan, 2, nan, 0, 0};
  const Matrix m(b_, a, 3, 3, logits), max(b_, a, 3, 1), sum(b_, DType::f64, 3, 1),
      labels(b_, DType::i64, 3, 1, {1, 0, 1});
  const Matrix weight(b_, a, 3, 1, {1, 0, 1});
  b_.row_max(m, max);
  EXPECT_EQ(max.get()[0], static_cast<double>(3e38f));
  b_.row_sum_exp(m, max, sum);
  EXPECT_EQ(sum.get()[0], 1.0);
  EXPECT_TRUE(std::isnan(sum.get()[2]));
  b_.softmax_backward(m, max, sum, labels, 0, weight, 0, m);  // over the logits
  const Values d = m.get();
  EXPECT_EQ(Values(d.begin(), d.begin() + 6), (Values{1, -1, 0, 0, 0, 0}));
  EXPECT_TRUE(std::isnan(d[6]) && std::isnan(d[7]));
}

}  // namespace
