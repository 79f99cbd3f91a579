# shellcheck shell=bash
# Common parts of quickstart.sh, regression/run.sh and .ci/run. To be sourced, from any folder.
set -euo pipefail

# shellcheck disable=SC2034  # used by the scripts that source this
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

current_stage="arguments"
# stage NAME: what the script is doing from here on, for the reader and for the message of a failure.
stage() {
  current_stage=$1
  printf '\n== %s\n' "$1"
}

# To be used as: trap 'report_failure $?' EXIT
report_failure() {
  case $1 in
    0) ;;
    75) printf '\n%s: stopped early with a complete checkpoint; the same command continues\n' "${0##*/}" >&2 ;;
    *)
      printf '\n%s: failed in the stage "%s" (exit %s); the reason is above.\n' "${0##*/}" "$current_stage" "$1" >&2
      ;;
  esac
}

# set_up: installs or checks what the program needs; set_up_tests: and what the test suite can use besides. Costs nothing when
# all is there.
set_up() { set_up_for program; }
set_up_tests() { set_up_for tests; }
set_up_for() {
  if [ "${ORTHANT_SETUP:-}" = skip ]; then
    echo "ORTHANT_SETUP=skip: packages are not checked"
  elif command -v apt-get >/dev/null && command -v dpkg-query >/dev/null && ! type module >/dev/null 2>&1; then
    bash "$root/jobscripts/setup/debian.sh" "$1"
  else
    bash "$root/jobscripts/setup/cluster.sh"
  fi
}

# As many compile jobs as cores, but no more than memory has room for (about 1.5 GB each).
build_jobs() {
  local cores memory jobs
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1500000)}' /proc/meminfo 2>/dev/null || true)
  jobs=$cores
  if [ -n "$memory" ] && [ "$memory" -lt "$jobs" ]; then jobs=$memory; fi
  if [ "$jobs" -lt 1 ]; then jobs=1; fi
  echo "$jobs"
}

# build PRESET [TARGET]: configures the first time (later the build system does it by itself) and builds.
build() {
  local preset=$1 folder=$root/build/$1
  local generator=() target=()
  if [ ! -e "$folder/build.ninja" ] && [ ! -e "$folder/Makefile" ]; then
    # a generator once chosen stays: CMake refuses to change it
    if [ ! -e "$folder/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
    (cd "$root" && cmake --preset "$preset" ${generator[@]+"${generator[@]}"})
  fi
  if [ $# -gt 1 ]; then target=(--target "$2"); fi
  cmake --build "$folder" ${target[@]+"${target[@]}"} --parallel "$(build_jobs)"
}

# launch RANKS COMMAND…: many ranks on this machine, also where they outnumber the cores and where we are root (as in
# containers). Settings go through the environment, which other MPI libraries ignore. MPIEXEC names another launcher.
launch() {
  local ranks=$1
  shift
  local flags=()
  if "${MPIEXEC:-mpirun}" --version 2>/dev/null | grep -qi "open.\?mpi\|open.\?rte\|prrte"; then
    flags=(--oversubscribe)
  fi
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none \
    OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none \
    OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" \
    "${MPIEXEC:-mpirun}" ${flags[@]+"${flags[@]}"} -n "$ranks" "$@"
}

# ---- The life of a run in a queue. submit.sbatch and submit.pbs call `job_main DECK [key=value…]`; all names below begin
# with job_. A run lives through many jobs or requeues; <run>/logs/lives.tsv has a row for the begin and the end of each:
#   begin  series job life time step         step: how far the run was
#   end    series job life time step code decision
# A series is what belongs to one wish of the user: a job and its requeues, an array, a chain of dependent jobs.

# job_deck_value DECK section.key: the value as it stands in the deck, without quotes; empty when it is not there.
job_deck_value() {
  awk -v wanted="$2" '
    { sub(/^[ \t]+/, "") }
    /^\[/ { section = $0; gsub(/^\[[ \t]*|[ \t]*\].*$/, "", section); next }
    match($0, /^[A-Za-z0-9_.]+[ \t]*=/) {
      key = substr($0, 1, RLENGTH - 1); gsub(/[ \t]/, "", key)
      if ((section == "" ? key : section "." key) != wanted) next
      value = substr($0, RLENGTH + 1); sub(/^[ \t]+/, "", value)
      if (value ~ /^"/) { sub(/^"/, "", value); sub(/".*$/, "", value) } else sub(/[ \t]*(#.*)?$/, "", value)
      print value; exit
    }' "$1"
}

# job_setting section.key: from the overrides (the last one counts), else from the deck.
job_setting() {
  local word found=
  for word in ${job_overrides[@]+"${job_overrides[@]}"}; do
    case $word in "$1="*) found=$word ;; esac
  done
  if [ -n "$found" ]; then echo "${found#*=}"; else job_deck_value "$job_deck" "$1"; fi
}

# job_status KEY: from the run's status.json; empty when there is none.
job_status() {
  if [ -e "$job_run/status.json" ]; then
    # a text may hold commas; a number ends at one
    sed -nE 's/.*"'"$1"'": ?"(([^"\\]|\\.)*)".*/\1/p; t; s/.*"'"$1"'": ?([^",}]*).*/\1/p' "$job_run/status.json"
  fi
}
job_step() {
  local step
  step=$(job_status step)
  echo "${step:-0}"
}

# job_after CODE STATE: what the end of a life asks for: done, again or stop. STATE is that of status.json.
job_after() {
  case $1 in
    75 | 4) echo again ;;                             # stopped early with a complete checkpoint; a fault that the program saw
    134 | 135 | 136 | 137 | 139 | 143) echo again ;;  # a rank died of a signal
    2 | 3 | 5) echo stop ;;                           # deck, data or disk, divergence: the next life would end the same way
    *) # Any other code is the launcher's, such as 1, or even 0, for a lost node. The run's own word counts: where it is
      # still "running", it was killed.
      case $2 in
        finished) echo "done" ;;
        running) echo again ;;
        *) echo stop ;;
      esac
      ;;
  esac
}

# job_stalls SERIES STEP: how many lives of the series, counted from the last one back, got no further than those before;
# STEP is where the run is now.
job_stalls() {
  { cat "$job_lives"; printf 'begin\t%s\t\t\t\t%s\n' "$1" "$2"; } | awk -F'\t' -v series="$1" '
    $1 == "begin" && $2 == series {
      if (lives++) { if ($6 + 0 > best) stalls = 0; else stalls++ }
      if (lives == 1 || $6 + 0 > best) best = $6 + 0
    }
    END { print stalls + 0 }'
}
# job_count SERIES: lives begun in this series
job_count() { awk -F'\t' -v series="$1" '$1 == "begin" && $2 == series' "$job_lives" | wc -l; }
# job_last_decision SERIES: "decision code" of the last life that wrote one, if no other began since
job_last_decision() {
  awk -F'\t' -v series="$1" '$2 == series { last = $1 == "end" ? $8 " " $7 : "" } END { print last }' "$job_lives" 2>/dev/null || true
}

# job_guard: says why there should be no further life, or nothing.
job_guard() {
  local most=${ORTHANT_MAX_LIVES:-200}
  if [ "$(job_stalls "$job_series" "$(job_step)")" -ge 2 ]; then
    echo "two lives in a row got no further than step $(job_step)"
  elif [ "$(job_count "$job_series")" -ge "$most" ]; then
    echo "this was life number $most of the series, and ORTHANT_MAX_LIVES allows no more"
  fi
}

job_say() { printf '== %s  %s\n' "$(date -u +%FT%TZ)" "$*"; }

# job_find_series: a requeued job, a task of an array and a job that depends on another belong to the lives before them.
job_find_series() {
  if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then job_series=$SLURM_ARRAY_JOB_ID
  else job_series=$job_id; fi
  if [ -n "${SLURM_JOB_DEPENDENCY:-}${ORTHANT_SERIES:-}" ]; then
    local before
    before=${ORTHANT_SERIES:-$(awk -F'\t' 'END { print $2 }' "$job_lives")}
    job_series=${before:-$job_series}
  fi
}

# What the numbers of a run may depend on, and what one wants to know of a run that went wrong. No credentials.
job_record_environment() {
  {
    echo "# job $job_id, life $job_life, $(date -u +%FT%TZ)"
    echo "deck: $job_deck ${job_overrides[*]-}"
    echo "source: $(git -C "$root" rev-parse HEAD 2>/dev/null || echo 'not a git checkout') $(git -C "$root" status --short 2>/dev/null | wc -l) files changed"
    "$job_program" --version
    uname -srm
    echo "nodes: ${SLURM_JOB_NODELIST:-$(sort -u "${PBS_NODEFILE:-/dev/null}" | tr '\n' ' ')}"
    echo "restart count: ${SLURM_RESTART_COUNT:-0}"  # Slurm 22.05 leaves it unset in the first life
    if type module >/dev/null 2>&1; then module -t list 2>&1 || true; fi
    env | grep -E '^(SLURM|PBS|OMPI|PRTE|PMIX|PMI|MPICH|UCX|FI|NCCL|RCCL|CUDA|ROCR|HIP|OMP|HDF5|ORTHANT)_' |
      grep -viE '^[^=]*(jwt|token|secret|passw|cookie|_key)' | sort || true
  } >"$job_run/logs/$job_name.env" 2>&1
}

# Checkpoints are large files written by many ranks: on Lustre a new folder is given stripes; elsewhere nothing.
job_stripes() {
  local folder
  folder=$(job_setting checkpoint.folder)
  folder=${folder:-$job_run/checkpoints}
  if [ -e "$folder" ] || ! command -v lfs >/dev/null; then return 0; fi
  mkdir -p "$folder"
  lfs setstripe -c "${ORTHANT_STRIPE_COUNT:-8}" -S "${ORTHANT_STRIPE_SIZE:-16M}" "$folder" 2>/dev/null ||
    job_say "$folder: no stripes set (not Lustre?)"
}

# job_words: the launcher's words, in the array `words`. The program is started by the launcher itself: a shell in between
# would be sent the signals too, and die of them.
job_words() {
  local extra=()
  read -ra extra <<<"${ORTHANT_LAUNCH_FLAGS:-}"
  case ${ORTHANT_LAUNCHER:-} in
    srun)
      # --kill-on-bad-exit: one dead rank ends the step. Slurm 22.05 and newer do not take -c from the job.
      words=(srun --kill-on-bad-exit=1 "--cpus-per-task=${SLURM_CPUS_PER_TASK:-1}" "--cpu-bind=${ORTHANT_CPU_BIND:-cores}"
        "--distribution=${ORTHANT_DISTRIBUTION:-block}")
      if [ -n "${ORTHANT_MPI:-}" ]; then words+=("--mpi=$ORTHANT_MPI")
      elif [[ $(srun --mpi=list 2>&1) == *pmix* ]]; then words+=(--mpi=pmix); fi
      ;;
    mpirun | mpiexec) words=("$ORTHANT_LAUNCHER"); if [ -n "${ORTHANT_RANKS:-${SLURM_NTASKS:-}}" ]; then words+=(-n "${ORTHANT_RANKS:-$SLURM_NTASKS}"); fi ;;
    *)
      echo "ORTHANT_LAUNCHER is \"${ORTHANT_LAUNCHER:-}\"; srun, mpirun and mpiexec are known" >&2
      exit 2
      ;;
  esac
  words+=(${extra[@]+"${extra[@]}"})
}

# job_preflight: the option that measures the nodes before step 1, in the array `preflight`. What ORTHANT_PREFLIGHT says:
# yes, no, or a share: a node below it ends the life with 4, and the next one may get other nodes.
job_preflight() {
  case ${ORTHANT_PREFLIGHT:-yes} in
    yes) preflight=(--preflight) ;;
    no) preflight=() ;;
    0.[0-9]* | 1 | 1.0) preflight=(--preflight "--preflight-require=$ORTHANT_PREFLIGHT") ;;
    *)
      echo "ORTHANT_PREFLIGHT is \"$ORTHANT_PREFLIGHT\"; yes, no and a share such as 0.5 are known" >&2
      exit 2
      ;;
  esac
}

# job_launch: one life. Sets job_code; job_ended=yes when the scheduler told this shell to end.
job_launch() {
  local words preflight pid code signalled
  job_words
  job_preflight
  job_say "${words[*]} $job_program train $job_deck ${preflight[*]-} ${job_overrides[*]-}"
  "${words[@]}" "$job_program" train "$job_deck" ${preflight[@]+"${preflight[@]}"} ${job_overrides[@]+"${job_overrides[@]}"} >"$job_run/logs/$job_name.out" 2>&1 </dev/null &
  pid=$!
  # Reached by --signal=B:USR1@N; --signal=USR1@N reaches the ranks of srun by itself. Both launchers pass it on.
  trap 'signalled=yes; kill -USR1 "$pid" 2>/dev/null || true' USR1 USR2
  # The scheduler ends the job, the ranks included; they save if they have the time.
  trap 'signalled=yes; job_ended=yes' TERM
  job_ended=no
  while :; do
    signalled=no code=0
    wait "$pid" || code=$?
    # A trap ends the wait with the code of its signal: ask again. 127: the end was told already, just before the trap.
    if [ "$code" != 127 ]; then job_code=$code; fi
    if [ $signalled = no ]; then break; fi
  done
  trap - USR1 USR2 TERM
}

# job_again: the next life, as far as it is for this one to arrange.
job_again() {
  local next=${ORTHANT_NEXT:-} successor
  if [ -z "$next" ]; then
    # the tasks behind this one of an array are the next lives
    if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then next=none
    elif [ -n "${SLURM_JOB_ID:-}" ]; then next=requeue
    else next=resubmit; fi
  fi
  case $next in
    none) job_say "to go on: the next job of the chain or array, or submit again" ;;
    requeue)
      job_say "requeue"
      scontrol requeue "$SLURM_JOB_ID" || job_say "Slurm does not requeue this job: submit it again to go on"
      ;;
    resubmit)
      # the list of qsub -v is cut at commas, which overrides may hold: they travel in a file
      local arguments
      arguments=$(cd "$job_run/logs" && pwd)/$job_name.arguments
      printf '%s\n' ${job_arguments[@]+"${job_arguments[@]}"} >"$arguments"
      if successor=$(qsub -W "depend=afterany:$PBS_JOBID" -v "ORTHANT_SERIES=$job_series,ORTHANT_ARGUMENTS=$arguments" "$job_script"); then
        job_say "goes on in job $successor"
      else
        job_say "no successor could be submitted: submit again to go on"
      fi
      ;;
    *) job_say "ORTHANT_NEXT is \"$next\"; requeue, resubmit and none are known: submit again to go on" ;;
  esac
}

# job_main SCRIPT DECK [key=value…]. Ends the script: with the code of the program; 0 where there was nothing left to do.
# SCRIPT is what a successor is submitted with.
job_main() {
  job_script=$1 job_deck=${2:?the deck}
  shift
  job_arguments=("$@")
  shift
  job_overrides=("$@")
  job_program=${ORTHANT_PROGRAM:-$root/build/cpu/orthant}
  job_id=${SLURM_JOB_ID:-${PBS_JOBID:-local}}
  ORTHANT_LAUNCHER=${ORTHANT_LAUNCHER:-$(if [ -n "${SLURM_JOB_ID:-}" ]; then echo srun; else echo mpiexec; fi)}
  if [ ! -r "$job_deck" ]; then echo "the deck $job_deck cannot be read (from $PWD)" >&2; exit 2; fi
  if [ ! -x "$job_program" ]; then echo "no program $job_program: build it, or set ORTHANT_PROGRAM in env.sh" >&2; exit 2; fi

  job_run=$(job_setting run.output)
  if [ -z "$job_run" ]; then job_run=$(basename "$job_deck" .toml) && job_run=runs/$job_run; fi
  case " $* " in *" run.output="*) ;; *) job_overrides+=("run.output=$job_run") ;; esac
  # As many replicas as there are ranks for, also in a job on fewer nodes than the last one.
  case " $* " in *" mesh.dp="*) ;; *) job_overrides+=("mesh.dp=0") ;; esac
  if [ -n "${ORTHANT_TIME_LEFT:-}" ]; then job_overrides+=("run.time_limit=$ORTHANT_TIME_LEFT"); fi

  job_lives=$job_run/logs/lives.tsv
  mkdir -p "$job_run/logs" && touch "$job_lives" || exit 3
  job_find_series
  local last stop
  last=$(job_last_decision "$job_series")
  case $last in
    done*)
      if [ "$(job_status state)" = finished ]; then
        job_say "$job_run is finished at step $(job_step): nothing to do"
        exit 0
      fi
      ;;
    stop*)
      job_say "the life before ended for good with ${last#stop }: see $job_run/logs. A new job, without dependency, tries again"
      exit "${last#stop }"
      ;;
  esac
  stop=$(job_guard)
  if [ -n "$stop" ]; then
    job_say "no further life: $stop"
    exit 4
  fi
  job_life=$(($(awk -F'\t' '$1 == "begin"' "$job_lives" | wc -l) + 1))
  job_name=$job_id.life-$job_life
  printf 'begin\t%s\t%s\t%s\t%s\t%s\n' "$job_series" "$job_id" "$job_life" "$(date -u +%FT%TZ)" "$(job_step)" >>"$job_lives"
  job_say "job $job_id, life $job_life of $job_run, at step $(job_step); output in $job_run/logs/$job_name.out"
  job_record_environment
  job_stripes
  job_launch

  local decision
  decision=$(job_after "$job_code" "$(job_status state)")
  stop=
  if [ "$decision" = again ]; then stop=$(job_guard); fi
  if [ -n "$stop" ]; then decision=stop; fi
  printf 'end\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$job_series" "$job_id" "$job_life" "$(date -u +%FT%TZ)" "$(job_step)" "$job_code" "$decision" >>"$job_lives"
  job_say "exit $job_code at step $(job_step)$(job_status reason | sed 's/..*/ (&)/'): ${stop:+no further life: $stop: }$decision"
  if [ "$decision" != "done" ] && [ "$job_code" != 75 ]; then
    # what the program said, which launchers may bury under their own words, and the end of the log
    grep -E -A 4 '^orthant: ' "$job_run/logs/$job_name.out" | head -n 15 || true
    echo "..."
    tail -n 20 "$job_run/logs/$job_name.out"
  fi
  if [ "$decision" = again ]; then
    if [ $job_ended = yes ]; then job_say "the scheduler ends this job; whether it comes back is its decision"
    else job_again; fi
  fi
  if [ "$job_code" = 0 ] && [ "$decision" != "done" ]; then job_code=4; fi  # a launcher that lost a node may say 0
  exit "$job_code"
}
