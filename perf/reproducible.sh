#!/usr/bin/env bash
# What run.reproducible costs: a training step with and without it, one after the other in the same run, several rounds,
# on one rank and on meshes of two. The ratio of the best steps (above 1: reproducible mode is slower) goes to
# perf/results/reproducible-<machine>.csv.
#   bash perf/reproducible.sh [ROUNDS]     default: 3
# STEPS and WARMUP are the timed steps and those before them (5 and 1); ORTHANT names a program that is built already.
# The machine should be doing nothing else.
set -euo pipefail
# shellcheck source=../jobscripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../jobscripts/lib.sh"
trap 'report_failure $?' EXIT

rounds=${1:-3}
case $rounds in '' | *[!0-9]* | 0)
  echo "usage: bash perf/reproducible.sh [ROUNDS]" >&2
  exit 2
  ;;
esac
steps=${STEPS:-5}
warmup=${WARMUP:-1}
cd "$root"

orthant=${ORTHANT:-build/cpu/orthant}
if [ -z "${ORTHANT:-}" ]; then
  stage "build"
  build cpu orthant
fi

stage "measurement"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# the model of 0.4 million parameters of the golden curves, and that of the quickstart with 3.1 million
models=(
  "llama-tiny regression/goldens/llama-tiny/deck.toml"
  "quickstart input/quickstart.toml mesh.tp=1 mesh.sequence_parallel=false"
)
meshes=(
  "one-rank 1"
  "dp2 2 mesh.dp=2"
  "dp2-zero1 2 mesh.dp=2 zero.stage=1"
  "dp2-zero2 2 mesh.dp=2 zero.stage=2"
  "dp2-zero3 2 mesh.dp=2 zero.stage=3"
  "pp2 2 mesh.pp=2 mesh.dp=1"
)
mkdir -p perf/results
results=perf/results/reproducible-$(hostname -s).csv
header=date,commit,cpu,threads,round,model,mesh,precision,normal_s,reproducible_s,ratio
if [ ! -e "$results" ]; then echo "$header" >"$results"; fi
cpu=$(awk -F': *' '/^model name/ {print $2; exit}' /proc/cpuinfo | tr -d ',')
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)

# seconds RANKS DECK override…: the best step, as whatever disturbs one only makes it longer
seconds() {
  local ranks=$1
  shift
  launch "$ranks" "$orthant" bench step "$@" --steps "$steps" --warm "$warmup" | sed -nE 's/.*"best_seconds":([0-9.eE+-]+).*/\1/p' | tail -n 1
}
echo "$header"
for ((round = 1; round <= rounds; round++)); do
  for model in "${models[@]}"; do
    read -r -a deck <<<"$model"
    for mesh in "${meshes[@]}"; do
      read -r -a words <<<"$mesh"
      for precision in fp32 bf16; do
        # bf16 on one rank and on one mesh says what there is to say
        if [ "$precision" = bf16 ] && [ "${words[0]}" != one-rank ] && [ "${words[0]}" != dp2 ]; then continue; fi
        run=("${deck[@]:1}" mesh.dp=0 "${words[@]:2}" "precision.compute=$precision")
        normal=$(seconds "${words[1]}" "${run[@]}" run.reproducible=false)
        exact=$(seconds "${words[1]}" "${run[@]}" run.reproducible=true)
        ratio=$(awk -v a="$exact" -v b="$normal" 'BEGIN {printf "%.3f", a / b}')
        printf '%s,%s,%s,%s,%s,%s,%s,%s,%.4f,%.4f,%s\n' "$(date -u +%Y-%m-%d)" "$commit" "$cpu" "$OMP_NUM_THREADS" "$round" "${deck[0]}" \
          "${words[0]}" "$precision" "$normal" "$exact" "$ratio" | tee -a "$results"
      done
    done
  done
done
echo "appended to $results"
