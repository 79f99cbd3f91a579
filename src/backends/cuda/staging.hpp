// Pinned host memory through which the host sees tensors of the device.
//
// A view of a tensor is a copy in pinned memory between `begin` and `end`. Transports open several views of one tensor,
// also of rows within each other, and expect them to be one memory: a view inside an open one is a part of it. A view
// that takes in an open one has memory of its own; it begins with what the inner one holds now, and whichever ends
// first hands its bytes to the other.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "backends/cuda/kernel.hpp"

namespace orthant::cuda {

class Staging {
 public:
  /// All copies run in `stream`, so a buffer is free again when its last copy has been put there: the next one to use it
  /// stands behind.
  explicit Staging(cudaStream_t stream) : stream_(stream) {}
  ~Staging() {
    for (auto& [size, blocks] : free_)
      for (void* block : blocks) cudaFreeHost(block);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Pinned memory that shows `bytes` at `device`; `wait` blocks until the stream is done.
  template <class Wait>
  void* begin(void* device, int64_t bytes, Wait&& wait) {
    auto* at = static_cast<char*>(device);
    std::shared_ptr<Buffer> buffer;
    for (const View& open : views_)
      if (at >= open.buffer->device && at + bytes <= open.buffer->device + open.buffer->bytes) buffer = open.buffer;
    if (!buffer) {
      buffer = std::make_shared<Buffer>(Buffer{at, bytes, take(bytes)});
      if (bytes > 0) {
        ORTHANT_CUDA(cudaMemcpyAsync(buffer->host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_));
        wait();
        for (const View& open : views_) carry(*open.buffer, *buffer, open.buffer->device, open.buffer->bytes);
      }
    }
    views_.push_back({at, bytes, buffer});
    return buffer->host + (at - buffer->device);
  }

  /// Puts the bytes back in the stream.
  void end(void* device, int64_t bytes) {
    auto it = views_.end();
    for (auto v = views_.begin(); v != views_.end(); ++v)
      if (v->device == device && v->bytes == bytes) it = v;
    ORTHANT_ENSURE(it != views_.end(), "host_end of a tensor without host_begin");
    const View view = *it;
    views_.erase(it);
    const Buffer& b = *view.buffer;
    if (bytes > 0)
      ORTHANT_CUDA(cudaMemcpyAsync(device, b.host + (view.device - b.device), static_cast<size_t>(bytes),
                                   cudaMemcpyHostToDevice, stream_));
    for (const View& open : views_)
      if (open.buffer != view.buffer) carry(b, *open.buffer, view.device, bytes);
    if (view.buffer.use_count() == 1) give(b);
  }

  bool idle() const { return views_.empty(); }

 private:
  struct Buffer {
    char* device;
    int64_t bytes;
    char* host;
  };
  struct View {
    char* device;
    int64_t bytes;
    std::shared_ptr<Buffer> buffer;
  };

  /// The part of [at, at + bytes) that both hold.
  static void carry(const Buffer& from, Buffer& to, const char* at, int64_t bytes) {
    const char* begin = std::max<const char*>({from.device, to.device, at});
    const char* end = std::min<const char*>({from.device + from.bytes, to.device + to.bytes, at + bytes});
    if (begin < end) std::memcpy(to.host + (begin - to.device), from.host + (begin - from.device), static_cast<size_t>(end - begin));
  }
  static size_t size_class(int64_t bytes) { return std::bit_ceil(static_cast<size_t>(std::max<int64_t>(bytes, 4096))); }
  char* take(int64_t bytes) {
    const size_t size = size_class(bytes);
    auto& kept = free_[size];
    if (!kept.empty()) {
      void* block = kept.back();
      kept.pop_back();
      return static_cast<char*>(block);
    }
    void* block = nullptr;
    ORTHANT_CUDA(cudaHostAlloc(&block, size, cudaHostAllocDefault));
    return static_cast<char*>(block);
  }
  void give(const Buffer& b) { free_[size_class(b.bytes)].push_back(b.host); }

  cudaStream_t stream_;
  std::list<View> views_;
  std::map<size_t, std::vector<void*>> free_;
};

}  // namespace orthant::cuda
