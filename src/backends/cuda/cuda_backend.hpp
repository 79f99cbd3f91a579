// The backend on an NVIDIA GPU: cuBLASLt for products, kernels of our own (kernel.hpp) for the rest.
//
// One compute stream; every operation is put into it and returns at once. Sums are cut by shape alone, so that a run
// repeats its bits. Ops are called from one thread (the main thread). Every op begins with its check of
// backends/check_shapes.hpp, which all backends share. File names are those of cpu/.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
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
  /// Version of the library behind the products.
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

  // gemm.cu
  void gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
            const Tensor& bias = {}) override;
  void gemm_canonical(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c) override;

  // attention.cu
  void attention_forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                         const Tensor& lse) override;
  void attention_backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& o, const Tensor& lse, const Tensor& dq, const Tensor& dk,
                          const Tensor& dv) override;

  // attention_merge.cu
  void attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_part, const Tensor& lse_part) override;

  // dropout.cu
  void dropout(const Tensor& x, const Dropout& d, const Tensor& out) override;

  // rows.cu; norms and sum_rows: norms.cu
  void norm_forward(NormKind kind, const Tensor& x, const Tensor& gain, const Tensor& bias, double eps,
                    const Tensor& y, const Tensor& stats) override;
  void norm_backward(NormKind kind, const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& stats,
                     const Tensor& residual, const Tensor& dx, const Tensor& d_gain, const Tensor& d_bias) override;
  void gelu_forward(const Tensor& x, const Tensor& y) override;
  void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) override;
  void swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y) override;
  void swiglu_backward(const Tensor& dy, const Tensor& gate, const Tensor& up, const Tensor& d_gate,
                       const Tensor& d_up) override;
  void add(const Tensor& a, const Tensor& b, const Tensor& out) override;
  void scale(const Tensor& x, double factor) override;
  void sum_rows(const Tensor& x, const Tensor& out) override;
  void row_squares(const Tensor& x, const Tensor& out) override;
  void rope(const Tensor& x, const RopeShape& s, const Tensor& positions, const Tensor& table, bool inverse) override;
  void scale_rows(const Tensor& x, const Tensor& factor, const Tensor& out) override;
  void row_dots(const Tensor& a, const Tensor& b, const Tensor& out) override;

  // router.cu
  void router_forward(const RouterShape& s, const Tensor& logits, const Tensor& bias, const Tensor& chosen,
                      const Tensor& weights, const Tensor& shares) override;
  void router_backward(const RouterShape& s, const Tensor& logits, const Tensor& chosen, const Tensor& d_weights,
                       const Tensor& balance, double z, const Tensor& d_logits) override;
  void count_choices(const Tensor& chosen, const Tensor& counts) override;
  void gather_rows(const Tensor& x, const Tensor& index, const Tensor& out) override;
  void combine_rows(const Tensor& x, const Tensor& slot, const Tensor& out) override;

  // tokens.cu
  void embedding_forward(const Tensor& ids, const Tensor& table, int64_t first, const Tensor& out) override;
  void embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, const Tensor& d_table) override;
  void row_max(const Tensor& logits, const Tensor& out) override;
  void row_sum_exp(const Tensor& logits, const Tensor& max, const Tensor& out) override;
  void pick(const Tensor& logits, const Tensor& labels, int64_t first, const Tensor& out) override;
  void softmax_backward(const Tensor& logits, const Tensor& max, const Tensor& sum, const Tensor& labels,
                        int64_t first, const Tensor& weight, double z, const Tensor& d_logits) override;

  // update.cu
  void adamw(const AdamwStep& step, const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& grad,
             const Tensor& copy) override;
  void sgd(const SgdStep& step, const Tensor& p, const Tensor& velocity, const Tensor& grad,
           const Tensor& copy) override;

  // exact.cu
  void exact_add(const Tensor& x, const Tensor& sum) override;
  void exact_carry(const Tensor& sum) override;
  void exact_value(const Tensor& sum, const Tensor& out) override;
  void exact_embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, int64_t table_rows,
                                const Tensor& sum) override;
  bool exact_overflow() override;

  /// Device memory of at least `bytes`, 256-byte aligned, kept by slot and grown on demand; contents are lost when it grows.
  /// For work in the compute stream alone. Not in the account, which counts tensors. Slots: 0-4 gemm.cu, 5 attention.cu,
  /// 6 rows.cu and norms.cu, 7 router.cu, 8 tokens.cu, 9 exact.cu, 10 and 11 cudnn_attention.cu.
  void* scratch(int slot, int64_t bytes);
  /// Memory of the device, used or not.
  int64_t device_bytes() const;

 private:
  struct Device;  // stream and staging buffers, which tensors may outlive the backend with; in device.cu
  /// Waits for the compute stream.
  void wait() const;
  struct Gemm;    // cuBLASLt's handle, workspace and chosen algorithms; in gemm.cu
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
  int* exact_overflow_ = nullptr;  ///< on the device; exact.cu sets it where a value had no place in the sum
  Block scratch_[scratch_slots];
};

}  // namespace orthant
