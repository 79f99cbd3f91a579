#!/usr/bin/env bash
# Bad steps: spikes are not taken, several lead back to the last checkpoint, by the same data or behind it; what cannot
# work is refused or ends with 5; copies of parameters are compared on meshes of every axis.
#   guard.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
# Among six documents of the usual kind a short one of other characters, in no order: its samples are a shock.
awk 'BEGIN { x = 7; for (i = 0; i < 400; i++) { x = (x * 75 + 74) % 65537; printf "%c", 11 + x % 36 } }' >"$work/text.1/zz.txt"
expect_exit 0 0 tokenize --tokenizer bytes --eod 10 --output "$work/shock" "$work"/text.1/*.txt
settings=("data.train=['$work/shock']" data.samples=1100 batch.global=2 run.reproducible=true optimizer.decay_steps=200 guard.spike_factor=1.35)
deck=$work/model_l.toml
bad_steps() { column "$1" skipped | cut -d' ' -f1; }

# A spike is not taken, and training goes on; the same steps on every mesh, and over a stop.
expect_exit 0 0 train "$deck" "run.output=$work/one" "${settings[@]}" run.steps=200
[ "$(bad_steps "$work/one" | wc -l)" -ge 3 ] || fail "$(bad_steps "$work/one" | wc -l) steps with samples of the shock were skipped"
first=$(bad_steps "$work/one" | head -n 1)
expect_text "$out" "step $first: not taken: loss" "x the median" "guard.spike_factor = 1.35"
expect_exit 0 4 train "$deck" "run.output=$work/four" "${settings[@]}" run.steps=$((first + 1)) mesh.tp=2 mesh.dp=2
expect_exit 0 4 train "$deck" "run.output=$work/four" "${settings[@]}" run.steps=200 mesh.pp=2 mesh.dp=2 zero.stage=1
diff <(bits "$work/one") <(bits "$work/four") >"$work/difference" || fail "other numbers in two lives on other meshes: $(head -n 4 "$work/difference")"
[ "$(bad_steps "$work/one")" = "$(bad_steps "$work/four")" ] || fail "other steps were skipped on another mesh"
say "$(bad_steps "$work/one" | wc -l) spikes were not taken (the first in step $first): the same on one rank and, over a stop, on two meshes of four"

# One bad step leads back to the last checkpoint, and behind the samples since: no bad step is left in the run.
back=("${settings[@]}" run.steps=200 checkpoint.every=10 guard.rollback_after=1 guard.skip_data=true)
expect_exit 0 0 train "$deck" "run.output=$work/back" "${back[@]}"
expect_text "$out" "rollback  from step $first to" "samples of these steps"
"$check" steps "$work/back" 200 || fail "rows of a run that went back"
[ -z "$(bad_steps "$work/back")" ] || fail "bad steps are left after rollbacks: $(bad_steps "$work/back" | tr '\n' ' ')"
times=$(grep -c '^rollback' "$out")
expect_exit 0 0 inspect "$work/back"
expect_text "$out" "of these samples were passed over after rollbacks"
tokens=$(value "$work/back" 200 tokens)
expect_text "$out" " $tokens"
expect_exit 0 0 inspect "$work/back" --step 200
samples=$(sed -nE 's/.*samples ([0-9]+) to .*/\1/p' "$out" | head -n 1)
[ "$samples" -gt 400 ] || fail "step 200 has sample $samples, as if nothing had been passed over"
say "$times rollbacks behind the samples that led to them; rows, ledger and places of samples say so"

# Killed between a rollback and the next checkpoint, on a mesh: the next life meets the spike again and ends alike.
bits "$work/back" >"$work/whole"
start 4 train "$deck" "run.output=$work/killed" "${back[@]}" mesh.tp=2 mesh.dp=2
wait_for 60 grep -q '^rollback' "$out.job"
kill -KILL "$(rank_pid "$work/killed" 1)"
expect_end killed
expect_exit 0 2 train "$deck" "run.output=$work/killed" "${back[@]}" mesh.dp=2
diff "$work/whole" <(bits "$work/killed") >"$work/difference" || fail "killed behind a rollback, the run has other numbers: $(head -n 4 "$work/difference")"
say "killed behind a rollback: the same bits in the end"

# By the same data: a machine at fault may do better the second time. This one does not, and the run ends with 5.
refused 5 2 "as before the run went back to step|guard.skip_data" train "$deck" "run.output=$work/again" "${settings[@]}" run.steps=200 checkpoint.every=10 guard.rollback_after=1 mesh.tp=2
[ "$(status "$work/again" code)" = 5 ] || fail "status.json says $(status "$work/again" code)"
refused 5 0 "no more of them than run.steps needs|data.samples" train "$deck" "run.output=$work/spare" "${back[@]}" data.samples=1140 run.steps=570
refused 5 2 "guard.rollback_after = 2|asks for the last checkpoint|none yet" train "$deck" "run.output=$work/none" run.steps=20 optimizer.lr=1e30 guard.rollback_after=2 checkpoint.every=20 mesh.tp=2
say "the same bad step again, no samples to spare, no checkpoint yet: exit 5, and the reason"

refused 2 2 "checkpoint.every|guard.rollback_after = 3" train "$deck" "run.output=$work/no" guard.rollback_after=3
[ ! -e "$work/no" ] || fail "a refused start made a folder"

# Copies agree after every step on meshes of every axis, and before each save; with bf16 the masters too.
for mesh in "mesh.tp=2 mesh.sequence_parallel=true mesh.pp=2 zero.stage=2" "mesh.cp=2 mesh.dp=2 zero.stage=3 zero.shard=2" "mesh.tp=4 precision.compute=bf16"; do
  read -ra words <<<"$mesh"
  expect_exit 0 4 train "$deck" "run.output=$work/copies" guard.replica_check_every=1 run.steps=3 checkpoint.every=2 checkpoint.resume=never "${words[@]}"
done
say "copies of parameters and optimiser state agree on three meshes of four ranks"
