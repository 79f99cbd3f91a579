// Which transport a run takes, and the transports of its axes.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>

#include "backends/registry.hpp"
#include "orthant/collectives.hpp"

namespace orthant {

/// One choice for a set of ranks: NCCL between devices, or MPI, which gets memory of devices as it is where the library
/// takes it, and copies of it in host memory where not.
class Transports {
 public:
  /// `transport` and `gpu_aware` as comm.transport and comm.gpu_aware have them; "auto" takes NCCL where every rank has
  /// a device of its own, and hands device memory to an MPI that says it takes it. Collective over `all`, which must
  /// outlive this. UsageError (agreed) for what cannot be had here.
  Transports(Backend& backend, MPI_Comm all, const std::string& transport, const std::string& gpu_aware);
  /// Collective over all ranks, in one order of calls. `comm` and this must outlive it.
  std::unique_ptr<Transport> make(MPI_Comm comm, AxisName axis);
  /// Whether calls move memory between devices directly, by NCCL.
  bool on_device() const { return group_ != nullptr; }
  /// For the header, on rank 0: "NCCL 2.28.3 between devices, network IB with GPUDirect RDMA", "MPI, GPU-aware: …",
  /// "MPI, staged through host memory", "MPI".
  const std::string& text() const { return text_; }

 private:
  Backend& backend_;
  std::unique_ptr<DeviceGroup> group_;  ///< none: MPI
  bool gpu_aware_ = false;
  std::string text_;
};

}  // namespace orthant
