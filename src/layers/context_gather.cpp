// Context parallelism by all-gather: see context_attention.hpp. K and V are gathered again in the backward pass, so that
// what is kept stays a shard.
#include "layers/context_attention.hpp"

namespace orthant {
namespace {

class Gather : public ContextAttention {
 public:
  Tensor forward(Context& ctx, const AttentionHeads& h, const Tensor& q, const Tensor& k, const Tensor& v, AttentionKept& kept) const override {
    const auto [K, V] = gather(ctx, k, v);
    kept = {q, k, v, ctx.activation(q.rows(), h.heads * h.value_dim()), ctx.statistic(q.rows(), h.heads)};
    const MicroBatch& mb = *ctx.batch;
    for (size_t i = 0; i < mb.runs.size(); ++i) {
      const Range rows = run_rows(mb, i), places = mb.runs[i];
      const int64_t seen = places.begin + places.size;
      auto part = [&](const Tensor& x) { return x.row_range(rows.begin, rows.size); };
      ctx.be.attention_forward(attention_shape(ctx, h, places, {0, seen}, rows), part(q), K.row_range(0, seen * mb.sequences),
                               V.row_range(0, seen * mb.sequences), part(kept.o), part(kept.lse));
    }
    return kept.o;
  }

  void backward(Context& ctx, const AttentionHeads& h, const Tensor& d_o, const AttentionKept& s, Tensor& dq, Tensor& dk, Tensor& dv) const override {
    const auto [K, V] = gather(ctx, s.k, s.v);
    dq = ctx.activation(s.q.rows(), s.q.cols());
    if (ctx.reproducible()) return exact(ctx, h, d_o, s, K, V, dq, dk, dv);
    const MicroBatch& mb = *ctx.batch;
    const Tensor sums[] = {zeros_of_a(ctx, K.rows(), K.cols()), zeros_of_a(ctx, V.rows(), V.cols())};
    for (size_t i = 0; i < mb.runs.size(); ++i) {
      const Range rows = run_rows(mb, i), places = mb.runs[i];
      const int64_t seen = places.begin + places.size, keys = seen * mb.sequences;
      auto part = [&](const Tensor& x) { return x.row_range(rows.begin, rows.size); };
      Tensor parts[2];
      for (int t = 0; t < 2; ++t) parts[t] = ctx.be.alloc(ctx.A, keys, sums[t].cols(), MemoryKind::activations);
      ctx.be.attention_backward(attention_shape(ctx, h, places, {0, seen}, rows), part(d_o), part(s.q), K.row_range(0, keys), V.row_range(0, keys),
                                part(s.o), part(s.lse), part(dq), parts[0], parts[1]);
      for (int t = 0; t < 2; ++t) ctx.be.add(sums[t].row_range(0, keys), parts[t], sums[t].row_range(0, keys));
    }
    const Axis& cp = ctx.axes[AxisName::cp];
    for (int t = 0; t < 2; ++t) {
      Tensor mine = ctx.be.alloc(ctx.A, s.k.rows(), sums[t].cols(), MemoryKind::activations);
      cp.scatter_sum(to_rank_order(ctx, sums[t]), mine, "dK, dV").wait();
      (t == 0 ? dk : dv) = rounded(ctx, mine);
    }
  }

 private:
  static std::pair<Tensor, Tensor> gather(Context& ctx, const Tensor& k, const Tensor& v) {
    const Axis& cp = ctx.axes[AxisName::cp];
    Tensor K = ctx.activation(k.rows() * cp.size(), k.cols()), V = ctx.activation(v.rows() * cp.size(), v.cols());
    Pending first = cp.gather(k, K, "K");
    Pending second = cp.gather(v, V, "V");
    first.wait();
    second.wait();
    return {to_sequence_order(ctx, K), to_sequence_order(ctx, V)};
  }

  static void exact(Context& ctx, const AttentionHeads& h, const Tensor& d_o, const AttentionKept& s, const Tensor& K, const Tensor& V, const Tensor& dq,
                    Tensor& dk, Tensor& dv) {
    const MicroBatch& mb = *ctx.batch;
    const Tensor sums[] = {exact_zeros(ctx, K.size()), exact_zeros(ctx, V.size())};
    for (size_t i = 0; i < mb.runs.size(); ++i)
      exact_backward(ctx, h, mb.runs[i], run_rows(mb, i), d_o, s, K, V, mb.starts, mb.places, dq, sums[0], sums[1]);
    for (int t = 0; t < 2; ++t) {
      ctx.be.exact_carry(sums[t]);
      const int64_t rows = s.k.rows(), width = (t == 0 ? s.k : s.v).cols();
      Tensor mine = ctx.workspace(DType::i64, 2, rows * width);
      for (int lane = 0; lane < 2; ++lane) {
        const Tensor whole = to_rank_order(ctx, sums[t].row_range(lane, 1).reshaped(K.rows(), width));
        ctx.axes[AxisName::cp].scatter_sum(whole, mine.row_range(lane, 1), "dK, dV").wait();
      }
      (t == 0 ? dk : dv) = exact_result(ctx, mine, rows, width);
    }
  }
};

}  // namespace

std::unique_ptr<ContextAttention> gather_attention() { return std::make_unique<Gather>(); }

}  // namespace orthant
