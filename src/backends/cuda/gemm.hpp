// What products keep between calls: cuBLASLt's handle, and for each problem its descriptors and its algorithm.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <string>
#include <unordered_map>

#include "backends/cuda/cuda_backend.hpp"

namespace orthant {

struct CudaBackend::Gemm {
  /// Where the scales of an FP8 operand lie, as cuBLAS lays them out (section "Narrow precision data types usage").
  enum Scales : int64_t {
    no_scales,  ///< an operand of 16 bits or more
    scalar,     ///< f32 [1, 1]
    vec128,     ///< f32 for 128 numbers along the sum: [K / 128, outer dim]
    block128,   ///< f32 for 128 x 128 numbers: [outer dim / 128, K / 128 up to a multiple of 4]
    vec32       ///< a byte, the exponent, for 32 numbers along the sum, in tiles of 128 x 4
  };
  /// A product c [m, n] = op(a) op(b) and all that its algorithm depends on; words alone, so that it can be hashed.
  struct Problem {
    int64_t m = 0, n = 0, k = 0;
    int64_t lda = 0, ldb = 0, ldc = 0, ld_aux = 0;
    int64_t transpose_a = 0, transpose_b = 0;
    int64_t a_type = 0, b_type = 0, c_type = 0;               ///< DType
    int64_t a_bytes = 0, b_bytes = 0, c_bytes = 0;            ///< what the addresses are aligned to, up to 256
    int64_t bias_bytes = 0, aux_bytes = 0;                    ///< the same; 0: there is none
    int64_t a_scales = no_scales, b_scales = no_scales;       ///< Scales
    int64_t gelu = 0;                                         ///< c = gelu_tanh of what goes into aux
    int64_t tf32 = 0;                                         ///< f32 operands may be rounded to TF32
    bool operator==(const Problem&) const = default;
  };
  struct ProblemHash {
    size_t operator()(const Problem& p) const;
  };
  /// Addresses on the device.
  struct Operands {
    const void *a = nullptr, *b = nullptr;
    void* c = nullptr;
    const void* bias = nullptr;
    void* aux = nullptr;
    const void *a_scales = nullptr, *b_scales = nullptr;
    bool accumulate = false;
  };
  /// Descriptors and the algorithm of a problem; bias, aux and scales are set for each call.
  struct Plan;

  Gemm();
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  /// The part of a problem that its tensors tell.
  static Problem problem_of(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c);
  /// nullptr where the library has no algorithm; `why` is then its status.
  Plan* find(const Problem& p, std::string* why = nullptr);
  /// FaultError where the library has no algorithm.
  Plan& need(const Problem& p);
  /// Puts the product into the backend's stream.
  void run(CudaBackend& be, const Problem& p, Plan& plan, const Operands& x);
  /// "cuBLASLt 13.1.0".
  static std::string version();
  /// What a pointer is aligned to, up to 256 bytes: algorithms with wide loads ask for it.
  static int64_t alignment_of(const void* p);

  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  std::unordered_map<Problem, std::unique_ptr<Plan>, ProblemHash> kept;  ///< without a plan: there is none
};

/// Scratch slots of products.
constexpr int slot_workspace = 0, slot_a = 1, slot_b = 2, slot_c = 3, slot_amax = 4;

}  // namespace orthant
