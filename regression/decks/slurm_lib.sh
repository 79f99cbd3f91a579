# shellcheck shell=bash
# Shared by the tests on the Slurm cluster of regression/slurm, beside lib.sh: source it with ORTHANT CHECK_RUN WORK.
# $ORTHANT_SLURM_FOLDER is the cluster's folder; the fixture started it, or said why it cannot.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [ ! -e "$ORTHANT_SLURM_FOLDER/env" ]; then
  skip "no Slurm cluster here (the test slurm.up says what is missing)"
  exit 77
fi
cluster() { bash "$decks/../slurm/cluster.sh" "$@" --folder "$ORTHANT_SLURM_FOLDER"; }
# the tests may themselves run inside a job of another cluster
for name in $(compgen -e | grep -E '^(SLURM|SBATCH|SRUN|SALLOC|PMIX|PMI)_'); do unset "$name"; done
eval "$(cluster env)"
export ORTHANT_PROGRAM=$orthant
export ORTHANT_PREFLIGHT=no  # seconds of every life, and not what these tests are about
generic=$(cd "$decks/../../jobscripts/generic" && pwd)
slurm_jobs=$work/jobs  # folder of what jobs print

# On the way out nothing stays in the queue.
end_jobs() {
  scancel --user "$(id -un)" 2>/dev/null || true
  local i
  for ((i = 0; i < 200; i++)); do [ -n "$(squeue -h 2>/dev/null)" ] || break; sleep 0.1; done
}
trap end_jobs EXIT

# The last words of every job are part of a failure.
fail() {
  echo "FAILED: $*" >&2
  {
    scontrol show job -o | cut -c 1-200
    sinfo -N
    tail -n 12 "$slurm_jobs"/*.out
    local file
    find "$work" -path '*/logs/lives.tsv' -exec tail -v -n +1 {} +
    file=$(find "$work" -path '*/logs/*.life-*.out' -printf '%T@ %p\n' | sort -n | tail -n 1)
    tail -n 15 "${file#* }"
  } >&2 || true
  exit 1
}

prepare_jobs() {
  limit=180 prepare
  mkdir -p "$slurm_jobs"
  cd "$work" || exit
}

# submit NAME [sbatch option…] -- argument…: the generic job; prints its id
submit() {
  local name=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  sbatch --parsable --job-name="$name" --output="$slurm_jobs/$name-%j.out" ${options[@]+"${options[@]}"} "$generic/submit.sbatch" "$@"
}

# signal_job JOB [--batch]: scancel tries again, and then fails, where the job ends under its hands; that is no matter here
signal_job() { scancel --signal=USR1 ${2:+"$2"} "$1" 2>/dev/null || true; }

job_field() { scontrol show job -o "$1" | sed -nE '1s/.* '"$2"'=([^ ]*).*/\1/p'; }
in_state() { [ "$(job_field "$1" JobState)" = "$2" ]; }
# ended JOB STATE CODE: waits for the end of a job, which must be this state and exit code (as code:signal)
ended() {
  local end=$((SECONDS + 120)) state
  while :; do
    state=$(job_field "$1" JobState)
    case $state in PENDING | RUNNING | COMPLETING | CONFIGURING | REQUEUED) ;; *) break ;; esac
    [ $SECONDS -lt $end ] || fail "job $1 has not ended: $state"
    sleep 0.1
  done
  [ "$state" = "$2" ] || fail "job $1 is $state instead of $2"
  [ "$(job_field "$1" ExitCode)" = "$3" ] || fail "job $1 ended with $(job_field "$1" ExitCode) instead of $3"
}

# wait_until SECONDS command…: as wait_for, with the failure of this file
wait_until() {
  local end=$((SECONDS + $1))
  shift
  until "$@" 2>/dev/null; do
    [ $SECONDS -lt $end ] || fail "waited in vain: $*"
    sleep 0.1
  done
}

# rows KIND RUN: how many begin or end rows the lives of a run have; at_least N command…
rows() { awk -v kind="$1" '$1 == kind' "$2/logs/lives.tsv" 2>/dev/null | wc -l; }
# life RUN LIFE COLUMN: of its end row (step 6, code 7, decision 8)
life() { awk -F'\t' -v life="$2" -v column="$3" '$1 == "end" && $4 == life { print $column }' "$1/logs/lives.tsv"; }
step_of() { status "$1" step; }
# trains_past RUN STEP: the run is under way past this step, as whoever reads status.json sees it
trains_past() { [ "$(status "$1" state)" = running ] && [ "$(step_of "$1")" -gt "$2" ]; }
# lives RUN: how many lives have begun; the number of the present one
lives() { rows begin "$1"; }
has_ended() { [ -n "$(life "$1" "$2" 8)" ]; }

# Events hit the life of $run that is under way then. With requeues held for 6 s only, Slurm's late kill of a step may hit
# the same step of the next life: then there is one life more, and the events meet the one after it.
# under_way STEP: waits until $run is past it, and sets at_life
under_way() {
  wait_until 120 trains_past "${run:?}" "$1"
  at_life=$(lives "$run")
}
# stopped WORDS: life at_life of $run ended in order, after a checkpoint, for this reason, and is to be continued
stopped() {
  wait_until 100 has_ended "$run" "$at_life"
  [ "$(life "$run" "$at_life" 7) $(life "$run" "$at_life" 8)" = "75 again" ] || fail "life $at_life ended with $(life "$run" "$at_life" 7)"
  expect_text "$(life_log "$at_life")" "stopped at step $(life "$run" "$at_life" 6) ($1)"
  say "life $at_life: $1 at step $(life "$run" "$at_life" 6), saved, requeued"
}
# life_log LIFE: the file with what the program of that life of $run printed
life_log() { echo "$run"/logs/*.life-"$1".out; }
# started_at LIFE: the step of the checkpoint it began from; nothing where it began anew
started_at() { sed -nE 's/^start     from .*\(step ([0-9]+)\), life .*/\1/p' "$(life_log "$1")"; }

# task_pid RUN RANK: the process of a rank, wherever it runs
task_pid() {
  local p
  for p in /proc/[0-9]*; do
    case $(readlink "$p/exe" 2>/dev/null) in */"$(basename "$orthant")"*) ;; *) continue ;; esac
    grep -qzxF "run.output=$1" "$p/cmdline" 2>/dev/null && grep -qzxF "SLURM_PROCID=$2" "$p/environ" 2>/dev/null && { basename "$p"; return 0; }
  done
  fail "no process of rank $2 in $1"
}
