#!/usr/bin/env bash
# Looks for what Orthant needs on a machine whose software comes from modules, Spack or own builds. Installs nothing;
# says all that is lacking at once, and how people usually get it.
set -euo pipefail

read -ra cpp_flags <<<"${CPPFLAGS:-}"
lacking=()
lack() {
  lacking+=("$1")
}

# header NAME…: whether the compiler (with the paths of the loaded modules) finds a header.
header() {
  printf '#include <%s>\n' "$1" |
    "${CXX:-c++}" ${cpp_flags[@]+"${cpp_flags[@]}"} -std=c++20 -x c++ -fsyntax-only - 2>/dev/null
}

# A module sets one of these; CMake looks into them, the compiler alone does not.
in_prefixes() {
  local prefix
  while read -r -d ':' prefix; do
    if [ -n "$prefix" ] && [ -e "$prefix/$1" ]; then return 0; fi
  done <<<"${CMAKE_PREFIX_PATH:-}:${DNNL_ROOT:-}:${ONEDNN_ROOT:-}:${DNNLROOT:-}:"
  return 1
}

if ! command -v "${CXX:-c++}" >/dev/null; then
  lack "a C++20 compiler (GCC 11 or newer, Clang 14 or newer): module load gcc"
elif ! header concepts || ! header span; then
  lack "a C++20 compiler: ${CXX:-c++} does not know C++20; module load gcc, or set CXX"
fi

if ! command -v cmake >/dev/null; then
  lack "CMake 3.24 or newer: module load cmake, or spack load cmake"
else
  version=$(cmake --version | awk 'NR == 1 {print $3}')
  if [ "$(printf '%s\n' 3.24 "$version" | sort -V | head -n 1)" != 3.24 ]; then
    lack "CMake 3.24 or newer (this one is $version): module load cmake, or spack load cmake"
  fi
fi

if ! command -v mpicxx >/dev/null && ! command -v CC >/dev/null; then
  lack "an MPI compiler wrapper (mpicxx): module load openmpi, mpich or cray-mpich; spack load openmpi"
fi

hdf5=
for wrapper in h5pcc h5cc; do
  if [ -z "$hdf5" ] && command -v "$wrapper" >/dev/null &&
    "$wrapper" -showconfig 2>/dev/null | grep -qi 'parallel hdf5: *\(yes\|on\)'; then
    hdf5=$wrapper
  fi
done
if [ -z "$hdf5" ]; then
  if command -v h5cc >/dev/null; then
    found=" (the one of h5cc is serial)"
  else
    found=
  fi
  lack "parallel HDF5 1.10 or newer$found: module load hdf5-parallel, cray-hdf5-parallel or phdf5; spack load hdf5+mpi"
fi

while IFS=: read -r file name package; do
  if ! header "$file" && ! in_prefixes "include/$file"; then
    lack "$name: spack install $package && spack load $package"
  fi
done <<'LIST'
dnnl.hpp:oneDNN 2.6 or newer (also in the modules dnnl, onednn and intel-oneapi-dnn):onednn
toml++/toml.h:toml++:tomlplusplus
CLI/CLI.hpp:CLI11:cli11
nlohmann/json.hpp:nlohmann/json 3.9 or newer:nlohmann-json
fmt/format.h:fmt 9 or newer:fmt
spdlog/spdlog.h:spdlog:spdlog
xxhash.h:xxHash:xxhash
png.h:libpng:libpng
gtest/gtest.h:GoogleTest (for the tests):googletest
LIST

if [ ${#lacking[@]} -gt 0 ]; then
  echo "This machine lacks, as far as can be seen from the loaded modules:" >&2
  printf '  - %s\n' "${lacking[@]}" >&2
  echo "Load or install these and try again. If they are where this script does not look, set CMAKE_PREFIX_PATH for" >&2
  echo "CMake, and ORTHANT_SETUP=skip to go on without this check." >&2
  exit 2
fi
