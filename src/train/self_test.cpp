// See self_test.hpp.
#include "train/self_test.hpp"

#include <cstring>

namespace orthant {

namespace {

/// A fixed pattern of values of mixed size and sign.
Tensor pattern(Context& ctx, int64_t rows, int64_t cols, int64_t salt) {
  Tensor f = ctx.workspace(DType::f32, rows, cols), out = ctx.workspace(ctx.T, rows, cols);
  {
    Host<float> h(ctx.be, f);
    for (int64_t i = 0; i < rows * cols; ++i) h[i] = static_cast<float>(((i * 7919 + salt * 104729) % 2003) - 1001) / 517.0f;
  }
  ctx.be.copy(out, f);
  return out;
}

bool same_bits(Context& ctx, const Tensor& a, const Tensor& b) {
  Tensor x = ctx.workspace(a.dtype(), a.rows(), a.cols()), y = ctx.workspace(a.dtype(), a.rows(), a.cols());
  ctx.be.copy(x, a);
  ctx.be.copy(y, b);
  const void *left = ctx.be.host_begin(x), *right = ctx.be.host_begin(y);
  bool same = std::memcmp(left, right, static_cast<size_t>(x.bytes())) == 0;
  ctx.be.host_end(x);
  ctx.be.host_end(y);
  return same;
}

}  // namespace

void check_reproducible(Session& s) {
  Context& ctx = s.ctx;
  const ModelConfig& m = s.plan.model;
  const int64_t rows = (s.plan.sequence() + 15) / 16 * s.plan.micro(), inner = m.hidden, block = m.head_dim;
  Tensor a = pattern(ctx, 2 * rows, inner, 1), w = pattern(ctx, 3 * block, inner, 2);
  Tensor whole = ctx.workspace(ctx.A, 2 * rows, 3 * block);
  ctx.be.gemm_canonical(a, false, w, true, whole);
  for (int64_t r = 0; r < 2; ++r)
    for (int64_t b = 0; b < 3; ++b) {
      Tensor part = ctx.workspace(ctx.A, rows, block);
      ctx.be.gemm_canonical(a.row_range(r * rows, rows), false, w.row_range(b * block, block), true, part);
      if (!same_bits(ctx, part, whole.row_range(r * rows, rows).col_range(b * block, block)))
        throw UsageError("run.reproducible = true: on this machine a product of cut operands differs from the product of the whole, so the same bits on every mesh "
                         "cannot be promised; set run.reproducible = false");
    }
}

}  // namespace orthant
