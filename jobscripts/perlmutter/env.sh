# shellcheck shell=bash disable=SC2154  # root: of lib.sh
# Modules and settings of Perlmutter, read by submit.sbatch; source it before building, too.

module load PrgEnv-gnu cmake cray-hdf5-parallel

# cpu; cuda in a build with ORTHANT_CUDA, which has not run on a GPU yet
export ORTHANT_BACKEND=${ORTHANT_BACKEND:-cpu}
export ORTHANT_PROGRAM=${ORTHANT_PROGRAM:-$root/build/perlmutter/orthant}

export ORTHANT_LAUNCHER=${ORTHANT_LAUNCHER:-srun}
# Slurm here lists pmix too, but Cray MPICH speaks PMI: under pmix each rank would think that it is alone.
export ORTHANT_MPI=${ORTHANT_MPI:-cray_shasta}
export ORTHANT_CPU_BIND=${ORTHANT_CPU_BIND:-cores}
export ORTHANT_DISTRIBUTION=${ORTHANT_DISTRIBUTION:-block:block}
# A rank has 16 cores = 32 hardware threads; one thread a core is fastest for matrix products. OMP_PLACES and
# OMP_PROC_BIND stay unset: the thread that writes checkpoints would inherit the one core of the main thread.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-16}

# The module gpu (loaded by default) sets 1, and a program without Cray's GPU transport library then ends in MPI_Init.
# Orthant gives MPI memory of the host only, so 0 is right with CUDA as well.
export MPICH_GPU_SUPPORT_ENABLED=0
# The network card of the rank's NUMA domain; ranks are bound inside one (NERSC and WarpX say GPU for GPU buffers).
export MPICH_OFI_NIC_POLICY=${MPICH_OFI_NIC_POLICY:-NUMA}
# The community file system and home have no working locks (NERSC, page on HDF5); scratch does not need them.
export HDF5_USE_FILE_LOCKING=${HDF5_USE_FILE_LOCKING:-FALSE}
