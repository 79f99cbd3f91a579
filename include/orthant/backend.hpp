// The table of operations that a device offers (operations.inc). Layers are written once against it.
//
// Conventions: matrices are row-major `Tensor`s; token tensors have one row a token, row = position * B + sequence;
// T is the compute type (f32, bf16 or f64), A the accumulation type (f64 when T is f64, else f32). Parameter gradients
// are A and are added to; activation gradients are T and are assigned. Statistics are A. Every sum has a fixed order
// that depends on shapes and the number of threads alone, so the same call gives the same bits.
#pragma once

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

  /// precision.tf32: products of f32 may round their operands to TF32 from now on. UsageError of a backend whose products of
  /// f32 are always whole; meta, which has no numbers, does nothing.
  virtual void allow_tf32() {
    throw UsageError("precision.tf32 = true: the backend " + name() + " multiplies f32 in full; use false, or device.backend = \"cuda\"");
  }
  /// Whether it was allowed and has an effect.
  virtual bool tf32() const { return false; }
  /// Why the device has no FP8 products with scales of blocks of this rule, or (no rule) with one scale a tensor, and what has
  /// them; "" where it has. Before anything is multiplied: a device that lacks a recipe should say so at the start.
  virtual std::string fp8_problem(std::optional<BlockScale> blocks) const {
    (void)blocks;
    return {};
  }

  // ---- operations, with what each does
#define ORTHANT_OPERATION(name, parameters, arguments) virtual void name parameters = 0;
#define ORTHANT_OPTIONAL_OPERATION(name, parameters, arguments, ...) virtual void name parameters __VA_ARGS__
#include "orthant/operations.inc"

  /// Whether an exact sum met a value that has no place in it since the last call, which clears the flag.
  virtual bool exact_overflow() = 0;

 protected:
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
