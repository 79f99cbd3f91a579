// Routing kernels of the cuda backend: the bits of the cpu backend, ties and NaN among them.
// labels: cuda-host
// seconds: 60
#include "cuda_kit.hpp"

using namespace cuda_kit;

namespace {

std::vector<RouterShape> routers() {
  std::vector<RouterShape> all{
      {1, 1, false, 1, 1, true, 1}, {300, 7, false, 1, 1, true, 1}, {16, 16, true, 1, 1, true, 2}};
  for (const bool sigmoid : {false, true})
    for (const bool normalise : {false, true})
      for (const auto& [groups, top] : {std::pair<int64_t, int64_t>{1, 1}, {4, 2}, {16, 5}})
        all.push_back({16, 4, sigmoid, groups, top, normalise, 2.5});
  return all;
}

std::string text(const RouterShape& s) {
  return std::to_string(s.top_k) + " of " + std::to_string(s.experts) + (s.sigmoid ? " sigmoid" : " softmax") +
         (s.normalise ? " normalised" : "") + ", groups " + std::to_string(s.groups);
}

void check(Pair& p, const RouterShape& s, const Twin& logits, bool biased) {
  const DType a = logits[0].dtype();
  const int64_t tokens = logits[0].rows();
  const Twin bias = biased ? p.random(a, 1, s.experts, 2, 0, 0.3) : Twin{};
  const Twin chosen = p.blank(DType::i32, tokens, s.top_k), weights = p.blank(a, tokens, s.top_k, 1),
             shares = p.blank(a, tokens, s.experts, 2);
  p.run([&](Backend& be, int i) { be.router_forward(s, logits[i], bias[i], chosen[i], weights[i], shares[i]); });
  p.expect_same(chosen, "chosen, " + text(s));
  p.expect_same(weights, "weights, " + text(s));
  p.expect_same(shares, "shares, " + text(s));

  const Twin counts = p.make(DType::i64, 3, s.experts, 1, [](int64_t, int64_t) { return 5.0; });
  p.run([&](Backend& be, int i) { be.count_choices(chosen[i], counts[i]); });
  p.expect_same(counts, "counts, " + text(s));

  const Twin d_weights = p.random(a, tokens, s.top_k, 3), balance = p.random(a, 3, s.experts, 4);
  for (const double z : {0.0, 1e-3})
    for (const bool balanced : {false, true}) {
      const Twin d = p.blank(a, tokens, s.experts, 1), shares_slope = balanced ? balance : Twin{};
      p.run([&](Backend& be, int i) {
        be.router_backward(s, logits[i], chosen[i], d_weights[i], shares_slope[i], z, d[i]);
      });
      p.expect_same(d, "d_logits, " + text(s));
    }
}

TEST(CudaRouter, ForwardBackwardAndCounts) {
  Pair p;
  for (const RouterShape& s : routers())
    for (const DType a : sum_types)
      for (const int64_t tokens : {0, 1, 40}) {
        check(p, s, p.random(a, tokens, s.experts, 1, 3, 2), tokens == 40);
        // few different values: ties everywhere
        check(p, s, p.make(a, tokens, s.experts, 0, [](int64_t r, int64_t c) { return double((r * 5 + c * 3) % 4); }),
              false);
      }
}

TEST(CudaRouter, NaNReachesTheWeightsAndTheChoiceStaysValid) {
  Pair p;
  const RouterShape s{8, 2, false, 1, 1, true, 1};
  const Twin logits = p.make(DType::f32, 4, 8, 0, [](int64_t r, int64_t c) {
    return r == 1 && c == 6 ? NAN : r == 2 ? NAN : r == 3 && c == 0 ? -INFINITY : double(c % 3);
  });
  const Twin chosen = p.blank(DType::i32, 4, 2), weights = p.blank(DType::f32, 4, 2),
             shares = p.blank(DType::f32, 4, 8);
  p.run([&](Backend& be, int i) { be.router_forward(s, logits[i], {}, chosen[i], weights[i], shares[i]); });
  p.expect_same(chosen, "chosen");
  p.run([&](Backend& be, int i) {
    const auto w = kit::values(be, weights[i]);
    for (size_t j = 0; j < w.size(); ++j) EXPECT_EQ(std::isnan(w[j]), j / 2 == 1 || j / 2 == 2) << j;
  });
}

TEST(CudaRouter, RowsGoToTheExpertsAndComeBack) {
  Pair p;
  for (const DType t : compute_types)
    for (const int64_t width : {1, 33, 1100}) {
      const int64_t rows = 23, out_rows = 50;
      const Twin x = p.random(t, rows, width, 1), out = p.blank(t, out_rows, width, 1);
      const Twin index =
          p.make(DType::i32, out_rows, 1, 1, [](int64_t r, int64_t) { return double(r * 7 % 24 - 1); });
      p.run([&](Backend& be, int i) { be.gather_rows(x[i], index[i], out[i]); });
      p.expect_same(out, "gather_rows " + cuda_kit::text(t, out_rows, width));
      const Twin slot =
          p.make(DType::i32, out_rows, 3, 2, [](int64_t r, int64_t c) { return double((r * 5 + c * 11) % 24 - 1); });
      p.run([&](Backend& be, int i) { be.combine_rows(x[i], slot[i], out[i]); });
      p.expect_same(out, "combine_rows " + cuda_kit::text(t, out_rows, width));
    }
}

TEST(CudaRouter, NumbersOutsideAreRefused) {
  Pair p;
  const Twin x = p.random(DType::f32, 4, 3, 1), out = p.blank(DType::f32, 2, 3),
             counts = p.make(DType::i64, 1, 4, 0, [](int64_t, int64_t) { return 0.0; });
  const Twin beyond = p.make(DType::i32, 2, 1, 0, [](int64_t r, int64_t) { return r == 0 ? 1.0 : 4.0; });
  const auto refused = [&](const std::function<void(Backend&, int)>& f) {
    p.run([&](Backend& be, int i) {
      EXPECT_THROW(
          {
            f(be, i);
            be.synchronize();
          },
          LogicError);
    });
  };
  refused([&](Backend& be, int i) { be.gather_rows(x[i], beyond[i], out[i]); });
  refused([&](Backend& be, int i) { be.combine_rows(x[i], beyond[i], out[i]); });
  refused([&](Backend& be, int i) { be.count_choices(beyond[i], counts[i]); });
  const Twin logits = p.random(DType::f32, 2, 4, 1), d_weights = p.random(DType::f32, 2, 1, 2),
             d = p.blank(DType::f32, 2, 4);
  refused([&](Backend& be, int i) {
    be.router_backward({4, 1, false, 1, 1, true, 1}, logits[i], beyond[i], d_weights[i], {}, 0, d[i]);
  });
}

}  // namespace
