#!/usr/bin/env bash
# One run on 4 nodes x 2 ranks, by the generic job script, over seven lives: ended by the time limit of the job, by
# scancel --signal, by run.time_limit, by a killed rank, a killed node, scontrol requeue, and its last step. The rows are
# those of a run that nothing disturbed, to the bit.
#   slurm_lives.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/slurm_lib.sh"
prepare_jobs
run=$work/run
settings=(data.samples=128000 batch.global=8 mesh.tp=2 optimizer.schedule=cosine optimizer.warmup_steps=5 optimizer.decay_steps=3000
  checkpoint.every=5 checkpoint.keep=3)

# deck STEPS [TIME_LIMIT]: replaced in one piece, between two lives
deck() {
  sed "s/^steps = .*/steps = $1${2:+\ntime_limit = $2}/" model_l.toml >deck.new
  mv deck.new deck.toml
}
# Each event hits the life that is under way then. With requeues held for 6 s only, Slurm's late kill of a step may hit the
# same step of the next life: then there is one life more, and the events meet the one after it.
under_way() {
  wait_until 120 trains_past "$run" "$1"
  at_life=$(lives "$run")
}
# stopped WORDS: it ended in order, after a checkpoint, for this reason, and is to be continued
stopped() {
  wait_until 100 has_ended "$run" "$at_life"
  [ "$(life "$run" "$at_life" 7) $(life "$run" "$at_life" 8)" = "75 again" ] || fail "life $at_life ended with $(life "$run" "$at_life" 7)"
  expect_text "$(echo "$run"/logs/*.life-"$at_life".out)" "stopped at step $(life "$run" "$at_life" 6) ($1)"
  say "life $at_life: $1 at step $(life "$run" "$at_life" 6), saved, requeued"
}

# Slurm looks at time limits every 30 s: a warning asked for 60 s before a limit of 60 s comes at the first look.
deck 16000
job=$(submit lives --time=1 --signal=USR1@60 -- deck.toml "run.output=$run" "${settings[@]}")
at_life=1
stopped "signal 10"
scontrol update "JobId=$job" TimeLimit=30

under_way "$(step_of "$run")"
signal_job "$job"
stopped "signal 10"
deck 16000 6

at_life=$((at_life + 1))
stopped "time limit"
deck 16000

under_way $(($(step_of "$run") + 6))
begin=$SECONDS
kill -KILL "$(task_pid "$run" 5)"
wait_until 60 has_ended "$run" "$at_life"
took=$((SECONDS - begin))
case $(life "$run" "$at_life" 7) in 4 | 137 | 139 | 143) ;; *) fail "life $at_life with a killed rank ended with $(life "$run" "$at_life" 7)" ;; esac
[ "$(life "$run" "$at_life" 8)" = again ] || fail "a killed rank is not continued"
[ $took -le 30 ] || fail "the job ended $took s after one of its ranks"
say "life $at_life: ended $took s after rank 5 was killed, with $(life "$run" "$at_life" 7), requeued"

under_way $(($(step_of "$run") + 6))
begin=$SECONDS
restarts=$(job_field "$job" Restarts)
cluster kill n3
# Open MPI's ranks on the other nodes may wait for ever; Slurm finds out after SlurmdTimeout (15 s here), ends all and requeues
wait_until 90 in_state "$job" PENDING
took=$((SECONDS - begin))
[ "$(job_field "$job" Restarts)" = $((restarts + 1)) ] || fail "$(job_field "$job" Restarts) restarts after the loss of a node, $restarts before it"
expect_text "$(echo "$slurm_jobs"/lives-*.out)" "DUE TO NODE FAILURE"
[ "$(life "$run" "$at_life" 8)" != "done" ] || fail "a lost node passes for a finished run"
cluster start n3
say "life $at_life: ended and requeued by Slurm $took s after node n3 lost its power"

under_way $(($(step_of "$run") + 6))
scontrol requeue "$job"
wait_until 30 in_state "$job" PENDING
last=$(($(step_of "$run") + 15))
deck $last
ended "$job" COMPLETED 0:0
[ "$(lives "$run")" -gt "$at_life" ] || fail "no new life after scontrol requeue"
[ "$(job_field "$job" Restarts)" = $(($(lives "$run") - 1)) ] || fail "$(job_field "$job" Restarts) restarts, but $(lives "$run") lives"
[ "$(status "$run" state)" = finished ] || fail "status.json: $(cat "$run/status.json")"
[ "$(awk 'END { print $NF }' "$run/logs/lives.tsv")" = "done" ] || fail "the last life is not the last word"
say "life $at_life: scontrol requeue; life $(lives "$run"): finished at step $last, not requeued"

"$check" steps "$run" $last || fail "rows of the run"
read -r -a launcher <<<"srun --nodes=4 --ntasks-per-node=2 --kill-on-bad-exit=1 --ntasks"
limit=170 expect_exit 0 8 train deck.toml "run.output=$work/straight" "${settings[@]}"
diff <(bits "$work/straight") <(bits "$run") >"$work/difference" || fail "other numbers than without a stop: $(head -n 4 "$work/difference")"
for ((n = 1; n <= $(lives "$run"); n++)); do
  file=$(echo "$run"/logs/*.life-$n.env)
  expect_text "$file" "life $n," "SLURM_JOB_ID=$job" "source: " "Open MPI"
done
say "$(lives "$run") lives: the same step, loss, grad_norm and lr bits as one life; each has its log and its record of the environment"
