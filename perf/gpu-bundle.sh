#!/usr/bin/env bash
# A folder for perf/gpu-check.sh on a machine that has a GPU and CUDA but no compiler or MPI: programs, the shared libraries
# they need and a launcher; and the archive FOLDER.tar.xz of it. glibc (as new as here), the driver, cuBLASLt, cuDNN and NCCL must be there; CONTENTS names them.
#   bash perf/gpu-bundle.sh FOLDER [BUILD_DIR]
# BUILD_DIR is a build of the preset cuda (of the stand-ins for a try); without it one is made in build/cuda-bundle for
# GPU_ARCH (90: H100 and H200) and processors with AVX2. Exit 2 when the archive is over LIMIT_MIB (45).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
refuse() {
  printf 'gpu-bundle.sh: %s\n' "$1" >&2
  exit 2
}
case ${1:-} in '' | -*) refuse "usage: bash perf/gpu-bundle.sh FOLDER [BUILD_DIR]" ;; esac
if [ $# -gt 2 ]; then refuse "usage: bash perf/gpu-bundle.sh FOLDER [BUILD_DIR]"; fi
folder=$1 build=${2:-}
if [ -e "$folder" ] && [ ! -e "$folder/CONTENTS" ]; then refuse "$folder is there already, and not of this script"; fi
if [ -z "$build" ]; then
  build=$root/build/cuda-bundle
  (
    cd "$root"
    export PATH=$PATH:/usr/local/cuda/bin
    cmake --preset cuda -B "$build" -G Ninja -DORTHANT_NATIVE=OFF -DCMAKE_CXX_FLAGS=-march=x86-64-v3 "-DCMAKE_CUDA_ARCHITECTURES=${GPU_ARCH:-90}-real" >&2
    cmake --build "$build" --target orthant check_run cuda_parity >&2
  )
fi
if [ ! -d "$build" ]; then refuse "no folder $build"; fi

rm -rf "$folder"
mkdir -p "$folder"/bin "$folder"/lib/openmpi "$folder"/lib/pmix "$folder"/share
echo "unfinished" >"$folder/CONTENTS"  # it is ours from here on
mapfile -t programs < <(find -L "$build" -type f -perm -u+x \( -name orthant -o -name check_run -o -name 'cuda_parity_*' \) | sort)
for want in orthant check_run cuda_parity_; do
  if [[ " ${programs[*]-}" != */"$want"* ]]; then refuse "no $want under $build"; fi
done
for p in "${programs[@]}"; do
  cp -L "$p" "$folder/bin/"
  strip "$folder/bin/$(basename "$p")"
done
for tool in mpirun orted; do cp "$(readlink -f "$(command -v $tool)")" "$folder/bin/$tool" || refuse "no $tool here: this needs Open MPI 4"; done

# What a machine brings itself: glibc and the driver, and what is too large to carry.
brought='^(ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libutil|linux-vdso)[-.]|^lib(cuda|nvidia|cublas|cublasLt|cudnn[a-z_]*|nccl)[-.]'
needed() { ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u; }
copy_needed() {
  local path
  while read -r path; do
    if [[ $(basename "$path") =~ $brought ]] || [ -e "$folder/lib/$(basename "$path")" ]; then continue; fi
    cp -L "$path" "$folder/lib/"
  done < <(needed "$@")
}
copy_needed "$folder"/bin/*
# The parts that Open MPI and PMIx load at run time, for one node: those of networks, schedulers and GPUs stay behind.
elsewhere='ucx|ofi|usnic|openib|portals|psm|_tm\.|slurm|lsf|alps|cuda|lustre|pvfs|gpfs|monitoring|munge|verbs|hcoll|cm\.so'
copy_modules() { # FOLDER WHERE
  local m
  for m in "$1"/*.so; do
    if [[ $(basename "$m") =~ $elsewhere ]] || needed "$m" | grep -Eq 'libuc[pst]|libfabric|libibverbs|librdmacm'; then continue; fi
    cp -L "$m" "$folder/lib/$2/"
  done
}
copy_modules "$(ompi_info --path pkglibdir --parsable | sed 's/.*://')" openmpi
# PMIx has most of its parts in the library itself; where it has others they lie beside it.
pmix=$(needed "$folder"/lib/openmpi/*.so | grep '/libpmix[.]' | head -n 1 | xargs -r readlink -f | xargs -r dirname)/pmix
if compgen -G "$pmix/*mca_*.so" >/dev/null; then copy_modules "$pmix" pmix; fi
mapfile -t modules < <(find "$folder/lib/openmpi" "$folder/lib/pmix" -name "*.so")
copy_needed "${modules[@]}"
# The help texts: without them an error of the launcher is a riddle.
cp -r "$(ompi_info --path pkgdatadir --parsable | sed 's/.*://')" "$folder/share/openmpi"
find "$folder/share" -name '*wrapper-data*' -delete

{
  echo "commit $(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)"
  echo "glibc $(ldd --version | awk 'NR == 1 { print $NF }') or newer"
  echo "to be found on the machine:"
  ldd "$folder"/bin/* 2>/dev/null | awk '$1 ~ /^lib(cuda|cublas|cublasLt|cudnn|nccl)[-.]/ { print "  " $1 }' | sort -u
} >"$folder/CONTENTS"
cat "$folder/CONTENTS"
# The programs share most of their code: a window over all of them stores it once.
tar -C "$folder" -c . | xz --threads=1 --lzma2=preset=3,dict=64MiB >"$folder.tar.xz"
packed=$(wc -c <"$folder.tar.xz")
echo "$folder.tar.xz: $packed bytes"
if [ "$packed" -gt $((${LIMIT_MIB:-45} * 1048576)) ]; then refuse "$folder.tar.xz is $packed bytes, over ${LIMIT_MIB:-45} MiB"; fi
