// A backend that knows shapes only: allocation counts, every operation checks its tensors and computes nothing.
//
// `plan` runs the program's own step on it, so that memory and traffic are the program's and not a formula's.
#pragma once

#include <memory>
#include <utility>

#include "backends/check_shapes.hpp"
#include "backends/meta/flops.hpp"
#include "orthant/backend.hpp"
#include "support/work_clock.hpp"

namespace orthant {

class MetaBackend : public Backend {
 public:
  MetaBackend() : alive_(std::make_shared<MemoryAccount*>(&account_)) {}
  ~MetaBackend() override { *alive_ = nullptr; }
  std::string name() const override { return "meta"; }
  std::string describe() const override { return "meta: shapes only, nothing is computed"; }
  bool shapes_only() const override { return true; }
  void allow_tf32() override {}
  /// Products and attention take time on this clock.
  void times(std::shared_ptr<WorkClock> clock) { clock_ = std::move(clock); }

  /// Tensors without memory: data() is null.
  Tensor alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) override;
  void zero(const Tensor&) override {}
  void copy(const Tensor& dst, const Tensor& src) override;
  /// LogicError unless the tensor has no elements: ask shapes_only() first.
  void* host_begin(const Tensor& x) override;
  void host_end(const Tensor&) override {}
  void synchronize() override {}

#define ORTHANT_OPERATION(name, parameters, arguments) \
  void name parameters override {                      \
    check::name arguments;                             \
    takes(Flops::name arguments);                      \
  }
#include "orthant/operations.inc"
  bool exact_overflow() override { return false; }

 private:
  void takes(NoTime) {}
  void takes(double flops) {
    if (clock_) clock_->operation(flops);
  }
  std::shared_ptr<MemoryAccount*> alive_;  // null once the backend is gone; tensors may end after it
  std::shared_ptr<WorkClock> clock_;
};

}  // namespace orthant
