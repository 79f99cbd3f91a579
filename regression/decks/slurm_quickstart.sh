#!/usr/bin/env bash
# What a user types first: `sbatch jobscripts/generic/submit.sbatch`, without an argument, trains input/quickstart.toml on
# 4 nodes x 2 ranks of real Slurm. Three lives: the first is ended by the time limit of the job, the second by a signal,
# the third finishes. No step is lost or done twice; the rows are those of a run that nothing disturbed, to the bit.
#   slurm_quickstart.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/slurm_lib.sh"
prepare_jobs
home=$work/home  # what of a checkout the command needs, so that nothing is written into this one
run=$home/runs/quickstart slurm_jobs=$home
mkdir -p "$home"/{input,pieces,runs/quickstart-data}
cp -r "$decks/../../jobscripts" "$home"
cd "$home"

# The data as jobscripts/quickstart.sh makes them, from another text.
awk 'BEGIN { for (x = line = 1; line <= 1500; line++) {
  for (text = ""; length(text) < 60; text = text sprintf("%c", 97 + at)) { x = (x * 75 + 74) % 65537; at = x % 5 ? (at * 3 + line % 7) % 26 : x % 26 }
  print text } }' >text.txt
split --elide-empty-files --numeric-suffixes --suffix-length=2 --additional-suffix=.txt --number=l/50 text.txt pieces/
expect_exit 0 0 tokenize --tokenizer bytes --output runs/quickstart-data/text pieces/*.txt

# deck STEPS: as it is, but for shorter samples, so that a step is short, and for what may not depend on the number of steps
deck() {
  sed -e "s/^steps = 320/steps = $1/" -e 's/^sequence = 256/sequence = 32/' \
    -e 's/^schedule = .*/&\ndecay_steps = 600/' -e 's/^split = .*/&\nsamples = 320000/' "$decks/../../input/quickstart.toml" >deck.new
  [ "$(grep -cE "^(steps = $1|sequence = 32 .*|decay_steps = 600|samples = 320000)$" deck.new)" = 4 ] || fail "input/quickstart.toml has other lines than this test knows"
  mv deck.new input/quickstart.toml
}
# nothing_lost LIFE: it began where the one before had ended, and the rows up to its own end are there, each once
nothing_lost() {
  if [ "$1" -gt 1 ]; then [ "$(started_at "$1")" = "$(life "$run" $(($1 - 1)) 6)" ] || fail "life $1 began from step $(started_at "$1"), life $(($1 - 1)) ended at $(life "$run" $(($1 - 1)) 6)"; fi
  "$check" steps "$run" "$(life "$run" "$1" 6)" || fail "rows at the end of life $1"
}

deck 20000
begin=$SECONDS
job=$(sbatch --parsable jobscripts/generic/submit.sbatch)
under_way 5
# The script asks for a warning 120 s before the limit. With two minutes left of it, the warning comes at the next look of
# Slurm at time limits, every 30 s.
scontrol update "JobId=$job" "TimeLimit=$(((SECONDS - begin) / 60 + 2))"
stopped "signal 10"
scontrol update "JobId=$job" TimeLimit=30
nothing_lost 1

under_way $(($(step_of "$run") + 5))
[ "$at_life" = 2 ] || fail "life $at_life instead of 2 after the time limit"
signal_job "$job"
stopped "signal 10"
nothing_lost 2
last=$(($(step_of "$run") + 10))
deck $last

ended "$job" COMPLETED 0:0
nothing_lost 3
[ "$(lives "$run") $(job_field "$job" Restarts)" = "3 2" ] || fail "$(lives "$run") lives, $(job_field "$job" Restarts) restarts"
[ "$(status "$run" state)" = finished ] || fail "status.json: $(cat "$run/status.json")"
[ "$(life "$run" 3 8)" = "done" ] || fail "the last life is not the last word"
expect_text "$(life_log 3)" "finished at step $last"
say "three lives by one sbatch, finished at step $last: each goes on where the one before ended"

read -r -a launcher <<<"srun --nodes=4 --ntasks-per-node=2 --kill-on-bad-exit=1 --ntasks"
limit=240 expect_exit 0 8 train input/quickstart.toml run.output=runs/straight mesh.dp=0
diff <(bits "$home/runs/straight") <(bits "$run") >"$work/difference" || fail "other numbers than without a stop: $(head -n 4 "$work/difference")"
say "the same step, loss, grad_norm and lr bits as one life"
