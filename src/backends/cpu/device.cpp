// Memory of the host backend: allocation from a pool, clearing, copies with conversion.
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "backends/check_shapes.hpp"
#include "backends/cpu/convert.hpp"
#include "backends/cpu/cpu_backend.hpp"

namespace orthant {
namespace {

/// Elements one thread should have at least; below that a parallel region costs more than it saves.
constexpr int64_t grain = 16384;

/// f(row, first column, columns) over pieces that together cover the matrix, in parallel where that pays.
template <class F>
void over_pieces(int64_t rows, int64_t cols, bool dense, int threads, F&& f) {
  if (dense) {  // one long row
    cols *= rows;
    rows = 1;
  }
  if (rows == 0 || cols == 0) return;
  const int64_t in_row = rows >= 4 * threads ? 1 : std::max<int64_t>(1, std::min<int64_t>(4 * threads, cols / grain));
  const int64_t piece = ((cols + in_row - 1) / in_row + 63) / 64 * 64, pieces = rows * in_row;
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * cols >= 2 * grain)
  for (int64_t p = 0; p < pieces; ++p) {
    const int64_t begin = p % in_row * piece;
    if (begin < cols) f(p / in_row, begin, std::min(piece, cols - begin));
  }
}

}  // namespace

Tensor CpuBackend::alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) {
  const int64_t bytes = check::bytes_of(dtype, rows, cols);
  auto storage = std::make_unique<Storage>();
  storage->data = pool_->take(std::max<int64_t>(bytes, 1));
  if (!storage->data) {
    throw FaultError("out of memory: the host has no " + std::to_string(bytes) + " bytes for a " + name_of(dtype) +
                     " tensor [" + std::to_string(rows) + ", " + std::to_string(cols) + "] of kind " + name_of(kind) +
                     "; in use:\n" + account_table(account_));
  }
  storage->bytes = bytes;
  storage->kind = kind;
  account_.add(kind, bytes);
  std::shared_ptr<Storage> shared(storage.release(), [pool = pool_](Storage* s) {
    if (MemoryAccount* account = pool->account()) account->remove(s->kind, s->bytes);
    pool->give(s->data, std::max<int64_t>(s->bytes, 1));
    delete s;
  });
  void* data = shared->data;
  return Tensor(std::move(shared), data, dtype, rows, cols, cols);
}

void* CpuBackend::scratch(int slot, int64_t bytes) {
  Block& block = scratch_[slot];
  if (bytes <= block.bytes) return block.data;
  if (block.data) pool_->give(block.data, block.bytes);
  block = {};
  block.data = pool_->take(bytes);
  if (!block.data) {
    throw FaultError("out of memory: the host has no " + std::to_string(bytes) +
                     " bytes of working memory; in use:\n" + account_table(account_));
  }
  block.bytes = bytes;
  return block.data;
}

void CpuBackend::zero(const Tensor& x) {
  char* data = static_cast<char*>(x.data());
  const int64_t size = size_of(x.dtype()), ld = x.ld() * size;
  over_pieces(x.rows(), x.cols(), x.dense(), threads_, [=](int64_t row, int64_t begin, int64_t count) {
    std::memset(data + row * ld + begin * size, 0, static_cast<size_t>(count * size));
  });
}

void CpuBackend::copy(const Tensor& dst, const Tensor& src) {
  check::copy(dst, src);
  const bool dense = dst.dense() && src.dense();
  if (dst.dtype() == src.dtype()) {
    char* to = static_cast<char*>(dst.data());
    const char* from = static_cast<const char*>(src.data());
    const int64_t size = size_of(dst.dtype()), ld_to = dst.ld() * size, ld_from = src.ld() * size;
    over_pieces(dst.rows(), dst.cols(), dense, threads_, [=](int64_t row, int64_t begin, int64_t count) {
      std::memcpy(to + row * ld_to + begin * size, from + row * ld_from + begin * size,
                  static_cast<size_t>(count * size));
    });
    return;
  }
  dtypes::with_compute(dst.dtype(), [&](auto to_tag) {
    dtypes::with_compute(src.dtype(), [&](auto from_tag) {
      using To = typename decltype(to_tag)::type;
      using From = typename decltype(from_tag)::type;
      To* to = dst.as<To>();
      const From* from = src.as<From>();
      const int64_t ld_to = dst.ld(), ld_from = src.ld();
      over_pieces(dst.rows(), dst.cols(), dense, threads_, [=](int64_t row, int64_t begin, int64_t count) {
        convert::run(to + row * ld_to + begin, from + row * ld_from + begin, count);
      });
    });
  });
}

void* CpuBackend::host_begin(const Tensor& x) {
  check::host(x);
  return x.data();
}

void CpuBackend::host_end(const Tensor&) {}

}  // namespace orthant
