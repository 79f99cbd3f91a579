#!/usr/bin/env bash
# Exports while training: the folder of a step is what convert makes of its checkpoint, a run that starts from it has the
# loss that was logged, and one that cannot be written does not stop training.
#   export.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
rm -rf "$work"
mkdir -p "$work"
evaluated=(log.eval_every=2 log.eval_steps=1 data.samples=80)
exported=(run.steps=4 checkpoint.export=2 checkpoint.every=2 checkpoint.keep=1)

# contents FOLDER: the names in it, hidden ones too
contents() { (cd "$1" && find . -mindepth 1 -maxdepth 1 -printf '%f\n' | LC_ALL=C sort | tr '\n' ' '); }

# ---- a mesh of every kind; from the folder of step 2, one rank with a learning rate of 0 has the loss logged there
while read -r model precision mesh; do
  deck=$goldens/$model-tiny/deck.toml run=$work/$model again=$work/$model.again
  # shellcheck disable=SC2086
  expect_exit 0 4 train "$deck" "run.output=$run" "${evaluated[@]}" "${exported[@]}" "precision.compute=$precision" $mesh
  [ "$(contents "$run/exports")" = "step-00000002 step-00000004 " ] || fail "in exports: $(contents "$run/exports")"
  [ "$(contents "$run/checkpoints")" = "latest step-00000004 " ] || fail "in checkpoints: $(contents "$run/checkpoints")"
  [ "$(grep -c '^exported .*exports/step-0000000[24] (' "$out")" = 2 ] || fail "no word of two exports"
  [ ! -s "$err" ] || fail "messages of a good run"
  expect_text "$run/timers.txt" "export"
  expect_exit 0 0 convert --dtype "$precision" "$run/checkpoints/step-00000004" "$work/$model.hf"
  diff -r "$work/$model.hf" "$run/exports/step-00000004" || fail "$model: export and conversion of step 4 differ"
  expect_exit 0 0 train "$deck" "run.output=$again" "${evaluated[@]}" run.steps=2 "model.load=$run/exports/step-00000002" \
    "precision.compute=$precision" optimizer.lr=0 optimizer.min_lr=0
  want=$(value "$run" 2 valid_loss) have=$(value "$again" 2 valid_loss) later=$(value "$run" 4 valid_loss)
  bound=1e-6
  [ "$precision" = fp32 ] || bound=1e-4
  near "$want" "$have" $bound || fail "$model: validation loss $want at step 2, $have from its export"
  ! near "$want" "$later" 1e-3 || fail "$model: the loss does not tell step 2 from step 4"
  say "$model in $precision on $mesh: exports of steps 2 and 4"
done <<'LIST'
llama fp32 mesh.tp=2 zero.stage=3
mixtral fp32 mesh.ep=2 zero.stage=1
gpt2 bf16 mesh.pp=2 zero.stage=2
LIST

# ---- weights alone begin the schedule anew (case O075): the rates of the run's own first steps, in its warm-up
expect_exit 0 0 convert "$work/llama/exports/step-00000004" "$work/weights"
expect_exit 0 0 train "$goldens/llama-tiny/deck.toml" "run.output=$work/anew" run.steps=4 data.samples=80 "checkpoint.resume=$work/weights"
expect_text "$out" "(step 0)"
diff <(column "$work/llama" lr) <(column "$work/anew" lr) || fail "weights alone go on somewhere in the schedule"
! near "$(value "$work/llama" 1 loss)" "$(value "$work/anew" 1 loss)" 1e-3 || fail "the weights were not loaded"
say "a start from weights alone has the schedule's first rates"

# ---- a file where the folder of step 2 should go: told, and that is all
run=$work/blocked
mkdir -p "$run/exports"
: >"$run/exports/step-00000002"
expect_exit 0 2 train "$goldens/llama-tiny/deck.toml" "run.output=$run" "${exported[@]}" mesh.tp=2
one_message
expect_text "$err" "export at step 2 failed (training goes on, 1 so far)" "$run/exports/step-00000002"
expect_text "$out" "1 of 2 exports could not be written" "finished at step 4"
[ "$(contents "$run/exports")" = "step-00000002 step-00000004 " ] || fail "in exports: $(contents "$run/exports")"
diff <(cd "$work/llama/exports/step-00000004" && ls) <(cd "$run/exports/step-00000004" && ls) || fail "the export after the failed one is not whole"
say "an export that cannot be written is told, and training goes on"

# ---- refused at the start
sizes=(model.layers=2 model.hidden=32 model.ffn=64 model.heads=4 model.vocab=256 model.context=64)
refused 2 2 "checkpoint.export = 2|no Hugging Face config.json|model.bias = true" train "$goldens/gpt2-tiny/deck.toml" \
  "run.output=$work/refused" "${exported[@]}" model.load= "${sizes[@]}" model.bias=false
[ ! -e "$work/refused" ] || fail "a refused start left a run folder"
say "a model without a Hugging Face form is refused"
