#!/usr/bin/env bash
# Launchers and placement on 4 nodes x 2 ranks of real Slurm: srun and mpirun in an allocation give the same bits, stop on
# the signal and go on; tp across nodes is warned of; a cyclic distribution keeps tp inside a node; a run goes on on
# fewer nodes than it had.
#   slurm_launch.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/slurm_lib.sh"
prepare_jobs
settings=(data.samples=128000 batch.global=8 mesh.tp=2 optimizer.decay_steps=3000 checkpoint.every=20)
# deck NAME STEPS
deck() {
  sed "s/^steps = .*/steps = $2/" model_l.toml >"$1.new"
  mv "$1.new" "$1.toml"
}
log() { echo "$1"/logs/*.life-"$2".out; }

# mpirun: the signal goes to the batch shell, which passes it to mpirun, which passes it to the ranks on all nodes.
deck mpirun 16000
mpirun=$(ORTHANT_LAUNCHER=mpirun submit mpirun --signal=B:USR1@120 -- mpirun.toml "run.output=$work/mpirun" "${settings[@]}")
wait_until 90 trains_past "$work/mpirun" 10
signal_job "$mpirun" --batch
wait_until 90 has_ended "$work/mpirun" 1
[ "$(life "$work/mpirun" 1 7)" = 75 ] || fail "mpirun ended with $(life "$work/mpirun" 1 7)"
last=$(($(step_of "$work/mpirun") + 15))
deck mpirun $last
deck srun $last
ended "$mpirun" COMPLETED 0:0
expect_text "$(log "$work/mpirun" 2)" "mesh      8 ranks on 4 nodes" "on n1" "on n4" "life 2 of this run"
srun=$(submit srun -- srun.toml "run.output=$work/srun" "${settings[@]}")
ended "$srun" COMPLETED 0:0
expect_text "$(log "$work/srun" 1)" "mesh      8 ranks on 4 nodes" "on n1" "on n4"
"$check" steps "$work/mpirun" $last && "$check" steps "$work/srun" $last || fail "rows"
diff <(bits "$work/mpirun") <(bits "$work/srun") >"$work/difference" || fail "mpirun and srun differ: $(head -n 4 "$work/difference")"
say "mpirun and srun in an allocation: $last steps with the same bits, mpirun's in two lives"

# placed RUN NODES WARNED: the header's line of tp
placed() {
  local line
  line=$(grep -m 1 '^  tp  size' "$(log "$1" 1)")
  case $line in *"nodes    $2 "*) ;; *) fail "tp lies on other than $2 nodes: $line" ;; esac
  if [ "$3" = yes ]; then [[ $line == *"warning: tp crosses nodes"* ]] || fail "no warning: $line"
  else [[ $line != *warning* ]] || fail "a warning without a reason: $line"; fi
}
deck place 2
job=$(submit cyclic -- place.toml "run.output=$work/cyclic" data.samples=128000 mesh.tp=2)
ended "$job" COMPLETED 0:0
placed "$work/cyclic" 1 no
job=$(ORTHANT_DISTRIBUTION=cyclic submit cyclic -- place.toml "run.output=$work/cyclic2" "${settings[@]}")
ended "$job" COMPLETED 0:0
grep -qF -- "--distribution=cyclic" "$slurm_jobs/cyclic-$job.out" || fail "no cyclic distribution was asked for"
placed "$work/cyclic2" 1 no
diff <(bits "$work/cyclic2") <(bits "$work/srun" | head -n 2) || fail "another distribution of the tasks, other numbers"
job=$(submit wide -- place.toml "run.output=$work/wide" data.samples=128000 mesh.tp=4)
ended "$job" COMPLETED 0:0
placed "$work/wide" 2 yes
say "tp 2 stays inside a node, also where Slurm deals tasks out cyclically; tp 4 on nodes of 2 is warned of"

# A chain whose second link has half the nodes: half as many replicas, the same run.
deck fewer 16000
fewer=$(ORTHANT_NEXT=none submit fewer -- fewer.toml "run.output=$work/fewer" "${settings[@]}")
wait_until 90 trains_past "$work/fewer" 10
signal_job "$fewer"
ended "$fewer" FAILED 75:0
at=$((last > $(step_of "$work/fewer") + 15 ? last : $(step_of "$work/fewer") + 15))
deck fewer $at
link=$(submit fewer --nodes=2 "--dependency=afterany:$fewer" -- fewer.toml "run.output=$work/fewer" "${settings[@]}")
ended "$link" COMPLETED 0:0
expect_text "$(log "$work/fewer" 1)" "8 ranks on 4 nodes"
expect_text "$(log "$work/fewer" 2)" "4 ranks on 2 nodes" "life 2 of this run"
"$check" steps "$work/fewer" $at || fail "rows of the run that lost nodes"
# to where dp was 8 the same bits; behind it the sums have another order
joined=$(life "$work/fewer" 1 6)
deck srun $at
job=$(submit srun -- srun.toml "run.output=$work/srun" "${settings[@]}")
ended "$job" COMPLETED 0:0
diff <(bits "$work/srun" | head -n "$joined") <(bits "$work/fewer" | head -n "$joined") || fail "other numbers on the same nodes"
curves_near "$work/srun" "$work/fewer" 1e-2
say "half the nodes in the second link of a chain: half the replicas, the run goes on from step $joined on the same curve"
