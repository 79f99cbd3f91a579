// The cpu backend on memory that only operations may touch: a missing host_begin or a forgotten transfer fails at
// once.
//
// Every tensor lives in pages of its own, closed except while an operation that was given it runs and between
// host_begin and host_end. Fresh memory is full of NaN. Slow: for tests.
#pragma once

#include "backends/cpu/cpu_backend.hpp"
#include "backends/debug/arena.hpp"
#include "backends/debug/open_tensors.hpp"

namespace orthant {

class DebugBackend : public CpuBackend {
 public:
  DebugBackend();
  ~DebugBackend() override;
  std::string name() const override { return "debug"; }

  Tensor alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) override;
  void zero(const Tensor& x) override;
  void copy(const Tensor& dst, const Tensor& src) override;
  void* host_begin(const Tensor& x) override;
  void host_end(const Tensor& x) override;

#define ORTHANT_OPERATION(name, parameters, arguments) \
  void name parameters override {                      \
    const OpenTensors open = opened arguments;         \
    CpuBackend::name arguments;                        \
  }
#define ORTHANT_OPTIONAL_OPERATION(name, parameters, arguments, ...) ORTHANT_OPERATION(name, parameters, arguments)
#include "orthant/operations.inc"

 private:
  template <class... X>
  OpenTensors opened(const X&... x) const {
    return OpenTensors(shared_->arena, x...);
  }

  struct Shared {  // outlives the backend while tensors do
    Arena arena;
    MemoryAccount* account;
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace orthant
