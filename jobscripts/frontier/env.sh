# shellcheck shell=bash disable=SC2154  # root: of lib.sh
# Modules and settings of Frontier, read by submit.sbatch; source it before building, too.

module load PrgEnv-gnu cmake cray-hdf5-parallel

# There is no HIP backend: the host's cores compute, the GPUs idle.
export ORTHANT_BACKEND=${ORTHANT_BACKEND:-cpu}
export ORTHANT_PROGRAM=${ORTHANT_PROGRAM:-$root/build/frontier/orthant}

export ORTHANT_LAUNCHER=${ORTHANT_LAUNCHER:-srun}
# Cray MPICH speaks PMI: under pmix each rank would think that it is alone.
export ORTHANT_MPI=${ORTHANT_MPI:-cray_shasta}
# with one thread a core these are the cores (OLCF's user guide, section on process and thread mapping)
export ORTHANT_CPU_BIND=${ORTHANT_CPU_BIND:-threads}
# neighbours in rank are neighbours on the node, which the default, block:cyclic, does not give
export ORTHANT_DISTRIBUTION=${ORTHANT_DISTRIBUTION:-block:block}
# OMP_PLACES and OMP_PROC_BIND stay unset: the thread that writes checkpoints would inherit the main thread's core.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-7}}

# A program without Cray's GPU transport library (libmpi_gtl_hsa) ends in MPI_Init if this is 1.
export MPICH_GPU_SUPPORT_ENABLED=0
# The network card of the rank's NUMA domain: each rank's 7 cores lie in one.
export MPICH_OFI_NIC_POLICY=${MPICH_OFI_NIC_POLICY:-NUMA}
# FI_MR_CACHE_MONITOR stays at the site's kdreg2; OLCF asks to drop the older work-arounds memhooks and disabled.
