#!/usr/bin/env bash
# A rank killed at any moment while every step is saved: each next start goes on from a complete checkpoint.
#   killed_saves.sh ORTHANT CHECK_RUN WORK TRIES
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
tries=${4:?the number of kills}
run=$work/run
train=(train "$work/model_l.toml" mesh.tp=2 batch.global=4 checkpoint.every=1 data.samples=8000)
RANDOM=20 last=0
for ((life = 1; life <= tries; life++)); do
  start 2 "${train[@]}" "run.output=$run" run.steps=2000
  wait_for 30 grep -q "^saved" "$out.job"
  sleep "0.$((RANDOM % 20 + 10))"
  kill -KILL "$(rank_pid "$run" $((RANDOM % 2)))"
  expect_end killed
  if [ "$life" -gt 1 ]; then
    from=$(sed -nE 's/^start .*\(step ([0-9]+)\), life .*/\1/p' "$out")
    [ "$from" -ge "$last" ] || fail "life $life started from step $from, the life before had reached a checkpoint at $last"
  fi
  last=$(sed -nE 's/^saved .*step-0*([0-9]+) .*/\1/p' "$out" | tail -n 1)
done
expect_exit 0 2 "${train[@]}" "run.output=$run" "run.steps=$((last + 5))"
"$check" steps "$run" $((last + 5)) || fail "rows after $tries kills"
expect_exit 0 2 "${train[@]}" "run.output=$work/straight" "run.steps=$((last + 5))" checkpoint.every=0
diff <(bits "$work/straight") <(bits "$run") || fail "the killed runs went on with other numbers"
[ -z "$(find "$run/checkpoints" -name '.writing*')" ] || fail "unfinished folders are left: $(ls -A "$run/checkpoints")"
say "$tries kills, $((last + 5)) steps: the bits of the run without a kill, each row once"
