# shellcheck shell=bash disable=SC2154  # root: of lib.sh
# Modules and settings of Leonardo's booster, read by submit.sbatch; source it before building, too.

# Names carry version and compiler here, such as openmpi/4.1.6--gcc--12.2.0; these take the site's default. See modmap -m.
module load gcc cmake openmpi hdf5

# cpu; cuda in a build with ORTHANT_CUDA, which has not run on a GPU yet
export ORTHANT_BACKEND=${ORTHANT_BACKEND:-cpu}
export ORTHANT_PROGRAM=${ORTHANT_PROGRAM:-$root/build/leonardo/orthant}

export ORTHANT_LAUNCHER=${ORTHANT_LAUNCHER:-srun}
export ORTHANT_CPU_BIND=${ORTHANT_CPU_BIND:-cores}
export ORTHANT_DISTRIBUTION=${ORTHANT_DISTRIBUTION:-block:block}
# OMP_PLACES and OMP_PROC_BIND stay unset: the thread that writes checkpoints would inherit the main thread's core.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-8}}
