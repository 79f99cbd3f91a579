#!/usr/bin/env bash
# perf/gpu-check.sh on the host's stand-ins: its parts, what it makes of failures, its file, and what it refuses.
#   gpu_check.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
orthant=$1 check_run=$2 work=$3/gpu_check
script=$(cd "$(dirname "$0")/../.." && pwd)/perf/gpu-check.sh
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
mkdir -p "$work/build" "$work/out"
ln -s "$orthant" "$work/build/orthant"
ln -s "$check_run" "$work/build/check_run"
printf '#!/bin/sh\nexit 0\n' >"$work/build/cuda_parity_right"
printf '#!/bin/sh\necho "row 3 \\"is\\" wrong"\nexit 7\n' >"$work/build/cuda_parity_wrong"
chmod +x "$work"/build/cuda_parity_*

# run CODE ARGUMENT…: keeps what was printed in $work/text
run() {
  local code=$1 got=0
  shift
  OUT=$work/out bash "$script" "$@" >"$work/text" 2>&1 || got=$?
  if [ $got != "$code" ]; then
    cat "$work/text"
    echo "exit $got, not $code, with $*" >&2
    exit 1
  fi
}
file=$work/out/gpu-check-host-stand-in.json
is_json() {
  if command -v python3 >/dev/null; then python3 -m json.tool "$file" >/dev/null; else echo "no python3: the form of the file is not looked at"; fi
}

run 1 --host-stand-in "$work/build"
is_json
holds -F "$file" '"device": "host stand-in"' '"failed": 1' '"wrong": 1' '"name": "cuda_parity_right", "ok": true' \
  '"name": "cuda_parity_wrong", "ok": false' '"exit": 7, "message": "row 3 \"is\" wrong"' '"part": "golden", "name": "qwen3.1", "ok": true' \
  '"part": "ops"' '"form":"backward_weight"' '"part": "step"' '"layers": 3, "sequence": 32, "recompute": "full"' '"tokens_per_s"' '"mfu": null'
parts=$(grep -c '"part": ' "$file")
holds -F "$file" "\"count\": $parts,"

# all is right; a board whose peak is known has shares of it
rm "$work/build/cuda_parity_wrong" "$file"
PARTS="parity step" ORTHANT_CUDA_HOST_NAME="NVIDIA H200" run 0 --host-stand-in "$work/build"
is_json
holds -F "$file" '"count": 4' '"failed": 0' '"wrong": 0'
if [ "$(grep -cE '"mfu":[0-9.e-]+,.*"tokens_per_s"' "$file")" != 3 ] || ! grep -qE '^ "mfu": [0-9.e-]+,$' "$file"; then
  cat "$file"
  echo "no mfu, or not in every step" >&2
  exit 1
fi
if grep -q '"part": "golden"' "$file"; then
  echo "PARTS was not heeded" >&2
  exit 1
fi

# no time at all: nothing is run, and that is no success
rm "$file"
BUDGET=0 run 1 --host-stand-in "$work/build"
is_json
holds -F "$file" '"ok": false' 'the time for all parts (0 s) is used up'
if grep -q '"ok": true' "$file"; then
  echo "a part ran without time" >&2
  exit 1
fi

# and in the rows of a training run
golden=$(cd "$(dirname "$0")/../goldens/llama-tiny" && pwd)
# mfu_over TFLOPS OVERRIDE…: what the row divides by
mfu_over() {
  local peak=$1
  shift
  rm -rf "$work/run"
  ORTHANT_CUDA_HOST_NAME="NVIDIA A100-SXM4-40GB" "$orthant" train "$golden/deck.toml" "run.output=$work/run" run.steps=1 device.backend=cuda "$@" >"$work/text" 2>&1
  awk -v peak="$peak" '{
    if (!match($0, /"tflops_per_rank": [0-9.e+-]+/)) exit 1
    rate = substr($0, RSTART + 19, RLENGTH - 19) * 1e12
    if (!match($0, /"mfu": [0-9.e+-]+/)) exit 1
    mfu = substr($0, RSTART + 7, RLENGTH - 7)
    d = mfu * peak * 1e12 / rate - 1
    exit !(d < 1e-9 && d > -1e-9)
  }' "$work/run/metrics.jsonl" || {
    cat "$work/run/metrics.jsonl"
    echo "mfu is not the rate over $peak TFLOP/s with $*" >&2
    exit 1
  }
}
mfu_over 19.5
mfu_over 156 precision.tf32=true  # half of bf16

rm "$file" "$work/build/check_run"
run 2 --host-stand-in "$work/build"
holds -F "$work/text" "no program check_run"
echo text >"$work/archive"
run 2 --host-stand-in "$work/archive"
holds -F "$work/text" "cannot be unpacked"
run 2 --host-stand-in "$work/nothing"
holds -F "$work/text" "no folder or archive"
run 2 --host-stand-in
holds -F "$work/text" "usage"
ORTHANT_CUDA_HOST_DEVICES='' PATH=$work/build:$PATH run 2 one two
holds -F "$work/text" "usage"
# nvidia-smi that names no device is like none
printf '#!/bin/sh\nexit 9\n' >"$work/build/nvidia-smi"
chmod +x "$work/build/nvidia-smi"
PATH=$work/build:$PATH run 2 "$work/build"
holds -F "$work/text" "no NVIDIA GPU"
[ ! -e "$file" ] || { echo "a file was written although nothing was run" >&2; exit 1; }
rm -rf "$work"
