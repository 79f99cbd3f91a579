// Stands in for the CUDA runtime on the host: the calls that src/backends/cuda makes, and no others, with the names,
// types and rules of the CUDA Runtime API reference.
//
// A stream is a lazy queue: what is put into it runs only when somebody has to see it done (a synchronising call, a
// query of NCCL's progress, another stream that waits for an event). So a result that is read without having been waited
// for is seen as it was before, and a buffer that is used again too early is seen as it became later. Device memory is
// closed to the host's code except while a queue runs, full of NaN when fresh and of 0xdd when freed, and has a margin
// behind each block that is checked when it is freed. Misuse that CUDA leaves undefined ends the program with a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3
};
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };

namespace host_stand_in {

struct Stream;
struct Event;

/// Work with other parties: it is started, and asked whether their part is here. Never blocks. What it writes appears in
/// device memory only when somebody has to see it, as late as a device may do it.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual void start() = 0;
  virtual bool test() = 0;
  /// Whether it writes device memory; `land` does that.
  virtual bool lands() const = 0;
  virtual void land() = 0;
  virtual std::string text() const = 0;
};

/// Puts work into a stream.
void enqueue(Stream* stream, std::function<void()> work);
void enqueue(Stream* stream, std::shared_ptr<Operation> operation);
/// Lets operations go on, after what stands before them in their streams. `landing`: also what only they have to see done.
void progress(bool landing);
/// Whether [data, data + bytes) lies inside one live block of device memory.
bool on_device(const void* data, size_t bytes);
/// Bytes of blocks that are in use, as the streams' order has it when all of them have run.
size_t bytes_in_use();
/// Seconds after which a call that waits gives up, says what all streams wait for and ends the program (120).
void set_patience(double seconds);
/// Device memory is open while one lives.
class Opened {
 public:
  Opened();
  ~Opened();
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};
/// What `refuse` throws where a test wants to read it.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Whether `refuse` throws a Refusal; otherwise it prints and ends the program.
void throw_refusals(bool yes);
[[noreturn]] void refuse(const std::string& what);

}  // namespace host_stand_in

#define CUDART_VERSION 13000

using cudaStream_t = host_stand_in::Stream*;
using cudaEvent_t = host_stand_in::Event*;
using cudaMemPool_t = struct cudaMemPoolStandIn*;
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
};
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0;

const char* cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetLastError();
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);

/// As many as the environment variable ORTHANT_CUDA_HOST_DEVICES says (1).
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
/// The compute capability is that of the environment variable ORTHANT_CUDA_HOST_CAPABILITY (9.0).
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
/// A poll is taken for a host that waits: work of this process runs, that of others may go on.
cudaError_t cudaEventQuery(cudaEvent_t event);

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep);
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream);
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* data);
/// Refuses host memory that is not pinned: CUDA would copy it at another time than the stream's.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, size_t pitch_to, const void* from, size_t pitch_from, size_t width, size_t rows,
                              cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemset2DAsync(void* data, size_t pitch, int value, size_t width, size_t rows, cudaStream_t stream);
