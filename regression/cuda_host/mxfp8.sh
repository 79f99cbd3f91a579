#!/usr/bin/env bash
# mxfp8 on a device follows the cpu's emulation. The goldens are too narrow for it: a model of whole blocks of 32, from the same
# initial weights on both.
#   mxfp8.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
orthant=$1 work=$3/mxfp8
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cat >"$work/deck.toml" <<DECK
run = { steps = 3, seed = 7 }
model = { family = "llama", layers = 2, hidden = 64, ffn = 96, heads = 2, kv_heads = 1, vocab = 257, context = 32 }
data = { train = ["$golden/../data/kjv"], sequence = 32, split = "1,0,0" }
batch = { global = 2, micro = 2 }
optimizer = { lr = 0.002 }
precision = { compute = "fp8", fp8_recipe = "mxfp8" }
DECK
export ORTHANT_CUDA_HOST_CAPABILITY=10.0
losses() { sed -nE 's/^\{"step": ([0-9]+),.*"loss": ([^,]+), "grad_norm": ([^,]+),.*/\1 \2 \3/p' "$work/$1/metrics.jsonl"; }
for backend in cpu cuda; do launch 0 1 1 train "$work/deck.toml" "run.output=$work/$backend" device.backend=$backend; done
launch 0 1 1 train "$work/deck.toml" "run.output=$work/bf16" device.backend=cpu precision.compute=bf16 precision.fp8_recipe=delayed
# within LOSS NORM FROM TO A B: relative differences of loss and gradient norm at these steps
within() {
  paste -d' ' <(losses "$5") <(losses "$6") | awk -v loss="$1" -v norm="$2" -v from="$3" -v to="$4" '
    function far(a, b) { d = a / b - 1; return d < 0 ? -d : d }
    $1 >= from && $1 <= to { n++; if ($1 != $4 || !(far($2, $5) <= loss && far($3, $6) <= norm)) bad = 1 }
    END { exit n != to - from + 1 || bad }'
}
# In the first step the weights are the same, and only products in bf16 beside those in FP8 round otherwise.
if ! within 5e-5 2e-3 1 1 cpu cuda || ! within 1e-3 1e-2 2 3 cpu cuda; then
  paste <(losses cpu) <(losses cuda)
  echo "cuda (right) does not follow the cpu (left)" >&2
  exit 1
fi
if within 5e-5 2e-3 1 1 bf16 cuda; then
  echo "the numbers are those of bf16" >&2
  exit 1
fi
rm -rf "$work"
