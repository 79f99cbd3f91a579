// Products by cuBLASLt: f32 (in full fp32, no TF32), bf16 and f16 with fp32 sums, f64.
//
// cuBLASLt's matrices are column-major, ours row-major: the same memory is the transpose. So C = op(A) op(B) is asked
// for as C^T = op(B)^T op(A)^T, with the operands swapped and their flags kept, and nothing is moved. A bias, one number
// for each column of C, is one for each row of C^T, as its epilogue wants it.
//
// The library chooses an algorithm by a heuristic from the problem alone; it is asked once for each, so that the same
// call gives the same bits all through a run.
#include <bit>

#include "backends/check_shapes.hpp"
#include "backends/cuda/gemm.hpp"
#include "backends/cuda/numbers.hpp"

namespace orthant {

using namespace cuda;

namespace {

constexpr int64_t workspace_bytes = int64_t{32} << 20;
constexpr int slot_workspace = 0, slot_a = 1, slot_b = 2, slot_c = 3;

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw FaultError(std::string("cuBLASLt failed: ") + cublasLtGetStatusString(status) + " in " + call);
}
#define ORTHANT_BLAS(call) check_blas((call), #call)

cudaDataType_t blas_type(DType t) {
  switch (t) {
    case DType::f64: return CUDA_R_64F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

/// What a pointer is aligned to, up to 256 bytes: algorithms with wide loads ask for it.
uint32_t alignment_of(const void* p) {
  return 1u << std::min(8, std::countr_zero(reinterpret_cast<uintptr_t>(p) | 256));
}

/// A leading dim that is never stepped over may be anything; cuBLASLt wants it no smaller than the row.
int64_t ld_of(const Tensor& x) { return x.rows() <= 1 ? std::max<int64_t>(x.cols(), 1) : x.ld(); }

constexpr int64_t transpose_a_flag = 1, transpose_b_flag = 2, bias_flag = 4;

template <class C, class B>
struct AddBias {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t col) const { c(r, col) = store<C>(load(c(r, col)) + load(bias(0, col))); }
  View<C> c;
  View<const B> bias;
};

}  // namespace

struct CudaBackend::Gemm::Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algo{};
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (desc) cublasLtMatmulDescDestroy(desc);
    for (cublasLtMatrixLayout_t l : {a, b, c})
      if (l) cublasLtMatrixLayoutDestroy(l);
  }
};

size_t CudaBackend::Gemm::KeyHash::operator()(const Key& key) const {
  uint64_t h = 0x9e3779b97f4a7c15u;
  for (int64_t x : key) {
    h = (h ^ static_cast<uint64_t>(x)) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  }
  return h;
}

CudaBackend::Gemm::Gemm() {
  ORTHANT_BLAS(cublasLtCreate(&handle));
  ORTHANT_BLAS(cublasLtMatmulPreferenceCreate(&preference));
  const auto most = static_cast<uint64_t>(workspace_bytes);
  ORTHANT_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most));
}

CudaBackend::Gemm::~Gemm() {
  kept.clear();
  if (preference) cublasLtMatmulPreferenceDestroy(preference);
  if (handle) cublasLtDestroy(handle);
}

std::string CudaBackend::Gemm::version() {
  const size_t v = cublasLtGetVersion();  // 130100: 13.1.0, before CUDA 12 120103 likewise
  return "cuBLASLt " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

/// Key: M, N, K, ld of a, b, c, then flags (4 bits), types of a and c (4 bits each), log2 of the alignments of a, b, c and bias.
CudaBackend::Gemm::Plan& CudaBackend::Gemm::find(const Key& key) {
  if (auto it = kept.find(key); it != kept.end()) return *it->second;
  if (kept.size() >= 4096) kept.clear();  // routed experts ask for ever new shapes
  const auto [m, n, k, lda, ldb, ldc, rest] = key;
  const bool transpose_a = rest & transpose_a_flag, transpose_b = rest & transpose_b_flag, bias = rest & bias_flag;
  const auto type = static_cast<DType>(rest >> 4 & 15), c_type = static_cast<DType>(rest >> 8 & 15);
  const bool wide = type == DType::f64;
  auto plan = std::make_unique<Plan>();
  ORTHANT_BLAS(cublasLtMatmulDescCreate(&plan->desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, wide ? CUDA_R_64F : CUDA_R_32F));
  const auto op = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const cublasOperation_t op_first = op(transpose_b), op_second = op(transpose_a);
  ORTHANT_BLAS(cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_first, sizeof op_first));
  ORTHANT_BLAS(cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_second, sizeof op_second));
  if (bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    ORTHANT_BLAS(cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    // the heuristic reads the pointer's alignment off its value
    const void* aligned_like_it = reinterpret_cast<const void*>(uintptr_t{1} << (rest >> 24 & 15));
    ORTHANT_BLAS(cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned_like_it, sizeof aligned_like_it));
  }
  // columns of a row-major matrix are the rows of the library's
  const auto layout = [](cublasLtMatrixLayout_t& l, DType t, int64_t rows, int64_t cols, int64_t ld) {
    ORTHANT_BLAS(cublasLtMatrixLayoutCreate(&l, blas_type(t), static_cast<uint64_t>(cols), static_cast<uint64_t>(rows), ld));
  };
  layout(plan->a, type, transpose_a ? k : m, transpose_a ? m : k, lda);
  layout(plan->b, type, transpose_b ? n : k, transpose_b ? k : n, ldb);
  layout(plan->c, c_type, m, n, ldc);
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t which, int shift) {
    const uint32_t bytes = 1u << (rest >> shift & 15);
    ORTHANT_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, which, &bytes, sizeof bytes));
  };
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 16);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 12);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 20);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 20);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan->desc, plan->b, plan->a, plan->c, plan->c, preference, 1, &best, &found);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0)
    throw FaultError("cuBLASLt has no algorithm for [" + std::to_string(m) + ", " + std::to_string(k) + "] by [" + std::to_string(k) + ", " +
                     std::to_string(n) + "] of " + name_of(type) + " into " + name_of(c_type) + ": " + cublasLtGetStatusString(status));
  plan->algo = best.algo;
  return *kept.emplace(key, std::move(plan)).first->second;
}

void CudaBackend::gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
                       const Tensor& bias) {
  check::gemm(a, transpose_a, b, transpose_b, c, accumulate, bias);
  const int64_t m = c.rows(), n = c.cols(), k = transpose_a ? a.rows() : a.cols();
  if (m == 0 || n == 0) return;
  const bool epilogue = bias && k > 0 && bias.dtype() == c.dtype() && c.dtype() != DType::f64;
  if (k == 0) {
    if (!accumulate) zero(c);
  } else {
    const auto log2_of = [](const Tensor& x) { return static_cast<int64_t>(std::countr_zero(alignment_of(x.data()))); };
    const int64_t rest = (transpose_a ? transpose_a_flag : 0) | (transpose_b ? transpose_b_flag : 0) | (epilogue ? bias_flag : 0) |
                         static_cast<int64_t>(a.dtype()) << 4 | static_cast<int64_t>(c.dtype()) << 8 | log2_of(a) << 12 | log2_of(b) << 16 |
                         log2_of(c) << 20 | (epilogue ? log2_of(bias) : 0) << 24;
    Gemm::Plan& plan = gemm_->find({m, n, k, ld_of(a), ld_of(b), ld_of(c), rest});
    if (epilogue) {
      const void* data = bias.data();
      ORTHANT_BLAS(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &data, sizeof data));
    }
    const float one = 1, beta = accumulate ? 1 : 0;
    const double one_wide = 1, beta_wide = beta;
    const bool wide = a.dtype() == DType::f64;
    ORTHANT_BLAS(cublasLtMatmul(gemm_->handle, plan.desc, wide ? static_cast<const void*>(&one_wide) : &one, b.data(), plan.b, a.data(), plan.a,
                                wide ? static_cast<const void*>(&beta_wide) : &beta, c.data(), plan.c, c.data(), plan.c, &plan.algo,
                                scratch(slot_workspace, workspace_bytes), static_cast<size_t>(workspace_bytes), stream_));
  }
  if (!bias || epilogue) return;
  with_compute(c.dtype(), [&](auto c_tag) {
    with_compute(bias.dtype(), [&](auto b_tag) {
      using C = typename decltype(c_tag)::type;
      using B = typename decltype(b_tag)::type;
      for_cells(stream_, m, n, false, AddBias<C, B>{View<C>(c), View<const B>(bias)});
    });
  });
}

void CudaBackend::gemm_canonical(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c) {
  check::gemm_canonical(a, transpose_a, b, transpose_b, c);
  if (c.size() == 0) return;
  // Dense operands at the start of a block: the choice of the algorithm sees sizes and types alone.
  const auto dense = [&](int slot, const Tensor& x) {
    Tensor y(nullptr, scratch(slot, std::max<int64_t>(x.bytes(), 1)), x.dtype(), x.rows(), x.cols(), x.cols());
    return y;
  };
  const Tensor da = dense(slot_a, a), db = dense(slot_b, b), dc = dense(slot_c, c);
  copy(da, a);
  copy(db, b);
  gemm(da, transpose_a, db, transpose_b, dc, false);
  copy(c, dc);
}

}  // namespace orthant
