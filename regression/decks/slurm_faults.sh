#!/usr/bin/env bash
# One run on 4 nodes x 2 ranks of real Slurm, by the generic job script, that loses its nodes to a job of a higher priority
# (with a grace time), then a rank by SIGSTOP, then one that exits by itself. Each ends the step in seconds, with a code
# that asks for another life and the name of the culprit; the rows are those of a run that nothing disturbed, to the bit.
#   slurm_faults.sh ORTHANT CHECK_RUN WORK SHIM        SHIM: the library made of fault_shim.cpp
set -euo pipefail
. "$(dirname "$0")/slurm_lib.sh"
shim=${4:?the library made of fault_shim.cpp}
prepare_jobs
run=$work/run
# No saves but those of a stop: a rank that stands still is missed in a step, and not in the wait for a save.
settings=(data.samples=128000 batch.global=8 mesh.tp=2 optimizer.schedule=cosine optimizer.warmup_steps=5 optimizer.decay_steps=3000
  checkpoint.every=100000)

# deck STEPS [LINES]: replaced in one piece, between two lives
deck() {
  { sed "s/^steps = .*/steps = $1/" model_l.toml; printf '\n%s\n' "${2:-}"; } >deck.new
  mv deck.new deck.toml
}
# again WHAT: the life, hit at the second `begin`, went on from the step `saved`, ended, and is to be continued; sets `took`
again() {
  wait_until 60 has_ended "$run" "$at_life"
  took=$((SECONDS - begin))
  [ "$(life "$run" "$at_life" 8)" = again ] || fail "a run with $1 is not continued"
  [ "$(started_at "$at_life")" = "$saved" ] || fail "life $at_life went on from step $(started_at "$at_life") instead of $saved"
  [ $took -le 40 ] || fail "the job ended $took s after it had $1"
}
# The place of a rank as the program itself tells it.
host_of() { echo "n$(($1 / 2 + 1))"; }

# While the file `armed` is there, rank 3 of a life ends itself when the file `now` appears. The launcher is not given the
# library, only the program.
cat >env.sh <<SH
. "$generic/env.sh"
if [ -e "$work/armed" ]; then
  export ORTHANT_FAULT="op=appear path=$work/now rank=3 exit=7" ORTHANT_LAUNCH_FLAGS="--export=ALL,LD_PRELOAD=$shim"
fi
SH

deck 16000
job=$(ORTHANT_ENV=$work/env.sh submit faults -- deck.toml "run.output=$run" "${settings[@]}")

# ---- preemption with grace time: Slurm tells the step by SIGTERM, and waits
under_way 10
begin=$SECONDS
urgent=$(sbatch --parsable --job-name=urgent --partition=urgent --nodes=4 --ntasks-per-node=2 --output="$slurm_jobs/urgent-%j.out" \
  --wrap "until [ -e '$work/gone' ]; do sleep 0.2; done")
wait_until 30 has_ended "$run" "$at_life"
took=$((SECONDS - begin))
stopped "signal 15"
[ $took -le 25 ] || fail "preempted: the job took $took s of its 30 s of grace to end"
deck 16000 $'[guard]\nwatchdog_s = 5'
saved=$(life "$run" "$at_life" 6)
"$check" steps "$run" "$saved" || fail "rows at the end of the life that was preempted"
wait_until 30 in_state "$urgent" RUNNING
in_state "$job" PENDING || fail "preempted, the job is $(job_field "$job" JobState)"
[ "$(lives "$run")" = "$at_life" ] || fail "a life of the run beside the job that took its nodes"
touch gone
ended "$urgent" COMPLETED 0:0
say "preempted: ended and saved in $took s of its 30 s of grace; the other job had the nodes"

# ---- a rank that stands still
under_way $((saved + 10))
victim=$(task_pid "$run" 5)
touch armed
begin=$SECONDS
kill -STOP "$victim"
again "a stopped rank"
deck 16000
[ "$(life "$run" "$at_life" 7)" = 4 ] || fail "life $at_life with a stopped rank ended with $(life "$run" "$at_life" 7)"
[ "$(status "$run" state) $(status "$run" code)" = "failed 4" ] || fail "status.json: $(cat "$run/status.json")"
expect_text "$run/status.json" "no word from rank 5 ("
[ ! -e "/proc/$victim" ] || fail "the stopped rank is still there: $(head -n 3 "/proc/$victim/status")"
expect_text "$(life_log "$at_life")" "hang: step" "guard.watchdog_s" "no word from rank 5 (" "on $(host_of 5)"
wait_until 20 grep -q "exit 4 at step .* (hang: step" "$slurm_jobs/faults-$job.out"  # written behind the end row
say "life $at_life: ended $took s after rank 5 was stopped, with 4 and its name, requeued"

# ---- a rank that exits by itself
under_way $(($(step_of "$run") + 6))
rm armed
begin=$SECONDS
touch now
again "a rank that exits by itself"
last=$(($(step_of "$run") + 15))
deck $last
case $(life "$run" "$at_life" 7) in 0 | 1 | 2 | 3 | 5 | 75) fail "life $at_life with a rank that exits by itself ended with $(life "$run" "$at_life" 7)" ;; esac
expect_text "$(life_log "$at_life")" "error: $(host_of 3): task 3: Exited with exit code 7"
wait_until 20 grep -qF "error: $(host_of 3): task 3: Exited with exit code 7" "$slurm_jobs/faults-$job.out"
say "life $at_life: ended $took s after rank 3 had left, with $(life "$run" "$at_life" 7); its place and code are named; requeued"

# ---- to the end
ended "$job" COMPLETED 0:0
[ "$(started_at "$(lives "$run")")" = "$saved" ] || fail "the last life went on from step $(started_at "$(lives "$run")") instead of $saved"
[ "$(status "$run" state)" = finished ] || fail "status.json: $(cat "$run/status.json")"
[ "$(awk 'END { print $NF }' "$run/logs/lives.tsv")" = "done" ] || fail "the last life is not the last word"
[ "$(job_field "$job" Restarts)" = $(($(lives "$run") - 1)) ] || fail "$(job_field "$job" Restarts) restarts, but $(lives "$run") lives"
"$check" steps "$run" $last || fail "rows of the run"
read -r -a launcher <<<"srun --nodes=4 --ntasks-per-node=2 --kill-on-bad-exit=1 --ntasks"
limit=170 expect_exit 0 8 train deck.toml "run.output=$work/straight" "${settings[@]}"
diff <(bits "$work/straight") <(bits "$run") >"$work/difference" || fail "other numbers than without faults: $(head -n 4 "$work/difference")"
say "$(lives "$run") lives: the same step, loss, grad_norm and lr bits as one life of $last steps"
