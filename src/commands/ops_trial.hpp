// Products and attention of the sizes of a Llama layer, one at a time, as `orthant bench ops` checks and times them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "orthant/backend.hpp"

namespace orthant {

enum class OpKind { product, attention };

/// What training asks of a layer: y = x W^T (forward), dx = dy W (backward_input), dW += dy^T x in fp32
/// (backward_weight); attention (forward, backward).
enum class OpForm { forward, backward_input, backward_weight, backward };
const char* name_of(OpForm form);

struct OpCase {
  OpKind kind = OpKind::product;
  OpForm form = OpForm::forward;
  DType dtype = DType::f32;
  int64_t tokens = 0;                             ///< rows of x; of attention: the length of its one sequence
  int64_t in = 0, out = 0;                        ///< of a product: W is [out, in]
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  ///< of attention
  /// Floating-point operations: 2 for a multiply-add; of attention the causal half, and 5 products in its backward
  /// pass for 2 in the forward one.
  double flops() const;
  /// "forward 8192 x 4096 -> 14336".
  std::string text() const;
};

struct OpSizes {
  std::vector<std::pair<int64_t, int64_t>> weights;  ///< in, out
  int64_t tokens = 0;
  std::vector<int64_t> lengths;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
};
/// "full": a layer of Llama 8B, 8192 tokens, sequences of 2048 to 8192; "small": a 16th of its width, for host cores
/// and tests. UsageError for another word.
OpSizes op_sizes(const std::string& name);
std::vector<OpCase> op_cases(const OpSizes& sizes, const std::vector<DType>& dtypes);

struct OpRate {
  double seconds = 0, least = 0;  ///< of a call: median over the repeats, and the quickest
  int64_t calls = 0;              ///< in a repeat
};

/// Runs the cases of one dtype on memory that is filled once.
class OpTrial {
 public:
  /// Room for the largest of `cases`, which have one dtype, with numbers between -0.5 and 0.5.
  OpTrial(Backend& backend, const std::vector<OpCase>& cases);

  /// One call, whose last row is then compared with sums in fp64 (attention: with what any weighted mean fulfils).
  /// FaultError naming the case where it is wrong.
  void check(const OpCase& c);
  /// `repeat` timings, each of as many calls as `seconds` has room for (at least one), behind one that is not
  /// counted.
  OpRate time(const OpCase& c, int64_t repeat, double seconds);

 private:
  struct Operands {
    Tensor a, b, c;
  };
  Operands operands(const OpCase& c) const;
  void run(const OpCase& c);
  void check_product(const OpCase& c);
  void check_attention(const OpCase& c);
  Tensor view(const Tensor& pool, int64_t rows, int64_t cols) const;
  std::vector<double> read(const Tensor& x) const;

  Backend& backend_;
  DType dtype_ = DType::f32;
  /// Filled once, and only read: x or q, W, dy or the gradient of attention's result, keys, values.
  Tensor in_, weights_, d_out_, k_, v_;
  /// Written: y, dx or attention's result, its gradients; dW or log-sums, in the type that sums are kept in.
  Tensor out_, dq_, dk_, dv_, sums_;
};

}  // namespace orthant
