// See transports.hpp.
#include "mesh/transports.hpp"

#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

Transports::Transports(Backend& backend, MPI_Comm all, const std::string& transport, const std::string& gpu_aware) : backend_(backend) {
  const DeviceBackend* device = find_device_backend(backend.name());
  if (transport == "nccl" && !device)
    throw UsageError("comm.transport = \"nccl\": NCCL moves memory of NVIDIA devices, and this run is on the backend " + backend.name() +
                         "; device.backend = \"cuda\" has it, comm.transport = \"mpi\" serves every backend", true);
  if (gpu_aware == "yes" && !device)
    throw UsageError("comm.gpu_aware = \"yes\": MPI is to be handed memory of devices, and this run is on the backend " + backend.name() +
                         ", which has none; \"auto\" and \"no\" are right here", true);
  if (transport != "mpi" && device) group_ = device->join(backend, all);
  if (transport == "nccl" && !group_)
    throw UsageError("comm.transport = \"nccl\": NCCL needs a device for each rank, and ranks share devices here; give each rank one, or take comm.transport = \"mpi\"", true);
  if (group_) {
    text_ = group_->text();
    return;
  }
  text_ = "MPI";
  if (!device) return;
  int aware = device->mpi_takes_memory() ? 1 : 0;  // may differ between nodes, as libraries do
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &aware, 1, MPI_INT, MPI_MIN, all));
  if (gpu_aware == "yes" && aware == 0)
    throw UsageError("comm.gpu_aware = \"yes\": this MPI does not say that it takes memory of devices (MPIX_Query_cuda_support; Open MPI has it "
                     "when it was built with CUDA, ompi_info --parsable --all shows mpi_built_with_cuda_support); \"auto\" goes through host memory", true);
  gpu_aware_ = aware == 1 && gpu_aware != "no";
  text_ += gpu_aware_ ? ", GPU-aware: device memory as it is, sums through host memory" : ", staged through host memory";
}

std::unique_ptr<Transport> Transports::make(MPI_Comm comm, AxisName axis) {
  return group_ ? group_->transport(comm, axis) : make_mpi_transport(backend_, comm, gpu_aware_);
}

}  // namespace orthant
