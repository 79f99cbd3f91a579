#!/usr/bin/env bash
# What the queue does with a run, on real Slurm, in jobs of one node x 2 ranks side by side: arrays and chains of dependent
# jobs go on and know when nothing is left to do; a deck error, a full disk and a finished run are not requeued; the time
# left is asked of the queue.
#   slurm_queue.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/slurm_lib.sh"
prepare_jobs
settings=(data.samples=128000 batch.global=8 mesh.tp=2 optimizer.decay_steps=3000)
# deck NAME STEPS
deck() {
  sed "s/^steps = .*/steps = $2/" model_l.toml >"$1.new"
  mv "$1.new" "$1.toml"
}
one=(--nodes=1)

# In the background: 60 s of which 40 are gone when training begins. The queue's answer must stop it before the end; the
# warning signal is off.
deck left 16000
cat >late.sh <<SH
. "$generic/env.sh"
sleep 40
SH
left=$(ORTHANT_ENV=$work/late.sh ORTHANT_NEXT=none submit left "${one[@]}" --time=1 --signal=USR1@0 -- left.toml "run.output=$work/left" "${settings[@]}")

# A deck error: a word in the log, no second life; the links of a chain behind it do not even start the program.
deck wrong 20
wrong=$(submit wrong "${one[@]}" -- wrong.toml "run.output=$work/wrong" "${settings[@]}" model.layerz=3)
behind=$(submit behind "${one[@]}" "--dependency=afterany:$wrong" -- wrong.toml "run.output=$work/wrong" "${settings[@]}" model.layerz=3)
ended "$wrong" FAILED 2:0
ended "$behind" FAILED 2:0
[ "$(job_field "$wrong" Restarts)" = 0 ] || fail "a deck error was requeued"
expect_text "$slurm_jobs/wrong-$wrong.out" "model.layerz" "exit 2"
expect_text "$slurm_jobs/behind-$behind.out" "ended for good with 2"
[ "$(lives "$work/wrong")" = 1 ] || fail "the link behind a deck error has trained"
say "a deck error ends with 2, is not requeued, and the rest of its chain stops too"

# A full disk: nodes have their own mounts, so that the disk is made there.
disk=$work/disk
mkdir "$disk"
deck full 60
srun --nodes=1 --ntasks=1 --nodelist=n4 mount -t tmpfs -o size=400k none "$disk"
full=$(submit full "${one[@]}" --nodelist=n4 -- full.toml "run.output=$work/full" "${settings[@]}" "checkpoint.folder=$disk/checkpoints")
ended "$full" FAILED 3:0
srun --nodes=1 --ntasks=1 --nodelist=n4 umount "$disk"
[ "$(job_field "$full" Restarts)" = 0 ] || fail "a full disk was requeued"
[ "$(status "$work/full" state)" = failed ] && [ "$(status "$work/full" code)" = 3 ] || fail "status.json does not say failed, 3"
expect_text "$slurm_jobs/full-$full.out" "the last checkpoint could not be written" "exit 3 at step 60"
say "no room for the last save: exit 3, not requeued, the reason in the job's log"

# An array of serial segments: the first is stopped, the second finishes, the third has nothing to do. The end lies so far
# behind the place of the signal (steps of 3 ms) that no delay of the queue lets the first pass it.
end=1500
deck array 16000
array=$(submit array "${one[@]}" --array=1-3%1 --requeue -- array.toml "run.output=$work/array" "${settings[@]}")
wait_until 60 trains_past "$work/array" 20
deck array $end  # for the tasks behind this one: a deck is read at the start
signal_job "${array}_1"
ended "${array}_1" FAILED 75:0
ended "${array}_2" COMPLETED 0:0
ended "${array}_3" COMPLETED 0:0
[ "$(lives "$work/array")" = 2 ] || fail "$(lives "$work/array") lives instead of 2 in an array of three tasks"
grep -qF "is finished at step $end: nothing to do" "$slurm_jobs"/array-*.out || fail "the third task does not say that nothing is left"
say "an array with %1 goes on where the task before stopped (75), and ends when the run has"

# A chain by afterany; each link is one life.
deck chain 16000
export ORTHANT_NEXT=none
first=$(submit chain "${one[@]}" -- chain.toml "run.output=$work/chain" "${settings[@]}")
second=$(submit chain "${one[@]}" "--dependency=afterany:$first" -- chain.toml "run.output=$work/chain" "${settings[@]}")
third=$(submit chain "${one[@]}" "--dependency=afterany:$second" -- chain.toml "run.output=$work/chain" "${settings[@]}")
unset ORTHANT_NEXT
wait_until 60 trains_past "$work/chain" 20
deck chain $end
signal_job "$first" --batch  # to the batch shell this time, which passes it on
ended "$first" FAILED 75:0
ended "$second" COMPLETED 0:0
ended "$third" COMPLETED 0:0
[ "$(lives "$work/chain")" = 2 ] || fail "$(lives "$work/chain") lives instead of 2 in a chain of three links"
expect_text "$slurm_jobs/chain-$third.out" "nothing to do"
"$check" steps "$work/array" $end && "$check" steps "$work/chain" $end || fail "rows of an array or a chain"
diff <(bits "$work/array") <(bits "$work/chain") >"$work/difference" || fail "array and chain differ: $(head -n 4 "$work/difference")"
say "a chain by afterany: a signal to the batch shell reaches the ranks; the same bits as the array, stopped elsewhere"

# A finished run given to the queue again is not trained, and not requeued.
bits "$work/chain" >"$work/before"
again=$(submit again "${one[@]}" -- chain.toml "run.output=$work/chain" "${settings[@]}")
ended "$again" COMPLETED 0:0
[ "$(job_field "$again" Restarts)" = 0 ] || fail "a finished run was requeued"
bits "$work/chain" | cmp - "$work/before" || fail "a finished run changed"
say "a finished run ends with 0 at once, and is not requeued"

# A run that gets nowhere: every life is killed before it makes a step. After two of them nobody tries again.
deck stuck 16000
cat >stuck.sh <<SH
. "$generic/env.sh"
export ORTHANT_PROGRAM=$work/dies
SH
cat >dies <<SH
#!/bin/sh
[ "\$1" = --version ] && exec "$orthant" --version
mkdir -p "$work/stuck"
echo '{"state": "running", "step": 0, "reason": "starting", "code": 0, "lives": 1}' >"$work/stuck/status.json"
kill -SEGV \$\$
SH
chmod +x dies
stuck=$(ORTHANT_ENV=$work/stuck.sh submit stuck "${one[@]}" -- stuck.toml "run.output=$work/stuck")
ended "$stuck" FAILED 139:0
[ "$(lives "$work/stuck")" = 2 ] && [ "$(job_field "$stuck" Restarts)" = 1 ] || fail "$(lives "$work/stuck") lives of a run that gets nowhere"
expect_text "$slurm_jobs/stuck-$stuck.out" "two lives in a row got no further than step 0"
say "two lives without progress: not requeued a third time"

ended "$left" FAILED 75:0
expect_text "$work"/left/logs/*.out "(time limit)"
[ "$(status "$work/left" state)" = stopped ] || fail "status.json does not say stopped"
say "the job's own time limit, asked of squeue, stopped a run at step $(status "$work/left" step) with a checkpoint"
