// Context parallelism by all-to-all: see context_attention.hpp.
//
//   q, k, v [own places, all heads of tp]  -- exchange -->  [all places, some heads]  -- attention -->  o, and back
//
// A kv head that several ranks need is sent to each of them; its gradient is then added where it comes home, in A.
#include "layers/context_attention.hpp"

namespace orthant {
namespace {

/// Heads of one rank of cp: query heads [first, first + heads), kv heads [first_kv, first_kv + kv_heads).
struct Share {
  int64_t first, heads, first_kv, kv_heads;
};

/// Which of attention's tensors: they differ in heads and in the width of a head.
enum class Part { q, k, v, o };

class Exchange : public ContextAttention {
 public:
  Tensor forward(Context& ctx, const AttentionHeads& h, const Tensor& q, const Tensor& k, const Tensor& v, AttentionKept& kept) const override {
    const AttentionHeads mine = share_of(ctx, h);
    kept.q = to_heads(ctx, h, q, Part::q, "queries");
    kept.k = to_heads(ctx, h, k, Part::k, "keys");
    kept.v = to_heads(ctx, h, v, Part::v, "values");
    kept.o = ctx.activation(kept.q.rows(), mine.heads * h.value_dim());
    kept.lse = ctx.statistic(kept.q.rows(), mine.heads);
    ctx.be.attention_forward(shape(ctx, mine), kept.q, kept.k, kept.v, kept.o, kept.lse);
    Tensor o = ctx.activation(q.rows(), h.heads * h.value_dim());
    to_places(ctx, h, kept.o, Part::o, "attention's output", [&](int64_t column, const Tensor& part) { ctx.be.copy(o.col_range(column, part.cols()), part); });
    return o;
  }

  void backward(Context& ctx, const AttentionHeads& h, const Tensor& d_o, const AttentionKept& s, Tensor& dq, Tensor& dk, Tensor& dv) const override {
    const AttentionHeads mine = share_of(ctx, h);
    const std::pair<Part, int64_t> home[] = {{Part::k, h.kv_heads * h.head_dim}, {Part::v, h.kv_heads * h.value_dim()}};  // widths of dk, dv
    const int64_t rows = d_o.rows();
    Tensor g = to_heads(ctx, h, d_o, Part::o, "gradient of attention's output");
    Tensor dq_here = ctx.activation(s.q.rows(), s.q.cols());
    dq = ctx.activation(rows, h.heads * h.head_dim);
    auto add = [&](const Tensor& to) {
      return [&ctx, to](int64_t column, const Tensor& part) { ctx.be.add(to.col_range(column, part.cols()), part, to.col_range(column, part.cols())); };
    };
    auto put = [&](const Tensor& to) { return [&ctx, to](int64_t column, const Tensor& part) { ctx.be.copy(to.col_range(column, part.cols()), part); }; };
    if (ctx.reproducible()) {
      const Range all{0, ctx.sequence};
      const Tensor sums[] = {exact_zeros(ctx, s.k.size()), exact_zeros(ctx, s.v.size())};
      exact_backward(ctx, mine, all, {0, s.q.rows()}, g, s, s.k, s.v, ctx.batch->whole_starts, ctx.batch->whole_places, dq_here, sums[0], sums[1]);
      to_places(ctx, h, dq_here, Part::q, "dQ", put(dq));
      for (int t = 0; t < 2; ++t) {
        ctx.be.exact_carry(sums[t]);
        const auto [part, width] = home[t];
        const Tensor sum = exact_zeros(ctx, rows * width);
        for (int lane = 0; lane < 2; ++lane) {
          const Tensor lanes = sums[t].row_range(lane, 1);
          to_places(ctx, h, lanes.reshaped(s.k.rows(), lanes.cols() / s.k.rows()), part, "dK, dV", add(sum.row_range(lane, 1).reshaped(rows, width)));
        }
        (t == 0 ? dk : dv) = exact_result(ctx, sum, rows, width);
      }
      return;
    }
    const bool copies = h.kv_heads % ctx.axes[AxisName::cp].size() != 0;  // some kv heads are on several ranks
    const DType type = copies ? ctx.A : ctx.T;
    Tensor here[2];
    for (int t = 0; t < 2; ++t) here[t] = ctx.be.alloc(type, s.k.rows(), (t == 0 ? s.k : s.v).cols(), MemoryKind::activations);
    ctx.be.attention_backward(shape(ctx, mine), g, s.q, s.k, s.v, s.o, s.lse, dq_here, here[0], here[1]);
    to_places(ctx, h, dq_here, Part::q, "dQ", put(dq));
    for (int t = 0; t < 2; ++t) {
      Tensor& out = t == 0 ? dk : dv;
      const auto [part, width] = home[t];
      if (copies) {
        const Tensor sum = zeros_of_a(ctx, rows, width);
        to_places(ctx, h, here[t], part, "dK, dV", add(sum));
        out = rounded(ctx, sum);
      } else {
        out = ctx.activation(rows, width);
        to_places(ctx, h, here[t], part, "dK, dV", put(out));
      }
    }
  }

 private:
  static Share share(const Context& ctx, const AttentionHeads& h, int64_t rank) {
    const int64_t cp = ctx.axes[AxisName::cp].size(), heads = h.heads / cp, group = h.heads / h.kv_heads;
    if (h.kv_heads % cp == 0) return {rank * heads, heads, rank * (h.kv_heads / cp), h.kv_heads / cp};
    return {rank * heads, heads, rank * heads / group, 1};
  }
  static AttentionHeads share_of(const Context& ctx, const AttentionHeads& h) {
    const Share s = share(ctx, h, ctx.axes[AxisName::cp].rank());
    AttentionHeads mine = h;
    mine.heads = s.heads;
    mine.kv_heads = s.kv_heads;
    mine.first_head = h.first_head + s.first;
    return mine;
  }
  /// Whole sequences: places, starts and tokens are those of all ranks.
  static AttentionShape shape(Context& ctx, const AttentionHeads& mine) {
    const Range all{0, ctx.sequence};
    AttentionShape s = attention_shape(ctx, mine, all, all, {0, 0});
    s.starts = ctx.batch->whole_starts;
    s.dropout.tokens = ctx.dropout > 0 ? ctx.batch->whole_places : Tensor();
    return s;
  }
  /// Columns of the heads of `rank` in q, k, v or o; gradients lie like what they belong to.
  static Range columns(const Context& ctx, const AttentionHeads& h, Part part, int64_t rank) {
    const Share s = share(ctx, h, rank);
    const int64_t dim = part == Part::q || part == Part::k ? h.head_dim : h.value_dim();
    return part == Part::k || part == Part::v ? Range{s.first_kv * dim, s.kv_heads * dim} : Range{s.first * dim, s.heads * dim};
  }

  /// x [own places, heads of tp] -> [all places in order, heads of this rank of cp].
  static Tensor to_heads(Context& ctx, const AttentionHeads& h, const Tensor& x, Part part, const char* site) {
    const Axis& cp = ctx.axes[AxisName::cp];
    const int64_t n = cp.size(), width = columns(ctx, h, part, 0).size;
    Tensor sent = ctx.be.alloc(x.dtype(), n * x.rows(), width, MemoryKind::activations), got = ctx.be.alloc(x.dtype(), n * x.rows(), width, MemoryKind::activations);
    for (int64_t r = 0; r < n; ++r) ctx.be.copy(sent.row_range(r * x.rows(), x.rows()), x.col_range(columns(ctx, h, part, r).begin, width));
    const std::vector<int64_t> rows(static_cast<size_t>(n), x.rows());
    cp.exchange(sent, rows, got, rows, site).wait();
    return to_sequence_order(ctx, got);
  }

  /// The way back: put(first column among the heads of tp, what came from one rank), rank by rank.
  template <class Put>
  static void to_places(Context& ctx, const AttentionHeads& h, const Tensor& x, Part part, const char* site, Put&& put) {
    const Axis& cp = ctx.axes[AxisName::cp];
    const int64_t n = cp.size(), each = x.rows() / n;
    const Tensor sent = to_rank_order(ctx, x);
    Tensor got = ctx.be.alloc(x.dtype(), x.rows(), x.cols(), MemoryKind::activations);
    const std::vector<int64_t> rows(static_cast<size_t>(n), each);
    cp.exchange(sent, rows, got, rows, site).wait();
    for (int64_t r = 0; r < n; ++r) put(columns(ctx, h, part, r).begin, got.row_range(r * each, each));
  }
};

}  // namespace

std::unique_ptr<ContextAttention> exchange_attention() { return std::make_unique<Exchange>(); }

}  // namespace orthant
