// The cpu backend on memory that only operations may touch: each operation opens what it was given, and closes it.
#include "backends/debug/debug_backend.hpp"

#include <cstring>
#include <string>

#include "backends/check_shapes.hpp"

namespace orthant {

DebugBackend::DebugBackend() : shared_(std::make_shared<Shared>()) { shared_->account = &account_; }
DebugBackend::~DebugBackend() { shared_->account = nullptr; }

Tensor DebugBackend::alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) {
  const int64_t bytes = check::bytes_of(dtype, rows, cols);
  auto block = std::make_unique<GuardedStorage>();
  block->kind = kind;
  if (!shared_->arena.take(*block, bytes)) {
    throw FaultError("out of memory: the debug backend has no address space for a tensor of " +
                     std::to_string(bytes) + " bytes of kind " + name_of(kind) + "; in use:\n" +
                     account_table(account_));
  }
  account_.add(kind, bytes);
  std::shared_ptr<Storage> shared(block.release(), [owner = shared_](Storage* s) {
    auto* guarded = static_cast<GuardedStorage*>(s);
    if (owner->account) owner->account->remove(s->kind, s->bytes);
    owner->arena.give(*guarded);
    delete guarded;
  });
  const Tensor x(shared, shared->data, dtype, rows, cols, cols);
  const OpenTensors open = opened(x);
  std::memset(x.data(), 0xff, static_cast<size_t>(bytes));  // NaN in every floating type, -1 in integers
  return x;
}

void DebugBackend::zero(const Tensor& x) {
  const OpenTensors open = opened(x);
  CpuBackend::zero(x);
}
void DebugBackend::copy(const Tensor& dst, const Tensor& src) {
  const OpenTensors open = opened(dst, src);
  CpuBackend::copy(dst, src);
}
void* DebugBackend::host_begin(const Tensor& x) {
  check::host(x);
  if (x.storage()) shared_->arena.open(static_cast<GuardedStorage&>(*x.storage()));
  return x.data();
}
void DebugBackend::host_end(const Tensor& x) {
  if (!x.storage()) return;
  auto& block = static_cast<GuardedStorage&>(*x.storage());
  ORTHANT_ENSURE(block.users > 0, "host_end without host_begin");
  shared_->arena.close(block);
}

}  // namespace orthant
