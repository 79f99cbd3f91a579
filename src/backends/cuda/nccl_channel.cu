// See nccl_channel.hpp.
#include "backends/cuda/nccl_channel.hpp"

#include <exception>
#include <thread>

#include "backends/cuda/kernel.hpp"

namespace orthant::cuda {

ncclDataType_t nccl_type(DType t) {
  switch (t) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::f8e4m3:
    case DType::f8e5m2: return ncclUint8;  // they are only moved; NCCL has them as numbers since 2.24, for 9.0 on
  }
  throw LogicError("a type that NCCL does not have");
}

std::string nccl_version() {
  int v = 0;
  ORTHANT_NCCL(ncclGetVersion(&v));  // 22803: 2.28.3
  return dotted(v);
}

void check_nccl(ncclResult_t result, const char* call) {
  // a call inside a group of a communicator that does not block may be under way still: the end of the group settles that
  if (result != ncclSuccess && result != ncclInProgress) throw FaultError(std::string("NCCL failed: ") + ncclGetErrorString(result) + " in " + call);
}

namespace {

/// Events that nobody uses now. Never destroyed: handles may end after the last backend.
std::vector<cudaEvent_t>& idle_events() {
  static auto* idle = new std::vector<cudaEvent_t>();
  return *idle;
}

}  // namespace

Mark::Mark(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  if (auto& idle = idle_events(); !idle.empty()) {
    event = idle.back();
    idle.pop_back();
  } else {
    ORTHANT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  event_ = std::shared_ptr<cudaEvent_t>(new cudaEvent_t(event), [](cudaEvent_t* e) {
    idle_events().push_back(*e);
    delete e;
  });
  ORTHANT_CUDA(cudaEventRecord(event, stream));
}

void Mark::hold(cudaStream_t stream) const { ORTHANT_CUDA(cudaStreamWaitEvent(stream, *event_, 0)); }

bool Mark::reached() const {
  const cudaError_t status = cudaEventQuery(*event_);
  if (status == cudaSuccess) return true;
  if (status != cudaErrorNotReady) cuda::check(status, "cudaEventQuery");
  cudaGetLastError();
  return false;
}

ncclResult_t settled(ncclComm_t comm) {
  for (;;) {
    ncclResult_t state = ncclInProgress;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state != ncclInProgress) return state;
    std::this_thread::yield();
  }
}

std::string nccl_failure(ncclComm_t comm, ncclResult_t why) {
  const char* more = comm ? ncclGetLastError(comm) : nullptr;
  return std::string(ncclGetErrorString(why)) + (more && *more ? std::string(" (") + more + ")" : "");
}

void close_nccl(ncclComm_t comm) {
  if (!comm) return;
  if (std::uncaught_exceptions() > 0) {
    ncclCommAbort(comm);
    return;
  }
  if (ncclCommFinalize(comm) == ncclInProgress) settled(comm);
  ncclCommDestroy(comm);
}

Channel::Channel(CudaBackend& backend, ncclComm_t comm, int size, int rank, std::string where)
    : backend_(backend), where_(std::move(where) + ", rank " + std::to_string(rank) + " of " + std::to_string(size)), comm_(comm) {
  ORTHANT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Channel::~Channel() {
  if (comm_ && std::uncaught_exceptions() == 0) cudaStreamSynchronize(stream_);
  close_nccl(comm_);
  if (stream_) cudaStreamDestroy(stream_);
}

void Channel::fail(ncclResult_t why) {
  const std::string text = "NCCL failed on " + where_ + ", in " + op_ + ": " + nccl_failure(comm_, why);
  if (comm_) ncclCommAbort(comm_);
  comm_ = nullptr;
  throw FaultError(text);
}

void Channel::demand(ncclResult_t result) {
  if (result == ncclInProgress) result = settled(comm_);
  if (result != ncclSuccess) fail(result);
}

void Channel::group(const char* op, const std::function<void()>& issue) {
  ORTHANT_ENSURE(comm_, "a NCCL communicator is used after it failed");
  op_ = op;
  demand(ncclGroupStart());
  issue();
  demand(ncclGroupEnd());
}

void Channel::check() {
  if (!comm_) return;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) fail(asked);
  if (state != ncclSuccess && state != ncclInProgress) fail(state);
}

}  // namespace orthant::cuda
