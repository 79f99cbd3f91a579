#!/usr/bin/env bash
# Messages between stages from 1 KiB to 16 MiB, every send waiting for its receive (ORTHANT_SYNCHRONOUS_SENDS): no
# schedule leans on MPI's buffers, nothing hangs, and the numbers are those of one rank and ordinary sends. Case O030.
#   pipeline_sends.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
micros=4

# messages KIB MICRO SEQUENCE HIDDEN LAYERS "RANKS…": a message is micro x sequence x hidden x 4 bytes
messages() {
  local kib=$1 bytes=$(($2 * $3 * $4 * 4)) alone=$work/alone run=$work/run ranks order chunks sent calls
  [ "$bytes" = $((kib * 1024)) ] || fail "$2 x $3 x $4 x 4 bytes are not $kib KiB"
  # narrow inside, so that the hidden width costs little but the message
  local settings=(run.steps=1 "batch.micro=$2" "batch.global=$((micros * $2))" "data.sequence=$3" "model.hidden=$4" "model.layers=$5"
    model.heads=1 model.kv_heads=1 model.head_dim=16 model.ffn=16 optimizer.name=sgd)
  rm -rf "$alone"
  expect_exit 0 0 train "$work/model_l.toml" "run.output=$alone" "${settings[@]}"
  for ranks in $6; do
    while read -r order chunks; do
      [ $((ranks * chunks)) -le $(($5 + 2)) ] || continue
      case $ranks.$order.$chunks in 2.gpipe.1 | 2.zero_bubble.1) continue ;; esac  # these run on 4
      rm -rf "$run"
      ORTHANT_SYNCHRONOUS_SENDS=1 expect_exit 0 "$ranks" train "$work/model_l.toml" "run.output=$run" "${settings[@]}" \
        "mesh.pp=$ranks" "pipeline.schedule=$order" "pipeline.virtual_stages=$chunks"
      # the V form turns on its last rank, without a message
      calls=$((2 * (ranks * chunks - 1) * micros))
      [ "$order.$chunks" != zero_bubble.2 ] || calls=$((calls - 2 * micros))
      sent=$(tr -d ' \n' <"$run/traffic.json" | sed -nE 's/.*"pp":\[\{"bytes":([0-9]+),"calls":([0-9]+),.*/\1 \2/p')
      [ "$sent" = "$((calls * bytes)) $calls" ] || fail "$kib KiB, $order on $ranks: bytes and messages are $sent, not $((calls * bytes)) $calls"
      curves_near "$alone" "$run" 2e-5
    done <<'LIST'
1f1b 1
gpipe 1
interleaved 2
zero_bubble 1
zero_bubble 2
LIST
  done
  say "messages of $kib KiB, sends synchronous: the schedules end with the numbers of one rank"
}
messages 1 1 16 16 6 4
messages 64 4 16 256 6 4
messages 1024 16 16 1024 6 "2 4"
messages 16384 64 64 1024 2 "2 4"

ORTHANT_SYNCHRONOUS_SENDS=perhaps expect_exit 2 2 train "$work/model_l.toml" "run.output=$work/run" mesh.pp=2
expect_text "$err" ORTHANT_SYNCHRONOUS_SENDS perhaps
say "any other value of the variable is refused"
