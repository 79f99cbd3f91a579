// The cpu backend on memory that only operations may touch: each operation opens what it was given, and closes it.
#include "backends/debug/debug_backend.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "backends/check_shapes.hpp"

namespace orthant {

struct DebugBackend::Shared {
  Arena arena;
  MemoryAccount* account;
};

/// Tensors open for the time of one operation.
class DebugBackend::Open {
 public:
  template <class... X>
  explicit Open(Shared& shared, const X&... x) : arena_(shared.arena), blocks_{block(x)...} {
    static_assert(sizeof...(X) <= most);
    for (GuardedStorage* b : blocks_)
      if (b) arena_.open(*b);
  }
  ~Open() {
    for (GuardedStorage* b : blocks_)
      if (b) arena_.close(*b);
  }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

 private:
  static constexpr size_t most = 11;  // attention_backward: nine, and two of its shape

  GuardedStorage* block(const Tensor& x) const {
    if (!x.storage()) return nullptr;
    ORTHANT_ENSURE(arena_.contains(x.storage()->data), "debug backend: the tensor belongs to another backend");
    return static_cast<GuardedStorage*>(x.storage().get());
  }
  Arena& arena_;
  std::array<GuardedStorage*, most> blocks_;
};

DebugBackend::DebugBackend() : shared_(std::make_shared<Shared>()) { shared_->account = &account_; }
DebugBackend::~DebugBackend() { shared_->account = nullptr; }

Tensor DebugBackend::alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) {
  const int64_t bytes = check::bytes_of(dtype, rows, cols);
  auto block = std::make_unique<GuardedStorage>();
  block->kind = kind;
  if (!shared_->arena.take(*block, bytes)) {
    throw FaultError("out of memory: the debug backend has no address space for a tensor of " +
                     std::to_string(bytes) + " bytes of kind " + name_of(kind) + "; in use:\n" +
                     account_table(account_));
  }
  account_.add(kind, bytes);
  std::shared_ptr<Storage> shared(block.release(), [owner = shared_](Storage* s) {
    auto* guarded = static_cast<GuardedStorage*>(s);
    if (owner->account) owner->account->remove(s->kind, s->bytes);
    owner->arena.give(*guarded);
    delete guarded;
  });
  const Tensor x(shared, shared->data, dtype, rows, cols, cols);
  const Open open(*shared_, x);
  std::memset(x.data(), 0xff, static_cast<size_t>(bytes));  // NaN in every floating type, -1 in integers
  return x;
}

void DebugBackend::zero(const Tensor& x) {
  const Open open(*shared_, x);
  CpuBackend::zero(x);
}
void DebugBackend::copy(const Tensor& dst, const Tensor& src) {
  const Open open(*shared_, dst, src);
  CpuBackend::copy(dst, src);
}
void* DebugBackend::host_begin(const Tensor& x) {
  check::host(x);
  if (x.storage()) shared_->arena.open(static_cast<GuardedStorage&>(*x.storage()));
  return x.data();
}
void DebugBackend::host_end(const Tensor& x) {
  if (!x.storage()) return;
  auto& block = static_cast<GuardedStorage&>(*x.storage());
  ORTHANT_ENSURE(block.users > 0, "host_end without host_begin");
  shared_->arena.close(block);
}

void DebugBackend::gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                        bool accumulate, const Tensor& bias) {
  const Open open(*shared_, a, b, c, bias);
  CpuBackend::gemm(a, transpose_a, b, transpose_b, c, accumulate, bias);
}
void DebugBackend::gemm_canonical(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                                  const Tensor& c) {
  const Open open(*shared_, a, b, c);
  CpuBackend::gemm_canonical(a, transpose_a, b, transpose_b, c);
}
void DebugBackend::amax(const Tensor& x, const Tensor& out) {
  const Open open(*shared_, x, out);
  CpuBackend::amax(x, out);
}
void DebugBackend::scale_from_amax(const Tensor& amax, DType format, int margin, const Tensor& scale) {
  const Open open(*shared_, amax, scale);
  CpuBackend::scale_from_amax(amax, format, margin, scale);
}
void DebugBackend::quantize(const Tensor& x, const Tensor& scale, const Quantised& out) {
  const Open open(*shared_, x, scale, out.q, out.inverse_scale);
  CpuBackend::quantize(x, scale, out);
}
void DebugBackend::quantize_blocks(const Tensor& x, BlockScale rule, const Quantised& out) {
  const Open open(*shared_, x, out.q, out.inverse_scale);
  CpuBackend::quantize_blocks(x, rule, out);
}
void DebugBackend::gemm_fp8(const Quantised& a, bool transpose_a, const Quantised& b, bool transpose_b, const Tensor& c, bool accumulate,
                            const Tensor& bias) {
  const Open open(*shared_, a.q, a.inverse_scale, b.q, b.inverse_scale, c, bias);
  CpuBackend::gemm_fp8(a, transpose_a, b, transpose_b, c, accumulate, bias);
}
void DebugBackend::attention_forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& o, const Tensor& lse) {
  const Open open(*shared_, q, k, v, o, lse, s.starts, s.dropout.tokens);
  CpuBackend::attention_forward(s, q, k, v, o, lse);
}
void DebugBackend::attention_backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k,
                                      const Tensor& v, const Tensor& o, const Tensor& lse, const Tensor& dq,
                                      const Tensor& dk, const Tensor& dv) {
  const Open open(*shared_, d_o, q, k, v, o, lse, dq, dk, dv, s.starts, s.dropout.tokens);
  CpuBackend::attention_backward(s, d_o, q, k, v, o, lse, dq, dk, dv);
}
void DebugBackend::attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_part, const Tensor& lse_part) {
  const Open open(*shared_, o, lse, o_part, lse_part);
  CpuBackend::attention_merge(o, lse, o_part, lse_part);
}
void DebugBackend::dropout(const Tensor& x, const Dropout& d, const Tensor& out) {
  const Open open(*shared_, x, d.tokens, out);
  CpuBackend::dropout(x, d, out);
}
void DebugBackend::norm_forward(NormKind kind, const Tensor& x, const Tensor& gain, const Tensor& bias, double eps,
                                const Tensor& y, const Tensor& stats) {
  const Open open(*shared_, x, gain, bias, y, stats);
  CpuBackend::norm_forward(kind, x, gain, bias, eps, y, stats);
}
void DebugBackend::norm_backward(NormKind kind, const Tensor& dy, const Tensor& x, const Tensor& gain,
                                 const Tensor& stats, const Tensor& residual, const Tensor& dx, const Tensor& d_gain,
                                 const Tensor& d_bias) {
  const Open open(*shared_, dy, x, gain, stats, residual, dx, d_gain, d_bias);
  CpuBackend::norm_backward(kind, dy, x, gain, stats, residual, dx, d_gain, d_bias);
}
void DebugBackend::gelu_forward(const Tensor& x, const Tensor& y) {
  const Open open(*shared_, x, y);
  CpuBackend::gelu_forward(x, y);
}
void DebugBackend::gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) {
  const Open open(*shared_, dy, x, dx);
  CpuBackend::gelu_backward(dy, x, dx);
}
void DebugBackend::swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y) {
  const Open open(*shared_, gate, up, y);
  CpuBackend::swiglu_forward(gate, up, y);
}
void DebugBackend::swiglu_backward(const Tensor& dy, const Tensor& gate, const Tensor& up, const Tensor& d_gate,
                                   const Tensor& d_up) {
  const Open open(*shared_, dy, gate, up, d_gate, d_up);
  CpuBackend::swiglu_backward(dy, gate, up, d_gate, d_up);
}
void DebugBackend::add(const Tensor& a, const Tensor& b, const Tensor& out) {
  const Open open(*shared_, a, b, out);
  CpuBackend::add(a, b, out);
}
void DebugBackend::scale(const Tensor& x, double factor) {
  const Open open(*shared_, x);
  CpuBackend::scale(x, factor);
}
void DebugBackend::sum_rows(const Tensor& x, const Tensor& out) {
  const Open open(*shared_, x, out);
  CpuBackend::sum_rows(x, out);
}
void DebugBackend::row_squares(const Tensor& x, const Tensor& out) {
  const Open open(*shared_, x, out);
  CpuBackend::row_squares(x, out);
}
void DebugBackend::rope(const Tensor& x, const RopeShape& s, const Tensor& positions, const Tensor& table,
                        bool inverse) {
  const Open open(*shared_, x, positions, table);
  CpuBackend::rope(x, s, positions, table, inverse);
}
void DebugBackend::scale_rows(const Tensor& x, const Tensor& factor, const Tensor& out) {
  const Open open(*shared_, x, factor, out);
  CpuBackend::scale_rows(x, factor, out);
}
void DebugBackend::row_dots(const Tensor& a, const Tensor& b, const Tensor& out) {
  const Open open(*shared_, a, b, out);
  CpuBackend::row_dots(a, b, out);
}
void DebugBackend::router_forward(const RouterShape& s, const Tensor& logits, const Tensor& bias,
                                  const Tensor& chosen, const Tensor& weights, const Tensor& shares) {
  const Open open(*shared_, logits, bias, chosen, weights, shares);
  CpuBackend::router_forward(s, logits, bias, chosen, weights, shares);
}
void DebugBackend::router_backward(const RouterShape& s, const Tensor& logits, const Tensor& chosen,
                                   const Tensor& d_weights, const Tensor& balance, double z, const Tensor& d_logits) {
  const Open open(*shared_, logits, chosen, d_weights, balance, d_logits);
  CpuBackend::router_backward(s, logits, chosen, d_weights, balance, z, d_logits);
}
void DebugBackend::count_choices(const Tensor& chosen, const Tensor& counts) {
  const Open open(*shared_, chosen, counts);
  CpuBackend::count_choices(chosen, counts);
}
void DebugBackend::gather_rows(const Tensor& x, const Tensor& index, const Tensor& out) {
  const Open open(*shared_, x, index, out);
  CpuBackend::gather_rows(x, index, out);
}
void DebugBackend::combine_rows(const Tensor& x, const Tensor& slot, const Tensor& out) {
  const Open open(*shared_, x, slot, out);
  CpuBackend::combine_rows(x, slot, out);
}
void DebugBackend::embedding_forward(const Tensor& ids, const Tensor& table, int64_t first, const Tensor& out) {
  const Open open(*shared_, ids, table, out);
  CpuBackend::embedding_forward(ids, table, first, out);
}
void DebugBackend::embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, const Tensor& d_table) {
  const Open open(*shared_, ids, dy, d_table);
  CpuBackend::embedding_backward(ids, dy, first, d_table);
}
void DebugBackend::row_max(const Tensor& logits, const Tensor& out) {
  const Open open(*shared_, logits, out);
  CpuBackend::row_max(logits, out);
}
void DebugBackend::row_sum_exp(const Tensor& logits, const Tensor& max, const Tensor& out) {
  const Open open(*shared_, logits, max, out);
  CpuBackend::row_sum_exp(logits, max, out);
}
void DebugBackend::pick(const Tensor& logits, const Tensor& labels, int64_t first, const Tensor& out) {
  const Open open(*shared_, logits, labels, out);
  CpuBackend::pick(logits, labels, first, out);
}
void DebugBackend::softmax_backward(const Tensor& logits, const Tensor& max, const Tensor& sum, const Tensor& labels,
                                    int64_t first, const Tensor& weight, double z, const Tensor& d_logits) {
  const Open open(*shared_, logits, max, sum, labels, weight, d_logits);
  CpuBackend::softmax_backward(logits, max, sum, labels, first, weight, z, d_logits);
}
void DebugBackend::adamw(const AdamwStep& step, const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& grad,
                         const Tensor& copy) {
  const Open open(*shared_, p, m, v, grad, copy);
  CpuBackend::adamw(step, p, m, v, grad, copy);
}
void DebugBackend::sgd(const SgdStep& step, const Tensor& p, const Tensor& velocity, const Tensor& grad,
                       const Tensor& copy) {
  const Open open(*shared_, p, velocity, grad, copy);
  CpuBackend::sgd(step, p, velocity, grad, copy);
}
void DebugBackend::exact_add(const Tensor& x, const Tensor& sum) {
  const Open open(*shared_, x, sum);
  CpuBackend::exact_add(x, sum);
}
void DebugBackend::exact_carry(const Tensor& sum) {
  const Open open(*shared_, sum);
  CpuBackend::exact_carry(sum);
}
void DebugBackend::exact_value(const Tensor& sum, const Tensor& out) {
  const Open open(*shared_, sum, out);
  CpuBackend::exact_value(sum, out);
}
void DebugBackend::exact_embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, int64_t table_rows,
                                            const Tensor& sum) {
  const Open open(*shared_, ids, dy, sum);
  CpuBackend::exact_embedding_backward(ids, dy, first, table_rows, sum);
}

}  // namespace orthant
