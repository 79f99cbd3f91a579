# shellcheck shell=bash disable=SC2154  # root: of lib.sh
# Modules and settings of LUMI-C, read by submit.sbatch; source it before building, too.

module load LUMI partition/C PrgEnv-gnu buildtools cray-hdf5-parallel

# there are no GPUs here
export ORTHANT_BACKEND=${ORTHANT_BACKEND:-cpu}
export ORTHANT_PROGRAM=${ORTHANT_PROGRAM:-$root/build/lumi-c/orthant}

export ORTHANT_LAUNCHER=${ORTHANT_LAUNCHER:-srun}
# Cray MPICH speaks PMI: under pmix each rank would think that it is alone.
export ORTHANT_MPI=${ORTHANT_MPI:-cray_shasta}
export ORTHANT_CPU_BIND=${ORTHANT_CPU_BIND:-cores}
# neighbours in rank are neighbours on the node, which the default, block:cyclic, does not give
export ORTHANT_DISTRIBUTION=${ORTHANT_DISTRIBUTION:-block:block}
# OMP_PLACES and OMP_PROC_BIND stay unset: the thread that writes checkpoints would inherit the main thread's core.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-16}}
