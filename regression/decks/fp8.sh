#!/usr/bin/env bash
# fp8: a run that is stopped has the bits of one that is not, with each recipe; histories and scales go from mesh to mesh, and a
# checkpoint of a bf16 run, or of another length of history, is taken up; evaluation changes nothing; what cannot be is refused.
#   fp8.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
eight=(train "$work/model_l.toml" precision.compute=fp8 data.samples=400 optimizer.decay_steps=40)
for mesh in "precision.fp8_history=4 mesh.tp=2 mesh.sequence_parallel=true" "precision.fp8_history=4 mesh.pp=2 zero.stage=1 memory.recompute=full" \
  "precision.fp8_recipe=current mesh.cp=2 zero.stage=3" "precision.fp8_recipe=mxfp8 mesh.pp=2"; do
  read -ra words <<<"$mesh"
  rm -rf "$work/straight" "$work/run"
  expect_exit 0 4 "${eight[@]}" "run.output=$work/straight" run.steps=12 "${words[@]}"
  for steps in 3 7 12; do expect_exit 0 4 "${eight[@]}" "run.output=$work/run" "run.steps=$steps" "${words[@]}"; done
  diff <(bits "$work/straight") <(bits "$work/run") >"$work/difference" || fail "$mesh: resumed, other numbers: $(head -n 4 "$work/difference")"
done
say "four meshes, three lives each: the bits of one life"

# Case O051 on one rank, saved behind the training, and taken up by another mesh. Ten steps: with this learning rate the eleventh
# throws any precision off its curve.
delayed=(precision.fp8_history=4 checkpoint.async=true)
expect_exit 0 0 "${eight[@]}" "${delayed[@]}" "run.output=$work/alone" run.steps=10
expect_text "$out" "fp8 (delayed scales, largest of 4 steps"
for steps in 6 10; do expect_exit 0 0 "${eight[@]}" "${delayed[@]}" "run.output=$work/lives" "run.steps=$steps"; done
diff <(bits "$work/alone") <(bits "$work/lives") || fail "resumed on one rank, other numbers"
expect_exit 0 0 "${eight[@]}" "${delayed[@]}" "run.output=$work/moved" run.steps=6
expect_exit 0 4 "${eight[@]}" "${delayed[@]}" "run.output=$work/moved" run.steps=10 mesh.tp=2 mesh.pp=2
curves_near "$work/alone" "$work/moved" 2e-2
say "resumed from step 6: the same bits, and on tp 2 x pp 2 the same curve"

# Case O054: passes over held-out data leave no trace in what follows.
expect_exit 0 2 "${eight[@]}" "${delayed[@]}" "run.output=$work/evaluated" run.steps=10 log.eval_every=2 log.eval_steps=3
expect_exit 0 2 "${eight[@]}" "${delayed[@]}" "run.output=$work/unseen" run.steps=10
diff <(column "$work/unseen" loss) <(column "$work/evaluated" loss) || fail "evaluation changed the training"
say "with evaluation every second step: the same losses"

# Other histories, and none.
cp -r "$work/alone" "$work/longer"
expect_exit 0 0 "${eight[@]}" "run.output=$work/longer" run.steps=12 precision.fp8_history=9
expect_exit 0 0 train "$work/model_l.toml" precision.compute=bf16 data.samples=400 optimizer.decay_steps=40 "run.output=$work/other" run.steps=6
expect_exit 0 0 "${eight[@]}" "run.output=$work/other" run.steps=10
curves_near "$work/alone" "$work/other" 1e-1
say "a longer history, and a checkpoint of a bf16 run, go on"

refused 2 0 "run.reproducible|fp8" "${eight[@]}" "run.output=$work/no" run.reproducible=true
refused 2 0 "precision.fp8_margin = 2|delayed" "${eight[@]}" "run.output=$work/no" precision.fp8_recipe=mxfp8 precision.fp8_margin=2
refused 2 2 "precision.fp8_recipe = \"blockwise\"|mesh.tp = 2|blocks of 128" "${eight[@]}" "run.output=$work/no" precision.fp8_recipe=blockwise mesh.tp=2
say "reproducible mode, keys without effect and cuts through blocks are refused"
