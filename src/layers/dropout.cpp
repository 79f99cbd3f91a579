// See dropout.hpp.
#include "layers/dropout.hpp"

#include <xxhash.h>

namespace orthant {

Dropout dropout_at(const Context& ctx, const std::string& site, const Tensor& places) {
  Dropout d;
  if (ctx.dropout == 0) return d;
  d.rate = ctx.dropout;
  d.key = XXH64(site.data(), site.size(), ctx.seed);
  d.step = ctx.step;
  d.tokens = places;
  return d;
}

Tensor drop_hidden(Context& ctx, const Tensor& x, const std::string& site) {
  if (ctx.dropout == 0) return x;
  const Axis& tp = ctx.axes[AxisName::tp];
  const int64_t tokens = ctx.batch->tokens(), part = ctx.layout.sequence_parallel() ? tokens / tp.size() : tokens;
  const int64_t begin = ctx.layout.sequence_parallel() ? part * tp.rank() : 0;
  Tensor out = ctx.activation(x.rows(), x.cols());
  ctx.be.dropout(x, dropout_at(ctx, site, ctx.batch->places.row_range(begin, part)), out);
  return out;
}

}  // namespace orthant
