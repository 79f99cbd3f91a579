#!/usr/bin/env bash
# log.trace, and what axes cost beside what the plan says: played steps (run.timing = "sleep") of sixteen ranks in which tp, cp,
# pp and dp talk, with a tensor-parallel product in one piece and in four, and without overlap.
#   trace.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
rm -rf "$work"
mkdir -p "$work"
cp "$decks/model_l.toml" "$work"  # no data: none are read
run=$work/run deck=$work/model_l.toml
mesh=(mesh.tp=2 mesh.cp=2 mesh.pp=2 mesh.sequence_parallel=true batch.global=4 batch.micro=1 model.layers=4 data.sequence=64
  model.kv_heads=4 zero.bucket=4000 run.timing=sleep log.trace=true)

# planned AXIS: ms in sight, from the last line of the console about it
planned() { sed -nE "s/.* $1 [0-9.]+ ms a step in sight.*by plan ([0-9.]+) ms in sight.*/\1/p" "$out"; }
measured() {  # least over the steps: what disturbs a wait only makes it longer
  sed -nE "s/.*\"comm_exposed_s\": \{[^}]*\"$1\": ([0-9.e+-]+).*/\1/p" "$run/metrics.jsonl" | sort -g | head -n 1 | awk '{ print 1e3 * $1 }'
}

# played NAME override…: waits of every axis within 10 % of the plan's and some ms of wake-ups; times double from try to try.
played() {
  local name=$1 try axis plan real bad
  shift
  for try in 1 2 3 4; do
    rm -rf "$run"
    expect_exit 0 16 train "$deck" "run.output=$run" run.steps=3 "run.sleep_ms=$((100 << try))" "run.sleep_gbps=$(awk -v t="$try" 'BEGIN { printf "%.9f", 0.002 / 2 ^ t }')" "${mesh[@]}" "$@"
    bad=
    for axis in tp cp pp dp; do
      plan=$(planned "$axis") real=$(measured "$axis")
      [ -n "$plan" ] && [ -n "$real" ] || fail "$name: nothing about $axis: plan '$plan', measured '$real'"
      echo "$name: $axis waits $real ms a step, by plan $plan"
      awk -v a="$real" -v b="$plan" -v slack="$((30 + 10 * try))" 'BEGIN { d = a - b; exit !(d <= 0.1 * b + slack && -d <= 0.1 * b + 5) }' || bad="$bad $axis"
    done
    [ -n "$bad" ] || break
    [ "$try" != 4 ] || fail "$name:$bad: not as planned in four tries"
  done
  [ -s "$run/trace.json" ] || fail "no trace.json"
  "$check" trace "$run" 16 tp cp pp shard >"$work/axes" || fail "$(cat "$work/axes")"
  sed "s/^/$name: axis, ms under way, waited for, beside work: /" "$work/axes"
  tp=$(planned tp)
  awk '$1 == "cp" || $1 == "shard" { if ($4 < 0.3 * $2) { print $1 " does not lie behind work"; exit 1 } }' "$work/axes" || [ "$name" = "no overlap" ] || fail "$name: $(cat "$work/axes")"
}
played "one piece" comm.chunks=1
whole=$tp
played "four pieces" comm.chunks=4
expect_text "$out" "at least 1/4 stays in sight"
awk -v a="$whole" -v b="$tp" 'BEGIN { exit !(b < 0.6 * a && b >= a / 4) }' || fail "four pieces leave $tp ms of $whole in sight"
say "tp, cp, pp and dp wait as planned; four pieces leave $tp ms of tp's $whole in sight"
played "no overlap" comm.chunks=4 comm.overlap=false
awk -v a="$tp" -v b="$whole" 'BEGIN { exit !(a >= b) }' || fail "without overlap $tp ms of tp are in sight, with it $whole"
say "without overlap nothing is hidden"

# A real run has its trace too, of the last ten steps, and no words about plans.
prepare
expect_exit 0 4 train "$work/model_l.toml" "run.output=$work/real" run.steps=14 mesh.tp=2 mesh.sequence_parallel=true comm.chunks=2 log.trace=true zero.stage=1
"$check" trace "$work/real" 4 tp shard >"$work/axes" || fail "$(cat "$work/axes")"
[ "$(grep -c '"name": "step [0-9]* begins".*"pid": 0,' "$work/real/trace.json")" = 10 ] || fail "not ten steps in the trace"
grep -q '"name": "step 14 begins"' "$work/real/trace.json" || fail "the last step is not in the trace"
expect_text "$out" "waits     tp" "at least 1/2 stays in sight"
say "a real run draws its last ten steps"
