#!/usr/bin/env bash
# Two jobs in one run folder: the second is refused while the first lives, and only then.
#   locks.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
common=(run.steps=4000 batch.global=32)
run=$work/run

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

# A lock from another host: ours if the job id is, free if its heartbeat is old and its job is not queued.
expect_exit 0 0 train "$work/model_l.toml" "run.output=$run" checkpoint.resume=never
foreign() { printf '{"job": "%s", "host": "elsewhere.invalid", "pid": 1, "started": 1}\n' "$1" >"$run/run.lock"; }
foreign 4711
refused 2 0 "$run|in use by job 4711|elsewhere.invalid" train "$work/model_l.toml" "run.output=$run"
(
  export SLURM_JOB_ID=4711
  expect_exit 0 0 train "$work/model_l.toml" "run.output=$run"
)
foreign 4711
touch -d '2 minutes ago' "$run/run.lock"
expect_exit 0 0 train "$work/model_l.toml" "run.output=$run"
say "a lock on another host belongs to its job while its heartbeat is fresh"
