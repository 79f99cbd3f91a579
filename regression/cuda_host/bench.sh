#!/usr/bin/env bash
# `bench comm` and the check before training on devices: tensors of the backend, the transport that a run would take.
#   bench.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
orthant=$1 work=$3/bench
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

launch 0 4 4 bench comm mesh.tp=2 mesh.pp=2 device.backend=cuda --check --max 16KiB
says_like '^transport NCCL 2\.28\.3 between devices' '^tp: 9 operations' '^pp: 9 operations' '^world: 9 operations x 12 sizes: the right result on each of 4 ranks'
launch 0 2 2 bench comm device.backend=cuda --min 8KiB --max 16KiB --repeat 2 --ops all_reduce,broadcast --csv -
says_like '^world,2,1,all_reduce,16384,2,.*,nccl$' '^world,2,1,broadcast,16384,2,.*,mpi$'
launch 0 2 2 bench comm device.backend=cuda comm.transport=mpi --check --max 16KiB
says_like '^transport MPI, staged through host memory$' '^world: 9 operations'
ORTHANT_CUDA_HOST_GPU_AWARE=1 launch 0 1 2 bench comm device.backend=cuda --check --max 16KiB
says_like '^transport MPI, GPU-aware' '^world: 9 operations'
launch 0 2 2 train "$golden/deck.toml" "run.output=$work/run" run.steps=1 device.backend=cuda --preflight=0.5
says_like '^preflight .* products in f32 on cuda, .* by NCCL 2\.28\.3 between devices' '^transport NCCL'
launch 0 1 2 train "$golden/deck.toml" "run.output=$work/run" run.steps=1 device.backend=cuda precision.tf32=true --preflight=0.5
says_like '^preflight .* products in tf32 on cuda' 'fp32 \(products in TF32\)'
launch 0 1 1 bench ops --backend cuda --sizes small --types bf16,tf32,fp32 --repeat 1 --seconds 0
says_like '^fp32' '^tf32' '^bf16' '^cuda: .* attention: cuDNN .* plans\)$'
rm -rf "$work"
