// The stand-ins themselves: streams are lazy, device memory is closed, misuse is refused; products by a documented example.
#include <gtest/gtest.h>

#include "cublasLt.h"

namespace {

struct Streams : ::testing::Test {
  cudaStream_t a = nullptr, b = nullptr;
  cudaEvent_t event = nullptr;
  int *device = nullptr, *host = nullptr;
  void SetUp() override {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    ASSERT_EQ(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    ASSERT_EQ(cudaMallocAsync(reinterpret_cast<void**>(&device), 4 * sizeof(int), a), cudaSuccess);
    ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&host), 4 * sizeof(int), cudaHostAllocDefault), cudaSuccess);
  }
  void TearDown() override {
    cudaFreeAsync(device, a);
    cudaStreamSynchronize(a);
    cudaFreeHost(host);
    cudaEventDestroy(event);
    cudaStreamDestroy(b);
    cudaStreamDestroy(a);
  }
};

TEST_F(Streams, WorkRunsWhenSomebodyWaits) {
  int ran = 0;
  host_stand_in::enqueue(a, [&] { ran = 1; });
  EXPECT_EQ(ran, 0);
  cudaEventRecord(event, a);
  host_stand_in::enqueue(a, [&] { ran = 2; });
  cudaEventSynchronize(event);
  EXPECT_EQ(ran, 1);
  cudaStreamSynchronize(a);
  EXPECT_EQ(ran, 2);
}

TEST_F(Streams, AnEventOrdersTwoStreamsAndNothingElseDoes) {
  int value = 0, unordered = -1, ordered = -1;
  host_stand_in::enqueue(a, [&] { value = 7; });
  cudaEventRecord(event, a);
  host_stand_in::enqueue(b, [&] { unordered = value; });
  cudaStreamSynchronize(b);
  EXPECT_EQ(unordered, 0) << "stream b did not wait for stream a";
  cudaStreamWaitEvent(b, event);
  host_stand_in::enqueue(b, [&] { ordered = value; });
  cudaStreamSynchronize(b);
  EXPECT_EQ(ordered, 7);
}

TEST_F(Streams, FreshMemoryIsNaNAndCopiesRunInOrder) {
  cudaMemcpyAsync(host, device, 16, cudaMemcpyDeviceToHost, a);
  cudaStreamSynchronize(a);
  EXPECT_EQ(host[0], -1);
  for (int i = 0; i < 4; ++i) host[i] = i + 1;
  cudaMemcpyAsync(device, host, 16, cudaMemcpyHostToDevice, a);
  host[2] = 50;  // too early: the copy has not run
  cudaMemsetAsync(device, 0, 4, a);
  cudaMemcpyAsync(host, device, 16, cudaMemcpyDeviceToHost, a);
  cudaStreamSynchronize(a);
  EXPECT_EQ(host[0], 0);
  EXPECT_EQ(host[1], 2);
  EXPECT_EQ(host[2], 50);
}

TEST_F(Streams, MisuseEndsTheProgram) {
  EXPECT_DEATH(device[0] = 1, "the host touched device memory");
  EXPECT_DEATH(
      {
        int pageable[4];
        cudaMemcpyAsync(pageable, device, 16, cudaMemcpyDeviceToHost, a);
      },
      "not pinned");
  EXPECT_DEATH(cudaMemcpyAsync(host, device, 20, cudaMemcpyDeviceToHost, a), "not inside one block|not pinned");
  EXPECT_DEATH(
      {
        int* p = device;
        host_stand_in::enqueue(a, [p] { p[4] = 1; });
        cudaFreeAsync(device, a);
        cudaStreamSynchronize(a);
      },
      "behind the end of a block of 16 bytes");
  EXPECT_DEATH(
      {
        cudaStreamDestroy(b);
        cudaStreamSynchronize(b);
      },
      "after it was destroyed");
  EXPECT_DEATH(
      {
        cudaSetDevice(99);
        host_stand_in::enqueue(a, [] {});
      },
      "an error that nobody looked at: invalid device ordinal");
}

/// Column-major 2 x 2 product of the library's first sample: A = 1 3 / 2 4, B = 5 7 / 6 8, A B = 23 31 / 34 46.
TEST_F(Streams, ProductsAreColumnMajor) {
  double *d = nullptr, *h = nullptr;
  cudaMallocAsync(reinterpret_cast<void**>(&d), 14 * sizeof(double), a);
  cudaHostAlloc(reinterpret_cast<void**>(&h), 14 * sizeof(double), 0);
  for (int i = 0; i < 8; ++i) h[i] = i + 1;
  cudaMemcpyAsync(d, h, 14 * sizeof(double), cudaMemcpyHostToDevice, a);
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t square, c_layout;
  cublasLtMatmulPreference_t preference;
  cublasLtCreate(&handle);
  cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_64F, CUDA_R_64F);
  cublasLtMatrixLayoutCreate(&square, CUDA_R_64F, 2, 2, 2);
  cublasLtMatrixLayoutCreate(&c_layout, CUDA_R_64F, 2, 2, 3);  // a gap below each column
  cublasLtMatmulPreferenceCreate(&preference);
  const uint32_t alignment = 8;
  for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment, sizeof alignment);
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  ASSERT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, desc, square, square, c_layout, c_layout, preference, 1, &best, &found), CUBLAS_STATUS_SUCCESS);
  const double one = 1, zero = 0;
  ASSERT_EQ(cublasLtMatmul(handle, desc, &one, d, square, d + 4, square, &zero, d + 8, c_layout, d + 8, c_layout, &best.algo, nullptr, 0, a), CUBLAS_STATUS_SUCCESS);
  cudaMemcpyAsync(h, d, 14 * sizeof(double), cudaMemcpyDeviceToHost, a);
  cudaStreamSynchronize(a);
  EXPECT_EQ(h[8], 23);
  EXPECT_EQ(h[9], 34);
  EXPECT_NE(h[10], h[10]) << "the gap was written";
  EXPECT_EQ(h[11], 31);
  EXPECT_EQ(h[12], 46);
  // what the library does not have: sums of bf16, a bias on f64, fp8 that is not transposed
  cublasLtMatrixLayout_t half;
  cublasLtMatrixLayoutCreate(&half, CUDA_R_16BF, 2, 2, 2);
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, desc, half, half, half, half, preference, 1, &best, &found), CUBLAS_STATUS_NOT_SUPPORTED);
  cublasLtMatrixLayout_t narrow;
  cublasLtMatrixLayoutCreate(&narrow, CUDA_R_64F, 2, 2, 1);
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, desc, narrow, square, square, square, preference, 1, &best, &found), CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatmulDesc_t single;
  cublasLtMatmulDescCreate(&single, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatrixLayout_t bytes, out;
  cublasLtMatrixLayoutCreate(&bytes, CUDA_R_8F_E4M3, 16, 16, 16);
  cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, 16, 16, 16);
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, single, bytes, bytes, out, out, preference, 1, &best, &found), CUBLAS_STATUS_NOT_SUPPORTED);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute(single, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, single, bytes, bytes, out, out, preference, 1, &best, &found), CUBLAS_STATUS_SUCCESS);
  for (auto l : {square, c_layout, half, narrow, bytes, out}) cublasLtMatrixLayoutDestroy(l);
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatmulDescDestroy(single);
  cublasLtMatmulDescDestroy(desc);
  cublasLtDestroy(handle);
  cudaFreeAsync(d, a);
  cudaFreeHost(h);
}

/// The tables of the section "cublasLtMatmul" and of "Narrow precision data types usage".
TEST(StandIn, Fp8IsWhatTheGenerationHas) {
  cublasLtHandle_t handle;
  cublasLtMatmulPreference_t preference;
  cublasLtCreate(&handle);
  cublasLtMatmulPreferenceCreate(&preference);
  struct Case {
    const char* capability;
    cublasOperation_t a, b;
    int32_t a_mode, b_mode;
    cudaDataType_t b_type;
    int n;
    cublasStatus_t want;
  };
  constexpr int32_t one = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, v128 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                    b128 = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, v32 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  constexpr auto t = CUBLAS_OP_T, n = CUBLAS_OP_N;
  constexpr auto e4m3 = CUDA_R_8F_E4M3, e5m2 = CUDA_R_8F_E5M2;
  constexpr auto yes = CUBLAS_STATUS_SUCCESS, no = CUBLAS_STATUS_NOT_SUPPORTED;
  for (const Case& c : {Case{"8.0", t, n, one, one, e4m3, 16, no}, {"8.9", t, n, one, one, e4m3, 16, yes}, {"9.0", n, n, one, one, e4m3, 16, no},
                        {"9.0", t, t, one, one, e4m3, 16, no}, {"10.0", n, t, one, one, e4m3, 16, yes}, {"12.0", n, n, one, one, e4m3, 16, no},
                        {"9.0", t, n, one, one, e4m3, 7, yes}, {"9.0", t, n, one, one, CUDA_R_16BF, 16, no}, {"9.0", t, n, v128, v128, e5m2, 16, yes},
                        {"9.0", t, n, b128, v128, e4m3, 16, yes}, {"9.0", t, n, b128, b128, e4m3, 16, no}, {"9.0", t, n, v128, v128, e4m3, 7, no},
                        {"10.0", t, n, v128, v128, e4m3, 16, no}, {"9.0", t, n, v32, v32, e4m3, 16, no}, {"10.0", t, n, v32, v32, e4m3, 16, yes},
                        {"9.0", t, n, v128, one, e4m3, 16, no}}) {
    setenv("ORTHANT_CUDA_HOST_CAPABILITY", c.capability, 1);
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, out;
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &c.a, sizeof c.a);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &c.b, sizeof c.b);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &c.a_mode, sizeof c.a_mode);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &c.b_mode, sizeof c.b_mode);
    cublasLtMatrixLayoutCreate(&a, e4m3, 16, 16, 16);
    cublasLtMatrixLayoutCreate(&b, c.b_type, 16, static_cast<uint64_t>(c.n), 16);
    cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, 16, static_cast<uint64_t>(c.n), 16);
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, out, out, preference, 1, &best, &found), c.want)
        << c.capability << ", operations " << c.a << " " << c.b << ", scales " << c.a_mode << " " << c.b_mode << ", types " << c.b_type << ", n " << c.n;
    for (auto l : {a, b, out}) cublasLtMatrixLayoutDestroy(l);
    cublasLtMatmulDescDestroy(desc);
  }
  unsetenv("ORTHANT_CUDA_HOST_CAPABILITY");
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtDestroy(handle);
}

}  // namespace
