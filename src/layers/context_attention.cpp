// What the methods of context parallelism share, and attention on one rank.
#include "layers/context_attention.hpp"

#include <tuple>

#include "data/context_cut.hpp"
#include "layers/dropout.hpp"

namespace orthant {

Range run_rows(const MicroBatch& mb, size_t i) {
  int64_t begin = 0;
  for (size_t r = 0; r < i; ++r) begin += mb.runs[r].size;
  return {begin * mb.sequences, mb.runs[i].size * mb.sequences};
}

AttentionShape attention_shape(Context& ctx, const AttentionHeads& h, Range places, Range keys, Range rows) {
  const MicroBatch& mb = *ctx.batch;
  AttentionShape s;
  s.batch = mb.sequences;
  s.q_begin = places.begin;
  s.q_length = places.size;
  s.k_begin = keys.begin;
  s.k_length = keys.size;
  s.heads = h.heads;
  s.kv_heads = h.kv_heads;
  s.head_dim = h.head_dim;
  s.v_dim = h.v_dim;
  s.scale = h.scale;
  if (mb.starts) s.starts = mb.starts.row_range(rows.begin, rows.size);
  if (ctx.dropout > 0) s.dropout = dropout_at(ctx, h.site, mb.places.row_range(rows.begin, rows.size));
  s.canonical = ctx.reproducible();
  s.first_head = h.first_head;
  s.all_heads = h.all_heads;
  s.sequence = ctx.sequence;
  return s;
}

namespace {

/// f(rows in the order of ranks, rows in the order of the sequence), run by run.
template <class F>
void for_runs(Context& ctx, F&& f) {
  const int64_t cp = ctx.axes[AxisName::cp].size(), B = ctx.batch->sequences;
  int64_t at = 0;
  for (int64_t r = 0; r < cp; ++r)
    for (const Range& run : context_runs(ctx.sequence, cp, r)) {
      f(Range{at, run.size * B}, Range{run.begin * B, run.size * B});
      at += run.size * B;
    }
}

}  // namespace

Tensor to_sequence_order(Context& ctx, const Tensor& x) {
  Tensor out = ctx.be.alloc(x.dtype(), x.rows(), x.cols(), MemoryKind::activations);
  for_runs(ctx, [&](Range by_rank, Range place) { ctx.be.copy(out.row_range(place.begin, place.size), x.row_range(by_rank.begin, by_rank.size)); });
  return out;
}

Tensor to_rank_order(Context& ctx, const Tensor& x) {
  Tensor out = ctx.be.alloc(x.dtype(), x.rows(), x.cols(), MemoryKind::activations);
  for_runs(ctx, [&](Range by_rank, Range place) { ctx.be.copy(out.row_range(by_rank.begin, by_rank.size), x.row_range(place.begin, place.size)); });
  return out;
}

void exact_backward(Context& ctx, const AttentionHeads& h, Range places, Range rows, const Tensor& d_o, const AttentionKept& local, const Tensor& k,
                    const Tensor& v, const Tensor& starts, const Tensor& tokens, const Tensor& dq, const Tensor& dk_sum, const Tensor& dv_sum) {
  const int64_t B = ctx.batch->sequences, group = h.heads / h.kv_heads;
  for (const Range& block : ctx.token_blocks(rows.size)) {
    const Range mine{rows.begin + block.begin, block.size};
    const Range at{places.begin + block.begin / B, block.size / B};
    const int64_t keys = (at.begin + at.size) * B;  // rows that the block's last query can see
    AttentionShape s = attention_shape(ctx, h, at, {0, at.begin + at.size}, {0, 0});
    s.starts = starts ? starts.row_range(mine.begin, mine.size) : Tensor();
    if (ctx.dropout > 0) s.dropout.tokens = tokens.row_range(mine.begin, mine.size);
    auto part = [&](const Tensor& x) { return x.row_range(mine.begin, mine.size); };
    Tensor dk = ctx.workspace(ctx.A, keys, h.heads * h.head_dim), dv = ctx.workspace(ctx.A, keys, h.heads * h.value_dim());
    ctx.be.attention_backward(s, part(d_o), part(local.q), k.row_range(0, keys), v.row_range(0, keys), part(local.o), part(local.lse), part(dq), dk, dv);
    const std::tuple<Tensor, Tensor, int64_t> sums[] = {{dk, dk_sum, h.head_dim}, {dv, dv_sum, h.value_dim()}};
    for (const auto& [d, sum, dim] : sums)
      for (int64_t g = 0; g < group; ++g) {
        // the g-th query head of every kv head, side by side
        const int64_t width = h.kv_heads * dim;
        Tensor one = ctx.workspace(ctx.A, keys, width);
        for (int64_t kv = 0; kv < h.kv_heads; ++kv) ctx.be.copy(one.col_range(kv * dim, dim), d.col_range((kv * group + g) * dim, dim));
        ctx.be.exact_add(one, sum.col_range(0, keys * width));
      }
  }
}

Tensor exact_zeros(Context& ctx, int64_t elements) {
  Tensor sum = ctx.workspace(DType::i64, 2, elements);
  ctx.be.zero(sum);
  return sum;
}

Tensor zeros_of_a(Context& ctx, int64_t rows, int64_t cols) {
  Tensor x = ctx.be.alloc(ctx.A, rows, cols, MemoryKind::activations);
  ctx.be.zero(x);
  return x;
}

Tensor rounded(Context& ctx, const Tensor& x) {
  if (ctx.T == ctx.A) return x;
  Tensor out = ctx.activation(x.rows(), x.cols());
  ctx.be.copy(out, x);
  return out;
}

Tensor exact_result(Context& ctx, const Tensor& sum, int64_t rows, int64_t width) {
  ctx.be.exact_carry(sum);
  ctx.axes[AxisName::tp_rep].sum(sum, "query heads of a shared kv head").wait();
  ctx.be.exact_carry(sum);
  Tensor out = ctx.activation(rows, width);
  ctx.be.exact_value(sum, out);
  return out;
}

namespace {

class Local : public ContextAttention {
 public:
  Tensor forward(Context& ctx, const AttentionHeads& h, const Tensor& q, const Tensor& k, const Tensor& v, AttentionKept& kept) const override {
    const Range all{0, ctx.batch->length};
    kept = {q, k, v, ctx.activation(q.rows(), h.heads * h.value_dim()), ctx.statistic(q.rows(), h.heads)};
    ctx.be.attention_forward(attention_shape(ctx, h, all, all, {0, q.rows()}), q, k, v, kept.o, kept.lse);
    return kept.o;
  }
  void backward(Context& ctx, const AttentionHeads& h, const Tensor& d_o, const AttentionKept& s, Tensor& dq, Tensor& dk, Tensor& dv) const override {
    const Range all{0, ctx.batch->length};
    dq = ctx.activation(s.q.rows(), s.q.cols());
    if (!ctx.reproducible()) {
      dk = ctx.activation(s.k.rows(), s.k.cols());
      dv = ctx.activation(s.v.rows(), s.v.cols());
      ctx.be.attention_backward(attention_shape(ctx, h, all, all, {0, s.q.rows()}), d_o, s.q, s.k, s.v, s.o, s.lse, dq, dk, dv);
      return;
    }
    const Tensor sums[] = {exact_zeros(ctx, s.k.size()), exact_zeros(ctx, s.v.size())};
    exact_backward(ctx, h, all, {0, s.q.rows()}, d_o, s, s.k, s.v, ctx.batch->starts, ctx.batch->places, dq, sums[0], sums[1]);
    dk = exact_result(ctx, sums[0], s.k.rows(), s.k.cols());
    dv = exact_result(ctx, sums[1], s.v.rows(), s.v.cols());
  }
};

}  // namespace

std::unique_ptr<ContextAttention> local_attention() { return std::make_unique<Local>(); }

std::unique_ptr<ContextAttention> context_attention(const Context& ctx) {
  if (ctx.axes[AxisName::cp].size() == 1) return local_attention();
  switch (ctx.context_method) {
    case ContextMethod::all_to_all: return exchange_attention();
    case ContextMethod::all_gather: return gather_attention();
    case ContextMethod::ring: return ctx.reproducible() ? gather_attention() : ring_attention();
  }
  throw LogicError("unknown method of context parallelism");
}

}  // namespace orthant
