#!/usr/bin/env bash
# All that is to be known of the CUDA backend on a machine with a GPU, in one run of at most eight minutes: operations and
# golden curves against the CPU's, rates of products and attention, and a training step of as many layers of Llama 8B as
# the memory holds. Writes one JSON, gpu-check-<device>.json, into $OUT or perf/results.
#   bash perf/gpu-check.sh [BUILD_DIR]
# BUILD_DIR is what perf/gpu-bundle.sh makes (the folder, or its archive) or a build of the preset cuda; without it that
# is built here, for this machine's GPU alone. BUDGET is the time for all parts, in seconds (450); PARTS names those to run ("parity golden ops step").
# Exit: 0; 1 when an operation or a golden curve is wrong or was not reached; 2 when nothing can be run here.
#   bash perf/gpu-check.sh --host-stand-in BUILD_DIR     the same on the host's stand-ins and tiny sizes, for tests
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

refuse() {
  printf 'gpu-check.sh: %s\n' "$1" >&2
  exit 2
}

stand_in=no
if [ "${1:-}" = --host-stand-in ]; then
  stand_in=yes
  shift
fi
case ${1:-} in --help | -h) sed -n '2,/^set -/{/^#/s/^# *//p;}' "$0"; exit 0 ;; esac
if [ $# -gt 1 ] || [[ ${1:-} == -* ]] || { [ $stand_in = yes ] && [ $# -ne 1 ]; }; then
  refuse "usage: bash perf/gpu-check.sh [--host-stand-in] [BUILD_DIR]"
fi
build=${1:-}
if [ -n "$build" ] && [ ! -e "$build" ]; then refuse "no folder or archive $build"; fi

# ---- the device
if [ $stand_in = yes ]; then
  gpus=${ORTHANT_CUDA_HOST_DEVICES:-1} device="host stand-in" driver=none memory_mib=1024 architecture=none
else
  smi() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null; }
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
  if [ "$gpus" -eq 0 ]; then refuse "there is no NVIDIA GPU here (nvidia-smi -L names none)"; fi
  device=$(smi name | head -n 1) driver=$(smi driver_version | head -n 1)
  memory_mib=$(smi memory.free | sort -n | head -n 1) architecture=$(smi compute_cap | head -n 1)
fi

# ---- the programs
seconds_now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(seconds_now)" 'BEGIN { printf "%.1f", b - a }'; }
started=$(seconds_now)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -f "$build" ]; then
  mkdir "$work/bundle"
  tar -C "$work/bundle" -xf "$build" 2>"$work/log" || python3 -m tarfile -e "$build" "$work/bundle" 2>>"$work/log" ||
    refuse "$build cannot be unpacked: $(tail -n 3 "$work/log")"
  build=$work/bundle
fi
if [ -z "$build" ]; then
  build=$root/build/cuda
  for tool in cmake ninja nvcc; do
    PATH=$PATH:/usr/local/cuda/bin command -v $tool >/dev/null || refuse "no $tool here, and no BUILD_DIR given: bring a folder made by perf/gpu-bundle.sh"
  done
  (
    cd "$root"
    export PATH=$PATH:/usr/local/cuda/bin
    cmake --preset cuda -G Ninja "-DCMAKE_CUDA_ARCHITECTURES=${architecture/./}-real" >&2
    cmake --build build/cuda --target orthant check_run cuda_parity --parallel "$(nproc)" >&2
  ) || refuse "the build failed; the reason is above"
fi
build=$(cd "$build" && pwd)
program() { find -L "$build" -name "$1" -type f -perm -u+x 2>/dev/null | sort | head -n 1; }
orthant=$(program orthant)
if [ $stand_in = yes ] && [ -z "$orthant" ]; then orthant=$(program orthant_cuda_host); fi
check_run=$(program check_run)
parity_name='cuda_parity_*'
if [ $stand_in = yes ] && [ -z "$(program "$parity_name")" ]; then parity_name='test_kernels_*'; fi
mapfile -t parity < <(find -L "$build" -name "$parity_name" -type f -perm -u+x | sort)
if [ -z "$orthant" ]; then refuse "no program orthant under $build"; fi
if [ -z "$check_run" ]; then refuse "no program check_run under $build"; fi
if [ ${#parity[@]} -eq 0 ]; then refuse "no $parity_name under $build"; fi

# Libraries beside the programs first; those of CUDA are too large to carry, and Python packages bring them too.
paths=()
for folder in "$build/lib" "${CUDA_HOME:-/usr/local/cuda}/lib64" /usr/local/cuda/targets/x86_64-linux/lib /usr/local/nvidia/lib64; do
  if [ -d "$folder" ]; then paths+=("$folder"); fi
done
if [ $stand_in = no ] && command -v python3 >/dev/null; then
  while read -r folder; do paths+=("$folder"); done < <(python3 -c '
import glob, sys
for p in sys.path:
    for f in sorted(glob.glob(p + "/nvidia/*/lib")): print(f)' 2>/dev/null)
fi
# For these programs alone: the machine's own tools go with its own libraries.
with=(env "LD_LIBRARY_PATH=$(IFS=:; echo "${paths[*]-}")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
missing=$("${with[@]}" ldd "$orthant" 2>/dev/null | awk '/not found/ { print $1 }' | sort -u | tr '\n' ' ')
if [ -n "$missing" ]; then refuse "$orthant needs libraries that are not on this machine: ${missing}(looked in the system's folders and ${paths[*]-})"; fi
# The folders of the bundle's MPI, which would look for its parts where it was installed.
mpirun=${MPIEXEC:-mpirun}
if [ -x "$build/bin/mpirun" ]; then
  mpirun=$build/bin/mpirun
  export OPAL_PREFIX=$build OMPI_MCA_mca_base_component_path=$build/lib/openmpi PMIX_MCA_mca_base_component_path=$build/lib/pmix
  export OMPI_MCA_plm=isolated OMPI_MCA_btl=self,vader PMIX_INSTALL_PREFIX=$build
fi
command -v "$mpirun" >/dev/null || refuse "no $mpirun here: install Open MPI, or bring a folder made by perf/gpu-bundle.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_hwloc_base_binding_policy=none
export LAUNCH="${LAUNCH:-$mpirun -n}"
versions=$("${with[@]}" "$orthant" --version 2>&1) || refuse "$orthant does not start: $versions"
case $versions in *cuda*) ;; *) refuse "$orthant has no CUDA backend" ;; esac
commit=$(git -C "$root" describe --always --dirty 2>/dev/null || sed -n 's/^commit //p' "$build/CONTENTS" 2>/dev/null || true)
prepared=$(since "$started")

# ---- parts: each has its time, its failure is recorded, and the others go on
budget=${BUDGET:-450}
began=$SECONDS
left() { echo $((budget - (SECONDS - began))); }
json_text() { # its argument as a JSON string
  local text
  text=$(printf '%s' "$1" | tr '\t' ' ' | tr -d '\000-\010\013-\037')
  text=${text//\\/\\\\} text=${text//\"/\\\"} text=${text//$'\n'/\\n}
  printf '"%s"' "$text"
}
count=0 failed=0 wrong=0 parts=()
# part KIND NAME LIMIT [RESULT] -- COMMAND…: RESULT is a file that the command fills with JSON. Failures of parity and golden
# decide the exit code. Its output stays in $work/log.
part() {
  local kind=$1 name=$2 limit=$3 result='' code=0 begin ok=true line
  case " ${PARTS:-parity golden ops step} " in *" $kind "*) ;; *) return 0 ;; esac
  shift 3
  if [ "$1" != -- ]; then
    result=$1
    shift
    rm -f "$result"
  fi
  shift
  begin=$(seconds_now)
  if [ "$(left)" -lt "$limit" ]; then limit=$(left); fi
  if [ "$limit" -lt 1 ]; then
    echo "not run: the time for all parts ($budget s) is used up" >"$work/log"
    code=124
  else
    timeout -k 5 "$limit" "${with[@]}" "$@" >"$work/log" 2>&1 </dev/null || code=$?
    if [ $code = 124 ]; then echo "stopped after $limit s" >>"$work/log"; fi
  fi
  if [ $code = 0 ] && [ -n "$result" ] && [ ! -s "$result" ]; then
    echo "no result was written" >>"$work/log"
    code=1
  fi
  count=$((count + 1))
  if [ $code != 0 ]; then
    ok=false failed=$((failed + 1))
    case $kind in parity | golden) wrong=$((wrong + 1)) ;; esac
  fi
  line="{\"part\": \"$kind\", \"name\": $(json_text "$name"), \"ok\": $ok, \"seconds\": $(since "$begin")"
  if [ $code != 0 ]; then line+=", \"exit\": $code, \"message\": $(json_text "$(tail -n 15 "$work/log")")"
  elif [ -n "$result" ]; then line+=", \"result\": $(cat "$result")"; fi
  parts+=("$line}")
  printf '%-8s %-46s %-6s %6s s\n' "$kind" "$name" "$(if [ $code = 0 ]; then echo ok; else echo FAILED; fi)" "$(since "$begin")"
  if [ $code != 0 ]; then tail -n 15 "$work/log" | sed 's/^/    /'; fi
  return 0
}

echo "$device ($gpus), driver $driver, $memory_mib MiB free; $orthant"
threads=$(nproc)
export OMP_NUM_THREADS=$threads
for test in "${parity[@]}"; do part parity "$(basename "$test")" 90 -- "$test"; done

golden_steps=()
if [ $stand_in = yes ]; then golden_steps=(run.steps=2); fi
# golden NAME MODEL RANKS PRECISION OVERRIDE…
golden() {
  local name=$1 model=$2 ranks=$3 precision=$4
  shift 4
  OMP_NUM_THREADS=$((threads > ranks ? threads / ranks : 1)) part golden "$name" 60 -- bash "$root/regression/decks/golden.sh" "$orthant" "$check_run" \
    "$work/golden" "$name" "$model" "$ranks" "$precision" device.backend=cuda "$@" ${golden_steps[@]+"${golden_steps[@]}"}
}
for model in gpt2 llama qwen3; do golden "$model.1" "$model" 1 fp32; done
golden llama.bf16 llama 1 bf16 precision.compute=bf16  # attention by cuDNN
if awk -v c="$architecture" 'BEGIN { exit !(c >= 8.9) }'; then golden llama.fp8 llama 1 fp8-delayed precision.compute=fp8; fi
golden llama.tp2.mpi llama 2 fp32 mesh.tp=2 comm.transport=mpi
if [ $stand_in = no ]; then golden gpt2.pp2.dp2.mpi gpt2 4 fp32 mesh.pp=2 mesh.dp=2 comm.transport=mpi; fi
if [ "$gpus" -ge 2 ]; then golden llama.tp2.nccl llama 2 fp32 mesh.tp=2 comm.transport=nccl; fi
if [ "$gpus" -ge 4 ]; then golden gpt2.pp2.dp2.nccl gpt2 4 fp32 mesh.pp=2 mesh.dp=2 comm.transport=nccl; fi

if [ $stand_in = yes ]; then sizes=small repeat=1; else sizes=full repeat=5; fi
part ops "bench ops, $sizes" 100 "$work/ops.json" -- \
  "$orthant" bench ops --backend cuda --sizes $sizes --types bf16,fp16,tf32,fp32 --repeat $repeat --json "$work/ops.json"

# ---- a step of layers of Llama 8B
deck=$root/perf/decks/gpu_llama8b.toml
most_layers=32 sequences=(4096 8192) tiny=()
if [ $stand_in = yes ]; then
  most_layers=3 sequences=(32)
  tiny=(model.hidden=64 model.ffn=96 model.heads=4 model.kv_heads=2 model.vocab=300)
fi
# planned LAYERS SEQUENCE RECOMPUTE: bytes at the peak
planned() {
  "${with[@]}" "$orthant" plan "$deck" "model.layers=$1" "data.sequence=$2" "memory.recompute=$3" ${tiny[@]+"${tiny[@]}"} --rank 0 2>/dev/null | awk '
    / at the peak/ { scale["GB"] = 1e9; scale["MB"] = 1e6; scale["kB"] = 1e3; scale["B"] = 1; printf "%.0f\n", $2 * scale[$3]; exit }'
}
# layers_that_fit SEQUENCE RECOMPUTE: within nine tenths of the free memory; 0 when not even one does
layers_that_fit() {
  local low=0 high=$most_layers middle bytes
  while [ $low -lt $high ]; do
    middle=$(((low + high + 1) / 2))
    bytes=$(planned $middle "$1" "$2")
    if [ -n "$bytes" ] && [ "$bytes" -le $((memory_mib * 1048576 * 9 / 10)) ]; then low=$middle; else high=$((middle - 1)); fi
  done
  echo $low
}
# bench_step FILE LAYERS SEQUENCE RECOMPUTE STEPS: with fewer layers where memory is short after all
bench_step() {
  local layers=$2 line tries
  for tries in 1 2 3; do
    if line=$("$orthant" bench step "$deck" --steps "$5" --warm 2 "model.layers=$layers" "data.sequence=$3" \
      "memory.recompute=$4" ${tiny[@]+"${tiny[@]}"} 2>"$1.err"); then
      printf '{"layers": %s, "sequence": %s, "recompute": "%s", "bench": %s}\n' "$layers" "$3" "$4" "$(grep '^{' <<<"$line")" | tee "$1"
      return 0
    fi
    cat "$1.err"
    if ! grep -q "out of memory" "$1.err" || [ "$layers" -le 1 ]; then return 1; fi
    layers=$((layers * 9 / 10 < layers - 1 ? layers * 9 / 10 : layers - 1))
    echo "try $tries ended without memory; now $layers layers"
  done
  return 1
}
export -f bench_step
export orthant deck
# Functions do not reach a command of `timeout`, so a shell of its own runs this one; arrays do not travel either.
# shellcheck disable=SC2016
run_step() {
  part step "$1" "$2" "$work/step.json" -- bash -c 'read -r -a tiny <<<"$1"; shift; bench_step "$@"' bash "${tiny[*]-}" "$work/step.json" "${@:3}"
}
number() { # KEY FILE: a number of a line of JSON; nothing where the part failed
  if [ -e "$2" ]; then sed -n 's/.*"'"$1"'": \{0,1\}\([0-9.eE+-]*\).*/\1/p' "$2" | head -n 1; fi
}
first=${sequences[0]}
if [ $stand_in = yes ]; then steps=1; else steps=10; fi
run_step "2 layers, $first tokens, recompute none" 90 2 "$first" none $steps
# the head costs as much as 2.4 layers
layer_seconds=$(awk -v s="$(number seconds "$work/step.json")" 'BEGIN { print s / 4.4 }')
best_mfu=$(number mfu "$work/step.json")
for sequence in "${sequences[@]}"; do
  for recompute in none full; do
    layers=$(layers_that_fit "$sequence" "$recompute")
    if [ "$layers" -lt 1 ]; then
      part step "$sequence tokens, recompute $recompute" 5 -- bash -c "echo 'not even one layer fits (or the plan failed)'; exit 1"
      continue
    fi
    # 10 steps, or fewer where these would take longer than a part may
    timed=$(awk -v s="$layer_seconds" -v layers="$layers" -v longer="$(((sequence + first - 1) / first))" -v most=$steps 'BEGIN {
      step = s * (layers + 2.4) * longer * longer; n = step > 0 ? int(45 / step) : most; print (n < 1 ? 1 : n > most ? most : n) }')
    run_step "$layers layers, $sequence tokens, recompute $recompute" 90 "$layers" "$sequence" "$recompute" "$timed"
    best_mfu=$(awk -v a="${best_mfu:-0}" -v b="$(number mfu "$work/step.json")" 'BEGIN { print (a + 0 > b + 0 ? a + 0 : b + 0) }')
  done
done

# ---- one file
folder=${OUT:-$root/perf/results}
mkdir -p "$folder"
name=$(printf '%s' "$device" | tr -cs 'A-Za-z0-9\n' '-' | tr '[:upper:]' '[:lower:]')
file=$folder/gpu-check-$name.json
{
  printf '{\n "date": "%s",\n "commit": %s,\n' "$(date -u +%FT%TZ)" "$(json_text "${commit:-unknown}")"
  printf ' "device": %s,\n "gpus": %s,\n "free_mib": %s,\n' "$(json_text "$device")" "$gpus" "$memory_mib"
  printf ' "driver": %s,\n "compute_capability": %s,\n' "$(json_text "$driver")" "$(json_text "$architecture")"
  printf ' "versions": %s,\n "host_threads": %s,\n' "$(json_text "$versions")" "$threads"
  printf ' "prepared_s": %s,\n "seconds": %s,\n' "$prepared" "$((SECONDS - began))"
  printf ' "count": %s,\n "failed": %s,\n "wrong": %s,\n' $count $failed $wrong
  printf ' "mfu": %s,\n "parts": [\n' "$(if [ "${best_mfu:-0}" = 0 ]; then echo null; else echo "$best_mfu"; fi)"
  for ((i = 0; i < count; ++i)); do printf '  %s%s\n' "${parts[i]}" "$(if [ $((i + 1)) -lt $count ]; then echo ,; fi)"; done
  printf ' ]\n}\n'
} >"$file"
echo "$count parts, $failed failed, $wrong of them operations or golden curves; best share of the peak: ${best_mfu:-0}; $file"
if [ $wrong -gt 0 ]; then exit 1; fi
