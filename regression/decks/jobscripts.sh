#!/usr/bin/env bash
# shellcheck disable=SC2016  # words in single quotes are meant for other shells
# The job scripts of real machines, as far as they can be judged without the machines: each is run through two lives with
# invented schedulers, whose launchers write down what they were told.
#   jobscripts.sh WORK [CMAKE]
set -euo pipefail
decks=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$decks/../.." && pwd)
work=$1 cmake=${2:-cmake}
scripts=$root/jobscripts
rm -rf "$work"
mkdir -p "$work/bin"
cd "$work"

errors=0
fail() {
  echo "FAILED: $*" >&2
  errors=$((errors + 1))
}

# ---- inventions: a scheduler that knows one job, launchers that write their words down, a program
cat >bin/scontrol <<'FAKE'
#!/usr/bin/env bash
case $1 in
  show) printf 'JobId=%s JobName=orthant\n   Command=%s\n' "$3" "$FAKE_SCRIPT" ;;
  *) echo "scontrol $*" >>"$FAKE_LOG" ;;
esac
FAKE
cat >bin/launcher <<'FAKE'
#!/usr/bin/env bash
if [ "${1:-}" = --mpi=list ]; then
  echo "MPI plugin types are... none cray_shasta pmi2 pmix pspmix"
  exit
fi
printf '%s\n' "$@" >"$FAKE_LOG.words"
env >"$FAKE_LOG.environment"
# what the program would leave in its run folder
for word in "$@"; do
  case $word in run.output=*) run=${word#*=} ;; esac
done
if [ "$FAKE_CODE" = 0 ]; then state=finished step=20; else state=stopped step=10; fi
printf '{"state": "%s", "step": %s, "reason": "invented", "code": %s}\n' $state $step "$FAKE_CODE" >"$run/status.json"
exit "$FAKE_CODE"
FAKE
cat >bin/qstat <<'FAKE'
#!/usr/bin/env bash
printf '    Job_Name = orthant\n    Resource_List.walltime = 12:00:00\n'
FAKE
cat >bin/qsub <<'FAKE'
#!/usr/bin/env bash
echo "qsub $*" >>"$FAKE_LOG"
FAKE
cat >bin/orthant <<'FAKE'
#!/usr/bin/env bash
echo "orthant, not the real one"
FAKE
cp bin/launcher bin/srun
cp bin/launcher bin/mpiexec
chmod +x bin/*
export PATH=$work/bin:$PATH
module() { echo "module $*" >>"$FAKE_LOG"; }
export -f module

# ---- every script is one that bash can read
while read -r script; do
  bash -n "$script" || fail "$script: bash cannot read it"
done < <(find "$scripts" -name '*.sh' -o -name '*.sbatch' -o -name '*.pbs')

# directive FILE NAME: the value in the file's #SBATCH or #PBS lines
directive() { sed -nE "s/^#SBATCH --$2=(.*)\$/\\1/p" "$1"; }

# cores_of LIST|MASKS: a line of cores for each rank
cores_of() {
  local words part range core mask
  case $1 in
    list:*) IFS=: read -ra words <<<"${1#list:}" ;;
    mask_cpu:*) IFS=, read -ra words <<<"${1#mask_cpu:}" ;;
  esac
  for part in "${words[@]}"; do
    if [ "${1%%:*}" = list ]; then
      for range in ${part//,/ }; do seq "${range%-*}" "${range#*-}"; done
    else
      mask=$((16#$part))
      for ((core = 0; core < 64; core++)); do
        if ((mask >> core & 1)); then echo "$core"; fi
      done
    fi | tr '\n' ' '
    echo
  done
}

# judge_list LIST: the cores of the ranks, against the machine's line
judge_list() {
  local ranks_found=0 all cores core
  all=$(cores_of "$1")
  while read -ra cores; do
    ranks_found=$((ranks_found + 1))
    [ ${#cores[@]} = "$threads" ] || fail "$machine: rank $ranks_found is bound to ${#cores[@]} cores, not $threads"
    if [ "$closed" != 0 ] && [ $((cores[0] / closed)) != $((cores[-1] / closed)) ]; then
      fail "$machine: rank $ranks_found straddles two groups of cores"
    fi
    for core in "${cores[@]}"; do
      if [ "$core" -ge "$node" ]; then fail "$machine: a node has no core $core"; fi
      if [ "$closed" != 0 ] && [ $((core % closed)) = 0 ]; then fail "$machine: core $core is not for jobs"; fi
    done
  done <<<"$all"
  [ $ranks_found = "$ranks" ] || fail "$machine: $ranks_found ranks are bound, not $ranks"
  [ -z "$(tr ' ' '\n' <<<"$all" | sed '/^$/d' | sort | uniq -d)" ] || fail "$machine: two ranks share a core"
}

# life CODE: the script's run with a launcher that ends with CODE, in an environment of its own
life() {
  : >"$log"
  local settings=("FAKE_LOG=$log" "FAKE_CODE=$1" "FAKE_SCRIPT=$script" "PATH=$PATH" "HOME=$HOME"
    "ORTHANT_PROGRAM=$work/bin/orthant" "BASH_FUNC_module%%=$(declare -f module | tail -n +2 | sed '1s/^/() /')")
  if [ -n "$slurm" ]; then
    # what sbatch makes of the directives
    env -i "${settings[@]}" SLURM_JOB_ID=4711 SLURM_JOB_NODELIST=n1 SLURM_CPUS_PER_TASK="$(directive "$script" cpus-per-task)" \
      bash "$script" "$root/input/quickstart.toml" "run.output=$work/runs/$machine" optimizer.lr=1e-4
  else
    local name
    : >nodes
    for ((name = 1; name <= nodes; name++)); do echo "n$name" >>nodes; done
    printf '%s\n' "$root/input/quickstart.toml" "run.output=$work/runs/$machine" optimizer.lr=1e-4 >arguments
    env -i "${settings[@]}" PBS_JOBID=4711.pbs PBS_O_WORKDIR="$root" PBS_NODEFILE="$work/nodes" ORTHANT_ARGUMENTS="${2:-$work/arguments}" \
      bash "$script"
  fi >"$log.out" 2>&1 </dev/null
}
word() { grep -qxF -e "$1" "$log.words" || fail "$machine: the launcher was not told $1"; }

machines=()
while read -r machine ranks cpus threads node closed mpi; do
  machines+=("$machine")
  folder=$scripts/$machine log=$work/$machine slurm=
  if [ -e "$folder/submit.sbatch" ]; then script=$folder/submit.sbatch slurm=yes; else script=$folder/submit.pbs; fi

  # ---- what a user changes stands once, above all else
  if [ -n "$slurm" ]; then
    top=$(grep '^#SBATCH' "$script" | head -n 3)
    for name in account "(partition|constraint)" nodes; do
      [ "$(grep -cE "^#SBATCH --$name=" "$script")" = 1 ] || fail "$machine: --$name= does not stand exactly once"
      grep -qE "^#SBATCH --$name=" <<<"$top" || fail "$machine: --$name= is not in the first three lines"
    done
    nodes=$(directive "$script" nodes)
    [ "$(directive "$script" ntasks-per-node)" = "$ranks" ] || fail "$machine: not $ranks ranks a node"
    [ "$(directive "$script" cpus-per-task)" = "$cpus" ] || fail "$machine: not $cpus CPUs a rank"
    for name in 'signal=USR1@[0-9]+' requeue open-mode=append 'time=[0-9:]+'; do
      grep -qE "^#SBATCH --$name\$" "$script" || fail "$machine: no --$name"
    done
  else
    top=$(grep '^#PBS' "$script" | head -n 3)
    for name in '-A ' '-q ' '-l select='; do
      [ "$(grep -c -e "^#PBS $name" "$script")" = 1 ] || fail "$machine: $name does not stand exactly once"
      grep -q -e "^#PBS $name" <<<"$top" || fail "$machine: $name is not in the first three lines"
    done
    nodes=$(sed -nE 's/^#PBS -l select=([0-9]+).*/\1/p' "$script")
  fi
  [ $((ranks * threads)) -le "$node" ] || fail "$machine: more threads than cores"
  grep -qE '^#(SBATCH --account=|PBS -A )project(_g)?$' "$script" || fail "$machine: the account should be a name to replace"
  if grep -nE '(^|[^[:alnum:]$}.])/(home|users?|u|ccs|global|lus|gpfs|scratch|p|project|projappl|capstor|leonardo[_a-z]*)/' "$script" "$folder/env.sh"; then
    fail "$machine: a path of somebody's own, above"
  fi
  grep -qF '. "$home/jobscripts/lib.sh"' "$script" || fail "$machine: does not read lib.sh"
  grep -qF '**Nobody has run this there yet' "$folder/README.md" || fail "$machine: README.md should say that nobody has run it there"

  # ---- env.sh alone, with a module command that only takes notes
  : >"$log"
  found=$(env -u ORTHANT_BACKEND -u OMP_NUM_THREADS FAKE_LOG="$log" SLURM_CPUS_PER_TASK="${cpus/-/}" root=/top bash -euc '. "$1"
    echo "$ORTHANT_BACKEND $ORTHANT_PROGRAM $OMP_NUM_THREADS"' - "$folder/env.sh") || fail "$machine: env.sh ends with an error"
  [ "$found" = "cpu /top/build/$machine/orthant $threads" ] || fail "$machine: env.sh says $found"
  found=$(FAKE_LOG=$log root=/top ORTHANT_BACKEND=cuda bash -c '. "$1"; echo "$ORTHANT_BACKEND"' - "$folder/env.sh")
  [ "$found" = cuda ] || fail "$machine: env.sh overrules the user's ORTHANT_BACKEND"
  if grep -q '^#SBATCH --uenv=' "$script"; then
    [ ! -s "$log" ] || fail "$machine: modules are loaded besides the uenv"
  else
    grep -qi '^module load .*hdf5' "$log" || fail "$machine: no module for HDF5"
  fi
  "$cmake" -S "$root" --list-presets 2>/dev/null | grep -qF "\"$machine\"" || fail "$machine: CMakePresets.json has no such preset"

  # ---- a life that is stopped in time: the ranks, their cores and the deck, and the next life asked for
  code=0
  life 75 || code=$?
  if [ ! -e "$log.words" ]; then
    fail "$machine: nothing was launched: $(cat "$log.out")"
    continue
  fi
  [ $code = 75 ] || fail "$machine: ends with $code, not 75"
  word "$work/bin/orthant"
  word train
  word "$root/input/quickstart.toml"
  word --preflight
  word device.backend=cpu
  word optimizer.lr=1e-4
  grep -qxF "OMP_NUM_THREADS=$threads" "$log.environment" || fail "$machine: not $threads threads a rank"
  if grep -qE '^OMP_(PLACES|PROC_BIND)=' "$log.environment"; then fail "$machine: OpenMP threads are bound"; fi
  if [ -n "$slurm" ]; then
    word --kill-on-bad-exit=1
    word "--cpus-per-task=$cpus"
    word --distribution=block:block
    word "--mpi=${mpi/#-/pmix}"
    bound=$(sed -n 's/^--cpu-bind=//p' "$log.words")
    case $bound in
      cores | threads) ;;
      mask_cpu:*) judge_list "$bound" ;;
      *) fail "$machine: --cpu-bind=$bound" ;;
    esac
    grep -qxF "scontrol requeue 4711" "$log" || fail "$machine: not requeued: $(cat "$log.out")"
  else
    word -n
    word $((nodes * ranks))
    word -ppn
    word "$ranks"
    judge_list "$(sed -n 's/^--cpu-bind=//p' "$log.words")"
    left=$(sed -n 's/^run.time_limit=//p' "$log.words")
    if [ "${left:-0}" -le 43000 ] || [ "$left" -ge 43200 ]; then fail "$machine: 12 h are left, the program is told \"$left\" s"; fi
    grep -qE "^qsub -W depend=afterany:4711.pbs -v ORTHANT_SERIES=4711.pbs,ORTHANT_ARGUMENTS=.* $script\$" "$log" ||
      fail "$machine: no successor: $(cat "$log.out")"
  fi

  # ---- the last life; a successor of PBS reads the arguments that were written for it
  code=0
  if [ -n "$slurm" ]; then life 0 || code=$?
  else life 0 "$(sed -n 's/.*ORTHANT_ARGUMENTS=\([^ ]*\) .*/\1/p' "$log")" || code=$?; fi
  [ $code = 0 ] || fail "$machine: a finished run ends with $code: $(cat "$log.out")"
  if grep -qE '^(scontrol requeue|qsub)' "$log"; then fail "$machine: a finished run goes on"; fi
  word "run.output=$work/runs/$machine"
  [ "$(grep -c '^device.backend=' "$log.words")" = 1 ] || fail "$machine: device.backend is not said exactly once"
done < <(grep -v '^#' "$decks/jobscripts.cases")

# ---- what ORTHANT_PREFLIGHT makes of the words behind the deck
preflight_words() { ORTHANT_PREFLIGHT=$1 bash -euc '. "$1"; preflight=(unset); job_preflight; echo "${preflight[*]-}"' - "$scripts/lib.sh" 2>&1; }
for case in "yes=--preflight" "no=" "0.5=--preflight --preflight-require=0.5"; do
  found=$(preflight_words "${case%%=*}") || fail "ORTHANT_PREFLIGHT=${case%%=*}: $found"
  [ "$found" = "${case#*=}" ] || fail "ORTHANT_PREFLIGHT=${case%%=*} gives \"$found\""
done
if found=$(preflight_words perhaps); then fail "ORTHANT_PREFLIGHT=perhaps is taken"; fi
[[ $found == *"yes, no and a share"* ]] || fail "ORTHANT_PREFLIGHT=perhaps: $found"

# ---- no folder without a line in jobscripts.cases
for folder in "$scripts"/*/; do
  name=$(basename "$folder")
  case " generic setup ${machines[*]} " in *" $name "*) ;; *) fail "jobscripts/$name has no line in jobscripts.cases" ;; esac
done

if [ $errors != 0 ]; then exit 1; fi
echo "ok: ${#machines[@]} machines: ${machines[*]}"
