// Collectives between devices by NCCL.
#pragma once

#include <mpi.h>

#include <memory>

#include "backends/cuda/nccl_group.hpp"
#include "orthant/collectives.hpp"

namespace orthant::cuda {

/// One communicator for the calls of an axis, and one for each direction between neighbours on pp and tie, the axes with
/// messages. Sums are made by the receiver: pieces travel by sends and receives, and a kernel adds them in rank order in
/// fp32 and rounds once, so the bits are those of the MPI transport. Collective over all ranks of `parent` (none where
/// there is one rank only), also those that `comm` leaves alone. `comm` must outlive it.
std::unique_ptr<Transport> make_nccl_transport(CudaBackend& backend, NcclParent* parent, MPI_Comm comm, AxisName axis);

}  // namespace orthant::cuda
