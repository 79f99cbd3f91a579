#!/usr/bin/env bash
# Hangs: a job in which a rank stands still ends by itself with exit 4, names the rank, and goes on to the same bits.
#   watchdog.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
train=(train "$work/model_l.toml" mesh.tp=2 mesh.dp=2 batch.global=8 checkpoint.every=50 data.samples=32000 guard.watchdog_s=3)
run=$work/run

# A stopped rank, and a stopped rank 0: then another one speaks.
for rank in 3 0; do
  start 4 "${train[@]}" "run.output=$run" run.steps=4000
  wait_for 30 grep -q "^step" "$out.job"
  victim=$(rank_pid "$run" "$rank")
  wait_for 50 grep -q "^saved" "$out.job"  # the next save is far away: the limit of a wait for one is longer
  begin=$SECONDS
  kill -STOP "$victim"
  expect_end 4
  [ $((SECONDS - begin)) -le 30 ] || fail "the job took $((SECONDS - begin)) s to end"
  if kill -0 "$victim" 2>/dev/null; then kill -KILL "$victim"; fi  # some launchers leave a stopped process
  expect_text "$err" "hang: step" "guard.watchdog_s"
  if [ "$rank" = 3 ]; then
    one_message
    expect_text "$err" "no word from rank 3 (tp 1, cp 0, pp 0, dp 1"
    # where the stop found the others is chance: in a call, or in small sums of a phase
    grep -Eq '^  (waiting|elsewhere): ranks? [0-2]' "$err" || fail "no word of where the others are"
    [ "$(status "$run" state)" = failed ] && [ "$(status "$run" code)" = 4 ] || fail "status.json does not say failed, 4"
    grep -q "no word from rank 3" "$run/status.json" || fail "status.json does not name the rank"
  else
    expect_text "$err" "no word from rank 0"
  fi
  say "rank $rank stopped: exit 4 after $((SECONDS - begin)) s, and the rank is named"
done

# Goes on as if nothing had been.
last=$(sed -nE 's/^.*"step": ([0-9]+),.*/\1/p' "$run/metrics.jsonl" | tail -n 1)
steps=$((last + 5))
expect_exit 0 4 "${train[@]}" "run.output=$run" "run.steps=$steps"
"$check" steps "$run" "$steps" || fail "rows after the hangs"
expect_exit 0 4 "${train[@]}" "run.output=$work/straight" "run.steps=$steps" checkpoint.every=0
diff <(bits "$work/straight") <(bits "$run") || fail "after the hangs the run went on with other numbers"
say "resumed to step $steps with the bits of a run without a hang"

# One rank fails where its error is its own, inside MPI or the C library, in the midst of a save: no memory is left for it.
# Whatever it does then, the job ends, and the next start goes on.
rm -rf "$run"
start 4 train "$work/model_l.toml" "run.output=$run" run.steps=40000 data.samples=400000 mesh.tp=2 mesh.pp=2 checkpoint.every=5 guard.watchdog_s=2
wait_for 30 has_rows "$run" 12
begin=$SECONDS
prlimit --pid "$(rank_pid "$run" 2)" --as=1000000:1000000
expect_end killed
took=$((SECONDS - begin))
[ $took -le 50 ] || fail "the job took $took s to end"
grep -q '^orthant: ' "$err" || fail "no word of what happened"
[ "$(status "$run" state)" != finished ] || fail "status.json says finished"
last=$(sed -nE 's/^.*"step": ([0-9]+),.*/\1/p' "$run/metrics.jsonl" | tail -n 1)
expect_exit 0 4 train "$work/model_l.toml" "run.output=$run" "run.steps=$((last + 5))" data.samples=400000 mesh.tp=2 mesh.pp=2
"$check" steps "$run" $((last + 5)) || fail "rows behind a rank without memory"
say "no memory for rank 2 in a save: the job ended $took s later, and goes on from its last checkpoint"

# A job that is stopped as a whole (suspended, a machine that sleeps) is no hang when it goes on.
rm -rf "$run"
start 4 "${train[@]}" "run.output=$run" run.steps=4000
wait_for 30 has_rows "$run" 3
mapfile -t all < <(pids "$run")
[ "${#all[@]}" = 4 ] || fail "${#all[@]} processes instead of 4"
kill -STOP "${all[@]}"
sleep 5
kill -CONT "${all[@]}"
rows=$(wc -l <"$run/metrics.jsonl")
wait_for 30 has_rows "$run" $((rows + 3))
kill -USR1 "${all[0]}"
expect_end 75
say "suspended for longer than the limit and woken: it goes on"
