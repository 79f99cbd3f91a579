# shellcheck shell=bash disable=SC2154  # root: of lib.sh
# Modules and settings of Aurora, read by submit.pbs; source it before building, too.

# The oneAPI compilers, Aurora MPICH and oneDNN are loaded by default.
module load cmake hdf5

# There is no SYCL backend: the host's cores compute, the GPUs idle.
export ORTHANT_BACKEND=${ORTHANT_BACKEND:-cpu}
export ORTHANT_PROGRAM=${ORTHANT_PROGRAM:-$root/build/aurora/orthant}

export ORTHANT_LAUNCHER=${ORTHANT_LAUNCHER:-mpiexec}
export ORTHANT_RANKS_PER_NODE=${ORTHANT_RANKS_PER_NODE:-12}
# Cores 0 and 52 are the system's, and 6 x 8 + 3 cores make a processor: with --depth=8, rank 6 would straddle both (ALCF's
# page on running jobs). So the cores are listed; other ranks a node need another list.
export ORTHANT_LAUNCH_FLAGS=${ORTHANT_LAUNCH_FLAGS:--ppn $ORTHANT_RANKS_PER_NODE --cpu-bind=list:1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100}
# OMP_PLACES and OMP_PROC_BIND stay unset: the thread that writes checkpoints would inherit the main thread's core.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}

# MPI is given memory of the host only: no need for it to look for GPUs
export MPIR_CVAR_ENABLE_GPU=${MPIR_CVAR_ENABLE_GPU:-0}
