// Stands in for NCCL on the host, over MPI: the calls that src/backends/cuda makes, and no others. Names, values and rules
// are those of the NCCL user guide:
//  - calls go into a stream and return; inside a group they go there together at its end, and none waits for another;
//  - outside a group calls of a communicator run one after the other, and a send ends only when its receiver has come;
//  - a split is a call of all ranks of the parent;
//  - with NCCL_DEBUG = INFO what has been found out about the network is written into NCCL_DEBUG_FILE, once a process;
//  - on a communicator that does not block, a call may answer ncclInProgress, and nothing is in the stream yet until
//    ncclCommGetAsyncError has said ncclSuccess.
// Every message carries what its sender called; a receiver that called something else ends the program and names both.
#pragma once

#include <climits>
#include <cstddef>

#include "cuda_runtime.h"

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclDataType_t { ncclInt8 = 0, ncclUint8 = 1, ncclInt32 = 2, ncclInt64 = 4, ncclFloat16 = 6, ncclFloat32 = 7, ncclFloat64 = 8, ncclBfloat16 = 9 };
constexpr int NCCL_CONFIG_UNDEF_INT = INT_MIN;
constexpr int NCCL_SPLIT_NOCOLOR = -1;
struct ncclConfig_t {
  int blocking, splitShare;
};
#define NCCL_CONFIG_INITIALIZER {NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT}
struct ncclUniqueId {
  char internal[128];
};
using ncclComm_t = struct ncclStandInComm*;

const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
/// A call of all ranks of `comm`, each with its color. `newcomm` is there once `comm` has settled. Parts that share the
/// parent's resources are not stood in for.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
/// `data` may be its own place in `all`.
ncclResult_t ncclAllGather(const void* data, void* all, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream);

namespace host_stand_in {
/// From now on no call of NCCL ends, and communicators report a failed peer.
void break_nccl();
}  // namespace host_stand_in
