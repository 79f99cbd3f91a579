# shellcheck shell=bash disable=SC2154  # root: of lib.sh
# Modules and settings of MareNostrum 5, read by submit.sbatch; source it before building, too.

# The default modules are Intel's; Open MPI conflicts with them.
module purge
module load gcc cmake openmpi hdf5

# cpu; cuda in a build with ORTHANT_CUDA, which has not run on a GPU yet
export ORTHANT_BACKEND=${ORTHANT_BACKEND:-cpu}
export ORTHANT_PROGRAM=${ORTHANT_PROGRAM:-$root/build/marenostrum5/orthant}

export ORTHANT_LAUNCHER=${ORTHANT_LAUNCHER:-srun}
export ORTHANT_CPU_BIND=${ORTHANT_CPU_BIND:-cores}
# neighbours in rank on the same processor, which the default, block:cyclic, does not give
export ORTHANT_DISTRIBUTION=${ORTHANT_DISTRIBUTION:-block:block}
# OMP_PLACES and OMP_PROC_BIND stay unset: the thread that writes checkpoints would inherit the main thread's core.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-20}}
