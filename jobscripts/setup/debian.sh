#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that Orthant needs and that are missing. Nothing missing: does nothing, needs
# no network and no root.
#   debian.sh          for building and training (also: debian.sh program)
#   debian.sh tests    and what the test suite can use besides: without it, or where it cannot be had, tests are skipped
set -euo pipefail

# package[|other package that will do] [program that makes the package unnecessary]
needs='
g++ g++
cmake cmake
ninja-build ninja
git git
libopenmpi-dev|libmpich-dev
openmpi-bin|mpich mpirun
libhdf5-openmpi-dev|libhdf5-mpich-dev
libdnnl-dev
libtomlplusplus-dev
libcli11-dev
nlohmann-json3-dev
libfmt-dev
libspdlog-dev
libxxhash-dev
libpng-dev
libgtest-dev
bible-kjv bible
'

# for the label slurm: a cluster of nodes on this machine (regression/slurm)
useful='
slurmctld slurmctld
slurmd slurmd
slurm-client sbatch
slurm-wlm-basic-plugins
munge munged
iproute2 ip
'

installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# list_missing LIST: what of a list is not there, in the array `missing`
list_missing() {
  local packages program package found choices
  missing=()
  while read -r packages program; do
    [ -n "$packages" ] || continue
    if [ -n "$program" ] && PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null; then continue; fi
    found=no
    IFS='|' read -ra choices <<<"$packages"
    for package in "${choices[@]}"; do
      if installed "$package"; then found=yes; fi
    done
    if [ "$found" = no ]; then missing+=("${choices[0]}"); fi
  done <<<"$1"
}

list_missing "$needs"

if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    # sudo only where it can work: without a password, or with somebody there to type one
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
    else
      echo "These packages are missing, and only root can install them:" >&2
      printf '  %s\n' "${missing[@]}" >&2
      echo "Ask for: apt-get install --no-install-recommends ${missing[*]}" >&2
      echo "If the libraries come from elsewhere (Spack, own builds), set ORTHANT_SETUP=skip and try again." >&2
      exit 2
    fi
  fi
  echo "installing ${missing[*]}"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  apt() {
    if ! ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
      apt-get -q -o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1; then
      tail -n 20 "$log" >&2
      echo "apt-get $1 failed (above): is there a network and a package mirror?" >&2
      exit 2
    fi
  }
  apt update
  apt install -y --no-install-recommends "${missing[@]}"
fi

if [ "${1:-}" = tests ]; then
  list_missing "$useful"
  if [ ${#missing[@]} -gt 0 ]; then
    # only as root, who may run the tests that need it: a user's machine gets no daemons for the sake of a skipped test
    quiet=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 -o Acquire::Retries=0 -o Acquire::http::Timeout=10)
    if [ "$(id -u)" -eq 0 ] && { "${quiet[@]}" install -y --no-install-recommends "${missing[@]}" ||
      { "${quiet[@]}" update && "${quiet[@]}" install -y --no-install-recommends "${missing[@]}"; }; } >/dev/null 2>&1; then
      echo "installed for the tests: ${missing[*]}"
    else
      echo "not installed (no root, or no package mirror): ${missing[*]}; the tests that need them are skipped"
    fi
  fi
fi

version=$(cmake --version | awk 'NR == 1 {print $3}')
if [ "$(printf '%s\n' 3.24 "$version" | sort -V | head -n 1)" != 3.24 ]; then
  echo "CMake $version is too old: Orthant needs 3.24 or newer (as in Debian 12 and Ubuntu 24.04)." >&2
  exit 2
fi
