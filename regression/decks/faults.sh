#!/usr/bin/env bash
# Signals to one rank, killed ranks, and two jobs in one run folder.
#   faults.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
common=(run.steps=400 batch.global=32)
mesh=(mesh.tp=2 mesh.dp=2)
run=$work/run

# stop SIGNAL RANK: the signal to one rank of four stops all at one step, with one checkpoint
stop() {
  rm -rf "$run"
  start 4 train "$work/model_l.toml" "run.output=$run" "${common[@]}" "${mesh[@]}"
  wait_for 30 has_rows "$run" 4
  kill "-$1" "$(rank_pid "$run" "$2")"
  expect_end 75
  local at
  at=$(status "$run" step)
  [ "$(status "$run" state)" = stopped ] && [ "$(status "$run" code)" = 75 ] || fail "status.json does not say stopped, 75"
  "$check" steps "$run" "$at" || fail "rows up to the stop"
  [ "$(cd "$run/checkpoints" && echo step-*)" = "step-$(printf %08d "$at")" ] || fail "not just the checkpoint of step $at"
  say "SIG$1 to rank $2 of 4: one checkpoint at step $at, exit 75"
}
stop USR1 2
stop TERM 3
at=$(status "$run" step)
expect_exit 0 4 train "$work/model_l.toml" "run.output=$run" "${common[@]}" "${mesh[@]}" "run.steps=$((at + 5))" data.samples=12800
"$check" steps "$run" $((at + 5)) || fail "rows of the resumed run"
say "the stopped run goes on and ends with 0"

# A killed rank: the job ends, and the next start goes on from the last checkpoint.
rm -rf "$run"
start 4 train "$work/model_l.toml" "run.output=$run" "${common[@]}" "${mesh[@]}" checkpoint.every=5
wait_for 30 has_rows "$run" 13
began=$SECONDS
kill -KILL "$(rank_pid "$run" 2)"
expect_end killed
[ $((SECONDS - began)) -lt 60 ] || fail "the job outlived its rank by $((SECONDS - began)) s"
[ "$(status "$run" state)" = running ] || fail "status.json of a killed run says $(status "$run" state)"
printf '{"step": 9999, "tok' >>"$run/metrics.jsonl"  # as a crash of the machine may leave it
rows=$(wc -l <"$run/metrics.jsonl")
expect_exit 0 4 train "$work/model_l.toml" "run.output=$run" "${common[@]}" "${mesh[@]}" "run.steps=$((rows + 5))" data.samples=12800
grep -qE 'step (1[0-9]|[2-9][0-9]|[1-9][0-9][0-9])\), life 2' "$out" || fail "the second life did not start from a checkpoint past step 9"
"$check" steps "$run" $((rows + 5)) || fail "rows after the kill"
expect_exit 0 1 train "$work/model_l.toml" "run.output=$work/straight" "${common[@]}" "run.steps=$((rows + 5))" data.samples=12800
curves_near "$work/straight" "$run" 1e-4
say "a killed rank ends the job, status stays running, and the next start goes on from its checkpoint"

# One folder, two jobs.
rm -rf "$run"
start 0 train "$work/model_l.toml" "run.output=$run" "${common[@]}"
wait_for 30 has_rows "$run" 3
cp "$run/deck.toml" "$work"
refused 2 0 "$run|is in use by|run.lock" train "$work/model_l.toml" "run.output=$run" "${common[@]}" optimizer.lr=1
refused 2 2 "$run|is in use by|run.lock" train "$work/model_l.toml" "run.output=$run" "${common[@]}" optimizer.lr=1
cmp "$work/deck.toml" "$run/deck.toml" || fail "the refused job wrote into the folder"
kill -KILL "$(lone_pid "$run")"
expect_end killed
[ -e "$run/run.lock" ] || fail "the killed job left no lock to test with"
expect_exit 0 0 train "$work/model_l.toml" "run.output=$run" run.steps=4
[ ! -e "$run/run.lock" ] || fail "a lock is left after an orderly end"
say "a second job in a live run folder is refused; the lock of a dead one is taken over"
