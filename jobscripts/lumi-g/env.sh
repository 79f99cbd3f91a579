# shellcheck shell=bash disable=SC2154  # root: of lib.sh
# Modules and settings of LUMI-G, read by submit.sbatch; source it before building, too.

module load LUMI partition/G PrgEnv-gnu buildtools cray-hdf5-parallel

# There is no HIP backend: the host's cores compute, the GPUs idle.
export ORTHANT_BACKEND=${ORTHANT_BACKEND:-cpu}
export ORTHANT_PROGRAM=${ORTHANT_PROGRAM:-$root/build/lumi-g/orthant}

export ORTHANT_LAUNCHER=${ORTHANT_LAUNCHER:-srun}
# Cray MPICH speaks PMI: under pmix each rank would think that it is alone.
export ORTHANT_MPI=${ORTHANT_MPI:-cray_shasta}
# Rank i gets the group of cores next to GPU i, whose order is 48, 56, 16, 24, 0, 8, 32, 40 (LUMI's user guide). fe: cores
# 1-7 of a group, as its first core is closed to jobs. Without masks Slurm would cut across the groups.
export ORTHANT_CPU_BIND=${ORTHANT_CPU_BIND:-mask_cpu:fe000000000000,fe00000000000000,fe0000,fe000000,fe,fe00,fe00000000,fe0000000000}
export ORTHANT_DISTRIBUTION=${ORTHANT_DISTRIBUTION:-block:block}
# OMP_PLACES and OMP_PROC_BIND stay unset: the thread that writes checkpoints would inherit the main thread's core.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-7}}

# A program without Cray's GPU transport library (libmpi_gtl_hsa) ends in MPI_Init if this is 1.
export MPICH_GPU_SUPPORT_ENABLED=0
# The network card of the rank's NUMA domain: each rank's cores lie in one.
export MPICH_OFI_NIC_POLICY=${MPICH_OFI_NIC_POLICY:-NUMA}
