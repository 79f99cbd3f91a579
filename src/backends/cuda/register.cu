// The backend's entry in the registry, and which device a rank takes.
#include <mpi.h>
#include <nccl.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/cuda/kernel.hpp"
#include "backends/cuda/nccl_group.hpp"
#include "backends/registry.hpp"
#include "support/agree.hpp"

namespace orthant {
namespace {

bool shared_devices = false;  // by ranks of the last `bind`; NCCL refuses two ranks on one device

int visible_devices() {
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
  cudaGetLastError();  // no driver, or no device: both mean none
  return 0;
}

/// Device `rank on the node` modulo those this rank sees: a launcher may show all devices to all ranks, or each rank its own.
std::string bind_device(MPI_Comm world) {
  MPI_Comm node = MPI_COMM_NULL;
  int rank = 0, local = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(world, &rank));
  ORTHANT_MPI(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node));
  ORTHANT_MPI(MPI_Comm_rank(node, &local));
  ORTHANT_MPI(MPI_Comm_size(node, &ranks));
  const int visible = visible_devices();
  cudaDeviceProp properties{};
  collectively(world, [&] {
    ORTHANT_CUDA(cudaSetDevice(local % visible));
    ORTHANT_CUDA(cudaGetDeviceProperties(&properties, local % visible));
  });
  std::vector<cudaUUID_t> uuids(static_cast<size_t>(ranks));
  ORTHANT_MPI(MPI_Allgather(&properties.uuid, sizeof(cudaUUID_t), MPI_BYTE, uuids.data(), sizeof(cudaUUID_t), MPI_BYTE, node));
  int twin = -1;
  for (int r = 0; r < ranks; ++r)
    if (r != local && std::memcmp(&uuids[static_cast<size_t>(r)], &properties.uuid, sizeof(cudaUUID_t)) == 0) twin = r;
  ORTHANT_MPI(MPI_Comm_free(&node));
  collectively(world, [&] {
    if (twin >= 0 && ranks <= visible)
      throw UsageError("device.backend = \"cuda\": ranks " + std::to_string(std::min(local, twin)) + " and " + std::to_string(std::max(local, twin)) +
                       " of a node got the same device (" + properties.name + ") although " + std::to_string(visible) +
                       " are visible; give every rank the same CUDA_VISIBLE_DEVICES, or each its own device");
  });
  int shared = twin >= 0 ? 1 : 0;
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &shared, 1, MPI_INT, MPI_MAX, world));
  shared_devices = shared == 1;
  if (!shared_devices) return "";
  return "more ranks than devices on a node (" + std::to_string(ranks) + " on " + std::to_string(visible) +
         "): ranks share them, and collectives go over MPI";
}

std::unique_ptr<DeviceGroup> join(Backend& backend, MPI_Comm all) {
  if (shared_devices) return nullptr;
  return cuda::make_nccl_group(dynamic_cast<CudaBackend&>(backend), all);
}

/// Open MPI can be asked; others are taken at their word only where they define the same (MPICH does not).
bool mpi_takes_memory() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

std::vector<std::pair<std::string, std::string>> libraries() {
  int runtime = 0;
  ORTHANT_CUDA(cudaRuntimeGetVersion(&runtime));
  return {{"CUDA", std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10) + " (" + CudaBackend::libraries() + ")"},
          {"NCCL", cuda::nccl_version()}};
}

std::string device_name() {
  int device = 0;
  cudaDeviceProp properties{};
  ORTHANT_CUDA(cudaGetDevice(&device));
  ORTHANT_CUDA(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

[[maybe_unused]] const bool registered =
    add_backend({"cuda", visible_devices, [] { return std::unique_ptr<Backend>(std::make_unique<CudaBackend>()); }, bind_device, join, mpi_takes_memory, libraries, device_name});

}  // namespace
}  // namespace orthant
