#!/usr/bin/env bash
# One run on 4 nodes x 2 ranks, by the generic job script, over six lives: ended by scancel --signal, by
# run.time_limit, by a killed rank, a killed node, scontrol requeue, and its last step. The rows are those of a run that
# nothing disturbed, to the bit. (A life that the time limit of the job ends: slurm_quickstart.sh.)
#   slurm_lives.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/slurm_lib.sh"
prepare_jobs
run=$work/run
settings=(data.samples=128000 batch.global=8 mesh.tp=2 optimizer.schedule=cosine optimizer.warmup_steps=5 optimizer.decay_steps=3000)

# deck STEPS [LINE [EVERY [WATCHDOG]]]: a line more in [run], steps between checkpoints, seconds that a step may take (0: as it
# follows from the steps before). Replaced in one piece, between two lives.
deck() {
  {
    sed "s/^steps = .*/steps = $1${2:+\n$2}/" model_l.toml
    printf '[checkpoint]\nevery = %s\nkeep = 3\n[guard]\nwatchdog_s = %s\n' "${3:-5}" "${4:-0}"
  } >deck.new
  mv deck.new deck.toml
}
deck 16000
job=$(submit lives -- deck.toml "run.output=$run" "${settings[@]}")
under_way 10
signal_job "$job"
stopped "signal 10"
deck 16000 "time_limit = 6"

at_life=$((at_life + 1))
stopped "time limit"
deck 16000

under_way $(($(step_of "$run") + 6))
begin=$SECONDS
kill -KILL "$(task_pid "$run" 5)"
wait_until 60 has_ended "$run" "$at_life"
took=$((SECONDS - begin))
case $(life "$run" "$at_life" 7) in 4 | 137 | 139 | 143) ;; *) fail "life $at_life with a killed rank ended with $(life "$run" "$at_life" 7)" ;; esac
deck 16000 "" 100000 5  # a lost node is missed in a step, and not in the wait for a save
[ "$(life "$run" "$at_life" 8)" = again ] || fail "a killed rank is not continued"
[ $took -le 30 ] || fail "the job ended $took s after one of its ranks"
say "life $at_life: ended $took s after rank 5 was killed, with $(life "$run" "$at_life" 7), requeued"

under_way $(($(step_of "$run") + 6))
begin=$SECONDS
restarts=$(job_field "$job" Restarts)
cluster kill n3
# Open MPI's ranks on the other nodes may wait for ever, and Slurm takes a while (SlurmdTimeout, here 15 s) to find out. The
# watchdog of the run is faster, and knows names.
wait_until 60 has_ended "$run" "$at_life"
took=$((SECONDS - begin))
deck 16000
[ "$(life "$run" "$at_life" 7) $(life "$run" "$at_life" 8)" = "4 again" ] || fail "life $at_life with a lost node ended with $(life "$run" "$at_life" 7)"
expect_text "$(life_log "$at_life")" "hang: step" "no word from rank 4 (" "no word from rank 5 (" "on n3: stopped, dead or cut off"
[ "$(status "$run" state) $(status "$run" code)" = "failed 4" ] || fail "status.json: $(cat "$run/status.json")"
expect_text "$run/status.json" "no word from rank 4 ("
[ $took -le 40 ] || fail "the job ended $took s after the loss of a node"
# what ran on the lost node is over for Slurm when the node is down
wait_until 90 in_state "$job" PENDING
[ "$(job_field "$job" Restarts)" = $((restarts + 1)) ] || fail "$(job_field "$job" Restarts) restarts after the loss of a node, $restarts before it"
cluster start n3
say "life $at_life: ended $took s after node n3 lost its power, with 4 and the names of its ranks, requeued"

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
limit=170 expect_exit 0 8 train deck.toml "run.output=$work/straight" "${settings[@]}" checkpoint.every=0
diff <(bits "$work/straight") <(bits "$run") >"$work/difference" || fail "other numbers than without a stop: $(head -n 4 "$work/difference")"
expect_exit 0 0 report "$run"
expect_text "$out" " lives, " "effective training time" "planned" "unplanned" "queue, between the lives"
say "$(grep -E "effective training time [0-9.]+ %" "$out" | sed 's/^ *//'): $(grep -E "^ +(planned|unplanned) " "$out" | awk '{ print $2, $1 ", " $NF " s to recover" }' | paste -sd';')"
for ((n = 1; n <= $(lives "$run"); n++)); do
  file=$(echo "$run"/logs/*.life-$n.env)
  expect_text "$file" "life $n," "SLURM_JOB_ID=$job" "source: " "Open MPI"
done
say "$(lives "$run") lives: the same step, loss, grad_norm and lr bits as one life; each has its log and its record of the environment"
