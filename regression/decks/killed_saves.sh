#!/usr/bin/env bash
# One rank, or all of them, killed at any moment while every step is saved, in the background and not: each next start
# goes on from a complete checkpoint and names what looks newer but is none (cases O083, O091).
#   killed_saves.sh ORTHANT CHECK_RUN WORK TRIES
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
tries=${4:?the number of kills}
run=$work/run
train=(train "$work/model_l.toml" mesh.tp=2 batch.global=4 checkpoint.every=1 data.samples=8000)
RANDOM=20 last=0
killed=''
for ((life = 1; life <= tries; life++)); do
  async=$([ $((life % 2)) = 1 ] && echo true || echo false)
  start 2 "${train[@]}" "run.output=$run" run.steps=2000 "checkpoint.async=$async"
  wait_for 30 grep -q "^saved" "$out.job"
  sleep "0.$((RANDOM % 20 + 10))"
  # one rank and, by its launcher, the other soon after; or all at once. Both meet both values of async.
  if [ $(((life + 1) / 2 % 2)) = 1 ]; then
    kill -KILL "$(rank_pid "$run" $((RANDOM % 2)))"
    killed+=1
  else
    mapfile -t all < <(pids "$run")
    [ ${#all[@]} = 2 ] || fail "${#all[@]} processes of $run instead of 2"
    kill -KILL "${all[@]}"
    killed+=2
  fi
  expect_end killed
  if [ "$life" -gt 1 ]; then
    from=$(sed -nE 's/^start .*\(step ([0-9]+)\), life .*/\1/p' "$out")
    [ "$from" -ge "$last" ] || fail "life $life started from step $from, the life before had reached a checkpoint at $last"
  fi
  last=$(sed -nE 's/^saved .*step-0*([0-9]+) .*/\1/p' "$out" | tail -n 1)
done
[[ $tries -lt 4 || $killed == 1122* ]] || fail "numbers of killed ranks: $killed"

# By number the newest of all, but empty: passed over by name, and refused when asked for.
empty=$run/checkpoints/step-00099999
mkdir "$empty"
refused 3 0 "$empty/manifest.json|no complete checkpoint" train "$work/model_l.toml" "run.output=$work/other" "checkpoint.resume=$empty"
expect_exit 0 2 "${train[@]}" "run.output=$run" "run.steps=$((last + 5))"
expect_text "$out" "checkpoint passed over: $empty"
"$check" steps "$run" $((last + 5)) || fail "rows after $tries kills"
expect_exit 0 2 "${train[@]}" "run.output=$work/straight" "run.steps=$((last + 5))" checkpoint.every=0
diff <(bits "$work/straight") <(bits "$run") || fail "the killed runs went on with other numbers"
[ -z "$(find "$run/checkpoints" -name '.writing*')" ] || fail "unfinished folders are left: $(ls -A "$run/checkpoints")"
say "$tries kills of one rank or both, $((last + 5)) steps: the bits of the run without a kill, each row once"
