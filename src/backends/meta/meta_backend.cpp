// A backend that knows shapes only: allocation counts, every operation checks its tensors and computes nothing.
#include "backends/meta/meta_backend.hpp"

#include <algorithm>

#include "backends/check_shapes.hpp"

namespace orthant {

namespace {

double product_flops(const Tensor& a, bool transpose_a, const Tensor& c) {
  return 2.0 * static_cast<double>(c.size()) * static_cast<double>(transpose_a ? a.rows() : a.cols());
}

/// Queries times the keys they see, over heads and sequences, without regard to documents.
double seen_pairs(const AttentionShape& s) {
  double pairs = 0;
  for (int64_t i = 0; i < s.q_length; ++i) pairs += static_cast<double>(std::clamp<int64_t>(s.q_begin + i - s.k_begin + 1, 0, s.k_length));
  return pairs * static_cast<double>(s.heads * s.batch);
}

}  // namespace

Tensor MetaBackend::alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) {
  auto storage = std::make_unique<Storage>();
  storage->bytes = check::bytes_of(dtype, rows, cols);
  storage->kind = kind;
  account_.add(kind, storage->bytes);
  std::shared_ptr<Storage> shared(storage.release(), [alive = alive_](Storage* s) {
    if (*alive) (*alive)->remove(s->kind, s->bytes);
    delete s;
  });
  return Tensor(std::move(shared), nullptr, dtype, rows, cols, cols);
}

void MetaBackend::copy(const Tensor& dst, const Tensor& src) { check::copy(dst, src); }

void* MetaBackend::host_begin(const Tensor& x) {
  check::host(x);
  ORTHANT_ENSURE(x.size() == 0, "host access to a tensor of the meta backend, which has shapes and no numbers");
  return nullptr;
}

void MetaBackend::gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                       bool accumulate, const Tensor& bias) {
  check::gemm(a, transpose_a, b, transpose_b, c, accumulate, bias);
  takes(product_flops(a, transpose_a, c));
}
void MetaBackend::gemm_canonical(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                                 const Tensor& c) {
  check::gemm_canonical(a, transpose_a, b, transpose_b, c);
  takes(product_flops(a, transpose_a, c));
}

void MetaBackend::amax(const Tensor& x, const Tensor& out) { check::amax(x, out); }
void MetaBackend::scale_from_amax(const Tensor& amax, DType format, int, const Tensor& scale) { check::scale_from_amax(amax, format, scale); }
void MetaBackend::quantize(const Tensor& x, const Tensor& scale, const Quantised& out) { check::quantize(x, scale, out); }
void MetaBackend::quantize_blocks(const Tensor& x, BlockScale, const Quantised& out) { check::quantize_blocks(x, out); }
void MetaBackend::gemm_fp8(const Quantised& a, bool transpose_a, const Quantised& b, bool transpose_b, const Tensor& c, bool,
                           const Tensor& bias) {
  check::gemm_fp8(a, transpose_a, b, transpose_b, c, bias);
  takes(product_flops(a.q, transpose_a, c));
}

void MetaBackend::attention_forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& o, const Tensor& lse) {
  check::attention_forward(s, q, k, v, o, lse);
  takes(2 * seen_pairs(s) * static_cast<double>(s.head_dim + s.value_dim()));
}
void MetaBackend::attention_backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& o, const Tensor& lse, const Tensor& dq,
                                     const Tensor& dk, const Tensor& dv) {
  check::attention_backward(s, d_o, q, k, v, o, lse, dq, dk, dv);
  takes(2 * seen_pairs(s) * static_cast<double>(3 * s.head_dim + 2 * s.value_dim()));  // the scores again, dP, dV; dQ, dK
}

void MetaBackend::attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_part, const Tensor& lse_part) {
  check::attention_merge(o, lse, o_part, lse_part);
}

void MetaBackend::dropout(const Tensor& x, const Dropout& d, const Tensor& out) { check::dropout(x, d, out); }
void MetaBackend::norm_forward(NormKind kind, const Tensor& x, const Tensor& gain, const Tensor& bias, double,
                               const Tensor& y, const Tensor& stats) {
  check::norm_forward(kind, x, gain, bias, y, stats);
}
void MetaBackend::norm_backward(NormKind kind, const Tensor& dy, const Tensor& x, const Tensor& gain,
                                const Tensor& stats, const Tensor& residual, const Tensor& dx, const Tensor& d_gain,
                                const Tensor& d_bias) {
  check::norm_backward(kind, dy, x, gain, stats, residual, dx, d_gain, d_bias);
}
void MetaBackend::gelu_forward(const Tensor& x, const Tensor& y) { check::same("gelu_forward", {&x, &y}); }
void MetaBackend::gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) {
  check::same("gelu_backward", {&dy, &x, &dx});
}
void MetaBackend::swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y) {
  check::same("swiglu_forward", {&gate, &up, &y});
}
void MetaBackend::swiglu_backward(const Tensor& dy, const Tensor& gate, const Tensor& up, const Tensor& d_gate,
                                  const Tensor& d_up) {
  check::same("swiglu_backward", {&dy, &gate, &up, &d_gate, &d_up});
}
void MetaBackend::add(const Tensor& a, const Tensor& b, const Tensor& out) { check::add(a, b, out); }
void MetaBackend::scale(const Tensor& x, double) { check::same("scale", {&x}); }
void MetaBackend::sum_rows(const Tensor& x, const Tensor& out) { check::sum_rows(x, out); }
void MetaBackend::row_squares(const Tensor& x, const Tensor& out) { check::row_squares(x, out); }
void MetaBackend::rope(const Tensor& x, const RopeShape& s, const Tensor& positions, const Tensor& table, bool) {
  check::rope(x, s, positions, table);
}
void MetaBackend::scale_rows(const Tensor& x, const Tensor& factor, const Tensor& out) {
  check::scale_rows(x, factor, out);
}
void MetaBackend::row_dots(const Tensor& a, const Tensor& b, const Tensor& out) { check::row_dots(a, b, out); }

void MetaBackend::router_forward(const RouterShape& s, const Tensor& logits, const Tensor& bias, const Tensor& chosen,
                                 const Tensor& weights, const Tensor& shares) {
  check::router_forward(s, logits, bias, chosen, weights, shares);
}
void MetaBackend::router_backward(const RouterShape& s, const Tensor& logits, const Tensor& chosen,
                                  const Tensor& d_weights, const Tensor& balance, double, const Tensor& d_logits) {
  check::router_backward(s, logits, chosen, d_weights, balance, d_logits);
}
void MetaBackend::count_choices(const Tensor& chosen, const Tensor& counts) { check::count_choices(chosen, counts); }
void MetaBackend::gather_rows(const Tensor& x, const Tensor& index, const Tensor& out) {
  check::gather_rows(x, index, out);
}
void MetaBackend::combine_rows(const Tensor& x, const Tensor& slot, const Tensor& out) {
  check::combine_rows(x, slot, out);
}

void MetaBackend::embedding_forward(const Tensor& ids, const Tensor& table, int64_t, const Tensor& out) {
  check::embedding_forward(ids, table, out);
}
void MetaBackend::embedding_backward(const Tensor& ids, const Tensor& dy, int64_t, const Tensor& d_table) {
  check::embedding_backward(ids, dy, d_table);
}
void MetaBackend::row_max(const Tensor& logits, const Tensor& out) { check::row_max(logits, out); }
void MetaBackend::row_sum_exp(const Tensor& logits, const Tensor& max, const Tensor& out) {
  check::row_sum_exp(logits, max, out);
}
void MetaBackend::pick(const Tensor& logits, const Tensor& labels, int64_t, const Tensor& out) {
  check::pick(logits, labels, out);
}
void MetaBackend::softmax_backward(const Tensor& logits, const Tensor& max, const Tensor& sum, const Tensor& labels,
                                   int64_t, const Tensor& weight, double, const Tensor& d_logits) {
  check::softmax_backward(logits, max, sum, labels, weight, d_logits);
}

void MetaBackend::adamw(const AdamwStep&, const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& grad,
                        const Tensor& copy) {
  check::adamw(p, m, v, grad, copy);
}
void MetaBackend::sgd(const SgdStep&, const Tensor& p, const Tensor& velocity, const Tensor& grad,
                      const Tensor& copy) {
  check::sgd(p, velocity, grad, copy);
}

void MetaBackend::exact_add(const Tensor& x, const Tensor& sum) { check::exact_add(x, sum); }
void MetaBackend::exact_carry(const Tensor& sum) { check::exact_sum("exact_carry", sum); }
void MetaBackend::exact_value(const Tensor& sum, const Tensor& out) { check::exact_value(sum, out); }
void MetaBackend::exact_embedding_backward(const Tensor& ids, const Tensor& dy, int64_t, int64_t table_rows,
                                           const Tensor& sum) {
  check::exact_embedding_backward(ids, dy, table_rows, sum);
}

}  // namespace orthant
