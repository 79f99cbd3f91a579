// Products of the cuda backend against the cpu backend, in the forms that layers ask for: sizes that fill tiles of
// the library and sizes that do not, sums into fp32, rows that are longer than they are wide.
// labels: cuda-host
// seconds: 60
#include "cuda_kit.hpp"

using namespace cuda_kit;

namespace {

struct Size {
  int64_t tokens, in, out, pad;
};
constexpr Size sizes[] = {{1, 1, 1, 0}, {5, 3, 7, 3}, {64, 64, 96, 0}, {65, 129, 33, 1}, {40, 256, 8, 8}};

double scale_of(int64_t terms) { return std::sqrt(static_cast<double>(terms) + 1); }
std::string at(const char* what, const Size& s) {
  return std::string(what) + " " + std::to_string(s.tokens) + " x " + std::to_string(s.in) + " -> " +
         std::to_string(s.out);
}

TEST(CudaProducts, FormsOfALayer) {
  Pair p;
  for (const DType t : compute_types)
    for (const Size& s : sizes) {
      const DType a = accumulator(t);
      const Twin x = p.random(t, s.tokens, s.in, 1, s.pad), w = p.random(t, s.out, s.in, 2, s.pad),
                 dy = p.random(t, s.tokens, s.out, 3, s.pad), bias = p.random(t, 1, s.out, 4, 0);
      const Twin y = p.blank(t, s.tokens, s.out, s.pad), dx = p.blank(t, s.tokens, s.in, s.pad),
                 dw = p.random(a, s.out, s.in, 5, 0), wide = p.random(a, s.tokens, s.out, 6, s.pad);
      p.run([&](Backend& be, int i) { be.gemm(x[i], false, w[i], true, y[i], false, bias[i]); });
      p.expect_near(y, Pair::slack(t, s.in), at("forward with bias", s), scale_of(s.in));
      p.run([&](Backend& be, int i) { be.gemm(x[i], false, w[i], true, y[i], false); });
      p.expect_near(y, Pair::slack(t, s.in), at("forward", s), scale_of(s.in));
      p.run([&](Backend& be, int i) { be.gemm(x[i], false, w[i], true, wide[i], true); });
      p.expect_near(wide, Pair::slack(a, s.in), at("forward, added to sums", s), scale_of(s.in));
      p.run([&](Backend& be, int i) { be.gemm(dy[i], false, w[i], false, dx[i], false); });
      p.expect_near(dx, Pair::slack(t, s.out), at("backward_input", s), scale_of(s.out));
      for (int n = 0; n < 2; ++n) p.run([&](Backend& be, int i) { be.gemm(dy[i], true, x[i], false, dw[i], true); });
      p.expect_near(dw, 2 * Pair::slack(a, s.tokens), at("backward_weight, twice", s), scale_of(s.tokens));
    }
}

TEST(CudaProducts, GeluAtTheEnd) {
  Pair p;
  for (const DType t : compute_types)
    for (const Size& s : sizes) {
      const Twin x = p.random(t, s.tokens, s.in, 1, s.pad), w = p.random(t, s.out, s.in, 2, s.pad), bias = p.random(t, 1, s.out, 4, 0),
                 pre = p.blank(t, s.tokens, s.out, s.pad), y = p.blank(t, s.tokens, s.out, s.pad);
      for (const bool with_bias : {false, true}) {
        p.run([&](Backend& be, int i) { be.gemm_gelu(x[i], false, w[i], true, with_bias ? bias[i] : Tensor(), pre[i], y[i]); });
        p.expect_near(pre, Pair::slack(t, s.in), at("before gelu", s), scale_of(s.in));
        // gelu's slope is at most 1.13; one rounding more on the cpu, which takes gelu of what was rounded
        p.expect_near(y, 3 * Pair::slack(t, s.in), at("gelu", s), scale_of(s.in));
      }
    }
}

TEST(CudaProducts, CanonicalOnes) {
  Pair p;
  for (const DType t : compute_types)
    for (const Size& s : sizes) {
      const DType a = accumulator(t);
      const Twin x = p.random(t, s.tokens, s.in, 1, s.pad), w = p.random(t, s.out, s.in, 2, 1),
                 y = p.blank(a, s.tokens, s.out, s.pad);
      p.run([&](Backend& be, int i) { be.gemm_canonical(x[i], false, w[i], true, y[i]); });
      p.expect_near(y, Pair::slack(a, s.in), at("canonical", s), scale_of(s.in));
    }
}

TEST(CudaProducts, GroupsWithEmptyMembers) {
  Pair p;
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const Twin x = p.random(t, 50, 24, 1, 0), w = p.random(t, 3 * 16, 24, 2, 0), y = p.blank(t, 50, 16, 0);
    const int64_t begin[] = {0, 21, 21}, rows[] = {21, 0, 29};  // of three experts, one of which has no token
    p.run([&](Backend& be, int i) {
      std::vector<Product> all;
      for (int e = 0; e < 3; ++e)
        all.push_back({x[i].row_range(begin[e], rows[e]), false, w[i].row_range(16 * e, 16), true,
                       y[i].row_range(begin[e], rows[e]), false});
      be.grouped_gemm(all);
    });
    p.expect_near(y, Pair::slack(t, 24), "grouped", scale_of(24));
  }
}

}  // namespace
