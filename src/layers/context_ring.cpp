// Ring attention: see context_attention.hpp.
//
//   forward   step j: K, V of rank r - j are here; they go on to r + 1 while the pairs (own chunk, chunk here) that see
//             each other are computed; (o, lse) of the pairs merge in A
//   backward  the same round; the sums of dK, dV made so far for the shard at hand come from r - 1, this rank adds its part
//             and sends them on, so that after cp steps they are home
#include "data/context_cut.hpp"
#include "layers/context_attention.hpp"

namespace orthant {
namespace {

class Ring : public ContextAttention {
 public:
  Tensor forward(Context& ctx, const AttentionHeads& h, const Tensor& q, const Tensor& k, const Tensor& v, AttentionKept& kept) const override {
    const int64_t width = h.heads * h.value_dim();
    Tensor o = ctx.be.alloc(ctx.A, q.rows(), width, MemoryKind::activations), lse = ctx.statistic(q.rows(), h.heads);
    std::vector<bool> begun(ctx.batch->runs.size(), false);
    round(ctx, k, v, [&](const Tensor& K, const Tensor& V, int64_t from) {
      for_pairs(ctx, from, [&](size_t i, Range places, Range rows, Range keys, Range key_rows) {
        auto mine = [&](const Tensor& x) { return x.row_range(rows.begin, rows.size); };
        auto here = [&](const Tensor& x) { return x.row_range(key_rows.begin, key_rows.size); };
        const AttentionShape s = attention_shape(ctx, h, places, keys, rows);
        if (!begun[i]) {
          ctx.be.attention_forward(s, mine(q), here(K), here(V), mine(o), mine(lse));
          begun[i] = true;
          return;
        }
        Tensor o_part = ctx.be.alloc(ctx.A, rows.size, width, MemoryKind::activations), lse_part = ctx.statistic(rows.size, h.heads);
        ctx.be.attention_forward(s, mine(q), here(K), here(V), o_part, lse_part);
        ctx.be.attention_merge(mine(o), mine(lse), o_part, lse_part);
      });
    });
    kept = {q, k, v, rounded(ctx, o), lse};
    return kept.o;
  }

  void backward(Context& ctx, const AttentionHeads& h, const Tensor& d_o, const AttentionKept& s, Tensor& dq, Tensor& dk, Tensor& dv) const override {
    const Axis& cp = ctx.axes[AxisName::cp];
    const Halves halves(s.k, s.v);
    auto of_type_a = [&](int64_t r, int64_t c) { return ctx.be.alloc(ctx.A, r, c, MemoryKind::activations); };
    Tensor dq_sum = zeros_of_a(ctx, s.q.rows(), s.q.cols());
    Tensor arriving;  // dK, then dV, of the shard at hand, from the rank before
    Pending coming;
    round(ctx, s.k, s.v, [&](const Tensor& K, const Tensor& V, int64_t from) {
      const Tensor sums = zeros_of_a(ctx, 1, halves.size()), sum[] = {halves.k(sums), halves.v(sums)};
      for_pairs(ctx, from, [&](size_t, Range places, Range q_rows, Range keys, Range key_rows) {
        auto mine = [&](const Tensor& x) { return x.row_range(q_rows.begin, q_rows.size); };
        auto here = [&](const Tensor& x) { return x.row_range(key_rows.begin, key_rows.size); };
        Tensor dq_part = of_type_a(q_rows.size, s.q.cols()), dk_part = of_type_a(key_rows.size, s.k.cols()), dv_part = of_type_a(key_rows.size, s.v.cols());
        ctx.be.attention_backward(attention_shape(ctx, h, places, keys, q_rows), mine(d_o), mine(s.q), here(K), here(V), mine(s.o), mine(s.lse), dq_part,
                                  dk_part, dv_part);
        ctx.be.add(mine(dq_sum), dq_part, mine(dq_sum));
        for (int t = 0; t < 2; ++t) ctx.be.add(here(sum[t]), t == 0 ? dk_part : dv_part, here(sum[t]));
      });
      coming.wait();
      if (arriving) ctx.be.add(arriving, sums, sums);
      arriving = of_type_a(1, halves.size());
      coming = cp.shift(sums, arriving, 1, "dK, dV on their way home");
    });
    coming.wait();
    dq = rounded(ctx, dq_sum);
    dk = rounded(ctx, halves.k(arriving));
    dv = rounded(ctx, halves.v(arriving));
  }

 private:
  /// K and V (or dK and dV) of one shard, one after the other in one message: their rows may differ in width.
  struct Halves {
    Halves(const Tensor& k, const Tensor& v) : rows(k.rows()), k_cols(k.cols()), v_cols(v.cols()) {}
    int64_t size() const { return rows * (k_cols + v_cols); }
    Tensor k(const Tensor& both) const { return both.col_range(0, rows * k_cols).reshaped(rows, k_cols); }
    Tensor v(const Tensor& both) const { return both.col_range(rows * k_cols, rows * v_cols).reshaped(rows, v_cols); }
    int64_t rows, k_cols, v_cols;
  };

  /// Calls work(K, V, rank they belong to) for the shards of all ranks, own first; the next one travels meanwhile.
  template <class Work>
  static void round(Context& ctx, const Tensor& k, const Tensor& v, Work&& work) {
    const Axis& cp = ctx.axes[AxisName::cp];
    const Halves halves(k, v);
    Tensor both = ctx.activation(1, halves.size());
    ctx.be.copy(halves.k(both), k);
    ctx.be.copy(halves.v(both), v);
    for (int step = 0; step < cp.size(); ++step) {
      Tensor next;
      Pending pending;
      if (step + 1 < cp.size()) {
        next = ctx.activation(1, halves.size());
        pending = cp.shift(both, next, 1, "K, V round the ring");
      }
      work(halves.k(both), halves.v(both), (cp.rank() - step + cp.size()) % cp.size());
      pending.wait();
      both = next;
    }
  }

  /// f(own run, its places, its rows, the keys' places, their rows) for the pairs of which some query sees some key.
  template <class F>
  static void for_pairs(Context& ctx, int64_t from, F&& f) {
    const MicroBatch& mb = *ctx.batch;
    const std::vector<Range> keys = context_runs(ctx.sequence, ctx.axes[AxisName::cp].size(), from);
    for (size_t i = 0; i < mb.runs.size(); ++i) {
      int64_t at = 0;
      for (const Range& run : keys) {
        const Range key_rows{at * mb.sequences, run.size * mb.sequences};
        at += run.size;
        if (run.begin <= mb.runs[i].begin) f(i, mb.runs[i], run_rows(mb, i), run, key_rows);
      }
    }
  }
};

}  // namespace

std::unique_ptr<ContextAttention> ring_attention() { return std::make_unique<Ring>(); }

}  // namespace orthant
