#!/usr/bin/env bash
# mxfp8 on a device follows the cpu's emulation. The goldens are too narrow for it: a model of whole blocks of 32, from the same
# initial weights on both.
#   mxfp8.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
# shellcheck source=../decks/lib.sh
. "$(dirname "$0")/../decks/lib.sh" "$1" "$2" "$3/mxfp8"
rm -rf "$work"
mkdir -p "$work"
cat >"$work/deck.toml" <<DECK
run = { steps = 3, seed = 7 }
model = { family = "llama", layers = 2, hidden = 64, ffn = 96, heads = 2, kv_heads = 1, vocab = 257, context = 32 }
data = { train = ["$goldens/data/kjv"], sequence = 32, split = "1,0,0" }
batch = { global = 2, micro = 2 }
optimizer = { lr = 0.002 }
precision = { compute = "fp8", fp8_recipe = "mxfp8" }
DECK
export ORTHANT_CUDA_HOST_CAPABILITY=10.0
for backend in cpu cuda; do expect_exit 0 1 train "$work/deck.toml" "run.output=$work/$backend" device.backend=$backend; done
expect_exit 0 1 train "$work/deck.toml" "run.output=$work/bf16" device.backend=cpu precision.compute=bf16 precision.fp8_recipe=delayed
# rows A B: step and loss, step and gradient norm, of both
rows() { paste -d' ' <(column "$work/$1" loss) <(column "$work/$1" grad_norm) <(column "$work/$2" loss) <(column "$work/$2" grad_norm); }
# within LOSS NORM FROM TO A B: relative differences of loss and gradient norm at these steps
within() {
  rows "$5" "$6" | awk -v loss="$1" -v norm="$2" -v from="$3" -v to="$4" '
    function far(a, b) { d = a / b - 1; return d < 0 ? -d : d }
    $1 >= from && $1 <= to { n++; if (NF != 8 || $1 != $5 || !(far($2, $6) <= loss && far($4, $8) <= norm)) bad = 1 }
    END { exit n != to - from + 1 || bad }'
}
# In the first step the weights are the same, and only products in bf16 beside those in FP8 round otherwise.
if ! within 5e-5 2e-3 1 1 cpu cuda || ! within 1e-3 1e-2 2 3 cpu cuda; then
  rows cpu cuda >&2
  fail "cuda (right) does not follow the cpu (left)"
fi
if within 5e-5 2e-3 1 1 bf16 cuda; then fail "the numbers are those of bf16"; fi
rm -rf "$work"
