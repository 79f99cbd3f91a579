#!/usr/bin/env bash
# A run that is killed at random moments, in its starts too, and started again until it is done: the curve is that of the
# run without a kill, and `orthant report` knows each stop and what share of the wall time was training that counted.
#   killed_run.sh ORTHANT CHECK_RUN WORK KILLS
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
kills=${4:?the number of kills}
run=$work/run
train=(train "$work/model_l.toml" mesh.tp=2 mesh.dp=2 data.samples=80000 checkpoint.every=7 checkpoint.async=true)
RANDOM=${KILL_SEED:-419} moments=''
json() { sed -nE 's/.*"'"$1"'":([^,}]+).*/\1/p' "$out"; }

begun() { [ "$(grep -c '"event":"begin"' "$run/goodput.jsonl")" = "$1" ]; }
for ((life = 1; life <= kills; life++)); do
  start 4 "${train[@]}" "run.output=$run" run.steps=10000
  wait_for 30 begun "$life"
  # Every other kill waits for a checkpoint first, so that the run gets on whatever the machine's speed.
  what=begin
  if [ $((life % 2)) = 1 ]; then
    wait_for 30 grep -q '^saved' "$out.job"
    what=save
  fi
  rest=$((RANDOM % 1000)) victim=$((RANDOM % 5))
  sleep "$(printf '0.%03d' "$rest")"
  if [ "$victim" = 4 ]; then
    mapfile -t all < <(pids "$run")
    [ ${#all[@]} = 4 ] || fail "${#all[@]} processes of $run instead of 4"
    kill -KILL "${all[@]}"
    victim=all
  else
    kill -KILL "$(rank_pid "$run" "$victim")"
  fi
  moments+=" rank $victim $what+0.$(printf '%03d' "$rest")"
  expect_end killed
done
last=$(sed -nE 's/^\{"step": ([0-9]+).*/\1/p' "$run/metrics.jsonl" | sort -n | tail -n 1)
steps=$((${last:-0} + 20))
expect_exit 0 4 "${train[@]}" "run.output=$run" "run.steps=$steps"
"$check" steps "$run" "$steps" || fail "rows after $kills kills (seed ${KILL_SEED:-419}:$moments)"
expect_exit 0 4 "${train[@]}" "run.output=$work/straight" "run.steps=$steps" checkpoint.every=0
diff <(bits "$work/straight") <(bits "$run") || fail "the killed run went on with other numbers (seed ${KILL_SEED:-419}:$moments)"
say "$kills kills (seed ${KILL_SEED:-419}:$moments), $steps steps: the bits of the run without a kill, each row once"

# The same numbers in status.json and from the report.
expect_exit 0 0 report "$run" --json
effective=$(json effective) total=$(json wall_s)
near "$(sed -nE 's/.*"stops":\{.*"unplanned":\{"count":([0-9]+).*/\1/p' "$out")" "$kills" 0 || fail "the report does not count $kills unplanned stops"
near "$(status "$run" stops)" "$kills" 0 || fail "status.json counts $(status "$run" stops) stops"
near "$(status "$run" effective)" "$effective" 1e-3 || fail "effective: $(status "$run" effective) in status.json, $effective in the report"
awk -v e="$effective" 'BEGIN { exit !(e > 0 && e < 1) }' || fail "effective training time $effective"
# Every second is somewhere: the bins are the wall time, and that is the time from the first begin to the end.
near "$(sed -nE 's/.*"bins":\{([^}]*)\}.*/\1/p' "$out" | awk -F'[,:]' '{ for (i = 2; i <= NF; i += 2) sum += $i; printf "%.6f", sum }')" "$total" 1e-3 ||
  fail "the bins are not the wall time $total"
wall=$(sed -nE 's/.*"t":([0-9.]+).*/\1/p' "$run/goodput.jsonl" | awk 'NR == 1 { first = $1 } { last = $1 } END { printf "%.6f", last - first }')
near "$wall" "$total" 1e-2 || fail "$total s in the report, $wall s from the first begin to the end"
say "effective training time $effective of $total s with $kills kills"

# What these stops cost, at the rate of 419 in 54 days: the expected share at the interval that is advised.
expect_exit 0 0 report "$run" --json --mtbf 11135
share=$(json expected_effective)
awk -v e="$share" 'BEGIN { exit !(e >= 0.9 && e < 1) }' || fail "expected effective training time $share at a stop in three hours"
expect_exit 0 0 report "$run"
expect_text "$out" "effective training time" "unplanned" "Young: a save every" "Daly:  a save every"
cat "$out"
say "a stop like these every three hours: $share expected"
