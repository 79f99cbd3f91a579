// The backend on the host's processors: oneDNN for products, OpenMP loops for the rest.
//
// Sums are cut by shape and thread count alone, never by arrival, so that a run repeats its bits. Ops are called from
// one thread (the main thread); only they open parallel regions. Every op begins with its check of
// backends/check_shapes.hpp, which meta and debug share.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backends/pool.hpp"
#include "orthant/backend.hpp"

namespace orthant {

class CpuBackend : public Backend {
 public:
  CpuBackend();
  ~CpuBackend() override;
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  std::string name() const override { return "cpu"; }
  std::string describe() const override;
  /// Threads of every parallel region of this backend: those OpenMP had when it was made.
  int threads() const { return threads_; }

  // device.cpp
  Tensor alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) override;
  void zero(const Tensor& x) override;
  void copy(const Tensor& dst, const Tensor& src) override;
  void* host_begin(const Tensor& x) override;
  void host_end(const Tensor& x) override;
  void synchronize() override {}

  // each in the file that its section of the list names
#define ORTHANT_OPERATION(name, parameters, arguments) void name parameters override;
#include "orthant/operations.inc"
  bool exact_overflow() override;

 protected:
  /// Memory of at least `bytes`, 64-byte aligned, kept by slot and grown on demand; contents are lost when it grows.
  /// Not in the account, which counts tensors. Slots: 0-4 gemm.cpp, 1-3 fp8.cpp too (its products are f32, which leave them), 5 attention.cpp, 6 rows.cpp, 7 router.cpp.
  void* scratch(int slot, int64_t bytes);
  /// Where exact.cpp notes a value that had no place in the sum; set from any thread.
  std::atomic<bool> exact_overflow_{false};

 private:
  Tensor widened(const Quantised& x, int slot);  // fp8.cpp
  struct Gemm;  // oneDNN's engine, stream and cached primitives; in gemm.cpp, so that dnnl.hpp stays out of headers
  static constexpr int scratch_slots = 8;
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
  };

  int threads_;
  std::shared_ptr<Pool> pool_;
  std::unique_ptr<Gemm> gemm_;
  Block scratch_[scratch_slots];
};

}  // namespace orthant
