// Streams, events and copies of the stand-in for the CUDA runtime; see include/cuda_runtime.h.
#include "cuda_runtime.h"
#include "mpi-ext.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "device_memory.hpp"

namespace host_stand_in {

struct Item {
  std::function<void()> work;
  std::shared_ptr<Operation> operation;
  bool started = false;
  Stream* after = nullptr;  // waits until this stream has done `target` items
  int64_t target = 0;
};

struct Stream {
  int device = 0;
  bool alive = true;
  std::deque<Item> items;
  int64_t done = 0;
  int64_t operations_end = 0;  // number of the last operation put in, plus 1
  int64_t queued() const { return done + static_cast<int64_t>(items.size()); }
};

struct Event {
  int device = 0;
  Stream* stream = nullptr;  // none: never recorded, and so complete
  int64_t target = 0;
};

namespace {

std::recursive_mutex lock;  // tensors may be freed by any thread
std::vector<std::unique_ptr<Stream>>& streams() {
  static auto* all = new std::vector<std::unique_ptr<Stream>>();  // never destroyed: handles are checked to the end
  return *all;
}
std::set<Event*> events;
std::map<const char*, size_t> pinned;
cudaError_t last_error = cudaSuccess;
double patience = std::getenv("ORTHANT_CUDA_HOST_PATIENCE") ? std::atof(std::getenv("ORTHANT_CUDA_HOST_PATIENCE")) : 120;
thread_local int current_device = 0;

cudaError_t failed(cudaError_t e) { return last_error = e; }

int devices() {
  const char* set = std::getenv("ORTHANT_CUDA_HOST_DEVICES");
  return set ? std::atoi(set) : 1;
}

void use(Stream* s) {
  if (!s) refuse("the default stream is used; our streams are made");
  for (const auto& known : streams())
    if (known.get() == s) {
      if (!s->alive) refuse("a stream is used after it was destroyed");
      if (s->device != current_device) refuse("a stream of device " + std::to_string(s->device) + " is used while device " + std::to_string(current_device) + " is current");
      return;
    }
  refuse("a stream is used that was never made");
}

void use(Event* e) {
  if (!events.count(e)) refuse("an event is used that was not made or was destroyed");
}

/// Runs items until `target` are done; false where an operation is not through yet, or (not `landing`) the last of them would
/// write: nothing has asked for it yet, while operations behind it would need it done. Memory
/// is opened for work only, and stays open until the end: opening is what takes time.
bool advance(Stream* s, int64_t target, bool landing, std::optional<Opened>& opened) {
  while (s->done < target) {
    Item& front = s->items.front();
    if (front.after) {
      if (!advance(front.after, front.target, true, opened)) return false;
    } else if (front.operation) {
      const auto operation = front.operation;
      if (!front.started) {
        front.started = true;
        operation->start();
      }
      if (!operation->test() || (!landing && operation->lands() && s->done + 1 == target)) return false;
      if (!opened) opened.emplace();
      operation->land();
    } else {
      const auto work = std::move(front.work);
      s->items.pop_front();
      ++s->done;
      if (!opened) opened.emplace();
      work();
      continue;
    }
    s->items.pop_front();
    ++s->done;
  }
  return true;
}

bool advance(Stream* s, int64_t target, bool landing = true) {
  std::optional<Opened> opened;
  return advance(s, target, landing, opened);
}

std::string pending_text() {
  std::string out;
  for (const auto& s : streams())
    if (!s->items.empty()) {
      const Item& i = s->items.front();
      out += "\n  a stream with " + std::to_string(s->items.size()) + " items, first " +
             (i.operation ? i.operation->text() : i.after ? std::string("a wait for another stream") : std::string("a kernel"));
    }
  return out;
}

/// Waits that only poll (cudaEventQuery, ncclCommGetAsyncError) are watched too: a hang is told, with what each stream is at.
void need_movement() {
  static int64_t done = 0, made = 0;
  static auto since = std::chrono::steady_clock::now();
  int64_t done_now = 0, made_now = 0;
  bool idle = true;
  for (const auto& s : streams()) {
    done_now += s->done;
    made_now += s->queued();
    if (s->done < s->operations_end) idle = false;
  }
  const auto now = std::chrono::steady_clock::now();
  if (idle || done_now != done || made_now != made) since = now;
  done = done_now;
  made = made_now;
  const double waited = std::chrono::duration<double>(now - since).count();
  if (waited > patience) refuse("nothing has moved for " + std::to_string(static_cast<int>(waited)) + " s:" + pending_text());
}

void run_until(Stream* s, int64_t target) {
  const auto begin = std::chrono::steady_clock::now();
  while (!advance(s, target)) {
    progress(true);
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (waited > patience) refuse("nothing has moved for " + std::to_string(static_cast<int>(waited)) + " s:" + pending_text());
    usleep(50);
  }
}

}  // namespace

namespace {
bool refusals_are_thrown = false;
}
void throw_refusals(bool yes) { refusals_are_thrown = yes; }

void refuse(const std::string& what) {
  if (refusals_are_thrown) throw Refusal(what);
  std::fprintf(stderr, "cuda stand-in: %s\n", what.c_str());
  std::fflush(stderr);
  std::abort();
}

Opened::Opened() { DeviceMemory::instance().open(); }
Opened::~Opened() { DeviceMemory::instance().close(); }

void set_patience(double seconds) { patience = seconds; }

bool on_device(const void* data, size_t bytes) {
  const std::lock_guard guard(lock);
  return DeviceMemory::instance().holds(data, bytes);
}

size_t bytes_in_use() {
  const std::lock_guard guard(lock);
  return DeviceMemory::instance().in_use();
}

void progress(bool landing) {
  const std::lock_guard guard(lock);
  static bool inside = false;  // an operation may call the runtime
  if (inside) return;
  inside = true;
  try {
    for (size_t i = 0; i < streams().size(); ++i) advance(streams()[i].get(), streams()[i]->operations_end, landing);
    need_movement();
  } catch (...) {
    inside = false;
    throw;
  }
  inside = false;
}

void enqueue(Stream* stream, std::function<void()> work) {
  const std::lock_guard guard(lock);
  use(stream);
  if (last_error != cudaSuccess) refuse(std::string("a launch after an error that nobody looked at: ") + cudaGetErrorString(last_error));
  stream->items.push_back({std::move(work), nullptr, false, nullptr, 0});
  progress(false);
}

void enqueue(Stream* stream, std::shared_ptr<Operation> operation) {
  const std::lock_guard guard(lock);
  use(stream);
  stream->items.push_back({nullptr, std::move(operation), false, nullptr, 0});
  stream->operations_end = stream->queued();
  progress(false);
}

}  // namespace host_stand_in

using namespace host_stand_in;

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() {
  const cudaError_t e = last_error;
  last_error = cudaSuccess;
  return e;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = devices() > 0 ? 13000 : 0, cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return failed(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (devices() == 0) return failed(cudaErrorNoDevice);
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device < 0 || device >= devices()) return failed(cudaErrorInvalidDevice);
  *p = {};
  const char* name = std::getenv("ORTHANT_CUDA_HOST_NAME");  // of a board, for what is known by name
  if (name) std::snprintf(p->name, sizeof p->name, "%s", name);
  else std::snprintf(p->name, sizeof p->name, "host stand-in %d", device);
  std::memcpy(p->uuid.bytes, &device, sizeof device);
  p->totalGlobalMem = size_t{64} << 30;
  const char* capability = std::getenv("ORTHANT_CUDA_HOST_CAPABILITY");
  if (std::sscanf(capability ? capability : "9.0", "%d.%d", &p->major, &p->minor) != 2)
    host_stand_in::refuse("ORTHANT_CUDA_HOST_CAPABILITY is no version such as 9.0");
  p->multiProcessorCount = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard guard(lock);
  for (size_t i = 0; i < streams().size(); ++i)
    if (streams()[i]->device == current_device) run_until(streams()[i].get(), streams()[i]->queued());
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const std::lock_guard guard(lock);
  if (devices() == 0) return failed(cudaErrorNoDevice);
  if (flags != cudaStreamNonBlocking) return failed(cudaErrorInvalidValue);
  streams().push_back(std::make_unique<Stream>());
  *stream = streams().back().get();
  (*stream)->device = current_device;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard guard(lock);
  use(stream);
  advance(stream, stream->queued());  // what does not end now goes on by itself, as a device would
  stream->operations_end = stream->queued();
  stream->alive = false;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard guard(lock);
  use(stream);
  progress(false);
  run_until(stream, stream->queued());
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  const std::lock_guard guard(lock);
  use(stream);
  use(event);
  if (flags != 0) return failed(cudaErrorInvalidValue);
  if (event->stream && event->stream != stream && event->stream->done < event->target)
    stream->items.push_back({nullptr, nullptr, false, event->stream, event->target});
  progress(false);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const std::lock_guard guard(lock);
  *event = new Event();
  (*event)->device = current_device;
  events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard guard(lock);
  use(event);
  events.erase(event);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard guard(lock);
  use(stream);
  use(event);
  if (event->device != stream->device) return failed(cudaErrorInvalidResourceHandle);
  event->stream = stream;
  event->target = stream->queued();
  progress(false);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard guard(lock);
  use(event);
  progress(false);
  if (event->stream) run_until(event->stream, event->target);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard guard(lock);
  use(event);
  progress(false);
  if (!event->stream || advance(event->stream, event->target)) return cudaSuccess;
  progress(true);
  return advance(event->stream, event->target) ? cudaSuccess : cudaErrorNotReady;
}

struct cudaMemPoolStandIn {};

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  static cudaMemPoolStandIn the_pool;
  if (device < 0 || device >= devices()) return failed(cudaErrorInvalidDevice);
  *pool = &the_pool;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void*) {
  return attribute == cudaMemPoolAttrReleaseThreshold ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream) {
  const std::lock_guard guard(lock);
  use(stream);
  if (bytes == 0) return *data = nullptr, cudaSuccess;
  auto& memory = DeviceMemory::instance();
  void* block = memory.take(bytes);
  if (!block) return failed(cudaErrorMemoryAllocation);
  stream->items.push_back({[block, &memory] { memory.fill(block); }, nullptr, false, nullptr, 0});
  *data = block;
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  const std::lock_guard guard(lock);
  use(stream);
  if (!data) return cudaSuccess;
  auto& memory = DeviceMemory::instance();
  memory.retire(data);
  stream->items.push_back({[data, &memory] { memory.give(data); }, nullptr, false, nullptr, 0});
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  const std::lock_guard guard(lock);
  if (bytes == 0) return *data = nullptr, cudaSuccess;
  if (posix_memalign(data, 4096, bytes) != 0) return failed(cudaErrorMemoryAllocation);
  std::memset(*data, 0xff, bytes);
  pinned[static_cast<char*>(*data)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  const std::lock_guard guard(lock);
  if (!data) return cudaSuccess;
  if (pinned.erase(static_cast<char*>(data)) == 0) refuse("host memory is freed that was not allocated here");
  for (size_t i = 0; i < streams().size(); ++i)  // freeing waits for the device, as in CUDA
    if (streams()[i]->alive) run_until(streams()[i].get(), streams()[i]->queued());
  std::free(data);
  return cudaSuccess;
}

namespace {

bool is_pinned(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  auto it = pinned.upper_bound(p);
  if (it == pinned.begin()) return false;
  --it;
  return p + bytes <= it->first + it->second;
}

void need_place(const void* data, size_t bytes, bool device) {
  if (device && !on_device(data, bytes)) refuse("a copy or fill of " + std::to_string(bytes) + " bytes is not inside one block of device memory");
  if (!device && !is_pinned(data, bytes)) refuse("a copy in a stream from or to host memory that is not pinned, or beyond its end");
}

}  // namespace

cudaError_t cudaMemcpy2DAsync(void* to, size_t pitch_to, const void* from, size_t pitch_from, size_t width, size_t rows,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  const std::lock_guard guard(lock);
  use(stream);
  if (width > pitch_to || width > pitch_from) return failed(cudaErrorInvalidValue);
  if (width == 0 || rows == 0) return cudaSuccess;
  need_place(to, (rows - 1) * pitch_to + width, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice);
  need_place(from, (rows - 1) * pitch_from + width, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
  enqueue(stream, [=] {
    for (size_t r = 0; r < rows; ++r)
      std::memmove(static_cast<char*>(to) + r * pitch_to, static_cast<const char*>(from) + r * pitch_from, width);
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemset2DAsync(void* data, size_t pitch, int value, size_t width, size_t rows, cudaStream_t stream) {
  const std::lock_guard guard(lock);
  use(stream);
  if (width > pitch) return failed(cudaErrorInvalidValue);
  if (width == 0 || rows == 0) return cudaSuccess;
  need_place(data, (rows - 1) * pitch + width, true);
  enqueue(stream, [=] {
    for (size_t r = 0; r < rows; ++r) std::memset(static_cast<char*>(data) + r * pitch, value, width);
  });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  return cudaMemset2DAsync(data, bytes, value, bytes, 1, stream);
}

int MPIX_Query_cuda_support() {
  const char* set = std::getenv("ORTHANT_CUDA_HOST_GPU_AWARE");
  if (!set || std::string(set) != "1") return 0;
  static const auto* open = new Opened();  // for good
  return open ? 1 : 0;
}
