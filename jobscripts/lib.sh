# shellcheck shell=bash
# Common parts of quickstart.sh, regression/run.sh and .ci/run. To be sourced, from any folder.
set -euo pipefail

# shellcheck disable=SC2034  # used by the scripts that source this
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

current_stage="arguments"
# stage NAME: what the script is doing from here on, for the reader and for the message of a failure.
stage() {
  current_stage=$1
  printf '\n== %s\n' "$1"
}

# To be used as: trap 'report_failure $?' EXIT
report_failure() {
  case $1 in
    0) ;;
    75) printf '\n%s: stopped early with a complete checkpoint; the same command continues\n' "${0##*/}" >&2 ;;
    *)
      printf '\n%s: failed in the stage "%s" (exit %s); the reason is above.\n' "${0##*/}" "$current_stage" "$1" >&2
      ;;
  esac
}

# Installs or checks what the program needs; costs nothing when all is there.
set_up() {
  if [ "${ORTHANT_SETUP:-}" = skip ]; then
    echo "ORTHANT_SETUP=skip: packages are not checked"
  elif command -v apt-get >/dev/null && command -v dpkg-query >/dev/null && ! type module >/dev/null 2>&1; then
    bash "$root/jobscripts/setup/debian.sh"
  else
    bash "$root/jobscripts/setup/cluster.sh"
  fi
}

# As many compile jobs as cores, but no more than memory has room for (about 1.5 GB each).
build_jobs() {
  local cores memory jobs
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1500000)}' /proc/meminfo 2>/dev/null || true)
  jobs=$cores
  if [ -n "$memory" ] && [ "$memory" -lt "$jobs" ]; then jobs=$memory; fi
  if [ "$jobs" -lt 1 ]; then jobs=1; fi
  echo "$jobs"
}

# build PRESET [TARGET]: configures the first time (later the build system does it by itself) and builds.
build() {
  local preset=$1 folder=$root/build/$1
  local generator=() target=()
  if [ ! -e "$folder/build.ninja" ] && [ ! -e "$folder/Makefile" ]; then
    # a generator once chosen stays: CMake refuses to change it
    if [ ! -e "$folder/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
    (cd "$root" && cmake --preset "$preset" ${generator[@]+"${generator[@]}"})
  fi
  if [ $# -gt 1 ]; then target=(--target "$2"); fi
  cmake --build "$folder" ${target[@]+"${target[@]}"} --parallel "$(build_jobs)"
}

# launch RANKS COMMAND…: many ranks on this machine, also where they outnumber the cores and where we are root (as in
# containers). Settings go through the environment, which other MPI libraries ignore. MPIEXEC names another launcher.
launch() {
  local ranks=$1
  shift
  local flags=()
  if "${MPIEXEC:-mpirun}" --version 2>/dev/null | grep -qi "open.\?mpi\|open.\?rte\|prrte"; then
    flags=(--oversubscribe)
  fi
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none \
    OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none \
    OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" \
    "${MPIEXEC:-mpirun}" ${flags[@]+"${flags[@]}"} -n "$ranks" "$@"
}
