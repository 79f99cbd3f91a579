#!/usr/bin/env bash
# Stopping and going on: the same numbers as without a stop, and a refusal where they could not be.
#   resume.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
# Learning rate and validation depend on the step.
settings=(batch.global=32 optimizer.schedule=cosine optimizer.warmup_steps=5 optimizer.decay_steps=60 log.eval_every=10 log.eval_steps=2)
run=$work/stopped

# Stopped wherever the signal hits, resumed for a few steps more, and the same without a stop.
start 0 train "$work/model_l.toml" "run.output=$run" "${settings[@]}" run.steps=4000 data.samples=128000
wait_for 30 has_rows "$run" 7
kill -USR1 "$(lone_pid "$run")"
expect_end 75
at=$(status "$run" step)
[ "$(status "$run" state)" = stopped ] && [ "$(status "$run" code)" = 75 ] || fail "status.json does not say stopped, 75"
for output in "$run" "$work/unstopped"; do
  expect_exit 0 0 train "$work/model_l.toml" "run.output=$output" "${settings[@]}" "run.steps=$((at + 12))" data.samples=128000
  [ "$output" != "$run" ] || expect_text "$out" "(step $at), life 2"
  "$check" steps "$output" $((at + 12)) || fail "rows of $output"
done
diff <(bits "$work/unstopped") <(bits "$run") || fail "stopped at step $at, the run went on with other numbers"
[ "$(status "$run" state)" = finished ] || fail "status.json does not say finished"
say "stopped at step $at and resumed to $((at + 12)): the same bits, each row once"

expect_exit 0 0 train "$work/model_l.toml" "run.output=$run" "${settings[@]}" "run.steps=$((at + 12))" data.samples=128000
diff <(bits "$work/unstopped") <(bits "$run") || fail "starting a finished run again changed its metrics"
say "a finished run started again has nothing to do, and ends with 0"

common=("${settings[@]}" run.steps=60)
straight=$work/straight
expect_exit 0 0 train "$work/model_l.toml" "run.output=$straight" "${common[@]}"
"$check" steps "$straight" 60 || fail "rows of the straight run"

# A checkpoint on one mesh, resumed on another.
mesh=$work/mesh
expect_exit 0 2 train "$work/model_l.toml" "run.output=$mesh" "${common[@]}" mesh.tp=2 mesh.sequence_parallel=true checkpoint.every=20 checkpoint.keep=5
rm -rf "$mesh"/checkpoints/step-*0060 "$mesh"/checkpoints/step-*0040
expect_exit 0 2 train "$work/model_l.toml" "run.output=$mesh" "${common[@]}" mesh.dp=2 checkpoint.every=20
expect_text "$out" "(step 20)"
"$check" steps "$mesh" 60 || fail "rows of the run with two meshes"
curves_near "$straight" "$mesh" 2e-5
say "saved by tp 2, resumed by dp 2: the curve of one rank"

# Bad checkpoints are passed over and named; asked for by name, they are an error.
rm -rf "$run"
expect_exit 0 0 train "$work/model_l.toml" "run.output=$run" "${common[@]}" checkpoint.every=20 checkpoint.keep=5
mkdir "$run/checkpoints/step-00000099"
newest=$run/checkpoints/step-00000060
truncate -s -1000 "$newest/state.h5"
flipped=$run/checkpoints/step-00000040
printf '\125' | dd of="$flipped/state.h5" bs=1 seek=200000 conv=notrunc status=none
refused 3 0 "$newest" train "$work/model_l.toml" "run.output=$work/other" "${common[@]}" "checkpoint.resume=$newest"
refused 3 0 "$flipped" train "$work/model_l.toml" "run.output=$work/other" "${common[@]}" "checkpoint.resume=$flipped"
expect_exit 0 2 train "$work/model_l.toml" "run.output=$run" "${common[@]}" mesh.tp=2
expect_text "$out" "checkpoint passed over: $run/checkpoints/step-00000099" "checkpoint passed over: $newest" "checkpoint passed over: $flipped" "(step 20)"
"$check" steps "$run" 60 || fail "rows after damage"
curves_near "$straight" "$run" 2e-5
say "truncated, altered and empty checkpoints are passed over and named; the curve is the same"

# What would change the order of samples is refused, and the run is left as it was.
cp "$run/metrics.jsonl" "$run/deck.toml" "$work"
refused 2 0 "data.seed was 1234|is 4321" train "$work/model_l.toml" "run.output=$run" "${common[@]}" data.seed=4321 run.steps=70
refused 2 2 "data.samples = 1920|2250 samples|run.steps = 100|needs 3200" train "$work/model_l.toml" "run.output=$run" "${common[@]}" run.steps=100
cmp "$work/metrics.jsonl" "$run/metrics.jsonl" && cmp "$work/deck.toml" "$run/deck.toml" || fail "a refused start changed the run"
expect_exit 0 0 train "$work/model_l.toml" "run.output=$run" "${common[@]}" run.steps=64
"$check" steps "$run" 64 || fail "rows of the longer run"
say "another seed or a run past its samples is refused; a longer run within them goes on"
