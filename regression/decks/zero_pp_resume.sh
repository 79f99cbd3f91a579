#!/usr/bin/env bash
# Checkpoints, validation and model files across meshes with pipeline stages and ZeRO: to the bit in reproducible mode.
#   zero_pp_resume.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare

# Each line goes on from the checkpoint of the one before, for a step or two; a validation stands behind each step, the
# first one of a life included (case O031).
cat >"$work/lives" <<'LIST'
2 4 zero.stage=3 zero.bucket=500
3 2 mesh.pp=2 zero.stage=1
4 0
5 4 mesh.pp=4 pipeline.schedule=interleaved pipeline.virtual_stages=2
7 4 zero.stage=2 zero.shard=2
8 3 mesh.pp=3 pipeline.schedule=zero_bubble
9 4 mesh.pp=2 zero.stage=3 pipeline.schedule=zero_bubble pipeline.virtual_stages=2
10 4 mesh.tp=2 mesh.pp=2 mesh.sequence_parallel=true
11 2 zero.stage=1
LIST
steps=11
for words in "l fp32" "g bf16"; do
  read -r model precision <<<"$words"
  deck=$work/model_$model.toml straight=$work/straight.$model run=$work/lives.$model
  settings=(run.reproducible=true "precision.compute=$precision" model.layers=6 optimizer.schedule=cosine optimizer.warmup_steps=3
    optimizer.decay_steps=20 log.eval_every=1 log.eval_steps=2 data.samples=96)
  expect_exit 0 0 train "$deck" "run.output=$straight" "${settings[@]}" "run.steps=$steps"
  [ "$(column "$straight" valid_loss | wc -l)" = "$steps" ] || fail "validations of the straight run"
  at=0 life=1
  while read -r to ranks overrides; do
    # shellcheck disable=SC2086
    expect_exit 0 "$ranks" train "$deck" "run.output=$run" "${settings[@]}" "run.steps=$to" $overrides
    [ "$life" = 1 ] || expect_text "$out" "(step $at), life $life"
    "$check" traffic "$run" || fail "model_$model on $overrides: traffic"
    diff <(bits "$straight" | head -n $((2 * to))) <(bits "$run") || fail "model_$model, steps $((at + 1)) to $to on $ranks ranks, $overrides: other numbers"
    at=$to life=$((life + 1))
  done <"$work/lives"
  "$check" steps "$run" "$steps" || fail "rows of all lives"
  for folder in "$straight" "$run"; do expect_exit 0 0 convert "$folder/checkpoints/step-$(printf %08d "$steps")" "$folder.hf"; done
  cmp "$straight.hf/model.safetensors" "$run.hf/model.safetensors" || fail "the weights of model_$model differ in the end"
  say "model_$model in $precision: nine lives on as many meshes have rows, validations and weights of one rank"
done

# A tied Hugging Face folder on stages (case O007): both copies are filled, so the first loss is that of one rank; both
# follow the sum of their gradients (case O006), so the next ones are.
for mesh in "0" "4 mesh.pp=4" "2 mesh.pp=2 pipeline.schedule=interleaved pipeline.virtual_stages=2" "4 mesh.pp=2 zero.stage=2"; do
  read -r -a words <<<"$mesh"
  run=$work/tied
  rm -rf "$run"
  expect_exit 0 "${words[0]}" train "$goldens/gpt2-tiny/deck.toml" "run.output=$run" run.reproducible=true run.steps=3 "${words[@]:1}"
  bits "$run" >"$work/tied.rows"
  [ -e "$work/tied.first" ] || cp "$work/tied.rows" "$work/tied.first"
  diff "$work/tied.first" "$work/tied.rows" || fail "a tied model loaded on $mesh has other numbers than on one rank"
done
golden=$(grep -m 1 '"loss"' "$goldens/gpt2-tiny/golden.json" | tr -dc '0-9.')
near "$(value "$run" 1 loss)" "$golden" 2e-5 || fail "a first loss of $(value "$run" 1 loss) is not $golden, that of the loaded model"
say "a tied folder loaded on stages has the losses of one rank"
