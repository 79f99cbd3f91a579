#!/usr/bin/env bash
# Which device a rank takes, and what the program says where there is none: device.backend, comm.transport, comm.gpu_aware,
# the transport's line of the header, and --version.
#   devices.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
orthant=$1 work=$3/devices
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# run CODE DEVICES RANKS OVERRIDE…: trains one small step
run() {
  launch "${@:1:3}" train "$golden/deck.toml" "run.output=$work/run" run.steps=1 batch.global=2 "${@:4}"
  rm -rf "$work/run"
}

"$orthant" --version >"$text"
says "CUDA      13.0 (cuBLASLt " "NCCL      2.28.3" "backends  cpu, debug, cuda"
run 0 1 1 device.backend=auto
says "cuda: host stand-in 0"
run 0 2 2 device.backend=cuda
says "transport NCCL 2.28.3 between devices, network Socket without GPUDirect RDMA"
ORTHANT_CUDA_HOST_NETWORK=IB run 0 2 2 device.backend=cuda mesh.tp=2
says "network IB with GPUDirect RDMA"
ORTHANT_CUDA_HOST_NETWORK=IB:far run 0 2 2 device.backend=cuda
says "network IB without GPUDirect RDMA"
NCCL_DEBUG=WARN run 0 2 2 device.backend=cuda
says "network not asked for, as NCCL_DEBUG is set"
run 0 1 2 device.backend=cuda
says "more ranks than devices on a node (2 on 1)" "transport MPI, staged through host memory"
run 2 1 2 device.backend=cuda comm.gpu_aware=yes
says 'comm.gpu_aware = "yes"' "MPIX_Query_cuda_support"
run 2 1 2 device.backend=cpu comm.gpu_aware=yes
says 'comm.gpu_aware = "yes"' "backend cpu"
ORTHANT_CUDA_HOST_GPU_AWARE=1 run 0 1 2 device.backend=cuda mesh.tp=2
says "transport MPI, GPU-aware"
ORTHANT_CUDA_HOST_GPU_AWARE=1 run 0 1 2 device.backend=cuda comm.gpu_aware=no
says "transport MPI, staged through host memory"
# ---- what a device can multiply, by its compute capability
device() { export ORTHANT_CUDA_HOST_CAPABILITY=$1; }
fp8=(precision.compute=fp8)
device 8.0
run 2 1 2 device.backend=cuda "${fp8[@]}"
says 'precision.fp8_recipe = "delayed"' "compute capability 8.0" "begin with 8.9" 'precision.compute = "bf16"'
device 9.0
run 2 1 1 device.backend=auto "${fp8[@]}" precision.fp8_recipe=mxfp8
says 'precision.fp8_recipe = "mxfp8"' "compute capability 9.0" "begin with 10.0" '"blockwise"'
device 10.0
run 2 1 1 device.backend=cuda "${fp8[@]}" precision.fp8_recipe=blockwise
says 'precision.fp8_recipe = "blockwise"' "compute capability 10.0" "for 9.0 alone" '"mxfp8"'
unset ORTHANT_CUDA_HOST_CAPABILITY
# a kv head of 8 columns on each rank: a size that the cpu takes
run 2 1 2 device.backend=auto "${fp8[@]}" mesh.tp=2
says "is not a multiple of 16, which products on the GPU ask for"
run 0 1 1 device.backend=cuda precision.compute=bf16
says "backend   cuda" "attention: cuDNN" " plans)"
run 0 1 1 device.backend=cuda precision.tf32=true
says "fp32 (products in TF32)"
run 2 1 1 device.backend=cpu precision.tf32=true
says "precision.tf32 = true" 'device.backend = "cpu"'
run 2 0 1 device.backend=auto precision.tf32=true
says "precision.tf32 = true" "the backend cpu"
run 2 1 2 device.backend=cuda comm.transport=nccl
says 'comm.transport = "nccl"' "ranks share devices"
run 2 2 2 device.backend=cpu comm.transport=nccl
says 'comm.transport = "nccl"' "backend cpu"
run 0 0 2 device.backend=auto
says 'device.backend = "auto"' "cpu: oneDNN"
run 2 0 2 device.backend=cuda
says 'device.backend = "cuda"' "sees a device"
rm -rf "$work"
