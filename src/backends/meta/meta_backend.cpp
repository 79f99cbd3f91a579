// A backend that knows shapes only: allocation counts, every operation checks its tensors and computes nothing.
#include "backends/meta/meta_backend.hpp"

namespace orthant {

Tensor MetaBackend::alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) {
  auto storage = std::make_unique<Storage>();
  storage->bytes = check::bytes_of(dtype, rows, cols);
  storage->kind = kind;
  account_.add(kind, storage->bytes);
  std::shared_ptr<Storage> shared(storage.release(), [alive = alive_](Storage* s) {
    if (*alive) (*alive)->remove(s->kind, s->bytes);
    delete s;
  });
  return Tensor(std::move(shared), nullptr, dtype, rows, cols, cols);
}

void MetaBackend::copy(const Tensor& dst, const Tensor& src) { check::copy(dst, src); }

void* MetaBackend::host_begin(const Tensor& x) {
  check::host(x);
  ORTHANT_ENSURE(x.size() == 0, "host access to a tensor of the meta backend, which has shapes and no numbers");
  return nullptr;
}

}  // namespace orthant
