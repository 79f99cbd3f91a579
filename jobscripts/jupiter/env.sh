# shellcheck shell=bash disable=SC2154  # root: of lib.sh
# Modules and settings of JUPITER's booster, read by submit.sbatch; source it before building, too.

module load Stages GCC CMake OpenMPI HDF5

# cpu; cuda in a build with ORTHANT_CUDA, which has not run on a GPU yet
export ORTHANT_BACKEND=${ORTHANT_BACKEND:-cpu}
export ORTHANT_PROGRAM=${ORTHANT_PROGRAM:-$root/build/jupiter/orthant}

export ORTHANT_LAUNCHER=${ORTHANT_LAUNCHER:-srun}
# ParaStation runs the processes here instead of slurmd, with a PMIx of its own; JSC's MPI modules set SLURM_MPI_TYPE.
export ORTHANT_MPI=${ORTHANT_MPI:-${SLURM_MPI_TYPE:-pspmix}}
export ORTHANT_CPU_BIND=${ORTHANT_CPU_BIND:-cores}
export ORTHANT_DISTRIBUTION=${ORTHANT_DISTRIBUTION:-block:block}
# OMP_PLACES and OMP_PROC_BIND stay unset: the thread that writes checkpoints would inherit the main thread's core.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-72}}

# MPI-IO by ROMIO: Open MPI's own (OMPIO) has hung in writes of parallel HDF5. The name belongs to Open MPI 4.
export OMPI_MCA_io=${OMPI_MCA_io:-romio321}
