# shellcheck shell=bash
# The environment of a job, read by submit.sbatch and submit.pbs before anything starts. Put your modules here; the defaults
# below give way to what the environment already says (sbatch --export=ALL,NAME=value).

# module load gcc openmpi hdf5-mpi onednn

# the program; default: build/cpu/orthant of this checkout
# export ORTHANT_PROGRAM=/path/to/orthant

# srun, mpirun or mpiexec. With mpirun, submit with --signal=B:USR1@120: the signal then goes through this shell.
export ORTHANT_LAUNCHER=${ORTHANT_LAUNCHER:-srun}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
# ten seconds before step 1 in which slow nodes are found: yes, no, or the share of the others below which a node is refused
# export ORTHANT_PREFLIGHT=0.5
# where file locking is broken or off (Lustre without flock, some GPFS): an open of a checkpoint would fail
# export HDF5_USE_FILE_LOCKING=FALSE
