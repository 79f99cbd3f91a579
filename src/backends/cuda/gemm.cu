// Products by cuBLASLt: f32 (in full fp32, but for precision.tf32), bf16 and f16 with fp32 sums, f64. FP8: fp8.cu.
//
// cuBLASLt's matrices are column-major, ours row-major: the same memory is the transpose. So C = op(A) op(B) is asked
// for as C^T = op(B)^T op(A)^T, with the operands swapped and their flags kept, and nothing is moved. A bias, one number
// for each column of C, is one for each row of C^T, as its epilogue wants it.
//
// The library chooses an algorithm by a heuristic from the problem alone; it is asked once for each, so that the same
// call gives the same bits all through a run.
#include "backends/cuda/gemm.hpp"

#include <array>
#include <bit>

#include "backends/check_shapes.hpp"
#include "backends/cuda/numbers.hpp"

namespace orthant {

using namespace cuda;

namespace {

constexpr int64_t workspace_bytes = int64_t{32} << 20;

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw FaultError(std::string("cuBLASLt failed: ") + cublasLtGetStatusString(status) + " in " + call);
}
#define ORTHANT_BLAS(call) check_blas((call), #call)

cudaDataType_t blas_type(DType t) {
  switch (t) {
    case DType::f64: return CUDA_R_64F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    case DType::f8e4m3: return CUDA_R_8F_E4M3;
    case DType::f8e5m2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}
DType type_of(int64_t t) { return static_cast<DType>(t); }

/// A leading dim that is never stepped over may be anything; cuBLASLt wants it no smaller than the row.
int64_t ld_of(const Tensor& x) { return x.rows() <= 1 ? std::max<int64_t>(x.cols(), 1) : x.ld(); }

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which, const T& value) {
  ORTHANT_BLAS(cublasLtMatmulDescSetAttribute(desc, which, &value, sizeof value));
}
/// Heuristics read alignments off the values of pointers, which they do not follow.
const void* aligned_to(int64_t bytes) { return reinterpret_cast<const void*>(static_cast<uintptr_t>(bytes)); }

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

size_t CudaBackend::Gemm::ProblemHash::operator()(const Problem& p) const {
  uint64_t h = 0x9e3779b97f4a7c15u;
  for (uint64_t x : std::bit_cast<std::array<uint64_t, sizeof(Problem) / 8>>(p)) {
    h = (h ^ x) * 0xff51afd7ed558ccdu;
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
  return "cuBLASLt " + dotted(static_cast<int64_t>(cublasLtGetVersion()));  // before CUDA 12 likewise: 120103
}

int64_t CudaBackend::Gemm::alignment_of(const void* p) {
  return int64_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(p) | 256);
}

CudaBackend::Gemm::Plan* CudaBackend::Gemm::find(const Problem& p, std::string* why) {
  if (auto it = kept.find(p); it != kept.end()) {
    if (!it->second && why) *why = "asked before";
    return it->second.get();
  }
  if (kept.size() >= 4096) kept.clear();  // routed experts ask for ever new shapes
  const DType type = type_of(p.a_type), c_type = type_of(p.c_type);
  const bool wide = type == DType::f64, fp8 = p.a_scales != no_scales;
  auto plan = std::make_unique<Plan>();
  const cublasComputeType_t compute = wide ? CUBLAS_COMPUTE_64F : p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  ORTHANT_BLAS(cublasLtMatmulDescCreate(&plan->desc, compute, wide ? CUDA_R_64F : CUDA_R_32F));
  const auto op = [](int64_t transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set<cublasOperation_t>(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, op(p.transpose_b));
  set<cublasOperation_t>(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, op(p.transpose_a));
  const bool bias = p.bias_bytes > 0;
  if (bias || p.gelu)
    set<cublasLtEpilogue_t>(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                            !p.gelu ? CUBLASLT_EPILOGUE_BIAS : bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX);
  if (bias) set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned_to(p.bias_bytes));
  if (p.gelu) {
    set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned_to(p.aux_bytes));
    set<int64_t>(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ld_aux);
  }
  if (fp8) {
    const auto mode = [](int64_t scales) -> int32_t {
      switch (scales) {
        case vec32: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
#if CUDART_VERSION >= 12090
        case vec128: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
        case block128: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
#endif
        default: ORTHANT_ENSURE(scales == scalar, "scales of blocks that this version of cuBLASLt does not have");
      }
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    };
    set<int8_t>(plan->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, 0);  // sums are promoted to f32 as they grow
    set<int32_t>(plan->desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode(p.b_scales));
    set<int32_t>(plan->desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode(p.a_scales));
    set(plan->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, aligned_to(256));
    set(plan->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, aligned_to(256));
    if (bias) set<int32_t>(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
  }
  // columns of a row-major matrix are the rows of the library's
  const auto layout = [](cublasLtMatrixLayout_t& l, DType t, int64_t rows, int64_t cols, int64_t ld) {
    ORTHANT_BLAS(cublasLtMatrixLayoutCreate(&l, blas_type(t), static_cast<uint64_t>(cols), static_cast<uint64_t>(rows), ld));
  };
  layout(plan->a, type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda);
  layout(plan->b, type_of(p.b_type), p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb);
  layout(plan->c, c_type, p.m, p.n, p.ldc);
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t which, int64_t to) {
    const auto bytes = static_cast<uint32_t>(to);
    ORTHANT_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, which, &bytes, sizeof bytes));
  };
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b_bytes);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a_bytes);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.c_bytes);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.c_bytes);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan->desc, plan->b, plan->a, plan->c, plan->c, preference, 1, &best, &found);
  if (status == CUBLAS_STATUS_SUCCESS && found > 0) {
    plan->algo = best.algo;
    return kept.emplace(p, std::move(plan)).first->second.get();
  }
  if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED) check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  if (why) *why = cublasLtGetStatusString(status);
  kept.emplace(p, nullptr);
  return nullptr;
}

CudaBackend::Gemm::Plan& CudaBackend::Gemm::need(const Problem& p) {
  std::string why;
  if (Plan* plan = find(p, &why)) return *plan;
  throw FaultError("cuBLASLt has no algorithm for [" + std::to_string(p.m) + ", " + std::to_string(p.k) + "] of " + name_of(type_of(p.a_type)) +
                   " by [" + std::to_string(p.k) + ", " + std::to_string(p.n) + "] of " + name_of(type_of(p.b_type)) + " into " +
                   name_of(type_of(p.c_type)) + ": " + why);
}

void CudaBackend::Gemm::run(CudaBackend& be, const Problem& p, Plan& plan, const Operands& x) {
  if (x.bias) set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias);
  if (x.aux) set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, x.aux);
  if (x.a_scales) {
    set(plan.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, x.b_scales);
    set(plan.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x.a_scales);
  }
  const float one = 1, beta = x.accumulate ? 1 : 0;
  const double one_wide = 1, beta_wide = beta;
  const bool wide = type_of(p.a_type) == DType::f64;
  ORTHANT_BLAS(cublasLtMatmul(handle, plan.desc, wide ? static_cast<const void*>(&one_wide) : &one, x.b, plan.b, x.a, plan.a,
                              wide ? static_cast<const void*>(&beta_wide) : &beta, x.c, plan.c, x.c, plan.c, &plan.algo,
                              be.scratch(slot_workspace, workspace_bytes), static_cast<size_t>(workspace_bytes), be.stream()));
}

CudaBackend::Gemm::Problem CudaBackend::Gemm::problem_of(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c) {
  Problem p;
  p.m = c.rows(), p.n = c.cols(), p.k = transpose_a ? a.rows() : a.cols();
  p.lda = ld_of(a), p.ldb = ld_of(b), p.ldc = ld_of(c);
  p.transpose_a = transpose_a, p.transpose_b = transpose_b;
  p.a_type = static_cast<int64_t>(a.dtype()), p.b_type = static_cast<int64_t>(b.dtype()), p.c_type = static_cast<int64_t>(c.dtype());
  p.a_bytes = alignment_of(a.data()), p.b_bytes = alignment_of(b.data()), p.c_bytes = alignment_of(c.data());
  return p;
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
    auto p = Gemm::problem_of(a, transpose_a, b, transpose_b, c);
    p.tf32 = tf32_ && a.dtype() == DType::f32;
    if (epilogue) p.bias_bytes = Gemm::alignment_of(bias.data());
    Gemm::Operands x;
    x.a = a.data(), x.b = b.data(), x.c = c.data(), x.accumulate = accumulate;
    if (epilogue) x.bias = bias.data();
    gemm_->run(*this, p, gemm_->need(p), x);
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

// The epilogue takes gelu of the sum in f32; `pre` is that sum rounded to its type. The two calls, which selective recompute
// makes again, take gelu of what was rounded: in 16 bits y may differ from theirs in its last place.
void CudaBackend::gemm_gelu(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias, const Tensor& pre,
                            const Tensor& y) {
  check::gemm(a, transpose_a, b, transpose_b, pre, false, bias);
  check::gelu_forward(pre, y);
  const int64_t ld_pre = ld_of(pre);
  const bool fits = y.size() > 0 && y.dtype() != DType::f64 && y.dtype() == a.dtype() && (transpose_a ? a.rows() : a.cols()) > 0 && ld_pre % 8 == 0 &&
                    Gemm::alignment_of(pre.data()) >= 16;
  if (fits) {
    auto p = Gemm::problem_of(a, transpose_a, b, transpose_b, y);
    p.tf32 = tf32_ && a.dtype() == DType::f32;
    p.gelu = 1, p.ld_aux = ld_pre, p.aux_bytes = Gemm::alignment_of(pre.data());
    if (bias) p.bias_bytes = Gemm::alignment_of(bias.data());
    if (Gemm::Plan* plan = gemm_->find(p)) {
      Gemm::Operands x;
      x.a = a.data(), x.b = b.data(), x.c = y.data(), x.aux = pre.data();
      if (bias) x.bias = bias.data();
      gemm_->run(*this, p, *plan, x);
      return;
    }
  }
  Backend::gemm_gelu(a, transpose_a, b, transpose_b, bias, pre, y);
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
