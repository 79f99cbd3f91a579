#!/usr/bin/env bash
# fp16: the loss scale in metrics and checkpoints; a run that is stopped has the bits of one that is not; a run whose numbers
# are none goes down to the least scale and ends with 5.
#   fp16.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
half=(train "$work/model_l.toml" precision.compute=fp16 data.samples=400 optimizer.decay_steps=40)
for mesh in "mesh.tp=2 mesh.sequence_parallel=true" "mesh.pp=2 zero.stage=1" "mesh.cp=2 zero.stage=3"; do
  read -ra words <<<"$mesh"
  rm -rf "$work/straight" "$work/run"
  expect_exit 0 4 "${half[@]}" "run.output=$work/straight" run.steps=20 "${words[@]}"
  for steps in 7 13 20; do expect_exit 0 4 "${half[@]}" "run.output=$work/run" "run.steps=$steps" "${words[@]}"; done
  diff <(bits "$work/straight") <(bits "$work/run") >"$work/difference" || fail "$mesh: resumed, other numbers: $(head -n 4 "$work/difference")"
  [ "$(column "$work/run" loss_scale | wc -l)" = 20 ] || fail "no loss scale in each row"
done
expect_exit 0 0 "${half[@]}" "run.output=$work/alone" run.steps=20
curves_near "$work/alone" "$work/run" 2e-2
expect_text "$out" "fp16 (fp32 masters" "loss scale 4096, dynamic"
say "three meshes, three lives each: the bits of one life"

# A scale that is too large at first is lowered by itself.
expect_exit 0 2 "${half[@]}" "run.output=$work/large" run.steps=12 mesh.tp=2 precision.loss_scale=1024
[ "$(column "$work/large" loss_scale | cut -d' ' -f2 | sort -u)" = 1024 ] || fail "a fixed loss scale moved"
refused 5 2 "guard.max_skips = 3|not finite" "${half[@]}" "run.output=$work/none" run.steps=60 optimizer.lr=1e30 optimizer.clip=0 guard.max_skips=3 mesh.tp=2
first=$(column "$work/none" skipped | head -n 1 | cut -d' ' -f1)
column "$work/none" loss_scale | awk -v from="$first" '$1 >= from { want = want ? (want > 1 ? want / 2 : 1) : 4096; if ($2 != want) { print $0 " instead of " want; exit 1 } n++ } END { exit n != 16 }' ||
  fail "the scale does not halve to 1 and stay there for three steps more: $(column "$work/none" loss_scale | tr '\n' ';')"
say "numbers that are none: 4096 to 1, then as many bad steps as allowed, exit 5"

refused 2 0 "precision.loss_scale|power of two" "${half[@]}" "run.output=$work/no" precision.loss_scale=1000
refused 2 0 "run.reproducible|fp16" "${half[@]}" "run.output=$work/no" run.reproducible=true
