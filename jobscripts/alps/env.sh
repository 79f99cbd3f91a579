# shellcheck shell=bash disable=SC2154  # root: of lib.sh
# Settings of Alps, read by submit.sbatch. The software is the uenv that submit.sbatch names, so no modules are loaded; before
# building: uenv start --view=default prgenv-gnu/25.11:v1, then source this.

# cpu; cuda in a build with ORTHANT_CUDA, which has not run on a GPU yet
export ORTHANT_BACKEND=${ORTHANT_BACKEND:-cpu}
export ORTHANT_PROGRAM=${ORTHANT_PROGRAM:-$root/build/alps/orthant}

export ORTHANT_LAUNCHER=${ORTHANT_LAUNCHER:-srun}
# The uenv's MPI is Cray MPICH, which speaks PMI. With prgenv-gnu-openmpi, or in containers: pmix.
export ORTHANT_MPI=${ORTHANT_MPI:-cray_shasta}
export ORTHANT_CPU_BIND=${ORTHANT_CPU_BIND:-cores}
export ORTHANT_DISTRIBUTION=${ORTHANT_DISTRIBUTION:-block:block}
# The ranks find their GPU by themselves once there is a backend for it. GPUs are shared here: unlike elsewhere, ranks that
# all took GPU 0 would run, slowly, and nobody would say so (CSCS's page on Slurm).
# OMP_PLACES and OMP_PROC_BIND stay unset: the thread that writes checkpoints would inherit the main thread's core.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-72}}

# A program without Cray's GPU transport library ends in MPI_Init if this is 1; and with NCCL, CSCS says 0.
export MPICH_GPU_SUPPORT_ENABLED=0
# the network card of the rank's own processor
export MPICH_OFI_NIC_POLICY=${MPICH_OFI_NIC_POLICY:-NUMA}
