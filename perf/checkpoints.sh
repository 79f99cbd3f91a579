#!/usr/bin/env bash
# Checkpoints of 1.3 GB on this machine's disk, on one rank and on two:
#   writing and reading with all tensors in one file and with a file for each rank (orthant bench io), round by round;
#   what saves cost a training run, behind it (checkpoint.async) and in front of it.
# Rows go to perf/results/checkpoints-io-<machine>.csv and checkpoints-training-<machine>.csv, medians to the terminal.
#   bash perf/checkpoints.sh [FOLDER]     default: runs; a folder of the file system that is measured, with 4 GB to spare
# Variables: ROUNDS (3), SAVES (3) of a training run, EVERY (10) steps between them: a save has to end before the next is due.
# LAYERS (8), HIDDEN (1024) and SEQUENCE (128) are the model's and the steps' size; MACHINE (the host's name) is in the
# names of the results; ORTHANT names a program that is built already; RANKS ("1 2") are the numbers of ranks.
# One thread a rank. The machine should be doing nothing else; on a busy one it took 13 minutes. Needs some 6 GB of memory.
# All ranks are on this node: nodes that write into one file system are not measured here.
set -euo pipefail
# shellcheck source=../jobscripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../jobscripts/lib.sh"
trap 'report_failure $?' EXIT

rounds=${ROUNDS:-3} saves=${SAVES:-3} every=${EVERY:-10} layers=${LAYERS:-8} hidden=${HIDDEN:-1024} sequence=${SEQUENCE:-128}
for number in "$rounds" "$saves" "$every" "$layers" "$hidden" "$sequence"; do
  case $number in '' | *[!0-9]* | 0)
    echo "usage: [ROUNDS=3] [SAVES=3] [EVERY=10] … bash perf/checkpoints.sh [FOLDER]; \"$number\" is not a number from 1 on" >&2
    exit 2
    ;;
  esac
done
if [ "$every" -lt 4 ]; then
  echo "EVERY=$every: at least 4, as steps without a save are needed to compare with" >&2
  exit 2
fi
cd "$root"
orthant=${ORTHANT:-build/cpu/orthant}
if [ -z "${ORTHANT:-}" ]; then
  stage "build"
  build cpu orthant
fi

stage "measurement"
export OMP_NUM_THREADS=1
mkdir -p "${1:-runs}" perf/results
work=$(mktemp -d "$(cd "${1:-runs}" && pwd)/checkpoints.XXXXXX")
clean_up() {
  rm -rf "$work"
  report_failure "$1"
}
trap 'clean_up $?' EXIT
cat >"$work/deck.toml" <<END
run = { steps = 1 }
model = { family = "llama", layers = $layers, hidden = $hidden, ffn = $((hidden * 11 / 4)), heads = 8, vocab = 257 }
data = { train = "$root/regression/goldens/data/kjv", split = "1,0,0", sequence = $sequence }
batch = { micro = 1 }
checkpoint = { keep = 1 }
END
machine=${MACHINE:-$(hostname -s)}
cpu=$(awk -F': *' '/^model name/ {print $2; exit}' /proc/cpuinfo | tr -d ',')
before=$(date -u +%Y-%m-%d),$(git describe --always --dirty 2>/dev/null || echo unknown),$cpu
# quiet COMMAND…: its standard output, and its words only where it fails
quiet() {
  "$@" 2>"$work/err" || {
    cat "$work/err" >&2
    return 1
  }
}
# median: of numbers, one a line
median() { sort -g | awk '{v[NR] = $1} END {printf "%.4g", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }

# ---- one file against one a rank
io=perf/results/checkpoints-io-$machine.csv
header=date,commit,cpu,round,ranks,checkpoint_files,files,bytes,write_gb_per_s,durable_gb_per_s,read_gb_per_s,read_verified_gb_per_s,cache
if [ ! -e "$io" ]; then echo "$header" >"$io"; fi

# measure_io ROUND RANKS FILES
measure_io() {
  local line time rates=""
  line=$(quiet launch "$2" "$orthant" bench io "$work/deck.toml" "run.output=$work/io" "batch.global=$2" "checkpoint.files=$3" --repeat 1 |
    grep '"read_verified"' | tail -n 1)
  for time in write durable read read_verified; do
    rates+=$(sed -nE 's/.*"'$time'":\{[^}]*"gb_per_s":([0-9.eE+-]+),.*/\1/p' <<<"$line" | awk '{printf "%.3f,", $1}')
  done
  printf '%s,%s,%s,%s,%s,%s,%s%s\n' "$before" "$1" "$2" "$3" "$(sed -nE 's/.*"files":([0-9]+).*/\1/p' <<<"$line")" \
    "$(sed -nE 's/.*"bytes":([0-9]+).*/\1/p' <<<"$line")" "$rates" "$(sed -nE 's/.*"cache":"([a-z]+)".*/\1/p' <<<"$line")" | tee -a "$io" "$work/io.csv"
}
echo "load of the machine before: $(cut -d' ' -f1 /proc/loadavg)"
echo "$header"
for ((round = 1; round <= rounds; round++)); do
  for ranks in ${RANKS:-1 2}; do
    measure_io "$round" "$ranks" -1
    if [ "$ranks" -gt 1 ]; then measure_io "$round" "$ranks" 1; fi # one rank has one file either way
  done
done

# ---- what a save costs a run
training=perf/results/checkpoints-training-$machine.csv
header=date,commit,cpu,ranks,mode,step,bytes,forward_backward_s,step_s,save_s,stall_s,slower_s,sync_save_s,stall_ratio,slower_ratio
if [ ! -e "$training" ]; then echo "$header" >"$training"; fi

# train RANKS MODE ASYNC EVERY STEPS: leaves $work/MODE/metrics.jsonl. Its last save, which training waits for, is not counted.
train() {
  rm -rf "${work:?}/$2"
  quiet launch "$1" "$orthant" train "$work/deck.toml" "run.output=$work/$2" "batch.global=$1" "checkpoint.async=$3" "checkpoint.every=$4" \
    "run.steps=$5" >"$work/$2.log"
  rm -rf "$work/$2/checkpoints"
}
# rows MODE: step, seconds, stall_s, durable_s and saved_bytes of each step; "-" where it has none
rows() {
  awk '
    function value(name) { return match($0, "\"" name "\": *[0-9.eE+-]+") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) : "-" }
    { print value("step"), value("seconds"), value("stall_s"), value("durable_s"), value("saved_bytes") }' "$work/$1/metrics.jsonl"
}
# saves_of MODE: "step bytes step_s save_s stall_s slower_s" of each save but that of the last step. step_s is the median
# of the steps that met no save (but for the first, which warms up), slower_s what the steps from the save's to the one
# that found it durable took more, and stall_s what training waited between and in them.
saves_of() {
  local step=$every base
  if [ "$1" = sync ]; then step=2; fi
  base=$(rows "$1" | awk -v every="$step" 'NR > 1 && !busy {print $2} $4 != "-" {busy = 0} $4 == "-" && $1 % every == 0 {busy = 1}' | median)
  rows "$1" | awk -v every="$step" -v saves="$saves" -v base="$base" '
    busy && $1 % every == 0 {print "the save of step " step " had not ended when the next was due: set EVERY higher" >"/dev/stderr"; exit 1}
    busy {slower += $2 - base; stall += $3}
    busy && $4 != "-" {print step, $5, base, $4, stall, slower; busy = 0}
    $1 % every == 0 && $1 <= saves * every {
      step = $1; stall = $3 + 0; slower = 0
      if ($4 == "-") busy = 1; else print step, $5, base, $4, stall, 0
    }'
}
# seconds a step of PHASE, on average
phase() { awk -v phase="$2" -v steps="$3" 'index($0, phase) == 1 {sub(phase, ""); print $2 / steps}' "$work/$1/timers.txt"; }

echo "$header"
for ranks in ${RANKS:-1 2}; do
  train "$ranks" sync false 2 $((2 * saves + 1))
  train "$ranks" async true "$every" $((saves * every + every - 1))
  saves_of sync >"$work/sync.saves"
  saves_of async >"$work/async.saves"
  counted=$(wc -l <"$work/async.saves")
  if [ "$counted" -ne "$saves" ]; then
    echo "$counted saves behind the training instead of $saves: set EVERY higher, so that each ends before the next" >&2
    exit 1
  fi
  save=$(awk '{print $4}' "$work/sync.saves" | median)
  for mode in sync async; do
    steps=$([ $mode = sync ] && echo $((2 * saves + 1)) || echo $((saves * every + every - 1)))
    fb=$(awk -v a="$(phase $mode forward "$steps")" -v b="$(phase $mode backward "$steps")" 'BEGIN {printf "%.3f", a + b}')
    awk -v before="$before,$ranks,$mode" -v fb="$fb" -v save="$save" \
      '{printf "%s,%s,%s,%s,%.3f,%.3f,%.6f,%.3f,%.3f,%.6f,%.3f\n", before, $1, $2, fb, $3, $4, $5, $6, save, $5 / save, $6 / save}' \
      "$work/$mode.saves" | tee -a "$training" "$work/training.csv"
  done
done

stage "medians"
column() { awk -F, "$1" "$2" | median; }
for ranks in ${RANKS:-1 2}; do
  for files in -1 1; do
    pick="\$5 == $ranks && \$6 == $files"
    if ! awk -F, "$pick {n++} END {exit !n}" "$work/io.csv"; then continue; fi
    echo "ranks $ranks, checkpoint.files = $files, GB/s: write $(column "$pick {print \$9}" "$work/io.csv"), durable $(column "$pick {print \$10}" "$work/io.csv")," \
      "read $(column "$pick {print \$11}" "$work/io.csv"), read with checksums $(column "$pick {print \$12}" "$work/io.csv")"
  done
  if [ "$ranks" -gt 1 ]; then
    # rows of a round follow each other: one file, then many
    for at in "9 write" "10 durable" "11 read" "12 read with checksums"; do
      read -r n name <<<"$at"
      echo "ranks $ranks, a file for each / one file, $name: $(column "\$5 == $ranks {if (\$6 == -1) one = \$$n; else print \$$n / one}" "$work/io.csv")"
    done
  fi
  pick="\$4 == $ranks && \$5 == \"async\""
  echo "ranks $ranks, saves behind the training / one in front of it: waiting $(column "$pick {print \$14}" "$work/training.csv") (goal 0.01)," \
    "slower steps $(column "$pick {print \$15}" "$work/training.csv") (goal 0.25)"
done
echo "appended to $io and $training"
