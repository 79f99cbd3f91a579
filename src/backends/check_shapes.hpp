// What every operation demands of its tensors, in one place for cpu, debug and meta. LogicError naming the operation
// and the shapes. Names, arguments and meaning are those of Backend.
#pragma once

#include <initializer_list>

#include "orthant/backend.hpp"

namespace orthant::check {

/// The accumulation type of a compute type: f64 for f64, else f32.
inline DType accumulation(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

/// Bytes of a dense tensor; refuses negative and overflowing shapes.
int64_t bytes_of(DType dtype, int64_t rows, int64_t cols);
void copy(const Tensor& dst, const Tensor& src);
void host(const Tensor& x);

void gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
          const Tensor& bias);
void gemm_canonical(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c);

void amax(const Tensor& x, const Tensor& out);
void scale_from_amax(const Tensor& amax, DType format, const Tensor& scale);
void quantize(const Tensor& x, const Tensor& scale, const Quantised& out);
void quantize_blocks(const Tensor& x, const Quantised& out);
void gemm_fp8(const Quantised& a, bool transpose_a, const Quantised& b, bool transpose_b, const Tensor& c, const Tensor& bias);

void attention_forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                       const Tensor& lse);
void attention_backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& o, const Tensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv);

void attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_part, const Tensor& lse_part);

void dropout(const Tensor& x, const Dropout& d, const Tensor& out);
void norm_forward(NormKind kind, const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& y,
                  const Tensor& stats);
void norm_backward(NormKind kind, const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& stats,
                   const Tensor& residual, const Tensor& dx, const Tensor& d_gain, const Tensor& d_bias);
/// gelu and swiglu, forward and backward, and add: tensors of one shape and one type.
void same(const char* op, std::initializer_list<const Tensor*> tensors);
void add(const Tensor& a, const Tensor& b, const Tensor& out);
void sum_rows(const Tensor& x, const Tensor& out);
void row_squares(const Tensor& x, const Tensor& out);
void rope(const Tensor& x, const RopeShape& s, const Tensor& positions, const Tensor& table);
void scale_rows(const Tensor& x, const Tensor& factor, const Tensor& out);
void row_dots(const Tensor& a, const Tensor& b, const Tensor& out);

void router_forward(const RouterShape& s, const Tensor& logits, const Tensor& bias, const Tensor& chosen,
                    const Tensor& weights, const Tensor& shares);
void router_backward(const RouterShape& s, const Tensor& logits, const Tensor& chosen, const Tensor& d_weights,
                     const Tensor& balance, const Tensor& d_logits);
void count_choices(const Tensor& chosen, const Tensor& counts);
void gather_rows(const Tensor& x, const Tensor& index, const Tensor& out);
void combine_rows(const Tensor& x, const Tensor& slot, const Tensor& out);

void embedding_forward(const Tensor& ids, const Tensor& table, const Tensor& out);
void embedding_backward(const Tensor& ids, const Tensor& dy, const Tensor& d_table);
void row_max(const Tensor& logits, const Tensor& out);
void row_sum_exp(const Tensor& logits, const Tensor& max, const Tensor& out);
void pick(const Tensor& logits, const Tensor& labels, const Tensor& out);
void softmax_backward(const Tensor& logits, const Tensor& max, const Tensor& sum, const Tensor& labels,
                      const Tensor& weight, const Tensor& d_logits);

void adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& grad, const Tensor& copy);
void sgd(const Tensor& p, const Tensor& velocity, const Tensor& grad, const Tensor& copy);

void exact_add(const Tensor& x, const Tensor& sum);
void exact_sum(const char* op, const Tensor& sum);
void exact_value(const Tensor& sum, const Tensor& out);
void exact_embedding_backward(const Tensor& ids, const Tensor& dy, int64_t table_rows, const Tensor& sum);

}  // namespace orthant::check
