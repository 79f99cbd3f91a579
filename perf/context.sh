#!/usr/bin/env bash
# Memory of a rank against the length of the sequence and the ranks of cp: one training step of a model of two blocks, each
# method of context parallelism, up to 131072 tokens on four ranks. Rows go to perf/results/context-<machine>.csv.
#   bash perf/context.sh [LONGEST]     default: 131072; a power of two from 8192 on
# Peaks are counted by the program, so a busy machine does not change them; its seconds say how long the run took, and are no
# timing. Half of the time goes into the longest sequence: attention costs its square. ORTHANT names a program that is built
# already.
set -euo pipefail
# shellcheck source=../jobscripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../jobscripts/lib.sh"
trap 'report_failure $?' EXIT

longest=${1:-131072}
case $longest in '' | *[!0-9]*)
  echo "usage: bash perf/context.sh [LONGEST]" >&2
  exit 2
  ;;
esac
cd "$root"

orthant=${ORTHANT:-build/cpu/orthant}
if [ -z "${ORTHANT:-}" ]; then
  stage "build"
  build cpu orthant
fi

stage "measurement"
work=$(mktemp -d)
clean_up() {
  rm -rf "$work"
  report_failure "$1"
}
trap 'clean_up $?' EXIT
cat >"$work/deck.toml" <<END
run = { steps = 1, output = "$work/run" }
model = { family = "llama", layers = 2, hidden = 64, ffn = 128, vocab = 257 }
data = { train = "$root/regression/goldens/data/kjv", split = "1,0,0" }
batch = { global = 1 }
END
mkdir -p perf/results
results=perf/results/context-$(hostname -s).csv
header=date,commit,cpu,threads,method,heads,sequence,cp,peak_bytes,bytes_per_held_token,seconds
if [ ! -e "$results" ]; then echo "$header" >"$results"; fi
cpu=$(awk -F': *' '/^model name/ {print $2; exit}' /proc/cpuinfo | tr -d ',')
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
cores=$(nproc)

# measure METHOD SEQUENCE CP: queries, keys and values are 32 numbers a token; all_to_all needs a head for each rank, the
# others are quickest with one.
measure() {
  local method=$1 sequence=$2 cp=$3 heads=1
  if [ "$method" = all_to_all ]; then heads=4; fi
  local threads=$((cores > cp ? cores / cp : 1))
  rm -rf "$work/run"
  OMP_NUM_THREADS=$threads launch "$cp" "$orthant" train "$work/deck.toml" "data.sequence=$sequence" "mesh.cp=$cp" \
    "context.method=$method" "model.heads=$heads" "model.kv_heads=$heads" "model.head_dim=$((32 / heads))" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    return 1
  }
  awk -v before="$(date -u +%Y-%m-%d),$commit,$cpu,$threads,$method,$heads,$sequence,$cp" -v held=$((sequence / cp)) '
    function value(name) { match($0, "\"" name "\": *[0-9.eE+-]+"); $0 = substr($0, RSTART); sub(/^[^:]*: */, ""); return $0 + 0 }
    { line = $0; bytes = value("memory_gb") * 1e9; $0 = line
      printf "%s,%.0f,%.0f,%.1f\n", before, bytes, bytes / held, value("seconds") }' "$work/run/metrics.jsonl" | tee -a "$results"
}

echo "$header"
for ((sequence = 8192; sequence <= longest; sequence *= 2)); do
  if [ "$sequence" -le 65536 ]; then
    for cp in 1 2; do measure ring "$sequence" "$cp"; done
  fi
  measure ring "$sequence" 4
  if [ "$sequence" -le 32768 ]; then
    for method in all_gather all_to_all; do
      for cp in 2 4; do measure "$method" "$sequence" "$cp"; done
    done
  fi
done
echo "appended to $results"
