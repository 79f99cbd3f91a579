#!/usr/bin/env bash
# The data of a run that changes under way: a longer sequence with another batch and mesh, other weights.
#   phases.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
settings=(optimizer.schedule=cosine optimizer.warmup_steps=4 optimizer.decay_steps=18 checkpoint.keep=9)
short=("${settings[@]}" data.sequence=32 batch.global=32 run.steps=12)
# sequences x 16, samples of a step / 16, cp x 2, dp / 2: as many tokens a step as before
long=("${settings[@]}" data.sequence=512 batch.global=2 run.steps=18 checkpoint.every=3)
run=$work/run alone=$work/alone

expect_exit 0 4 train "$work/model_l.toml" "run.output=$run" "${short[@]}" mesh.cp=2 mesh.dp=2
expect_exit 0 4 train "$work/model_l.toml" "run.output=$run" "${long[@]}" mesh.cp=4 mesh.dp=1
expect_text "$out" "(step 12), life 2" "phase 1 begins at step 13: sequence 512 (was 32), a stream of 12 samples" \
  "stream: earlier phases drew 12288 tokens" "this one will draw 6144"
"$check" steps "$run" 18 || fail "rows of the run of two phases"
expect_exit 0 0 train "$work/model_l.toml" "run.output=$alone" "${short[@]}"
expect_exit 0 0 train "$work/model_l.toml" "run.output=$alone" "${long[@]}"
curves_near "$alone" "$run" 2e-5
say "sequence 32 on cp 2, dp 2, then 512 on cp 4: the curve of one rank"

# The same steps without a switch see as many tokens, at the same learning rates. (17: an 18th would need a second epoch.)
expect_exit 0 0 train "$work/model_l.toml" "run.output=$work/straight" "${short[@]}" run.steps=17
for key in lr tokens; do
  diff <(column "$work/straight" $key) <(column "$run" $key | head -n 17) || fail "$key jumps where the phase begins"
done
[ "$(column "$work/straight" loss | head -n 12)" = "$(column "$alone" loss | head -n 12)" ] || fail "the first phase is not that of an unswitched run"
[ "$(value "$work/straight" 13 loss)" != "$(value "$alone" 13 loss)" ] || fail "the second phase has the samples of the first"
say "learning rate and tokens go on without a jump"

# Stopped inside the second phase.
bits "$alone" >"$work/whole"
rm -rf "$alone"/checkpoints/step-*0018
expect_exit 0 0 train "$work/model_l.toml" "run.output=$alone" "${long[@]}"
expect_text "$out" "(step 15)" "phase 1, since step 13: sequence 512, goes on with sample 6"
diff "$work/whole" <(bits "$alone") || fail "resumed inside the second phase, the run went on with other numbers"
expect_exit 0 0 inspect "$alone"
expect_text "$out" "phase" " 32  " " 512  " "12288" "6144" "18432"
expect_exit 0 0 inspect "$alone" --step 12
expect_text "$out" "step 12: samples 352 to 383 of the stream of phase 0"
expect_exit 0 0 inspect "$alone" --step 13
expect_text "$out" "step 13: samples 0 to 1 of the stream of phase 1"
expect_exit 0 0 inspect "$alone" --samples 12
[ "$(grep -c '^sha256' "$out")" = 2 ] || fail "inspect --samples does not show both phases"
say "resumed inside a phase: the same bits; inspect has the ledger and the samples of both phases"

# What makes another stream is refused, also with a new phase; a phase needs steps.
cp "$alone/metrics.jsonl" "$alone/deck.toml" "$work"
refused 2 0 "data.seed was 1234|is 4321" train "$work/model_l.toml" "run.output=$alone" "${long[@]}" run.steps=20 data.seed=4321
refused 2 0 "data.seed was 1234|is 4321" train "$work/model_l.toml" "run.output=$alone" "${long[@]}" run.steps=20 data.sequence=256 data.seed=4321
refused 2 0 "data.split was \"1,0,0\"" train "$work/model_l.toml" "run.output=$alone" "${long[@]}" run.steps=20 data.split=3,1
refused 2 0 "data.sequence was 512 and is 256|run.steps = 18" train "$work/model_l.toml" "run.output=$alone" "${long[@]}" data.sequence=256
cmp "$work/metrics.jsonl" "$alone/metrics.jsonl" && cmp "$work/deck.toml" "$alone/deck.toml" || fail "a refused start changed the run"
say "another seed or split is refused, and so is a phase without steps"

# Other weights, and two more lives behind the change.
weights() { # RUN STEPS FIRST-SHARE
  expect_exit 0 0 train "$work/model_l.toml" "run.output=$1" data.train="['$work/stream','$work/held_out']" data.samples=96 checkpoint.every=4 \
    checkpoint.keep=9 "run.steps=$2" "data.weights=[$3,1]"
}
seen() { # RUN STEPS: what each sample is made of
  for ((step = 1; step <= $2; step++)); do
    expect_exit 0 0 inspect "$1" --step "$step"
    sed -n 's/^  sample //p' "$out"
  done
}
mix=$work/mix
weights "$mix" 4 4
cp -r "$mix" "$work/mix2"
weights "$mix" 8 1
expect_text "$out" "other weights from sample 32 (step 5) on" "stream: share 0.5 (was 0.8)"
weights "$mix" 12 1
weights "$work/mix2" 12 1
diff <(bits "$work/mix2") <(bits "$mix") || fail "resumed twice behind a change of weights, the run went on with other numbers"
seen "$mix" 12 >"$work/seen"
[ "$(cut -d' ' -f1 "$work/seen" | uniq | tr '\n' ' ')" = "$(seq -s' ' 0 95) " ] || fail "inspect does not show each sample once"
[ -z "$(sed 's/^[0-9]* *//' "$work/seen" | sort | uniq -d)" ] || fail "a change of weights repeats samples"
first=$(awk '$1 < 32' "$work/seen" | grep -c held_out || true)
later=$(awk '$1 >= 32' "$work/seen" | grep -c held_out || true)
[ "$later" -gt $((first * 4)) ] || fail "other weights do not show: $first samples of held_out in the first 32, $later in the last 64"
say "other weights: no sample comes twice, each step's samples can be told, and later lives go on in the same mixture"
