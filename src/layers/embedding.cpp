// See embedding.hpp.
#include "layers/embedding.hpp"

#include "layers/dropout.hpp"

namespace orthant {

std::vector<Param> Embedding::params(const ModelConfig& c) {
  const Dim hidden{DimName::hidden, c.hidden, 1};
  const Init normal{Init::normal, c.init_std};
  std::vector<Param> out;
  out.push_back({"embedding.tokens.weight", {{DimName::vocab, c.vocab, 1}, hidden}, over_all_tokens, normal, true, {}});
  if (c.family == "gpt2")  // added to the token shard, after the sum over ranks
    out.push_back({"embedding.positions.weight", {{DimName::positions, c.context, 1}, hidden}, over_tokens, normal, true, {}});
  return out;
}

Embedding::Embedding(const ModelConfig& c, ParamStore& store, const Axes& axes, const Layout& layout)
    : tokens_(&store.at("embedding.tokens.weight")), first_(layout.vocab(c.vocab).begin), edge_(axes, layout) {
  if (c.family == "gpt2") positions_ = &store.at("embedding.positions.weight");
}

Range Embedding::shard(const Context& ctx) const {
  int64_t tokens = ctx.batch->tokens();
  if (!ctx.layout.sequence_parallel()) return {0, tokens};
  int64_t part = tokens / edge_.tokens().size();
  return {part * edge_.tokens().rank(), part};
}

Tensor Embedding::forward(Context& ctx) const {
  const MicroBatch& mb = *ctx.batch;
  Partial y = make_partial(ctx, mb.tokens(), tokens_->cols());
  Tensor rows = ctx.reproducible() ? ctx.activation(y.rows, y.cols) : y.value;
  ctx.be.embedding_forward(mb.ids, tokens_->weight, first_, rows);
  if (ctx.reproducible()) ctx.be.exact_add(rows, y.exact);
  Tensor out = edge_.leave(ctx, y, "embedding forward").wait();
  if (positions_) {
    Range r = shard(ctx);
    Tensor p = ctx.activation(r.size, out.cols());
    ctx.be.embedding_forward(mb.positions.row_range(r.begin, r.size), positions_->weight, 0, p);
    ctx.be.add(out, p, out);
  }
  return drop_hidden(ctx, out, "embedding");
}

void Embedding::backward(Context& ctx, const Tensor& dy_out) const {
  Tensor dy_SD = drop_hidden(ctx, dy_out, "embedding");
  const MicroBatch& mb = *ctx.batch;
  auto accumulate = [&](LocalParam& p, const Tensor& ids, const Tensor& dy, int64_t first) {
    if (ctx.reproducible()) ctx.be.exact_embedding_backward(ids, dy, first, p.rows(), p.grad_exact);
    else ctx.be.embedding_backward(ids, dy, first, p.grad);
  };
  if (positions_) {
    Range r = shard(ctx);
    accumulate(*positions_, mb.positions.row_range(r.begin, r.size), dy_SD, 0);
  }
  Tensor dy = edge_.enter(ctx, dy_SD, "embedding backward");
  accumulate(*tokens_, mb.ids, dy, first_);
}

}  // namespace orthant
