// What every operation demands of its tensors. A mismatch is a programmer's mistake: LogicError with the shapes.
#include "backends/check_shapes.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace orthant::check {
namespace {

bool is_compute(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::f16 || t == DType::f64; }
bool is_index(DType t) { return t == DType::i32 || t == DType::i64; }

std::string shape(const Tensor& x) {
  return std::string(name_of(x.dtype())) + " [" + std::to_string(x.rows()) + ", " + std::to_string(x.cols()) + "]" +
         (x.dense() ? "" : " ld " + std::to_string(x.ld()));
}

/// The operation and its tensors; text is made only when something is wrong.
class Op {
 public:
  Op(const char* name, std::initializer_list<const Tensor*> tensors) : name_(name), count_(tensors.size()) {
    std::copy(tensors.begin(), tensors.end(), tensors_.begin());
  }
  void need(bool condition, const char* what) const {
    if (condition) return;
    std::string text = std::string(name_) + ": " + what + "; tensors in order:";
    for (size_t i = 0; i < count_; ++i) text.append(" ").append(shape(*tensors_[i]));
    throw LogicError(text);
  }
  void shape_is(const Tensor& x, int64_t rows, int64_t cols, const char* what) const {
    need(x.rows() == rows && x.cols() == cols, what);
  }

 private:
  const char* name_;
  size_t count_;
  std::array<const Tensor*, 11> tensors_;  // the widest operation, attention_backward, has nine and two of its shape
};

bool is_fp8(DType t) { return t == DType::f8e4m3 || t == DType::f8e5m2; }
bool is_quantisable(const Tensor& x) { return x.dtype() == DType::f32 || x.dtype() == DType::bf16; }
bool is_number(const Tensor& x) { return x.dtype() == DType::f32 && x.rows() == 1 && x.cols() == 1; }

void quantised(const Op& op, const Quantised& x) {
  op.need(is_fp8(x.q.dtype()), "q must be f8e4m3 or f8e5m2");
  op.need(x.inverse_scale.dtype() == DType::f32, "scales must be f32");
  op.need(x.block_rows >= 0 && (x.block_rows > 0) == (x.block_cols > 0), "a block has rows and columns, or neither");
  const auto blocks = [](int64_t n, int64_t block) { return block == 0 ? 1 : (n + block - 1) / block; };
  op.shape_is(x.inverse_scale, blocks(x.q.rows(), x.block_rows), blocks(x.q.cols(), x.block_cols), "scales must be [blocks of rows, blocks of columns]");
}

void drops(const Op& op, const Dropout& d, int64_t rows) {
  op.need(d.rate >= 0 && d.rate < 1, "the dropout rate must lie in [0, 1)");
  if (d.rate == 0) return;
  op.need(d.tokens.dtype() == DType::i64, "the tokens of dropout must be i64");
  op.shape_is(d.tokens, rows, 1, "the tokens of dropout must be [rows, 1]");
}

/// The tensors of attention that forward and backward share.
void attention(const Op& op, const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& o, const Tensor& lse) {
  op.need(s.batch > 0 && s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 && s.q_length >= 0 && s.k_length >= 0 &&
              s.v_dim >= 0,
          "batch, heads, kv_heads and head_dim must be positive, v_dim not negative");
  op.need(s.heads % s.kv_heads == 0, "heads must be a multiple of kv_heads");
  op.need(is_compute(q.dtype()), "q must be f32, bf16, f16 or f64");
  op.need(k.dtype() == q.dtype() && v.dtype() == q.dtype(), "q, k and v differ in type");
  op.need(lse.dtype() == accumulation(q.dtype()), "lse must be of the accumulation type");
  op.shape_is(q, s.q_length * s.batch, s.heads * s.head_dim, "q must be [q_length * batch, heads * head_dim]");
  op.shape_is(k, s.k_length * s.batch, s.kv_heads * s.head_dim, "k must be [k_length * batch, kv_heads * head_dim]");
  op.shape_is(v, k.rows(), s.kv_heads * s.value_dim(), "v must be [k_length * batch, kv_heads * value_dim]");
  op.shape_is(o, q.rows(), s.heads * s.value_dim(), "o must be [q_length * batch, heads * value_dim]");
  op.shape_is(lse, q.rows(), s.heads, "lse must be [q_length * batch, heads]");
  if (s.starts) {
    op.need(s.starts.dtype() == DType::i32, "starts must be i32");
    op.shape_is(s.starts, q.rows(), 1, "starts must be [q_length * batch, 1]");
  }
  drops(op, s.dropout, q.rows());
  if (s.dropout.rate == 0) return;
  op.need(s.first_head >= 0 && s.first_head + s.heads <= s.all_heads, "dropout: the heads are not among all_heads");
  op.need(s.k_begin >= 0 && s.k_begin + s.k_length <= s.sequence, "dropout: the keys are not inside the sequence");
}

/// c [M, N] = op(a) op(b).
void product(const Op& op, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c) {
  const int64_t m = transpose_a ? a.cols() : a.rows(), k = transpose_a ? a.rows() : a.cols();
  const int64_t kb = transpose_b ? b.cols() : b.rows(), n = transpose_b ? b.rows() : b.cols();
  op.need(is_compute(a.dtype()), "a must be f32, bf16, f16 or f64");
  op.need(a.dtype() == b.dtype(), "a and b differ in type");
  op.need(k == kb,
          transpose_a ? (transpose_b ? "rows of a must equal columns of b" : "rows of a must equal rows of b")
                      : (transpose_b ? "columns of a must equal columns of b" : "columns of a must equal rows of b"));
  op.shape_is(c, m, n, "c has not the shape of the product");
}

}  // namespace

int64_t bytes_of(DType dtype, int64_t rows, int64_t cols) {
  int64_t bytes = 0;
  const bool fits = rows >= 0 && cols >= 0 && !__builtin_mul_overflow(rows, cols, &bytes) &&
                    !__builtin_mul_overflow(bytes, size_of(dtype), &bytes);
  if (!fits)
    throw LogicError("alloc: no tensor has the shape [" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
  return bytes;
}

void copy(const Tensor& dst, const Tensor& src) {
  const Op op("copy", {&dst, &src});
  op.shape_is(dst, src.rows(), src.cols(), "destination and source differ in shape");
  op.need(dst.dtype() == src.dtype() || (is_compute(dst.dtype()) && is_compute(src.dtype())),
          "no conversion between these types");
}

void host(const Tensor& x) { Op("host access", {&x}).need(x.dense(), "the tensor must be dense"); }

void gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool,
          const Tensor& bias) {
  const Op op("gemm", {&a, &b, &c, &bias});
  product(op, a, transpose_a, b, transpose_b, c);
  op.need(c.dtype() == a.dtype() || c.dtype() == accumulation(a.dtype()),
          "c must be of the type of a or its accumulation type");
  if (!bias) return;
  op.shape_is(bias, 1, c.cols(), "bias must be [1, N]");
  op.need(bias.dtype() == a.dtype(), "bias must be of the type of a");
}

void gemm_canonical(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c) {
  const Op op("gemm_canonical", {&a, &b, &c});
  product(op, a, transpose_a, b, transpose_b, c);
  op.need(c.dtype() == accumulation(a.dtype()), "c must be of the accumulation type");
}

void amax(const Tensor& x, const Tensor& out) {
  const Op op("amax", {&x, &out});
  op.need(is_quantisable(x), "x must be f32 or bf16");
  op.need(is_number(out), "out must be f32 [1, 1]");
}

void scale_from_amax(const Tensor& amax, DType format, int, const Tensor& scale) {
  const Op op("scale_from_amax", {&amax, &scale});
  op.need(is_fp8(format), "the format must be f8e4m3 or f8e5m2");
  op.need(is_number(amax) && is_number(scale), "amax and scale must be f32 [1, 1]");
}

void quantize(const Tensor& x, const Tensor& scale, const Quantised& out) {
  const Op op("quantize", {&x, &scale, &out.q, &out.inverse_scale});
  op.need(is_quantisable(x), "x must be f32 or bf16");
  op.need(is_number(scale), "scale must be f32 [1, 1]");
  op.shape_is(out.q, x.rows(), x.cols(), "q must have the shape of x");
  quantised(op, out);
  op.need(out.block_rows == 0, "one scale serves the whole matrix: blocks of 0 x 0");
}

void quantize_blocks(const Tensor& x, BlockScale, const Quantised& out) {
  const Op op("quantize_blocks", {&x, &out.q, &out.inverse_scale});
  op.need(is_quantisable(x), "x must be f32 or bf16");
  op.shape_is(out.q, x.rows(), x.cols(), "q must have the shape of x");
  quantised(op, out);
  op.need(out.block_rows > 0, "blocks need a size");
}

void gemm_fp8(const Quantised& a, bool transpose_a, const Quantised& b, bool transpose_b, const Tensor& c, bool,
              const Tensor& bias) {
  const Op op("gemm_fp8", {&a.q, &a.inverse_scale, &b.q, &b.inverse_scale, &c, &bias});
  quantised(op, a);
  quantised(op, b);
  const int64_t m = transpose_a ? a.q.cols() : a.q.rows(), k = transpose_a ? a.q.rows() : a.q.cols();
  const int64_t kb = transpose_b ? b.q.cols() : b.q.rows(), n = transpose_b ? b.q.rows() : b.q.cols();
  op.need(k == kb, "the contracted dims of a and b differ");
  op.shape_is(c, m, n, "c must be [M, N]");
  op.need(is_quantisable(c), "c must be f32 or bf16");
  op.need((a.block_rows == 0) == (b.block_rows == 0), "both matrices have scales of blocks, or none");
  if (a.block_rows > 0) {
    const int64_t of_a = transpose_a ? a.block_rows : a.block_cols, of_b = transpose_b ? b.block_cols : b.block_rows;
    op.need(of_a == of_b || k <= std::min(of_a, of_b), "blocks of a and b differ along the contracted dim");
  }
  if (!bias) return;
  op.shape_is(bias, 1, n, "bias must be [1, N]");
  op.need(bias.dtype() == c.dtype() || bias.dtype() == DType::bf16, "bias must be of the type of c, or bf16");
}

void attention_forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                       const Tensor& lse) {
  const Op op("attention_forward", {&q, &k, &v, &o, &lse, &s.starts, &s.dropout.tokens});
  attention(op, s, q, k, v, o, lse);
  op.need(o.dtype() == q.dtype() || o.dtype() == lse.dtype(), "o must be of the type of q or of its accumulation type");
}

void attention_backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& o, const Tensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  const Op op("attention_backward", {&d_o, &q, &k, &v, &o, &lse, &dq, &dk, &dv, &s.starts, &s.dropout.tokens});
  attention(op, s, q, k, v, o, lse);
  op.need(o.dtype() == q.dtype() && d_o.dtype() == q.dtype(), "o and d_o must be of the type of q");
  for (const Tensor* t : {&dq, &dk, &dv})
    op.need(t->dtype() == q.dtype() || t->dtype() == lse.dtype(),
            "dq, dk and dv must be of the type of q or of its accumulation type");
  op.shape_is(d_o, o.rows(), o.cols(), "d_o must have the shape of o");
  op.shape_is(dq, q.rows(), q.cols(), "dq must have the shape of q");
  op.need(dk.rows() == k.rows() && (dk.cols() == k.cols() || dk.cols() == s.heads * s.head_dim),
          "dk must have the shape of k, or be heads * head_dim wide");
  op.shape_is(dv, v.rows(), (dk.cols() == k.cols() ? s.kv_heads : s.heads) * s.value_dim(),
              "dv must have the shape of v, or be heads * value_dim wide where dk is heads * head_dim wide");
}

void attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_part, const Tensor& lse_part) {
  const Op op("attention_merge", {&o, &lse, &o_part, &lse_part});
  op.need(o.dtype() == DType::f32 || o.dtype() == DType::f64, "o must be of an accumulation type");
  for (const Tensor* t : {&lse, &o_part, &lse_part}) op.need(t->dtype() == o.dtype(), "the parts differ in type");
  op.need(lse.rows() == o.rows() && lse.cols() > 0 && o.cols() % lse.cols() == 0,
          "o must be [rows, heads * value_dim], lse [rows, heads]");
  op.shape_is(o_part, o.rows(), o.cols(), "o_part must have the shape of o");
  op.shape_is(lse_part, lse.rows(), lse.cols(), "lse_part must have the shape of lse");
}

void dropout(const Tensor& x, const Dropout& d, const Tensor& out) {
  const Op op("dropout", {&x, &out, &d.tokens});
  op.need(is_compute(x.dtype()) && out.dtype() == x.dtype(), "x and out must be of one type, f32, bf16, f16 or f64");
  op.shape_is(out, x.rows(), x.cols(), "out must have the shape of x");
  drops(op, d, x.rows());
}

void norm_forward(NormKind, const Tensor& x, const Tensor& gain, const Tensor& bias, double, const Tensor& y,
                  const Tensor& stats) {
  const Op op("norm_forward", {&x, &gain, &bias, &y, &stats});
  op.need(is_compute(x.dtype()) && y.dtype() == x.dtype() && gain.dtype() == x.dtype(),
          "x, gain and y must be of one type");
  op.shape_is(y, x.rows(), x.cols(), "y must have the shape of x");
  op.shape_is(gain, 1, x.cols(), "gain must be [1, columns of x]");
  if (bias) op.shape_is(bias, 1, x.cols(), "bias must be [1, columns of x]");
  op.shape_is(stats, x.rows(), 2, "stats must be [rows, 2]");
  op.need(stats.dtype() == accumulation(x.dtype()), "stats must be of the accumulation type");
}

void norm_backward(NormKind, const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& stats,
                   const Tensor& residual, const Tensor& dx, const Tensor& d_gain, const Tensor& d_bias) {
  const Op op("norm_backward", {&dy, &x, &gain, &stats, &residual, &dx, &d_gain, &d_bias});
  op.need(is_compute(x.dtype()) && dy.dtype() == x.dtype() && dx.dtype() == x.dtype() && gain.dtype() == x.dtype(),
          "dy, x, gain and dx must be of one type");
  op.shape_is(dy, x.rows(), x.cols(), "dy must have the shape of x");
  op.shape_is(dx, x.rows(), x.cols(), "dx must have the shape of x");
  if (residual) op.shape_is(residual, x.rows(), x.cols(), "residual must have the shape of x");
  op.shape_is(gain, 1, x.cols(), "gain must be [1, columns of x]");
  op.shape_is(stats, x.rows(), 2, "stats must be [rows, 2]");
  const DType a = accumulation(x.dtype());
  op.need(stats.dtype() == a, "stats must be of the accumulation type");
  op.shape_is(d_gain, 1, x.cols(), "d_gain must be [1, columns of x]");
  op.need(d_gain.dtype() == a, "d_gain must be of the accumulation type");
  if (!d_bias) return;
  op.shape_is(d_bias, 1, x.cols(), "d_bias must be [1, columns of x]");
  op.need(d_bias.dtype() == a, "d_bias must be of the accumulation type");
}

namespace {
/// Tensors of one shape and one type.
void same(const char* name, std::initializer_list<const Tensor*> tensors) {
  const Op op(name, tensors);
  const Tensor& first = **tensors.begin();
  op.need(is_compute(first.dtype()), "tensors must be f32, bf16, f16 or f64");
  for (const Tensor* t : tensors) {
    op.shape_is(*t, first.rows(), first.cols(), "tensors must be of one shape");
    op.need(t->dtype() == first.dtype(), "tensors must be of one type");
  }
}
}  // namespace

void gelu_forward(const Tensor& x, const Tensor& y) { same("gelu_forward", {&x, &y}); }
void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) { same("gelu_backward", {&dy, &x, &dx}); }
void swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y) {
  same("swiglu_forward", {&gate, &up, &y});
}
void swiglu_backward(const Tensor& dy, const Tensor& gate, const Tensor& up, const Tensor& d_gate,
                     const Tensor& d_up) {
  same("swiglu_backward", {&dy, &gate, &up, &d_gate, &d_up});
}
void scale(const Tensor& x, double) { same("scale", {&x}); }

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  const Op op("add", {&a, &b, &out});
  const bool integers = a.dtype() == DType::i64 && b.dtype() == DType::i64 && out.dtype() == DType::i64;
  op.need(integers || (is_compute(a.dtype()) && is_compute(b.dtype()) && is_compute(out.dtype())),
          "tensors must be of floating types, or all i64");
  op.shape_is(b, a.rows(), a.cols(), "a and b differ in shape");
  op.shape_is(out, a.rows(), a.cols(), "out must have the shape of a");
}

void sum_rows(const Tensor& x, const Tensor& out) {
  const Op op("sum_rows", {&x, &out});
  op.need(is_compute(x.dtype()) && out.dtype() == accumulation(x.dtype()),
          "out must be of the accumulation type of x");
  op.shape_is(out, 1, x.cols(), "out must be [1, columns of x]");
}

void row_squares(const Tensor& x, const Tensor& out) {
  const Op op("row_squares", {&x, &out});
  op.need(is_compute(x.dtype()) && out.dtype() == DType::f64, "out must be f64");
  op.shape_is(out, x.rows(), 1, "out must be [rows of x, 1]");
}

void rope(const Tensor& x, const RopeShape& s, const Tensor& positions, const Tensor& table, bool) {
  const Op op("rope", {&x, &positions, &table});
  op.need(is_compute(x.dtype()) && table.dtype() == accumulation(x.dtype()),
          "table must be of the accumulation type of x");
  op.need(s.width > 0 && s.width % 2 == 0, "the width of a head must be even");
  const int64_t stride = s.stride == 0 ? s.width : s.stride;
  op.need(stride >= s.width, "heads overlap: the stride must not be below the width");
  op.need(s.heads > 0 && x.cols() >= (s.heads - 1) * stride + s.width,
          "x must be at least (heads - 1) * stride + width wide");
  op.need(positions.dtype() == DType::i32 && positions.size() == x.rows(), "positions must be i32, one a row of x");
  op.need(table.cols() == s.width, "table must be as wide as a head");
}

void scale_rows(const Tensor& x, const Tensor& factor, const Tensor& out) {
  const Op op("scale_rows", {&x, &factor, &out});
  op.need(is_compute(x.dtype()) && out.dtype() == x.dtype(), "x and out must be of one type, f32, bf16, f16 or f64");
  op.shape_is(out, x.rows(), x.cols(), "out must have the shape of x");
  op.need(factor.dtype() == accumulation(x.dtype()), "factor must be of the accumulation type of x");
  op.shape_is(factor, x.rows(), 1, "factor must be [rows of x, 1]");
}

void row_dots(const Tensor& a, const Tensor& b, const Tensor& out) {
  const Op op("row_dots", {&a, &b, &out});
  op.need(is_compute(a.dtype()) && b.dtype() == a.dtype(), "a and b must be of one type, f32, bf16, f16 or f64");
  op.shape_is(b, a.rows(), a.cols(), "a and b differ in shape");
  op.need(out.dtype() == DType::f64, "out must be f64");
  op.shape_is(out, a.rows(), 1, "out must be [rows of a, 1]");
}

namespace {
void router(const Op& op, const RouterShape& s, const Tensor& logits, const Tensor& chosen) {
  op.need(logits.dtype() == DType::f32 || logits.dtype() == DType::f64, "logits must be of an accumulation type");
  op.need(s.experts > 0 && logits.cols() == s.experts, "logits must be [tokens, experts]");
  op.need(s.top_k > 0 && s.top_k <= s.experts, "top_k must lie in [1, experts]");
  op.need(s.groups > 0 && s.experts % s.groups == 0, "experts must be a multiple of groups");
  op.need(s.groups == 1 || (s.top_groups > 0 && s.top_groups <= s.groups), "top_groups must lie in [1, groups]");
  op.need(s.groups == 1 || s.top_k <= s.top_groups * (s.experts / s.groups),
          "the experts of top_groups groups are fewer than top_k");
  op.need(chosen.dtype() == DType::i32, "chosen must be i32");
  op.shape_is(chosen, logits.rows(), s.top_k, "chosen must be [tokens, top_k]");
}
}  // namespace

void router_forward(const RouterShape& s, const Tensor& logits, const Tensor& bias, const Tensor& chosen,
                    const Tensor& weights, const Tensor& shares) {
  const Op op("router_forward", {&logits, &bias, &chosen, &weights, &shares});
  router(op, s, logits, chosen);
  op.need(weights.dtype() == logits.dtype() && shares.dtype() == logits.dtype(),
          "weights and shares must be of the type of logits");
  op.shape_is(weights, logits.rows(), s.top_k, "weights must be [tokens, top_k]");
  op.shape_is(shares, logits.rows(), s.experts, "shares must be [tokens, experts]");
  if (!bias) return;
  op.need(bias.dtype() == logits.dtype(), "bias must be of the type of logits");
  op.shape_is(bias, 1, s.experts, "bias must be [1, experts]");
}

void router_backward(const RouterShape& s, const Tensor& logits, const Tensor& chosen, const Tensor& d_weights,
                     const Tensor& balance, double, const Tensor& d_logits) {
  const Op op("router_backward", {&logits, &chosen, &d_weights, &balance, &d_logits});
  router(op, s, logits, chosen);
  op.need(d_weights.dtype() == logits.dtype() && d_logits.dtype() == logits.dtype(),
          "d_weights and d_logits must be of the type of logits");
  op.shape_is(d_weights, logits.rows(), s.top_k, "d_weights must be [tokens, top_k]");
  op.shape_is(d_logits, logits.rows(), s.experts, "d_logits must have the shape of logits");
  if (!balance) return;
  op.need(balance.dtype() == logits.dtype(), "balance must be of the type of logits");
  op.need(balance.rows() > 0 && balance.cols() == s.experts, "balance must be [sequences, experts]");
}

void count_choices(const Tensor& chosen, const Tensor& counts) {
  const Op op("count_choices", {&chosen, &counts});
  op.need(chosen.dtype() == DType::i32 && counts.dtype() == DType::i64, "chosen must be i32, counts i64");
  op.need(counts.rows() > 0, "counts must be [sequences, experts]");
}

void gather_rows(const Tensor& x, const Tensor& index, const Tensor& out) {
  const Op op("gather_rows", {&x, &index, &out});
  op.need(is_compute(x.dtype()) && out.dtype() == x.dtype(), "x and out must be of one floating type");
  op.need(x.cols() == out.cols(), "x and out differ in width");
  op.need(index.dtype() == DType::i32, "index must be i32");
  op.shape_is(index, out.rows(), 1, "index must be [rows of out, 1]");
}

void combine_rows(const Tensor& x, const Tensor& slot, const Tensor& out) {
  const Op op("combine_rows", {&x, &slot, &out});
  op.need(is_compute(x.dtype()) && out.dtype() == x.dtype(), "x and out must be of one type, f32, bf16, f16 or f64");
  op.need(x.cols() == out.cols(), "x and out differ in width");
  op.need(slot.dtype() == DType::i32 && slot.rows() == out.rows(), "slot must be i32 [rows of out, n]");
}

void embedding_forward(const Tensor& ids, const Tensor& table, int64_t, const Tensor& out) {
  const Op op("embedding_forward", {&ids, &table, &out});
  op.need(is_index(ids.dtype()) && ids.size() == out.rows(), "ids must be integers, one a row of out");
  op.need(is_compute(table.dtype()) && table.dtype() == out.dtype(), "table and out must be of one type");
  op.need(table.cols() == out.cols(), "table and out differ in width");
}

void embedding_backward(const Tensor& ids, const Tensor& dy, int64_t, const Tensor& d_table) {
  const Op op("embedding_backward", {&ids, &dy, &d_table});
  op.need(is_index(ids.dtype()) && ids.size() == dy.rows(), "ids must be integers, one a row of dy");
  op.need(is_compute(dy.dtype()) && d_table.dtype() == accumulation(dy.dtype()),
          "d_table must be of the accumulation type of dy");
  op.need(d_table.cols() == dy.cols(), "d_table and dy differ in width");
}

void row_max(const Tensor& logits, const Tensor& out) {
  const Op op("row_max", {&logits, &out});
  op.need(logits.dtype() == DType::f32 || logits.dtype() == DType::f64, "logits must be of an accumulation type");
  op.need(out.dtype() == logits.dtype(), "out must be of the type of logits");
  op.shape_is(out, logits.rows(), 1, "out must be [tokens, 1]");
}

void row_sum_exp(const Tensor& logits, const Tensor& max, const Tensor& out) {
  const Op op("row_sum_exp", {&logits, &max, &out});
  op.need(logits.dtype() == DType::f32 || logits.dtype() == DType::f64, "logits must be of an accumulation type");
  op.need(max.dtype() == logits.dtype() && out.dtype() == DType::f64, "max must be of the type of logits, out f64");
  op.shape_is(max, logits.rows(), 1, "max must be [tokens, 1]");
  op.shape_is(out, logits.rows(), 1, "out must be [tokens, 1]");
}

void pick(const Tensor& logits, const Tensor& labels, int64_t, const Tensor& out) {
  const Op op("pick", {&logits, &labels, &out});
  op.need(logits.dtype() == DType::f32 || logits.dtype() == DType::f64, "logits must be of an accumulation type");
  op.need(out.dtype() == logits.dtype(), "out must be of the type of logits");
  op.need(is_index(labels.dtype()) && labels.size() == logits.rows(), "labels must be integers, one a token");
  op.shape_is(out, logits.rows(), 1, "out must be [tokens, 1]");
}

void softmax_backward(const Tensor& logits, const Tensor& max, const Tensor& sum, const Tensor& labels, int64_t,
                      const Tensor& weight, double, const Tensor& d_logits) {
  const Op op("softmax_backward", {&logits, &max, &sum, &labels, &weight, &d_logits});
  op.need(is_compute(d_logits.dtype()) && logits.dtype() == accumulation(d_logits.dtype()),
          "logits must be of the accumulation type of d_logits");
  op.need(max.dtype() == logits.dtype() && weight.dtype() == logits.dtype() && sum.dtype() == DType::f64,
          "max and weight must be of the type of logits, sum f64");
  op.need(is_index(labels.dtype()) && labels.size() == logits.rows(), "labels must be integers, one a token");
  for (const Tensor* t : {&max, &sum, &weight})
    op.shape_is(*t, logits.rows(), 1, "max, sum and weight must be [tokens, 1]");
  op.shape_is(d_logits, logits.rows(), logits.cols(), "d_logits must have the shape of logits");
}

namespace {
void update(const Op& op, const Tensor& p, std::initializer_list<const Tensor*> others, const Tensor& copy) {
  op.need(p.dtype() == DType::f32 || p.dtype() == DType::f64, "master weights must be f32 or f64");
  for (const Tensor* t : others) {
    op.need(t->dtype() == p.dtype(), "slots and gradient must be of the type of the master weights");
    op.need(t->size() == p.size(), "slots and gradient must have as many elements as the master weights");
  }
  if (copy)
    op.need(is_compute(copy.dtype()) && copy.size() == p.size(), "the copy must have as many elements as the master");
}
}  // namespace

void adamw(const AdamwStep&, const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& grad,
           const Tensor& copy) {
  update(Op("adamw", {&p, &m, &v, &grad, &copy}), p, {&m, &v, &grad}, copy);
}

void sgd(const SgdStep&, const Tensor& p, const Tensor& velocity, const Tensor& grad, const Tensor& copy) {
  const Op op("sgd", {&p, &velocity, &grad, &copy});
  if (velocity) return update(op, p, {&velocity, &grad}, copy);
  update(op, p, {&grad}, copy);  // without momentum there is no slot
}

namespace {
void exact_sum(const char* name, const Tensor& sum) {
  Op(name, {&sum}).need(sum.dtype() == DType::i64 && sum.rows() == 2, "an exact sum is i64 [2, n]");
}
}  // namespace

void exact_carry(const Tensor& sum) { exact_sum("exact_carry", sum); }

void exact_add(const Tensor& x, const Tensor& sum) {
  exact_sum("exact_add", sum);
  const Op op("exact_add", {&x, &sum});
  op.need(is_compute(x.dtype()), "x must be f32, bf16, f16 or f64");
  op.need(x.size() == sum.cols(), "x and sum differ in the number of elements");
}

void exact_value(const Tensor& sum, const Tensor& out) {
  exact_sum("exact_value", sum);
  const Op op("exact_value", {&sum, &out});
  op.need(is_compute(out.dtype()), "out must be f32, bf16, f16 or f64");
  op.need(out.size() == sum.cols(), "out and sum differ in the number of elements");
}

void exact_embedding_backward(const Tensor& ids, const Tensor& dy, int64_t, int64_t table_rows, const Tensor& sum) {
  exact_sum("exact_embedding_backward", sum);
  const Op op("exact_embedding_backward", {&ids, &dy, &sum});
  op.need(is_index(ids.dtype()) && ids.size() == dy.rows(), "ids must be integers, one a row of dy");
  op.need(is_compute(dy.dtype()), "dy must be f32, bf16, f16 or f64");
  op.need(sum.cols() == table_rows * dy.cols(), "sum must have table_rows * width columns");
}

}  // namespace orthant::check
