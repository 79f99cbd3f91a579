// How every kernel of this backend is written: once, for the device and for a host that stands in for it in tests.
//
// A kernel is a functor, `void operator()(const Block& b) const`, for one block of threads. Its body is a row of
// phases between which the threads of a block are in step:
//
//   b.each(n, f)       f(i) for every i in [0, n); the threads share the i, all are done when it returns
//   b.sum<A>(n, f)     f(0) + ... + f(n - 1); every thread gets the result
//   b.max<A>(n, f)     the largest of them, `lowest` for n = 0
//   b.shared<T>(n)     memory of the block (of the `shared_bytes` it was launched with), carved off call by call
//
// Outside of phases only values that all threads agree on may be held or branched on. A sum's pattern depends on n
// and the block's width alone: thread t adds f(t), f(t + width), ...; then the threads' sums are added by halves. The
// host form below adds in the same pattern, so the bits are those of the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <string>

#include "orthant/elementwise.hpp"
#include "orthant/error.hpp"

namespace orthant::cuda {

/// Throws FaultError naming the call when a call of the CUDA runtime failed.
void check(cudaError_t status, const char* call);
#define ORTHANT_CUDA(call) ::orthant::cuda::check((call), #call)

/// "13.1.0" of 130100, as cuBLASLt, cuDNN and NCCL number their versions.
inline std::string dotted(int64_t v) {
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

/// Blocks of a launch.
struct Grid {
  int64_t x = 1, y = 1, z = 1;
};

constexpr int default_width = 256;  ///< threads of a block
constexpr int widest = 256;         ///< most threads of a block; the width is a power of two from 32 on
constexpr int64_t most_shared_bytes =
    96 * 1024;  ///< what a block may have on every architecture, beside that of sums

namespace detail {
/// Mistakes of ours that a device would report late and without their place, or not at all.
inline void check_launch(const Grid& grid, int width, int64_t shared_bytes) {
  ORTHANT_ENSURE(grid.x < (int64_t{1} << 31) && grid.y < 65536 && grid.z < 65536, "a launch with too many blocks");
  ORTHANT_ENSURE(width >= 32 && width <= widest && (width & (width - 1)) == 0,
                 "the width of a block is no power of two from 32 to 256");
  ORTHANT_ENSURE(shared_bytes >= 0 && shared_bytes <= most_shared_bytes,
                 "a launch asks for more shared memory than every architecture has");
}
}  // namespace detail

#ifdef __CUDACC__
#define ORTHANT_KERNEL __device__

namespace detail {
extern __shared__ __align__(16) unsigned char block_memory[];

// how the threads' results become one; named types, so that all sums of a type share one piece of shared memory
struct Plus {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};
struct Larger {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return b > a ? b : a;
  }
};
template <class C, class A>
__device__ A combine(A mine) {
  __shared__ A part[widest];
  part[threadIdx.x] = mine;
  __syncthreads();
  for (int half = static_cast<int>(blockDim.x) / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) part[threadIdx.x] = C()(part[threadIdx.x], part[threadIdx.x + half]);
    __syncthreads();
  }
  const A all = part[0];
  __syncthreads();
  return all;
}
}  // namespace detail

class Block {
 public:
  __device__ int64_t x() const { return blockIdx.x; }
  __device__ int64_t y() const { return blockIdx.y; }
  __device__ int64_t z() const { return blockIdx.z; }
  __device__ int width() const { return static_cast<int>(blockDim.x); }

  template <class F>
  __device__ void each(int64_t n, F&& f) const {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) f(i);
    __syncthreads();
  }
  template <class A, class F>
  __device__ A sum(int64_t n, F&& f) const {
    A mine = A(0);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) mine += f(i);
    return detail::combine<detail::Plus>(mine);
  }
  template <class A, class F>
  __device__ A max(int64_t n, A lowest, F&& f) const {
    A mine = lowest;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const A v = f(i);
      mine = v > mine ? v : mine;
    }
    return detail::combine<detail::Larger>(mine);
  }
  template <class T>
  __device__ T* shared(int64_t n) const {
    const int64_t begin = (used_ + 15) / 16 * 16;
    used_ = begin + n * static_cast<int64_t>(sizeof(T));
    return reinterpret_cast<T*>(detail::block_memory + begin);
  }

 private:
  mutable int64_t used_ = 0;
};

namespace detail {
template <class K>
__global__ void run(const K kernel) {
  kernel(Block());
}
}  // namespace detail

/// Puts a kernel into the stream.
template <class K>
void launch(cudaStream_t stream, const Grid& grid, const K& kernel, int width = default_width,
            int64_t shared_bytes = 0) {
  if (grid.x <= 0 || grid.y <= 0 || grid.z <= 0) return;
  detail::check_launch(grid, width, shared_bytes);
  if (shared_bytes > 48 * 1024)
    ORTHANT_CUDA(cudaFuncSetAttribute(detail::run<K>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared_bytes)));
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
  detail::run<K><<<blocks, static_cast<unsigned>(width), static_cast<size_t>(shared_bytes), stream>>>(kernel);
  ORTHANT_CUDA(cudaGetLastError());
}

#else  // the host stands in: cuda_runtime.h is that of regression/cuda_host
#define ORTHANT_KERNEL

class Block {
 public:
  Block(int64_t x, int64_t y, int64_t z, int width, unsigned char* memory, int64_t bytes)
      : x_(x), y_(y), z_(z), width_(width), memory_(memory), bytes_(bytes) {}
  int64_t x() const { return x_; }
  int64_t y() const { return y_; }
  int64_t z() const { return z_; }
  int width() const { return width_; }

  template <class F>
  void each(int64_t n, F&& f) const {
    // threads come in no order: from behind in every other block, so that a phase that leans on an order is found out
    if ((x_ + y_ + z_) % 2 == 0)
      for (int64_t i = n - 1; i >= 0; --i) f(i);
    else
      for (int64_t i = 0; i < n; ++i) f(i);
  }
  template <class A, class F>
  A sum(int64_t n, F&& f) const {
    A part[widest] = {};
    for (int64_t i = 0; i < n; ++i) part[i % width_] += f(i);
    for (int half = width_ / 2; half > 0; half /= 2)
      for (int t = 0; t < half; ++t) part[t] = part[t] + part[t + half];
    return part[0];
  }
  template <class A, class F>
  A max(int64_t n, A lowest, F&& f) const {
    A most = lowest;
    for (int64_t i = 0; i < n; ++i) {
      const A v = f(i);
      most = v > most ? v : most;
    }
    return most;
  }
  template <class T>
  T* shared(int64_t n) const {
    const int64_t begin = (used_ + 15) / 16 * 16;
    used_ = begin + n * static_cast<int64_t>(sizeof(T));
    ORTHANT_ENSURE(used_ <= bytes_, "a kernel takes more shared memory than it was launched with");
    return reinterpret_cast<T*>(memory_ + begin);
  }

 private:
  int64_t x_, y_, z_;
  int width_;
  unsigned char* memory_;
  int64_t bytes_;
  mutable int64_t used_ = 0;
};

template <class K>
void launch(cudaStream_t stream, const Grid& grid, const K& kernel, int width = default_width,
            int64_t shared_bytes = 0) {
  if (grid.x <= 0 || grid.y <= 0 || grid.z <= 0) return;
  detail::check_launch(grid, width, shared_bytes);
  host_stand_in::enqueue(stream, [=] {
    std::vector<unsigned char> memory(static_cast<size_t>(shared_bytes) + 16);
    auto* aligned = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
    for (int64_t z = 0; z < grid.z; ++z)
      for (int64_t y = 0; y < grid.y; ++y)
        for (int64_t x = 0; x < grid.x; ++x) {
          std::memset(aligned, 0xff, static_cast<size_t>(shared_bytes));  // unwritten shared memory reads as NaN
          kernel(Block(x, y, z, width, aligned, shared_bytes));
        }
  });
}
#endif

/// Blocks of `unit` that cover n.
inline int64_t blocks_of(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

}  // namespace orthant::cuda
