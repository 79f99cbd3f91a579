// The table of operations that a device offers. Layers are written once against it.
//
// Conventions: matrices are row-major `Tensor`s; token tensors have one row a token, row = position * B + sequence;
// T is the compute type (f32, bf16 or f64), A the accumulation type (f64 when T is f64, else f32). Parameter gradients
// are A and are added to; activation gradients are T and are assigned. Statistics are A. Every sum has a fixed order
// that depends on shapes and the number of threads alone, so the same call gives the same bits.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orthant/memory.hpp"
#include "orthant/tensor.hpp"

namespace orthant {

enum class NormKind { layer, rms };

/// Which elements are dropped: a function of seed, site, step and place alone (src/README.md, number 2). Element n is
/// word n % 4 of Philox with `key` and counter (n / 4 low, n / 4 high, step, 0); it stays when the word is at least
/// rate 2^32, and is then divided by 1 - rate.
struct Dropout {
  double rate = 0;  ///< 0: nothing is dropped
  uint64_t key = 0;
  int64_t step = 0;
  Tensor tokens;  ///< i64 [rows, 1]: sequence in the stream * L + position
};

/// Causal attention of B sequences. q [Sq * B, heads * head_dim], k [Sk * B, kv_heads * head_dim], v [Sk * B, kv_heads *
/// value_dim()], o [Sq * B, heads * value_dim()], any leading dim. Query row s stands at position q_begin + s, key row at k_begin + s; a query sees keys at positions <= its own.
/// Query head h reads kv head h / (heads / kv_heads). With `starts` a query sees no key before its own start (the first
/// token of its document). `dropout` drops probabilities: element token * all_heads * sequence + (first_head + head) *
/// sequence + key position, of the query's token.
struct AttentionShape {
  int64_t batch = 1;
  int64_t q_length = 0, k_length = 0;
  int64_t q_begin = 0, k_begin = 0;
  int64_t heads = 1, kv_heads = 1, head_dim = 1;
  int64_t v_dim = 0;  ///< width of a head of v and o; 0: head_dim
  int64_t value_dim() const { return v_dim > 0 ? v_dim : head_dim; }
  double scale = 1;
  Tensor starts;  ///< i32 [Sq * B, 1], or none: all earlier keys are seen
  Dropout dropout;
  bool canonical = false;  ///< the bits must not depend on how many heads or sequences the call has (reproducible mode)
  int64_t first_head = 0, all_heads = 1, sequence = 0;  ///< of the whole model, for dropout
};

/// Rotary positions of the heads of a row: head h's `width` columns begin at h * stride of the tensor's columns.
struct RopeShape {
  int64_t heads = 1, width = 1;
  int64_t stride = 0;        ///< columns from one head to the next; 0: width
  bool interleaved = false;  ///< pairs (2i, 2i + 1), else (i, i + width / 2)
};

/// How a router turns logits into a choice (src/README.md, number 11).
struct RouterShape {
  int64_t experts = 1, top_k = 1;
  bool sigmoid = false;  ///< scores are sigmoids, else a softmax over all experts
  int64_t groups = 1, top_groups = 1;
  bool normalise = true;  ///< weights of the chosen add up to 1, before `scale`
  double scale = 1;
};

/// One of several independent products: c (+)= op(a) op(b), as `gemm` has them.
struct Product {
  Tensor a;
  bool transpose_a = false;
  Tensor b;
  bool transpose_b = false;
  Tensor c;
  bool accumulate = false;
};

/// A matrix in FP8: element (r, c) is q(r, c) * inverse_scale(r / block_rows, c / block_cols).
struct Quantised {
  Tensor q;                                ///< f8e4m3 or f8e5m2
  Tensor inverse_scale;                    ///< f32 [ceil(rows / block_rows), ceil(cols / block_cols)]; on the device, like q
  int64_t block_rows = 0, block_cols = 0;  ///< 0, 0: one scale [1, 1] for the whole matrix
};

/// How a block's scale follows from its largest number; both are powers of two (orthant/elementwise.hpp, fp8_block_scale).
enum class BlockScale { fitted, mx };

/// One AdamW update, src/README.md, number 5. `bias1` = 1 - beta1^t, `bias2` = 1 - beta2^t.
struct AdamwStep {
  double lr, beta1, beta2, eps, weight_decay, bias1, bias2;
  double grad_scale;  ///< the clip factor, applied to the gradient first
};
struct SgdStep {
  double lr, momentum, weight_decay, grad_scale;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  /// Bytes in use, by kind.
  MemoryAccount& account() { return account_; }

  // ---- memory (device.cpp)
  /// Uninitialised dense tensor; FaultError when there is no memory (with the account's table).
  virtual Tensor alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) = 0;
  virtual void zero(const Tensor& x) = 0;
  /// dst = src with conversion between f32, bf16, f16, f64 (nearest even); any leading dims, same shape.
  virtual void copy(const Tensor& dst, const Tensor& src) = 0;
  /// Memory the host may read or write until `host_end`. For cpu the tensor's own memory; the tensor must be dense.
  virtual void* host_begin(const Tensor& x) = 0;
  virtual void host_end(const Tensor& x) = 0;
  virtual void synchronize() = 0;
  /// True where nothing is computed and only shapes flow (meta).
  virtual bool shapes_only() const { return false; }
  /// Seconds measured for nothing else than choosing; one line for the header: library, types, threads.
  virtual std::string describe() const = 0;

  // ---- products (gemm.cpp)
  /// c [M, N] = op(a) op(b) (+ c when accumulate) (+ bias [1, N] to each row when given). a, b of type T; c of T or A.
  /// op transposes when the flag is set: a is [M, K] or [K, M], b is [K, N] or [N, K]. Any leading dims. M, N, K may be 0
  /// (K = 0 gives zeros or leaves c). bf16 is multiplied with fp32 accumulation and rounded once.
  virtual void gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
                    const Tensor& bias = {}) = 0;
  /// The same product always by one thread, from and into dense memory, so that its bits depend on M, N, K and the
  /// operands alone (reproducible mode). c must be of type A, not accumulated.
  virtual void gemm_canonical(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c) = 0;

  /// Independent products, empty ones among them; a backend without a call of its own takes them one by one.
  virtual void grouped_gemm(const std::vector<Product>& products) {
    for (const Product& p : products) gemm(p.a, p.transpose_a, p.b, p.transpose_b, p.c, p.accumulate);
  }

  // ---- FP8 (fp8.cpp). Scales are numbers of the device, so that no product waits for the host. A backend that has none of this
  // keeps these bodies, which throw UsageError.
  /// out [1, 1] (f32) = max(out, |x|) over all elements of x (f32 or bf16); x without elements leaves it. A NaN counts as infinite.
  virtual void amax(const Tensor& x, const Tensor& out) { lacks_fp8("amax", {&x, &out}); }
  /// scale [1, 1] (f32) = fp8_scale(amax [1, 1] (f32), largest number of `format`, margin, scale), orthant/elementwise.hpp.
  virtual void scale_from_amax(const Tensor& amax, DType format, int margin, const Tensor& scale) {
    (void)format, (void)margin;
    lacks_fp8("scale_from_amax", {&amax, &scale});
  }
  /// out.q = x (f32 or bf16) times scale [1, 1] (f32), rounded to nearest even and saturated; out.inverse_scale [1, 1] = 1 / scale.
  virtual void quantize(const Tensor& x, const Tensor& scale, const Quantised& out) { lacks_fp8("quantize", {&x, &scale, &out.q}); }
  /// The same with a scale for each block of out.block_rows x out.block_cols, found from the block itself; the last blocks may be
  /// shorter. A block of zeros, or with infinities, has scale 1.
  virtual void quantize_blocks(const Tensor& x, BlockScale rule, const Quantised& out) {
    (void)rule;
    lacks_fp8("quantize_blocks", {&x, &out.q});
  }
  /// gemm of quantised matrices: c (bf16 or f32) (+)= op(a) op(b) (+ bias of c's type or bf16). Products are summed in f32 and
  /// rounded once into c. Blocks of a and b have to lie alike along the contracted dim, as far as both have several there.
  virtual void gemm_fp8(const Quantised& a, bool transpose_a, const Quantised& b, bool transpose_b, const Tensor& c, bool accumulate,
                        const Tensor& bias = {}) {
    (void)transpose_a, (void)transpose_b, (void)accumulate, (void)bias;
    lacks_fp8("gemm_fp8", {&a.q, &b.q, &c});
  }

  // ---- attention (attention.cpp, attention_merge.cpp); memory linear in the sequence, no S x S matrix
  /// o [Sq * B, heads * value_dim()] (T or A), lse [Sq * B, heads] (A) = log of the sum of exp of the scaled scores, before
  /// dropout. A query that sees no key has o = 0 and lse = -inf.
  virtual void attention_forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                 const Tensor& lse) = 0;
  /// dq like q, dk and dv like k, in T or A; assigned. `o` (T) and `lse` may be those of more keys than k and v hold: the
  /// results are then the part of these keys. When dk is heads * head_dim wide and dv heads * value_dim() (and kv_heads < heads) each query
  /// head's part stays apart (reproducible mode sums them exactly).
  virtual void attention_backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& o, const Tensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv) = 0;

  /// Two parts of the same attention over different keys become one: o [rows, heads * value_dim()], lse [rows, heads], all A;
  /// (o, lse) is the first part and the result. Rows that saw nothing in either part merge without NaN.
  virtual void attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_part, const Tensor& lse_part) = 0;

  // ---- rows (rows.cpp, dropout.cpp)
  /// out = x with elements dropped, n = token * cols + column; out may be x. The transpose is the same call.
  virtual void dropout(const Tensor& x, const Dropout& d, const Tensor& out) = 0;
  /// y = norm(x) * gain (+ bias); stats [rows, 2] (A) = mean, 1 / std (rms: 0, 1 / rms). Biased variance. gain, bias: [1, cols] (T).
  virtual void norm_forward(NormKind kind, const Tensor& x, const Tensor& gain, const Tensor& bias, double eps, const Tensor& y,
                            const Tensor& stats) = 0;
  /// dx = (residual given ? residual : 0) + gradient through the norm; d_gain, d_bias [1, cols] (A) are added to.
  virtual void norm_backward(NormKind kind, const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& stats,
                             const Tensor& residual, const Tensor& dx, const Tensor& d_gain, const Tensor& d_bias) = 0;
  /// tanh form (gelu_new).
  virtual void gelu_forward(const Tensor& x, const Tensor& y) = 0;
  virtual void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) = 0;
  /// y = silu(gate) * up.
  virtual void swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y) = 0;
  virtual void swiglu_backward(const Tensor& dy, const Tensor& gate, const Tensor& up, const Tensor& d_gate, const Tensor& d_up) = 0;
  /// out = a + b, in A, rounded once; out may be a or b. Also i64, for parts of exact sums.
  virtual void add(const Tensor& a, const Tensor& b, const Tensor& out) = 0;
  /// x *= factor.
  virtual void scale(const Tensor& x, double factor) = 0;
  /// out [1, cols] (A) += sum over rows of x.
  virtual void sum_rows(const Tensor& x, const Tensor& out) = 0;
  /// out [rows, 1] (f64) = sum of the squares of each row, added in double from left to right in a fixed pattern.
  virtual void row_squares(const Tensor& x, const Tensor& out) = 0;
  /// Rotates pairs of columns of each head in place by the angle of its token: table [positions, width] (A) holds cos then
  /// sin of width / 2 angles; positions [rows, 1] i32 picks the table's row. x has at least (heads - 1) * stride + width
  /// columns. inverse = transpose.
  virtual void rope(const Tensor& x, const RopeShape& s, const Tensor& positions, const Tensor& table, bool inverse) = 0;
  /// out [rows, cols] (T) = x (T) with each row times factor [rows, 1] (A); out may be x.
  virtual void scale_rows(const Tensor& x, const Tensor& factor, const Tensor& out) = 0;
  /// out [rows, 1] (f64) = sum over columns of a * b (T), added in double from left to right in a fixed pattern.
  virtual void row_dots(const Tensor& a, const Tensor& b, const Tensor& out) = 0;

  // ---- routing of tokens to experts (router.cpp); token t is of sequence t % sequences
  /// logits [tokens, experts] (A) -> chosen [tokens, top_k] i32 in rising order, their weights [tokens, top_k] (A), and
  /// shares [tokens, experts] (A): the softmax, or score / sum of scores. The choice is by score + bias (bias [1, experts]
  /// (A), or none), with groups > 1 among the top_groups groups with the largest sum of their best two; the lower number
  /// wins a tie. weight = scale * score, divided by the sum of the chosen scores (sigmoid: + 1e-20) where `normalise`.
  virtual void router_forward(const RouterShape& s, const Tensor& logits, const Tensor& bias, const Tensor& chosen, const Tensor& weights,
                              const Tensor& shares) = 0;
  /// d_logits [tokens, experts] (A), assigned: the gradient through the weights of the chosen, d_weights [tokens, top_k]
  /// (A); through the shares, of which balance [sequences, experts] (A, or none) is the gradient of each token of a
  /// sequence; and of z * logsumexp(logits)^2 of each token.
  virtual void router_backward(const RouterShape& s, const Tensor& logits, const Tensor& chosen, const Tensor& d_weights, const Tensor& balance,
                               double z, const Tensor& d_logits) = 0;
  /// counts [sequences, experts] i64 += picks of the tokens of each sequence.
  virtual void count_choices(const Tensor& chosen, const Tensor& counts) = 0;
  /// out [rows, width] = row index[r] of x, zeros where index [rows, 1] (i32) is -1. Any one type of floats.
  virtual void gather_rows(const Tensor& x, const Tensor& index, const Tensor& out) = 0;
  /// out [tokens, width] (T) = sum over j in rising order of row slot[t, j] of x (T), in A, rounded once; slot [tokens, n]
  /// (i32), -1 adds nothing. The transpose of gather_rows when slot says where each row went.
  virtual void combine_rows(const Tensor& x, const Tensor& slot, const Tensor& out) = 0;

  // ---- tokens (tokens.cpp)
  /// out [tokens, width] (T) = row (id - first) of table, zeros where the id lies outside [first, first + table.rows()).
  virtual void embedding_forward(const Tensor& ids, const Tensor& table, int64_t first, const Tensor& out) = 0;
  /// d_table (A) += rows of dy, in token order.
  virtual void embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, const Tensor& d_table) = 0;
  /// Per row of logits [tokens, n] (A): the largest value -> out [tokens, 1] (A); -inf where n = 0.
  virtual void row_max(const Tensor& logits, const Tensor& out) = 0;
  /// out [tokens, 1] (f64) = sum of exp(logit - row_max), added in double.
  virtual void row_sum_exp(const Tensor& logits, const Tensor& max, const Tensor& out) = 0;
  /// out [tokens, 1] (A) = logits[t, label - first], 0 where the label lies outside.
  virtual void pick(const Tensor& logits, const Tensor& labels, int64_t first, const Tensor& out) = 0;
  /// d_logits (T) = (p (1 + 2 z lse) - [label]) * weight_t with p = exp(logit - max) / sum and lse = max + log(sum), the
  /// gradient of the loss + z lse^2; max [tokens, 1] (A), sum [tokens, 1] (f64),
  /// weight [tokens, 1] (A): 0 for tokens that do not count, else 1 / valid tokens of the global batch.
  virtual void softmax_backward(const Tensor& logits, const Tensor& max, const Tensor& sum, const Tensor& labels, int64_t first,
                                const Tensor& weight, double z, const Tensor& d_logits) = 0;

  // ---- updates (update.cpp): master weights p, slots and gradient in A; copy (T) = rounded p where given
  virtual void adamw(const AdamwStep& step, const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& grad, const Tensor& copy) = 0;
  virtual void sgd(const SgdStep& step, const Tensor& p, const Tensor& velocity, const Tensor& grad, const Tensor& copy) = 0;

  // ---- exact sums (exact.cpp), src/README.md, number 10. A sum of n values is i64 [2, n]: row 0 hi, row 1 lo; T = hi 2^39 + lo.
  /// sum += x; x (T, A or f64) is any shape with sum.cols() elements, read row by row. Values that are NaN, infinite
  /// or not below 2^18 add 0 and set the flag of `exact_overflow`.
  virtual void exact_add(const Tensor& x, const Tensor& sum) = 0;
  /// c = lo >> 39 (arithmetic), hi += c, lo -= c 2^39; before a sum is sent and at least every 2^23 summands.
  virtual void exact_carry(const Tensor& sum) = 0;
  /// out (T, A or f64; sum.cols() elements) = double(hi) 2^-20 + double(lo) 2^-59 after a carry, rounded once to out's type.
  virtual void exact_value(const Tensor& sum, const Tensor& out) = 0;
  /// embedding_backward into an exact sum of d_table's elements (table_rows rows).
  virtual void exact_embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, int64_t table_rows, const Tensor& sum) = 0;
  /// Reads and clears the flag.
  virtual bool exact_overflow() = 0;

 protected:
  [[noreturn]] void lacks_fp8(const char* operation, std::initializer_list<const Tensor*>) const {
    throw UsageError("precision.compute = \"fp8\": the backend " + name() + " has no operation " + operation + "; use \"bf16\", or device.backend = \"cpu\"");
  }
  MemoryAccount account_;
};

/// `cpu`, `debug` (cpu on protected memory) or `meta` (shapes only). UsageError for a name that is not built in.
std::unique_ptr<Backend> make_backend(const std::string& name);

/// Host memory of a dense device tensor, for the time the object lives.
template <class T>
class Host {
 public:
  Host(Backend& backend, const Tensor& x) : backend_(backend), x_(x), data_(static_cast<T*>(backend.host_begin(x))) {
    ORTHANT_ENSURE(static_cast<int64_t>(sizeof(T)) == size_of(x.dtype()), "tensor read as a type of another size");
  }
  ~Host() { backend_.host_end(x_); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  T* data() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  Backend& backend_;
  Tensor x_;
  T* data_;
};

}  // namespace orthant
