#!/usr/bin/env bash
# run.timing = "sleep": idle time of eight stages against the closed form and against the planner, and ZeRO-3's gathers
# hidden behind compute or not, as a play of the list of actions says. More ranks than cores are no matter, as they sleep.
#   sleep.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
rm -rf "$work"
mkdir -p "$work"
cp "$decks/model_l.toml" "$work"  # no data: none are read
run=$work/run deck=$work/model_l.toml

# tried CHECK RANKS MS override…: a run of two steps for which CHECK holds, with sleeps of MS; four tries. A busy machine
# wakes sleepers late, by as much whatever they sleep: so each try sleeps twice as long as the one before. (MS = -: the
# overrides say how long, and each try is the same.)
tried() {
  local holds=$1 ranks=$2 ms=$3 try longer=()
  shift 3
  for try in 1 2 3 4; do
    [ "$ms" = - ] || longer=("run.sleep_ms=$((ms << (try - 1)))")
    rm -rf "$run"
    expect_exit 0 "$ranks" train "$deck" "run.output=$run" run.timing=sleep run.steps=2 "${longer[@]}" "$@"
    if "$holds" >"$work/judged"; then
      cat "$work/judged"
      return
    fi
    echo "try $try: $(cat "$work/judged")"
  done
  fail "$ranks ranks, $*: not in four tries"
}
# The best step: what disturbs it only makes it longer.
least() { column "$run" "$1" | awk 'NR == 1 || $2 < best { best = $2 } END { print best }'; }
within() { awk -v a="$1" -v b="$2" -v bound="$3" 'BEGIN { d = (a - b) / b; exit !(a + 0 > 0 && b + 0 > 0 && d <= bound && -d <= bound) }'; }

# ---- pipelines: p = 8, m = 8; F takes MS, B twice that, or F, B and W take MS each. A hop between ranks that sleep costs
# some tenths of a millisecond: where chunks are short and the idle share is small, MS is larger.
p=8 m=8
bubbles() {
  local bubble
  bubble=$(least bubble)
  echo "ok: $name: bubble $bubble, by plan $planned${formula:+, by formula $formula}"
  within "$bubble" "$planned" 0.05 && within "$bubble" "${formula:-$planned}" 0.05
}
# pipeline NAME FORMULA MS SCHEDULE CHUNKS
pipeline() {
  local name=$1 formula=$2 ms=$3 planned mesh
  mesh=("mesh.pp=$p" "batch.global=$m" model.layers=30 "pipeline.schedule=$4" "pipeline.virtual_stages=$5")
  expect_exit 0 0 plan "$deck" --ranks "$p" "${mesh[@]}"
  planned=$(sed -nE 's/.*idle share ([0-9.]+) %.*/\1/p' "$out" | awk '{ print $1 / 100 }')
  tried bubbles "$p" "$ms" "${mesh[@]}"
  expect_text "$out" "bubble $(awk -v b="$planned" 'BEGIN { printf "%.1f", 100 * b }') % by plan"
  # busy time is m (F + B + W) on each stage; what a step has beside it is idle
  idle=$(awk -v b="$(least bubble)" -v busy=$((m * 3 * ms)) 'BEGIN { print busy * b / (1 - b) }')
}
share() { awk -v p="$p" -v vm=$(($1 * m)) 'BEGIN { print (p - 1) / (vm + p - 1) }'; }
pipeline 1f1b "$(share 1)" 40 1f1b 1
one_f_one_b=$idle
pipeline gpipe "$(share 1)" 40 gpipe 1
pipeline "interleaved, 2 chunks" "$(share 2)" 60 interleaved 2
pipeline "interleaved, 4 chunks" "$(share 4)" 120 interleaved 4
pipeline zero_bubble "$(awk -v p="$p" -v m="$m" 'BEGIN { print (p - 1) / (3 * m + p - 1) }')" 40 zero_bubble 1
within "$(awk -v a="$one_f_one_b" -v b="$idle" 'BEGIN { print a - b }')" $(((p - 1) * 2 * 40)) 0.05 ||
  fail "1F1B idles $one_f_one_b ms a step, zero_bubble $idle: not (p - 1) 2 W = $(((p - 1) * 2 * 40)) ms less"
say "zero_bubble idles $idle ms a step, 1F1B $one_f_one_b: the difference is (p - 1) 2 W"
pipeline "zero_bubble, V form" "" 80 zero_bubble 2
# 1F1B's order with the weight gradients apart, held back until the stage has no more forward passes
awk -v p="$p" -v m="$m" 'BEGIN {
  for (s = 0; s < p; s++) {
    warm = p - 1 - s < m ? p - 1 - s : m
    for (f = 0; f < warm; f++) print s ",F,0," f
    for (b = w = 0; b < m; b++) {
      if (f < m) print s ",F,0," f++
      print s ",B,0," b
      if (f == m) print s ",W,0," w++
    }
    while (w < m) print s ",W,0," w++
  }
}' >"$work/own.csv"
pipeline "from a file" "" 40 "$work/own.csv" 1
say "idle time of eight stages is that of formula and plan"

# ---- ZeRO-3 on dp 4: two micro-batches, embedding, six blocks and head take 20 ms forward and 40 ms backward each
layers=6 hidden=256 ffn=512 vocab=65
block=$((4 * (4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden)))  # bytes in fp32; as many key/value heads as heads
# play MS OVERLAP: seconds of a step and of waiting in it, MS being the gather of a block. A gather stands one use ahead,
# all gradients are summed after a micro-batch, at most two such sums are under way, and each call has the wire to itself.
play() {
  awk -v g="$1" -v overlap="$2" -v f=20 -v m=2 -v layers="$layers" -v block="$block" -v ends="$((4 * vocab * hidden))" '
    function later(a, b) { return a > b ? a : b }
    function gather(use,  u) {
      if (use >= uses) return
      u = use % (2 * units)
      u = u < units ? u : 2 * units - 1 - u
      arrives[use] = now + (u == 0 || u == units - 1 ? g * ends / block : g)
      if (!overlap) now = arrives[use]
    }
    BEGIN {
      units = layers + 2
      uses = m * 2 * units
      all = g * (layers + 2 * ends / block)
      gather(0)
      for (use = 0; use < uses; use++) {
        gather(use + 1)
        now = later(now, arrives[use]) + (use % (2 * units) < units ? f : 2 * f)
        if (use % (2 * units) < 2 * units - 1) continue
        if (sums > 1) now = later(now, summed[sums - 2])
        summed[sums] = now + all
        if (!overlap) now = summed[sums]
        sums++
      }
      for (s = 0; s < sums; s++) now = later(now, summed[s])
      print now / 1000, (now - m * units * 3 * f) / 1000
    }'
}
costs() {
  local seconds exposed
  seconds=$(least seconds)
  exposed=$(sed -nE 's/.*"comm_exposed_s": \{"dp": ([^}]*)\}.*/\1/p' "$run/metrics.jsonl" | sort -g | head -n 1)
  echo "ok: ZeRO-3, $what: a step of $seconds s, $exposed s of it waiting; by plan $planned s, $waiting s"
  within "$seconds" "$planned" 0.05 && near "$exposed" "$waiting" "$(awk -v w="$waiting" 'BEGIN { print 0.1 * w + 0.01 }')"
}
# zero WHAT MS OVERLAP: sets waiting
zero() {
  local what=$1 planned
  read -r planned waiting < <(play "$2" "$([ "$3" = true ] && echo 1 || echo 0)")
  tried costs 4 - zero.stage=3 batch.global=8 "model.layers=$layers" "model.hidden=$hidden" "model.ffn=$ffn" model.kv_heads=4 \
    model.head_dim=64 "model.vocab=$vocab" run.sleep_ms=160 "comm.overlap=$3" \
    "run.sleep_gbps=$(awk -v bytes="$block" -v ms="$2" 'BEGIN { printf "%.8f", bytes * 3 / 4 / ms / 1e6 }')"
}
zero "gathers of 10 ms behind blocks of 20 ms" 10 true
hidden_wait=$waiting
zero "the same gathers, none under way while blocks run" 10 false
awk -v a="$hidden_wait" -v b="$waiting" 'BEGIN { exit !(a < b / 3) }' || fail "overlap hides too little: $hidden_wait s of $waiting"
zero "gathers of 60 ms" 60 true
say "gathers shorter than a block are hidden, longer ones show by as much as the play of the list says"
