// Products of the stand-in for cuBLASLt; see include/cublasLt.h.
#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cublasLt.h"
#include "orthant/elementwise.hpp"

struct cublasLtStandInHandle {};
struct cublasLtStandInDesc {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* aux = nullptr;
  int64_t aux_ld = 0;
  const void *a_scale = nullptr, *b_scale = nullptr;
  int32_t a_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, b_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int32_t bias_type = -1;
  int8_t fast_accum = 0;
};
struct cublasLtStandInLayout {
  cudaDataType_t type;
  int64_t rows, cols, ld;
  cublasLtOrder_t order = CUBLASLT_ORDER_COL;
};
struct cublasLtStandInPreference {
  uint64_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace {

using host_stand_in::refuse;
std::set<const void*> handles;  // everything made and not destroyed

template <class T, class... A>
cublasStatus_t make(T** out, A... args) {
  *out = new T{args...};
  handles.insert(*out);
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t end(T* handle) {
  if (handles.erase(handle) == 0) refuse("a cuBLASLt handle is destroyed that does not exist");
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
void use(const void* handle) {
  if (!handles.count(handle)) refuse("a cuBLASLt handle is used that does not exist");
}

int64_t bytes_of(cudaDataType_t t) {
  switch (t) {
    case CUDA_R_64F: return 8;
    case CUDA_R_32F: return 4;
    case CUDA_R_16F: case CUDA_R_16BF: return 2;
    case CUDA_R_8F_E4M3: case CUDA_R_8F_E5M2: return 1;
  }
  refuse("a type that cuBLASLt does not have");
}
bool fp8(cudaDataType_t t) { return bytes_of(t) == 1; }

bool has_bias(const cublasLtStandInDesc& d) { return d.epilogue & CUBLASLT_EPILOGUE_BIAS; }
bool has_gelu(const cublasLtStandInDesc& d) { return (d.epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX; }
cudaDataType_t bias_type(const cublasLtStandInDesc& d, const cublasLtStandInLayout& out) {
  return d.bias_type >= 0 ? static_cast<cudaDataType_t>(d.bias_type) : out.type;
}
/// 89 for 8.9.
int capability() {
  int device = 0;
  cudaDeviceProp p;
  cudaGetDevice(&device);
  cudaGetDeviceProperties(&p, device);
  return 10 * p.major + p.minor;
}

int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/// Bytes of the scales of an operand of `outer` rows or columns and k numbers along the sum; see section "Narrow precision data
/// types usage".
int64_t scale_bytes(int32_t mode, int64_t outer, int64_t k) {
  switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: return up(k, 128) / 128 * outer * 4;
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: return up(up(k, 128) / 128, 4) * (up(outer, 128) / 128) * 4;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: return up(outer, 128) * up(up(k, 32) / 32, 4);
    default: return 4;
  }
}
/// The scale of number p along the sum in row (A) or column (B) i.
double scale_at(const void* scales, int32_t mode, int64_t outer, int64_t k, int64_t i, int64_t p) {
  const auto* f = static_cast<const float*>(scales);
  switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: return f[p / 128 * outer + i];
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: return f[i / 128 * up(up(k, 128) / 128, 4) + p / 128];
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: {
      const int64_t width = up(up(k, 32) / 32, 4), s = p / 32, row = i % 128;
      const int64_t tile = i / 128 * width * 128 + s / 4 * 512;
      return std::ldexp(1.0, static_cast<const uint8_t*>(scales)[tile + row % 32 * 16 + row / 32 * 4 + s % 4] - 127);
    }
    default: return *f;
  }
}

/// TF32: the exponent of f32 and 10 bits of mantissa, to nearest.
float tf32(float x) {
  const uint32_t u = orthant::bits_of(x);
  if (!orthant::finite_(x)) return x;
  return orthant::float_of((u + 0xfffu + (u >> 13 & 1u)) & ~0x1fffu);
}

/// OCP FP8: e5m2 as IEEE half cut to 8 bits; e4m3 has no infinity, and NaN where all exponent and mantissa bits are set.
double fp8_value(uint8_t u, cudaDataType_t t) {
  const double sign = u & 0x80 ? -1 : 1;
  if (t == CUDA_R_8F_E5M2) return orthant::to_float(orthant::f16{static_cast<uint16_t>(u << 8)});
  const int exponent = (u >> 3) & 15, mantissa = u & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
}

double load(const void* p, int64_t i, cudaDataType_t t) {
  switch (t) {
    case CUDA_R_64F: return static_cast<const double*>(p)[i];
    case CUDA_R_32F: return static_cast<const float*>(p)[i];
    case CUDA_R_16F: return orthant::to_float(static_cast<const orthant::f16*>(p)[i]);
    case CUDA_R_16BF: return orthant::to_float(static_cast<const orthant::bf16*>(p)[i]);
    default: return fp8_value(static_cast<const uint8_t*>(p)[i], t);
  }
}
void store(void* p, int64_t i, cudaDataType_t t, double x) {
  switch (t) {
    case CUDA_R_64F: static_cast<double*>(p)[i] = x; return;
    case CUDA_R_32F: static_cast<float*>(p)[i] = static_cast<float>(x); return;
    case CUDA_R_16F: static_cast<orthant::f16*>(p)[i] = orthant::to_f16(static_cast<float>(x)); return;
    case CUDA_R_16BF: static_cast<orthant::bf16*>(p)[i] = orthant::to_bf16(static_cast<float>(x)); return;
    default: refuse("a result in fp8");
  }
}

int64_t place(const cublasLtStandInLayout& l, int64_t row, int64_t col) { return l.order == CUBLASLT_ORDER_COL ? row + col * l.ld : row * l.ld + col; }
int64_t extent(const cublasLtStandInLayout& l) { return l.rows == 0 || l.cols == 0 ? 0 : (place(l, l.rows - 1, l.cols - 1) + 1) * bytes_of(l.type); }

bool sound(const cublasLtStandInLayout& l) { return l.rows > 0 && l.cols > 0 && l.ld >= (l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols); }

cublasStatus_t supported(const cublasLtStandInDesc& d, const cublasLtStandInLayout& a, const cublasLtStandInLayout& b, const cublasLtStandInLayout& c,
                         const cublasLtStandInLayout& out) {
  for (const auto* l : {&a, &b, &c, &out})
    if (!sound(*l)) return CUBLAS_STATUS_INVALID_VALUE;
  const int64_t m = d.trans_a == CUBLAS_OP_N ? a.rows : a.cols, k = d.trans_a == CUBLAS_OP_N ? a.cols : a.rows;
  const int64_t kb = d.trans_b == CUBLAS_OP_N ? b.rows : b.cols, n = d.trans_b == CUBLAS_OP_N ? b.cols : b.rows;
  if (k != kb || m != out.rows || n != out.cols || c.rows != out.rows || c.cols != out.cols) return CUBLAS_STATUS_INVALID_VALUE;
  if (c.type != out.type || c.order != out.order) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool bias = has_bias(d), gelu = has_gelu(d);
  if (d.compute == CUBLAS_COMPUTE_64F)
    return d.scale == CUDA_R_64F && a.type == CUDA_R_64F && b.type == CUDA_R_64F && out.type == CUDA_R_64F && !bias && !gelu ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  if (d.scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (gelu) {
    if (d.aux_ld % 8 != 0 || d.aux_ld < out.rows || !d.aux) return CUBLAS_STATUS_INVALID_VALUE;
    if (out.order != CUBLASLT_ORDER_COL || reinterpret_cast<uintptr_t>(d.aux) % 16 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (fp8(a.type) || fp8(b.type)) {
    // both of 8 bits, not both e5m2; A transposed and B not; 16-byte sizes; results of 16 or 32 bits, biases of 16
    const int device = capability();
    const bool types = fp8(a.type) && fp8(b.type) && !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) && d.compute == CUBLAS_COMPUTE_32F;
    const bool tn = d.trans_a == CUBLAS_OP_T && d.trans_b == CUBLAS_OP_N;
    const bool form = (tn || (device >= 100 && device < 120)) && a.order == CUBLASLT_ORDER_COL && b.order == CUBLASLT_ORDER_COL;
    const bool sizes = m % 16 == 0 && k % 16 == 0 && a.ld % 16 == 0 && b.ld % 16 == 0 && out.ld * bytes_of(out.type) % 16 == 0;
    const bool results = bytes_of(out.type) <= 4 && bytes_of(out.type) >= 2 && (!bias || bytes_of(bias_type(d, out)) == 2) && !gelu;
    const auto mode_is = [&](int32_t mode) { return d.a_mode == mode && d.b_mode == mode; };
    const auto block = [](int32_t mode) { return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F; };
    const bool scales = mode_is(CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F)    ? device >= 89
                        : mode_is(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0) ? device >= 100
                                                                            : block(d.a_mode) && block(d.b_mode) && device == 90 && m % 4 == 0 && n % 4 == 0 &&
                                                                                  !mode_is(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
    return types && form && sizes && results && scales ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (d.a_scale || d.b_scale || d.a_mode || d.b_mode) return CUBLAS_STATUS_INVALID_VALUE;
  if (d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (bias && bias_type(d, out) != out.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (a.type != b.type || a.type == CUDA_R_64F) return CUBLAS_STATUS_NOT_SUPPORTED;
  return out.type == a.type || out.type == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

void need_place(const char* what, const void* data, int64_t bytes, uint64_t alignment) {
  if (!host_stand_in::on_device(data, static_cast<size_t>(bytes))) refuse(std::string("a product's ") + what + " does not lie inside one block of device memory");
  if (reinterpret_cast<uintptr_t>(data) % alignment != 0) refuse(std::string("a product's ") + what + " is aligned less than its algorithm was chosen for");
}

/// The loops; sums in Sum, in the order of k.
template <class Sum>
void product(const cublasLtStandInDesc& d, const cublasLtStandInLayout& la, const cublasLtStandInLayout& lb, const cublasLtStandInLayout& lc, double alpha,
             double beta, const void* a, const void* b, const void* c, void* out) {
  const int64_t m = lc.rows, n = lc.cols, k = d.trans_a == CUBLAS_OP_N ? la.cols : la.rows;
  const bool eight = fp8(la.type), rounds = d.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const bool blocks = eight && (d.a_mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F || d.b_mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
  const auto widened = [&](double x) { return rounds ? static_cast<Sum>(tf32(static_cast<float>(x))) : static_cast<Sum>(x); };
  std::vector<Sum> wide_a(static_cast<size_t>(m * k)), wide_b(static_cast<size_t>(k));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t p = 0; p < k; ++p) {
      const double x = load(a, d.trans_a == CUBLAS_OP_N ? place(la, i, p) : place(la, p, i), la.type);
      wide_a[static_cast<size_t>(i * k + p)] = widened(blocks ? x * scale_at(d.a_scale, d.a_mode, m, k, i, p) : x);
    }
  Sum scale = static_cast<Sum>(alpha);
  if (eight && !blocks)
    for (const void* s : {d.a_scale, d.b_scale})
      if (s) scale *= static_cast<Sum>(*static_cast<const float*>(s));
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t p = 0; p < k; ++p) {
      const double x = load(b, d.trans_b == CUBLAS_OP_N ? place(lb, p, j) : place(lb, j, p), lb.type);
      wide_b[static_cast<size_t>(p)] = widened(blocks ? x * scale_at(d.b_scale, d.b_mode, n, k, j, p) : x);
    }
    for (int64_t i = 0; i < m; ++i) {
      Sum sum = 0;
      const Sum* row = wide_a.data() + i * k;
      for (int64_t p = 0; p < k; ++p) sum += row[p] * wide_b[static_cast<size_t>(p)];
      sum *= scale;
      if (beta != 0) sum += static_cast<Sum>(beta) * static_cast<Sum>(load(c, place(lc, i, j), lc.type));
      if (has_bias(d)) sum += static_cast<Sum>(load(d.bias, i, bias_type(d, lc)));
      if (has_gelu(d)) {
        store(d.aux, i + j * d.aux_ld, lc.type, static_cast<double>(sum));
        sum = orthant::gelu_tanh(sum);
      }
      store(out, place(lc, i, j), lc.type, static_cast<double>(sum));
    }
  }
}

}  // namespace

size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) { return make(h); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return end(h); }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute, cudaDataType_t scale) { return make(d, compute, scale); }
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return end(d); }
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType_t type, uint64_t rows, uint64_t cols, int64_t ld) {
  return make(l, type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return end(l); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) { return make(p); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return end(p); }

namespace {
template <class T>
cublasStatus_t put(T& field, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
}  // namespace

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t which, const void* value, size_t bytes) {
  use(d);
  switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return put(d->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return put(d->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return put(d->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return put(d->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return put(d->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return put(d->aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return put(d->fast_accum, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return put(d->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: return put(d->a_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE: return put(d->b_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return put(d->a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return put(d->b_scale, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t which, const void* value, size_t bytes) {
  use(l);
  return which == CUBLASLT_MATRIX_LAYOUT_ORDER ? put(l->order, value, bytes) : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t which, const void* value, size_t bytes) {
  use(p);
  if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return put(p->workspace, value, bytes);
  return put(p->alignment[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  for (const void* x : std::initializer_list<const void*>{h, desc, a, b, c, d, preference}) use(x);
  *found = 0;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const cublasStatus_t status = supported(*desc, *a, *b, *c, *d);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  *results = {};
  for (int i = 0; i < 4; ++i) results->algo.data[i] = preference->alignment[i];
  results->algo.data[4] = results->workspaceSize = std::min<uint64_t>(preference->workspace, 4096);
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, const void* alpha, const void* a, cublasLtMatrixLayout_t la, const void* b,
                              cublasLtMatrixLayout_t lb, const void* beta, const void* c, cublasLtMatrixLayout_t lc, void* d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  for (const void* x : std::initializer_list<const void*>{h, desc, la, lb, lc, ld}) use(x);
  const cublasStatus_t status = supported(*desc, *la, *lb, *lc, *ld);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (c != d || lc->ld != ld->ld) refuse("a product that is not in place");
  if (!algo) refuse("a product without an algorithm of the heuristic");
  if (algo->data[4] > workspace_bytes) refuse("a product with less workspace than its algorithm takes");
  if (workspace_bytes > 0) need_place("workspace", workspace, static_cast<int64_t>(workspace_bytes), 16);
  need_place("a", a, extent(*la), algo->data[0]);
  need_place("b", b, extent(*lb), algo->data[1]);
  need_place("c", c, extent(*lc), algo->data[2]);
  need_place("d", d, extent(*ld), algo->data[3]);
  if (has_bias(*desc)) need_place("bias", desc->bias, ld->rows * bytes_of(bias_type(*desc, *ld)), 1);
  if (has_gelu(*desc)) need_place("aux", desc->aux, ((ld->cols - 1) * desc->aux_ld + ld->rows) * bytes_of(ld->type), 16);
  if (fp8(la->type)) {
    if (desc->fast_accum) refuse("a product with fast accumulation, which is less than f32 sums");
    const int64_t k = desc->trans_a == CUBLAS_OP_N ? la->cols : la->rows;
    for (const auto& [data, mode, outer] : {std::tuple(desc->a_scale, desc->a_mode, ld->rows), std::tuple(desc->b_scale, desc->b_mode, ld->cols)})
      if (data) need_place("scale", data, scale_bytes(mode, outer, k), mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F ? 4 : 16);
      else if (mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) refuse("a product without the scales of its blocks");
  }
  const bool wide = desc->compute == CUBLAS_COMPUTE_64F;
  const double alpha_value = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
  const double beta_value = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  host_stand_in::enqueue(stream, [=, desc = *desc, la = *la, lb = *lb, lc = *ld, bytes = algo->data[4]] {
    if (bytes > 0) std::memset(workspace, 0xff, bytes);  // the library's to write
    (wide ? product<double> : product<float>)(desc, la, lb, lc, alpha_value, beta_value, a, b, c, d);
  });
  return CUBLAS_STATUS_SUCCESS;
}
