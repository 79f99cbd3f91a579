// Stands in for the extensions of Open MPI: whether this MPI takes memory of devices.
#pragma once

#define MPIX_CUDA_AWARE_SUPPORT 1

/// 1 where the environment variable ORTHANT_CUDA_HOST_GPU_AWARE is 1. From then on device memory stays open, as MPI reads and
/// writes it in any of its calls.
int MPIX_Query_cuda_support();
