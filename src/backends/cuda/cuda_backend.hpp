// The backend on an NVIDIA GPU: cuBLASLt for products, kernels of our own (kernel.hpp) for the rest.
//
// One compute stream; every operation is put into it and returns at once. Sums are cut by shape alone, so that a run
// repeats its bits. Ops are called from one thread (the main thread). Every op begins with its check of
// backends/check_shapes.hpp, which all backends share. File names are those of cpu/.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orthant/backend.hpp"

namespace orthant {

class CudaBackend : public Backend {
 public:
  /// On the current device. UsageError when there is none.
  CudaBackend();
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::string name() const override { return "cuda"; }
  std::string describe() const override;
  std::string fp8_problem(std::optional<BlockScale> blocks) const override;
  void allow_tf32() override { tf32_ = true; }
  bool tf32() const override { return tf32_; }
  /// Versions of the libraries behind products and attention.
  static std::string libraries();
  /// Where all operations run, in their order.
  cudaStream_t stream() const { return stream_; }
  /// Called again and again while the host waits for the device: whoever has work of other ranks in streams lets it go on
  /// and throws when it has failed, as the wait would not end. Gone with the last copy of the returned handle.
  std::shared_ptr<void> add_watch(std::function<void()> watch);

  // device.cu
  Tensor alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) override;
  void zero(const Tensor& x) override;
  void copy(const Tensor& dst, const Tensor& src) override;
  void* host_begin(const Tensor& x) override;
  void host_end(const Tensor& x) override;
  void synchronize() override;

  // each in the file that its section of the list names, norms and sum_rows in norms.cu
#define ORTHANT_OPERATION(name, parameters, arguments) void name parameters override;
#include "orthant/operations.inc"
  void gemm_gelu(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias,
                 const Tensor& pre, const Tensor& y) override;
  bool exact_overflow() override;

  /// Device memory of at least `bytes`, 256-byte aligned, kept by slot and grown on demand; contents are lost when it grows.
  /// For work in the compute stream alone. Not in the account, which counts tensors. Slots: 0-4 gemm.cu and fp8.cu, 5 attention.cu,
  /// 6 rows.cu and norms.cu, 7 router.cu, 8 tokens.cu, 9 exact.cu, 10 and 11 cudnn_attention.cu.
  void* scratch(int slot, int64_t bytes);
  /// Working memory that a slice of attention's backward through cuDNN should not exceed; 1 GiB unless told.
  void attention_slice(int64_t bytes) { attention_slice_ = bytes; }
  int64_t attention_slice() const { return attention_slice_; }
  /// Memory of the device, used or not.
  int64_t device_bytes() const { return device_bytes_; }

 private:
  struct Device;  // stream and staging buffers, which tensors may outlive the backend with; in device.cu
  /// Waits for the compute stream.
  void wait() const;
  struct Gemm;    // cuBLASLt's handle, workspace and chosen algorithms; in gemm.cu
  struct Fp8Operand;
  Fp8Operand fp8_operand(const Quantised& x, bool by_rows, int64_t outer, int64_t k, int slot);  // fp8.cu
  class CudnnAttention;  // cudnn_attention.hpp
  static constexpr int scratch_slots = 12;
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
  };

  cudaStream_t stream_ = nullptr;
  std::shared_ptr<Device> device_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<CudnnAttention> cudnn_attention_;
  int64_t attention_slice_ = int64_t{1} << 30;
  int64_t device_bytes_ = 0;
  int capability_ = 0;  ///< of the device: 90 is 9.0
  bool tf32_ = false;   ///< products of f32 may round their operands
  int* exact_overflow_ = nullptr;  ///< on the device; exact.cu sets it where a value had no place in the sum
  Block scratch_[scratch_slots];
};

}  // namespace orthant
