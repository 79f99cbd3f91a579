#!/usr/bin/env bash
# A training step of Orthant and of PyTorch, one after the other in the same run, several rounds; the ratio of each pair
# goes to perf/results/step-<machine>.csv.
#   bash perf/step.sh [ROUNDS [MODE…]]     default: 3 rounds of fp32, bf16 and bf16-compile
# PYTHON names the interpreter that has torch; STEPS and WARMUP are the timed steps and those before them (5 and 1). The
# machine should be doing nothing else. A step is 4 sequences of 1024 tokens.
set -euo pipefail
# shellcheck source=../jobscripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../jobscripts/lib.sh"
trap 'report_failure $?' EXIT

rounds=${1:-3}
case $rounds in '' | *[!0-9]* | 0)
  echo "usage: bash perf/step.sh [ROUNDS [MODE…]]" >&2
  exit 2
  ;;
esac
modes=("${@:2}")
if [ ${#modes[@]} -eq 0 ]; then modes=(fp32 bf16 bf16-compile); fi
python=${PYTHON:-python3}
steps=${STEPS:-5}
warmup=${WARMUP:-1}
deck=input/gpt2-124m.toml
cd "$root"

stage "check"
"$python" -c 'import torch; print("PyTorch", torch.__version__)'
stage "build"
build cpu orthant

stage "measurement"
cores=$(nproc)
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$cores}"
mkdir -p perf/results
results=perf/results/step-$(hostname -s).csv
header=date,commit,cpu,threads,round,mode,orthant_tokens_per_s,pytorch_tokens_per_s,ratio
if [ ! -e "$results" ]; then echo "$header" >"$results"; fi
cpu=$(awk -F': *' '/^model name/ {print $2; exit}' /proc/cpuinfo | tr -d ',')
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
echo "$header"
for ((round = 1; round <= rounds; round++)); do
  for mode in "${modes[@]}"; do
    # bf16-compile is a way to run PyTorch; for Orthant it is bf16
    line=$(build/cpu/orthant bench step "$deck" --steps "$steps" --warm "$warmup" batch.global=4 batch.micro=4 "precision.compute=${mode%-compile}" | grep '"tokens_per_s"' | tail -n 1)
    ours=$("$python" -c 'import json, sys; print(json.loads(sys.argv[1])["tokens_per_s"])' "$line")
    theirs=$("$python" perf/pytorch_step.py --mode "$mode" --steps "$steps" --warmup "$warmup" --no-header | awk -F, '{print $NF}')
    ratio=$(awk -v a="$ours" -v b="$theirs" 'BEGIN {printf "%.3f", a / b}')
    printf '%s,%s,%s,%s,%s,%s,%.1f,%.1f,%s\n' "$(date -u +%Y-%m-%d)" "$commit" "$cpu" "$OMP_NUM_THREADS" "$round" "$mode" \
      "$ours" "$theirs" "$ratio" | tee -a "$results"
  done
done
echo "appended to $results"
