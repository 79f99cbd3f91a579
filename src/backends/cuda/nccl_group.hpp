// The communicator of all ranks, from which those of the axes are split, and the transports that are made of these.
#pragma once

#include <memory>
#include <string>

#include "backends/cuda/nccl_channel.hpp"
#include "backends/registry.hpp"

namespace orthant::cuda {

/// One communicator over all ranks, made with an id that travels over MPI. Nothing is sent over it: it is there to be
/// split, which needs no ids and finds out about the machine once. Parts share no resources with it or each other:
/// NCCL runs the calls of communicators that share one after the other, and ours have to overtake each other.
class NcclParent {
 public:
  /// Collective over `all`, of more than one rank, which must outlive this.
  explicit NcclParent(MPI_Comm all);
  ~NcclParent();
  NcclParent(const NcclParent&) = delete;
  NcclParent& operator=(const NcclParent&) = delete;

  static constexpr int no_color = -1;  ///< for ranks that are in no part
  /// The ranks of one color (0 or more) become a communicator, in the order of their keys; null for `no_color`.
  /// Collective over all ranks. `where` is for messages.
  ncclComm_t split(int color, int key, const std::string& where);
  MPI_Comm all() const { return all_; }
  int rank() const { return rank_; }

 private:
  [[noreturn]] void fail(ncclResult_t why, const std::string& doing);

  MPI_Comm all_;
  int rank_ = 0, ranks_ = 1;
  ncclComm_t comm_ = nullptr;
};

/// Collective over `all`.
std::unique_ptr<DeviceGroup> make_nccl_group(CudaBackend& backend, MPI_Comm all);

}  // namespace orthant::cuda
