#!/usr/bin/env bash
# No room for a checkpoint: training goes on, says so, and ends with 3; nothing that was saved is lost.
#   full_disk.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
run=$work/run
train=(train "$work/model_l.toml" "run.output=$run")

# ended_without_room RUN STEPS: what a run says whose last save failed
ended_without_room() {
  expect_text "$err" "checkpoint at step $2 failed" "the last checkpoint could not be written"
  "$check" steps "$1" "$2" || fail "training did not go on"
  [ "$(status "$1" state)" = failed ] && [ "$(status "$1" code)" = 3 ] || fail "status.json does not say failed, 3"
}

# A limit on file sizes, set while the run goes on, plays the full disk where nothing may be mounted: the state file
# no longer fits, the small files do; then a signal asks for a last save. First the only rank, then one of two.
for rank in lone 1; do
  rm -rf "$run"
  more=(batch.global=32 data.samples=128000)
  expect_exit 0 0 "${train[@]}" "${more[@]}" run.steps=2
  if [ "$rank" = lone ]; then start 0 "${train[@]}" "${more[@]}" run.steps=4000; else start 2 "${train[@]}" "${more[@]}" run.steps=4000 mesh.tp=2; fi
  wait_for 30 has_rows "$run" 4
  if [ "$rank" = lone ]; then pid=$(lone_pid "$run"); else pid=$(rank_pid "$run" "$rank"); fi
  prlimit --pid "$pid" --fsize=102400
  kill -USR1 "$pid"
  expect_end 3
  at=$(status "$run" step)
  ended_without_room "$run" "$at"
  left=$(cd "$run/checkpoints" && ls -A | tr '\n' ' ')
  [ "$left" = "latest step-00000002 " ] || fail "left in checkpoints: $left"
  expect_exit 0 0 inspect --verify "$run/checkpoints/step-00000002"
  expect_exit 0 0 "${train[@]}" "${more[@]}" "run.steps=$((at + 2))"
  expect_text "$out" "(step 2)"
  "$check" steps "$run" $((at + 2)) || fail "rows of the run that had no room"
done
say "saves that fail do not stop training; it ends with 3, and the next start goes on from the last good checkpoint"

# full RUN RANKS argument…: the disk holds two checkpoints, not three
full() {
  local run=$1 ranks=$2
  shift 2
  expect_exit 3 "$ranks" train "$work/model_l.toml" "run.output=$run" run.steps=6 checkpoint.every=1 checkpoint.keep=2 "$@"
  ended_without_room "$run" 6
}
disk=$work/disk
mkdir "$disk"
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=2600k none "$disk" 2>/dev/null; then
  trap 'umount -l "$disk"' EXIT
  rm -rf "$run"
  full "$run" 2 "checkpoint.folder=$disk/checkpoints" mesh.tp=2
  expect_exit 0 0 inspect --verify "$disk/checkpoints/step-00000002"
  [ -z "$(find "$disk" -name '.writing*')" ] || fail "an unfinished folder is left on the full disk"
  umount "$disk"
  mount -t tmpfs -o size=2600k none "$disk"
  full "$disk/run" 2
  expect_exit 0 0 inspect --verify "$disk/run/checkpoints/step-00000002"
  umount "$disk"
  mount -t tmpfs -o size=2600k none "$disk"
  # the last save finds room again: that is a good end
  rm -rf "$run"
  head -c 1100k /dev/zero >"$disk/ballast"
  start 1 train "$work/model_l.toml" "run.output=$run" run.steps=4000 checkpoint.every=10 checkpoint.keep=1 batch.global=32 "checkpoint.folder=$disk/checkpoints"
  wait_for 30 grep -q "checkpoint at step" "$err.job"
  rm "$disk/ballast"
  kill -USR1 "$(lone_pid "$run")"
  expect_end 75
  expect_exit 0 0 inspect --verify "$disk/checkpoints/step-$(printf %08d "$(status "$run" step)")"
  say "the same on a disk that is full, and room made in time is used"
else
  skip "the full disk on a tmpfs of 2.6 MB: mounting one is not permitted here (the file size limit above stands in)"
fi
