// The device: memory in the order of the compute stream, clearing, copies with conversion, the host's views, waiting.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <list>
#include <thread>

#include "backends/check_shapes.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/cudnn_attention.hpp"
#include "backends/cuda/gemm.hpp"
#include "backends/cuda/numbers.hpp"
#include "backends/cuda/staging.hpp"
#include "backends/pool.hpp"

namespace orthant {

namespace cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const std::string text = cudaGetErrorString(status);
  cudaGetLastError();  // told here: the next launch shall not be blamed for it
  throw FaultError("CUDA failed: " + text + " in " + call);
}

}  // namespace cuda

using namespace cuda;

struct CudaBackend::Device {
  int number = 0;
  cudaStream_t stream = nullptr;
  cudaEvent_t reached = nullptr;  // for waits
  std::unique_ptr<Staging> staging;
  MemoryAccount* account = nullptr;                     // null once the backend is gone
  std::list<std::weak_ptr<std::function<void()>>> watches;

  explicit Device(MemoryAccount* a) : account(a) {
    ORTHANT_CUDA(cudaGetDevice(&number));
    ORTHANT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ORTHANT_CUDA(cudaEventCreateWithFlags(&reached, cudaEventDisableTiming));
    staging = std::make_unique<Staging>(stream);
    // freed memory stays with the pool: a steady loop finds its blocks there, without a call to the driver
    cudaMemPool_t pool = nullptr;
    uint64_t all = std::numeric_limits<uint64_t>::max();
    ORTHANT_CUDA(cudaDeviceGetDefaultMemPool(&pool, number));
    ORTHANT_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
  }
  ~Device() {  // with the last tensor; errors here have nobody to hear them
    cudaStreamSynchronize(stream);
    staging.reset();
    cudaEventDestroy(reached);
    cudaStreamDestroy(stream);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// Null when the device has no memory left, even after the stream is through and the pool has been emptied.
  void* take(int64_t bytes) {
    void* data = nullptr;
    cudaError_t status = cudaMallocAsync(&data, static_cast<size_t>(bytes), stream);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      cudaMemPool_t pool = nullptr;
      ORTHANT_CUDA(cudaStreamSynchronize(stream));
      ORTHANT_CUDA(cudaDeviceGetDefaultMemPool(&pool, number));
      ORTHANT_CUDA(cudaMemPoolTrimTo(pool, 0));
      status = cudaMallocAsync(&data, static_cast<size_t>(bytes), stream);
      if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return nullptr;
      }
    }
    cuda::check(status, "cudaMallocAsync");
    return data;
  }
  void give(void* data) { cudaFreeAsync(data, stream); }
};

CudaBackend::CudaBackend() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    cudaGetLastError();
    throw UsageError("device.backend = \"cuda\": this process sees no CUDA device (is there a driver, and does CUDA_VISIBLE_DEVICES name one?)");
  }
  device_ = std::make_shared<Device>(&account_);
  stream_ = device_->stream;
  cudaDeviceProp properties;
  ORTHANT_CUDA(cudaGetDeviceProperties(&properties, device_->number));
  capability_ = 10 * properties.major + properties.minor;
  device_bytes_ = static_cast<int64_t>(properties.totalGlobalMem);
  gemm_ = std::make_unique<Gemm>();
  cudnn_attention_ = std::make_unique<CudnnAttention>(*this);
  exact_overflow_ = static_cast<int*>(device_->take(sizeof(int)));
  if (!exact_overflow_) throw FaultError("out of memory: the device has no room for a flag");
  ORTHANT_CUDA(cudaMemsetAsync(exact_overflow_, 0, sizeof(int), stream_));
}

CudaBackend::~CudaBackend() {
  for (Block& block : scratch_)
    if (block.data) device_->give(block.data);
  if (exact_overflow_) device_->give(exact_overflow_);
  cudaStreamSynchronize(stream_);  // operations hold handles of gemm_ and cudnn_attention_
  device_->account = nullptr;
}

std::string CudaBackend::describe() const {
  cudaDeviceProp p;
  int runtime = 0, driver = 0;
  ORTHANT_CUDA(cudaGetDeviceProperties(&p, device_->number));
  ORTHANT_CUDA(cudaRuntimeGetVersion(&runtime));
  ORTHANT_CUDA(cudaDriverGetVersion(&driver));
  char line[800];
  std::snprintf(line, sizeof line, "cuda: %s (device %d, %.1f GiB, compute capability %d.%d), CUDA %d.%d (driver for %d.%d), %s; attention: %s",
                p.name, device_->number, static_cast<double>(p.totalGlobalMem) / 1073741824.0, p.major, p.minor,
                runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10, Gemm::version().c_str(), cudnn_attention_->describe().c_str());
  return line;
}

std::string CudaBackend::libraries() {
  const std::string attention = CudnnAttention::version();
  return Gemm::version() + (attention.empty() ? "" : ", " + attention);
}

std::shared_ptr<void> CudaBackend::add_watch(std::function<void()> watch) {
  auto kept = std::make_shared<std::function<void()>>(std::move(watch));
  device_->watches.push_back(kept);
  return kept;
}

void CudaBackend::wait() const {
  device_->watches.remove_if([](const auto& w) { return w.expired(); });
  if (device_->watches.empty()) {
    ORTHANT_CUDA(cudaStreamSynchronize(stream_));
    return;
  }
  ORTHANT_CUDA(cudaEventRecord(device_->reached, stream_));
  for (;;) {
    const cudaError_t status = cudaEventQuery(device_->reached);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) cuda::check(status, "cudaEventQuery");
    cudaGetLastError();
    for (const auto& w : device_->watches)
      if (const auto watch = w.lock()) (*watch)();
    std::this_thread::yield();
  }
}

void CudaBackend::synchronize() { wait(); }

Tensor CudaBackend::alloc(DType dtype, int64_t rows, int64_t cols, MemoryKind kind) {
  const int64_t bytes = check::bytes_of(dtype, rows, cols);
  auto storage = std::make_unique<Storage>();
  storage->data = device_->take(std::max<int64_t>(bytes, 1));
  if (!storage->data)
    throw FaultError("out of memory: the device has no " + std::to_string(bytes) + " bytes for a " + name_of(dtype) +
                     " tensor [" + std::to_string(rows) + ", " + std::to_string(cols) + "] of kind " + name_of(kind) +
                     "; in use:\n" + account_table(account_));
  storage->bytes = bytes;
  storage->kind = kind;
  account_.add(kind, bytes);
  std::shared_ptr<Storage> shared(storage.release(), [device = device_](Storage* s) {
    if (device->account) device->account->remove(s->kind, s->bytes);
    device->give(s->data);
    delete s;
  });
  void* data = shared->data;
  return Tensor(std::move(shared), data, dtype, rows, cols, cols);
}

void* CudaBackend::scratch(int slot, int64_t bytes) {
  Block& block = scratch_[slot];
  if (bytes <= block.bytes) return block.data;
  if (block.data) device_->give(block.data);
  block = {};
  block.data = device_->take(bytes);
  if (!block.data)
    throw FaultError("out of memory: the device has no " + std::to_string(bytes) + " bytes of working memory; in use:\n" +
                     account_table(account_));
  block.bytes = bytes;
  return block.data;
}

void CudaBackend::zero(const Tensor& x) {
  if (x.size() == 0) return;
  const auto size = static_cast<size_t>(size_of(x.dtype()));
  if (x.dense()) ORTHANT_CUDA(cudaMemsetAsync(x.data(), 0, static_cast<size_t>(x.size()) * size, stream_));
  else ORTHANT_CUDA(cudaMemset2DAsync(x.data(), static_cast<size_t>(x.ld()) * size, 0, static_cast<size_t>(x.cols()) * size, static_cast<size_t>(x.rows()), stream_));
}

namespace {

template <class To, class From>
struct Convert {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const { to(r, c) = store<To>(load(from(r, c))); }
  View<To> to;
  View<const From> from;
};
template <class T>
struct Move {  // bits of one width
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const { to(r, c) = from(r, c); }
  View<T> to;
  View<const T> from;
};

}  // namespace

void CudaBackend::copy(const Tensor& dst, const Tensor& src) {
  check::copy(dst, src);
  if (dst.size() == 0 || (dst.data() == src.data() && dst.dtype() == src.dtype() && dst.ld() == src.ld())) return;
  const bool dense = dst.dense() && src.dense();
  if (dst.dtype() == src.dtype() && dense) {
    ORTHANT_CUDA(cudaMemcpyAsync(dst.data(), src.data(), static_cast<size_t>(src.bytes()), cudaMemcpyDeviceToDevice, stream_));
    return;
  }
  const int64_t rows = dst.rows(), cols = dst.cols();
  if (dst.dtype() == src.dtype()) {
    const auto move = [&](auto bits) {
      using T = decltype(bits);
      for_cells(stream_, rows, cols, false, Move<T>{View<T>(dst), View<const T>(src)});
    };
    const int64_t size = size_of(dst.dtype());
    return size == 1 ? move(uint8_t{}) : size == 2 ? move(uint16_t{}) : size == 4 ? move(uint32_t{}) : move(uint64_t{});
  }
  with_compute(dst.dtype(), [&](auto to) {
    with_compute(src.dtype(), [&](auto from) {
      using To = typename decltype(to)::type;
      using From = typename decltype(from)::type;
      for_cells(stream_, rows, cols, dense, Convert<To, From>{View<To>(dst), View<const From>(src)});
    });
  });
}

void* CudaBackend::host_begin(const Tensor& x) {
  check::host(x);
  return device_->staging->begin(x.data(), x.bytes(), [this] { wait(); });
}

void CudaBackend::host_end(const Tensor& x) { device_->staging->end(x.data(), x.bytes()); }

}  // namespace orthant
