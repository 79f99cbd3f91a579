// A backend that knows shapes only: allocation counts, every operation checks its tensors and computes nothing.
//
// `plan` runs the program's own step on it, so that memory and traffic are the program's and not a formula's.
#pragma once

#include "orthant/backend.hpp"
#include "support/work_clock.hpp"

namespace orthant {

class MetaBackend : public Backend {
 public:
  MetaBackend() : alive_(std::make_shared<MemoryAccount*>(&account_)) {}
  ~MetaBackend() override { *alive_ = nullptr; }
  std::string name() const override { return "meta"; }
  std::string describe() const override { return "meta: shapes only, nothing is computed"; }
  bool shapes_only() const override { return true; }
  /// Products and attention take time on this clock.
  void times(std::shared_ptr<WorkClock> clock) { clock_ = std::move(clock); }

  /// Tensors without memory: data() is null.
  Tensor alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) override;
  void zero(const Tensor&) override {}
  void copy(const Tensor& dst, const Tensor& src) override;
  /// LogicError unless the tensor has no elements: ask shapes_only() first.
  void* host_begin(const Tensor& x) override;
  void host_end(const Tensor&) override {}
  void synchronize() override {}

  void gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
            const Tensor& bias = {}) override;
  void gemm_canonical(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c) override;
  void amax(const Tensor& x, const Tensor& out) override;
  void scale_from_amax(const Tensor& amax, DType format, int margin, const Tensor& scale) override;
  void quantize(const Tensor& x, const Tensor& scale, const Quantised& out) override;
  void quantize_blocks(const Tensor& x, BlockScale rule, const Quantised& out) override;
  void gemm_fp8(const Quantised& a, bool transpose_a, const Quantised& b, bool transpose_b, const Tensor& c, bool accumulate,
                const Tensor& bias = {}) override;

  void attention_forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                         const Tensor& lse) override;
  void attention_backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& o, const Tensor& lse, const Tensor& dq, const Tensor& dk,
                          const Tensor& dv) override;
  void attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_part, const Tensor& lse_part) override;

  void dropout(const Tensor& x, const Dropout& d, const Tensor& out) override;
  void norm_forward(NormKind kind, const Tensor& x, const Tensor& gain, const Tensor& bias, double eps,
                    const Tensor& y, const Tensor& stats) override;
  void norm_backward(NormKind kind, const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& stats,
                     const Tensor& residual, const Tensor& dx, const Tensor& d_gain, const Tensor& d_bias) override;
  void gelu_forward(const Tensor& x, const Tensor& y) override;
  void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) override;
  void swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y) override;
  void swiglu_backward(const Tensor& dy, const Tensor& gate, const Tensor& up, const Tensor& d_gate,
                       const Tensor& d_up) override;
  void add(const Tensor& a, const Tensor& b, const Tensor& out) override;
  void scale(const Tensor& x, double factor) override;
  void sum_rows(const Tensor& x, const Tensor& out) override;
  void row_squares(const Tensor& x, const Tensor& out) override;
  void rope(const Tensor& x, const RopeShape& s, const Tensor& positions, const Tensor& table, bool inverse) override;
  void scale_rows(const Tensor& x, const Tensor& factor, const Tensor& out) override;
  void row_dots(const Tensor& a, const Tensor& b, const Tensor& out) override;
  void router_forward(const RouterShape& s, const Tensor& logits, const Tensor& bias, const Tensor& chosen,
                      const Tensor& weights, const Tensor& shares) override;
  void router_backward(const RouterShape& s, const Tensor& logits, const Tensor& chosen, const Tensor& d_weights,
                       const Tensor& balance, double z, const Tensor& d_logits) override;
  void count_choices(const Tensor& chosen, const Tensor& counts) override;
  void gather_rows(const Tensor& x, const Tensor& index, const Tensor& out) override;
  void combine_rows(const Tensor& x, const Tensor& slot, const Tensor& out) override;

  void embedding_forward(const Tensor& ids, const Tensor& table, int64_t first, const Tensor& out) override;
  void embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, const Tensor& d_table) override;
  void row_max(const Tensor& logits, const Tensor& out) override;
  void row_sum_exp(const Tensor& logits, const Tensor& max, const Tensor& out) override;
  void pick(const Tensor& logits, const Tensor& labels, int64_t first, const Tensor& out) override;
  void softmax_backward(const Tensor& logits, const Tensor& max, const Tensor& sum, const Tensor& labels,
                        int64_t first, const Tensor& weight, double z, const Tensor& d_logits) override;

  void adamw(const AdamwStep& step, const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& grad,
             const Tensor& copy) override;
  void sgd(const SgdStep& step, const Tensor& p, const Tensor& velocity, const Tensor& grad,
           const Tensor& copy) override;

  void exact_add(const Tensor& x, const Tensor& sum) override;
  void exact_carry(const Tensor& sum) override;
  void exact_value(const Tensor& sum, const Tensor& out) override;
  void exact_embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, int64_t table_rows,
                                const Tensor& sum) override;
  bool exact_overflow() override { return false; }

 private:
  void takes(double flops) {
    if (clock_) clock_->operation(flops);
  }
  std::shared_ptr<MemoryAccount*> alive_;  // null once the backend is gone; tensors may end after it
  std::shared_ptr<WorkClock> clock_;
};

}  // namespace orthant
