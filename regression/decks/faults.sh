#!/usr/bin/env bash
# Runs that end early: a signal to one rank, a killed rank, the time limit, divergence.
#   faults.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
common=(run.steps=4000 batch.global=32 data.samples=128000)
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
expect_exit 0 4 train "$work/model_l.toml" "run.output=$run" "${common[@]}" "${mesh[@]}" "run.steps=$((at + 5))"
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
expect_exit 0 4 train "$work/model_l.toml" "run.output=$run" "${common[@]}" "${mesh[@]}" "run.steps=$((rows + 5))"
grep -qE 'step (1[0-9]|[2-9][0-9]|[1-9][0-9][0-9])\), life 2' "$out" || fail "the second life did not start from a checkpoint past step 9"
"$check" steps "$run" $((rows + 5)) || fail "rows after the kill"
expect_exit 0 1 train "$work/model_l.toml" "run.output=$work/straight" "${common[@]}" "run.steps=$((rows + 5))"
curves_near "$work/straight" "$run" 1e-4
say "a killed rank ends the job, status stays running, and the next start goes on from its checkpoint"

# The time limit, and training that diverges.
rm -rf "$run"
expect_exit 75 2 train "$work/model_l.toml" "run.output=$run" run.steps=1000000 run.time_limit=2
at=$(status "$run" step)
expect_text "$out" "stopped at step $at (time limit)"
[ -d "$run/checkpoints/step-$(printf %08d "$at")" ] || fail "no checkpoint of step $at"
say "the time limit stops a run with a checkpoint, exit 75"
rm -rf "$run"
refused 5 2 "not finite|3 steps in a row|guard.max_skips = 2" train "$work/model_l.toml" "run.output=$run" run.steps=20 optimizer.lr=1e30 guard.max_skips=2 mesh.tp=2
[ "$(status "$run" state)" = failed ] && [ "$(status "$run" code)" = 5 ] || fail "status.json does not say failed, 5"
[ "$(grep -c '"grad_norm": NaN' "$run/metrics.jsonl")" = 3 ] && [ "$(grep -c '"skipped": 1' "$run/metrics.jsonl")" = 3 ] || fail "skipped steps in metrics.jsonl"
say "training that diverges skips as often as allowed, then ends with 5"
