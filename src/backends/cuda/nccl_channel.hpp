// A NCCL communicator with a stream of its own, and the events between that and the compute stream.
#pragma once

#include <nccl.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/cuda_backend.hpp"

namespace orthant::cuda {

ncclDataType_t nccl_type(DType t);
/// "2.28.3", of the library that is loaded.
std::string nccl_version();

/// A point in a stream. Events are kept and used again.
class Mark {
 public:
  /// Everything that is in `stream` now.
  explicit Mark(cudaStream_t stream);
  /// What is put into `stream` from now on comes after the point.
  void hold(cudaStream_t stream) const;
  /// Whether the point is reached; never blocks.
  bool reached() const;

 private:
  std::shared_ptr<cudaEvent_t> event_;
};

/// Calls are put into the channel's stream one after the other, those of a group together. The communicator does not
/// block: a failed peer is found by asking, and then every call of it is given up.
class Channel {
 public:
  /// Takes `comm` over, which is ready and has `size` members. `where` is for messages: "axis tp".
  Channel(CudaBackend& backend, ncclComm_t comm, int size, int rank, std::string where);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }
  /// Makes the stream wait for what the compute stream has now.
  void after_compute() const { Mark(backend_.stream()).hold(stream_); }
  /// Puts the calls that `issue` makes into the stream, together. `op` names them in messages.
  void group(const char* op, const std::function<void()>& issue);
  /// FaultError naming axis and operation when a peer or the network has failed. The communicator is given up then.
  void check();

 private:
  /// Waits until the library has put the last call into the stream.
  void demand(ncclResult_t result);
  [[noreturn]] void fail(ncclResult_t why);

  CudaBackend& backend_;
  std::string where_;
  const char* op_ = "its first call";
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

/// Waits until the last call of `comm` has been put where it belongs; the error if it could not be.
ncclResult_t settled(ncclComm_t comm);
/// "unhandled system error (no route to host)"
std::string nccl_failure(ncclComm_t comm, ncclResult_t why);
/// Ends a communicator: in order, or at once while an exception passes, as peers may never come to the end of what is
/// under way. Its calls must be through in the first case.
void close_nccl(ncclComm_t comm);

/// For calls inside a group, which answer ncclSuccess or are wrong.
void check_nccl(ncclResult_t result, const char* call);
#define ORTHANT_NCCL(call) ::orthant::cuda::check_nccl((call), #call)

}  // namespace orthant::cuda
