#!/usr/bin/env bash
# What a run says about itself: losses, learning rates, tokens and rates, in metrics.jsonl and on the console.
#   logging.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare

# ---- the loss of a step is the mean over the counted tokens of the global batch, whatever the pieces
masked=(train "$work/model_l.toml" "data.mask=[\"$work/mask\"]")
ended=(train "$work/model_g.toml" data.eod=57 data.eod_mask_loss=true)
plain=(train "$work/model_l.toml")
for kind in masked ended; do
  declare -n words=$kind
  expect_exit 0 0 "${words[@]}" "run.output=$work/$kind.1" batch.micro=8 run.steps=4
  for layout in "2 mesh.dp=2 batch.micro=1" "2 mesh.tp=2 batch.micro=2 mesh.sequence_parallel=true" "4 mesh.dp=4 batch.micro=2 memory.recompute=full"; do
    read -r -a more <<<"$layout"
    run=$work/$kind.n
    rm -rf "$run"
    expect_exit 0 "${more[0]}" "${words[@]}" "run.output=$run" run.steps=4 "${more[@]:1}"
    near "$(value "$work/$kind.1" 1 loss)" "$(value "$run" 1 loss)" 1e-6 || fail "loss of step 1 with $layout: $(value "$run" 1 loss), on one rank in one piece $(value "$work/$kind.1" 1 loss)"
    near "$(value "$work/$kind.1" 1 grad_norm)" "$(value "$run" 1 grad_norm)" 1e-5 || fail "gradient norm of step 1 with $layout"
    curves_near "$work/$kind.1" "$run" 2e-5
  done
done
expect_exit 0 0 "${plain[@]}" "run.output=$work/plain.1" run.steps=4
if near "$(value "$work/plain.1" 1 loss)" "$(value "$work/masked.1" 1 loss)" 1e-4; then fail "the mask changes nothing"; fi
expect_exit 0 0 train "$work/model_g.toml" "run.output=$work/g" run.steps=1
if near "$(value "$work/g" 1 loss)" "$(value "$work/ended.1" 1 loss)" 1e-4; then fail "eod_mask_loss changes nothing"; fi
say "masked losses are the same for every cut of the batch"

# ---- tokens, rates and flops: the same for every layout; recomputation is no useful work
# flops of a token by the closed form: 6 x (layers (h (q + 2 kv) + q h + q s + 3 h ffn) + h vocab)
flops=$((6 * (4 * (32 * 64 + 32 * 32 + 32 * 16 + 3 * 32 * 64) + 32 * 65)))
for layout in "1 mesh.tp=1" "2 mesh.dp=2 memory.recompute=full" "4 mesh.tp=2 mesh.dp=2 batch.micro=2 memory.recompute=selective"; do
  read -r -a more <<<"$layout"
  run=$work/rates
  rm -rf "$run"
  expect_exit 0 "${more[0]}" "${plain[@]}" "run.output=$run" run.steps=4 "${more[@]:1}"
  [ "$(column "$run" tokens | tr '\n' ' ')" = "1 128 2 256 3 384 4 512 " ] || fail "tokens with $layout: $(column "$run" tokens)"
  for step in 1 4; do
    per_token=$(awk -v t="$(value "$run" $step tflops_per_rank)" -v n="${more[0]}" -v s="$(value "$run" $step seconds)" 'BEGIN { printf "%.9g", t * 1e12 * n * s / 128 }')
    near "$per_token" "$flops" 0.5 || fail "$per_token flops a token with $layout, not $flops"
    rate=$(awk -v r="$(value "$run" $step tokens_per_s)" -v s="$(value "$run" $step seconds)" 'BEGIN { printf "%.9g", r * s }')
    near "$rate" 128 1e-3 || fail "tokens_per_s x seconds = $rate with $layout"
  done
  for key in step tokens loss grad_norm lr seconds tokens_per_s tflops_per_rank comm_exposed_s bubble memory_gb; do
    [ "$(grep -c "\"$key\": " "$run/metrics.jsonl")" = 4 ] || fail "$key is not in every row"
  done
  [ "$(column "$run" durable_s | cut -d' ' -f1)" = 4 ] || fail "durable_s is not just on the step of the save"
done
say "128 tokens a step and $flops flops a token in every layout"

# ---- the console: from rank 0 alone, a line a step, known lines only
run=$work/console
expect_exit 0 4 "${plain[@]}" "run.output=$run" run.steps=6 mesh.tp=2 log.eval_every=3 log.eval_steps=2
[ ! -s "$err" ] || fail "a good run wrote to standard error"
[ "$(grep -c '^step [0-9]*/6  loss ' "$out")" = 6 ] || fail "not one line a step"
[ "$(grep -c '^Orthant ' "$out")" = 1 ] && [ "$(grep -c '^finished at step 6' "$out")" = 1 ] || fail "not one header and one end"
if grep -vE '^(Orthant|deck|model|batch|precision|mesh|memory|traffic|transport|ranks|saves|start|step|saved|backend|finished|note) ?|^  (tp|cp|pp|dp|ep|rank|warning:) ' "$out" >"$work/strange"; then
  fail "unknown lines on standard output: $(head -3 "$work/strange")"
fi
if grep -q $'\033' "$out"; then fail "escape codes in a file"; fi
rows=$(grep -c '"valid_loss"' "$run/metrics.jsonl")
[ "$rows" = 2 ] && [ "$(grep '"valid_loss"' "$run/metrics.jsonl" | grep -c '"loss"')" = 0 ] || fail "validation rows"
expect_exit 0 1 "${plain[@]}" "run.output=$work/console.1" run.steps=6 log.eval_every=3 log.eval_steps=2 log.every=3 batch.micro=4
near "$(value "$run" 3 valid_loss)" "$(value "$work/console.1" 3 valid_loss)" 1e-5 || fail "validation loss differs between meshes"
near "$(value "$run" 6 valid_loss)" "$(value "$work/console.1" 6 valid_loss)" 1e-4 || fail "validation loss differs between meshes"
[ "$(grep -c '^step [0-9]*/6  loss ' "$out")" = 2 ] || fail "log.every=3 does not give a line every three steps"
mean=$(column "$work/console.1" loss | awk '$1 <= 3 { s += $2 } END { printf "%.6f", s / 3 }')
near "$(sed -nE 's/^step 3\/6  loss ([0-9.]+).*/\1/p' "$out")" "$mean" 6e-6 || fail "the line of step 3 is not the mean $mean of three steps"
say "the console has one voice; validation rows are the same on every mesh; a line averages its steps"

# ---- the learning rate in the log is the one used
run=$work/lr
expect_exit 0 0 "${plain[@]}" "run.output=$run" run.steps=6 optimizer.warmup_steps=4
for pair in "1 0.0025" "2 0.005" "3 0.0075" "4 0.01" "5 0.01" "6 0.01"; do
  near "$(value "$run" "${pair%% *}" lr)" "${pair##* }" 1e-12 || fail "lr of step ${pair%% *} is $(value "$run" "${pair%% *}" lr)"
done
if near "$(value "$run" 2 loss)" "$(value "$work/plain.1" 2 loss)" 1e-6; then fail "a quarter of the learning rate gives the same step"; fi
expect_exit 0 0 "${plain[@]}" "run.output=$work/lr.0" run.steps=2 optimizer.lr=0
if near "$(value "$run" 2 loss)" "$(value "$work/lr.0" 2 loss)" 1e-6; then fail "the first step of the warm-up changes nothing"; fi
say "warm-up starts at a quarter of the peak, not at zero"
