#!/usr/bin/env bash
# Checkpoints on disks that fail, fall short, are slow or forget bits, played by regression/tools/fault_shim.cpp: each
# fault is told by the name of the file, training goes on, and nothing but complete checkpoints is ever loaded.
#   injected.sh ORTHANT CHECK_RUN WORK SHIM FILES      FILES: checkpoint.files, -1 or 1
set -euo pipefail
. "$(dirname "$0")/lib.sh"
shim=${4:?the library made of fault_shim.cpp} files=${5:?-1 or 1}
prepare
limit=30

# Rules and log of the next launches; the library is loaded into orthant alone, not into its launcher.
fault='' log=''
launch_words() {
  if [ "$1" = 0 ]; then words=(); else words=("${launcher[@]}" "$1"); fi
  words+=(env "LD_PRELOAD=$shim" "ORTHANT_FAULT=$fault" ${log:+"ORTHANT_FAULT_LOG=$log"})
}
# Every run is made in $work/run: its name is part of what a checkpoint holds, and bytes are compared.
cd "$work"
at=''
begin() { at=$1 && rm -rf run other log; }
train=(train "$work/model_l.toml" "run.output=$work/run" mesh.tp=2 data.samples=400 batch.global=4 checkpoint.every=1 checkpoint.keep=60
  "checkpoint.files=$files")
folder() { printf 'run/checkpoints/step-%08d' "$1"; }
verified() { "$orthant" inspect --verify "$1" >"$out" 2>"$err" || fail "$at: $1 does not verify"; }
nothing_unfinished() { [ -z "$(find run/checkpoints -name '.[wr]*')" ] || fail "left in $at: $(ls -A run/checkpoints)"; }
is_writing() { [ -n "$(find run/checkpoints -name ".writing-$1-*")" ]; }
told() { grep -c "^orthant: checkpoint at step $1 failed" "$err" || true; }

# same_as_straight STEP: that checkpoint is to the byte the one of the run without faults, but for how many were saved
# before it; where the decks differ in the number of steps, only the files that hold nothing but tensors are
same_as_straight() {
  local mine good file
  mine=$(folder "$1") good=$straight/checkpoints/$(basename "$(folder "$1")")
  if cmp -s run/deck.toml "$straight/deck.toml"; then
    diff <(grep -vE '"sequence"|of the rest' "$good/manifest.json") <(grep -vE '"sequence"|of the rest' "$mine/manifest.json") || fail "$at: another manifest in $mine"
  else
    verified "$mine"
  fi
  for file in "$mine"/*.h5; do
    [[ $file != */state.h5 ]] || cmp -s run/deck.toml "$straight/deck.toml" || continue
    cmp "$file" "$good/$(basename "$file")" || fail "$at: $file is not what a run without faults saves"
  done
}
# good_but STEPS BAD…: up to step STEPS, every checkpoint but those of the steps BAD is there, complete and right
good_but() {
  local step steps=$1 bad=" ${*:2} "
  for ((step = 1; step <= steps; step++)); do
    if [[ $bad == *" $step "* ]]; then
      [ ! -e "$(folder "$step")" ] || fail "$at has a checkpoint of step $step, whose save failed"
    else
      same_as_straight "$step"
    fi
  done
  diff <(bits "$straight" | head -n "$steps") <(bits run) || fail "$at: the faults changed the numbers of training"
  nothing_unfinished
}

# What may happen to a save, one a line: the rule, and what the message says; "-" where the save has to cope. SAVE
# stands for the folder that is being written, DATA for a file that several ranks or rank 1 write.
faults() {
  cat <<'LIST'
op=write SAVE path=/DATA after=PARALLEL error=EIO rank=1|DATA|Input/output error
op=write SAVE path=/DATA error=EDQUOT rank=1|DATA|quota
op=write SAVE path=/DATA after=PARALLEL short times=1 rank=1;op=write SAVE path=/DATA after=NEXT error=ENOSPC rank=1|DATA|write
op=write SAVE path=/state.h5 after=2 error=EIO rank=0|state.h5|Input/output error
op=write SAVE path=/state.h5 short times=9 rank=0|-
op=write SAVE path=/manifest.json error=ENOSPC|manifest.json|No space left
op=write SAVE path=/manifest.json short times=1;op=write SAVE path=/manifest.json after=2 error=EDQUOT|manifest.json|quota
op=write SAVE path=/manifest.json short|-
op=fsync SAVE path=/DATA error=EIO rank=1|DATA|Input/output error
op=fsync SAVE path=/manifest.json error=EIO|manifest.json|Input/output error
op=rename SAVE error=EIO|step-|Input/output error
op=fallocate SAVE path=/state.h5 error=ENOSPC|state.h5|No space left
op=fallocate SAVE error=EOPNOTSUPP|-
op=ftruncate SAVE path=/state.h5 error=EIO|state.h5|Input/output error
op=mkdir SAVE error=EACCES|.writing-|Permission denied
op=open SAVE path=/state.h5 error=EACCES rank=0|state.h5|Permission denied
op=write SAVE path=/.room error=ENOSPC;op=fallocate SAVE path=/.room error=ENOSPC|.room|No space left
op=stat SAVE error=ENOENT times=4 rank=1|-
LIST
  # the file that rank 1 makes alone
  echo 'op=open SAVE path=/DATA error=EACCES rank=1|DATA|Permission denied'
}

data=state.h5 parallel=3
[ "$files" = -1 ] || data=data-00001.h5 parallel=40  # the file is made by rank 1, with fewer writes than that
straight=''
for async in true false; do
  name=$files.$async
  these=("${train[@]}" "checkpoint.async=$async")

  # ---- without faults: what all others are compared with, and who opens what (case O088)
  begin "$name, no faults"
  mapfile -t list < <(faults)
  steps=$((2 * ${#list[@]} + 1))
  log=log
  expect_exit 0 2 "${these[@]}" "run.steps=$steps"
  log=''
  [ -z "$straight" ] || [ "$files" = -1 ] || cmp "$straight/checkpoints/step-00000007/$data" "$(folder 7)/$data" || fail "saves in the background hold other tensors"
  straight=$work/straight.$name
  cp -r run "$straight"
  verified "$(folder 1)"
  verified "$(folder $steps)"
  nothing_unfinished
  # files that MPI-IO opens on all ranks are made by one of them; its own scratch files do not count
  awk -v run="$work/run/" 'index($4, run) == 1 && $4 !~ /locktest/ && ($3 == "create" || ($3 == "open" && $4 !~ /\.h5$/)) {
         opened++
         if (($4 in by) && by[$4] != $2) { print "two processes write " $4; bad = 1 }
         by[$4] = $2
       } END { exit bad || opened < 50 }' log || fail "$at: a file of a save is opened by more than one process"
  for word in run/status.json.new run/metrics.jsonl run/checkpoints/.latest-new .writing-2-.*/manifest.json .writing-2-.*/state.h5; do
    grep -qE "^0 [0-9]+ (create|open) .*$word$" log || fail "$at: rank 0 did not open $word"
  done
  if grep -E "^[1-9].* create .*(manifest|latest|metrics|status|state.h5)$" log; then fail "another rank than 0 makes a small file"; fi

  # ---- every fault in turn, a good save behind each; the last save is good, so the run is
  begin "$name, faults"
  fault='' bad=()
  for ((i = 0; i < ${#list[@]}; i++)); do
    rule=${list[i]%%|*} step=$((2 * i + 2))
    rule=${rule//SAVE/path=.writing-$step-} rule=${rule//DATA/$data} rule=${rule//PARALLEL/$parallel}
    fault+="${rule//NEXT/$((parallel + 1))};"
    [[ ${list[i]} == *"|-" ]] || bad+=("$step")
  done
  expect_exit 0 2 "${these[@]}" "run.steps=$steps"
  fault=''
  for ((step = 1; step <= steps; step++)); do
    if [[ " ${bad[*]} " != *" $step "* ]]; then
      [ "$(told $step)" = 0 ] || fail "a save of step $step that need not fail: ${list[step / 2 - 1]}"
      continue
    fi
    [ "$(told $step)" = 1 ] || fail "step $step: the fault is told $(told $step) times: ${list[step / 2 - 1]}"
    IFS='|' read -r rule file reason <<<"${list[step / 2 - 1]}"
    grep "^orthant: checkpoint at step $step failed" "$err" >"$work/message"
    expect_text "$work/message" "${file//DATA/$data}" "$reason"
  done
  good_but $steps "${bad[@]}"
  "$check" steps run $steps || fail "rows of $at"
  say "files $files, async $async: ${#bad[@]} faults in $steps saves are told by name, the rest holds the right bytes"

  # ---- the last save fails; a rank dies in the middle of one; then all is well again
  begin "$name, bad ends"
  fault="op=write path=.writing-3- path=/$data after=$parallel error=EIO rank=1"
  expect_exit 3 2 "${these[@]}" run.steps=3
  expect_text "$err" "checkpoint at step 3 failed" "$data" "the last checkpoint could not be written"
  [ "$(told 3)" = 1 ] || fail "a failed save is told $(told 3) times"
  [ "$(status run state)" = failed ] && [ "$(status run code)" = 3 ] || fail "status.json does not say failed, 3"
  good_but 3 3
  fault="op=write path=.writing-5- path=/$data after=$parallel exit=SIGKILL rank=1"
  start 2 "${these[@]}" run.steps=8
  expect_end killed
  expect_text "$out" "(step 2), life 2"
  for step in 1 2 3 4; do verified "$(folder $step)"; done
  unfinished=$(find run/checkpoints -name '.writing-5-*')
  [ -n "$unfinished" ] && [ ! -e "$(folder 5)" ] || fail "killed while saving, left: $(ls -A run/checkpoints)"
  fault=''
  refused 3 0 "$(basename "$unfinished")|manifest.json|no complete checkpoint" train "$work/model_l.toml" run.output=other "checkpoint.resume=$unfinished"
  expect_exit 0 2 "${these[@]}" run.steps=8
  expect_text "$out" "(step 4), life 3"
  good_but 8
  "$check" steps run 8 || fail "rows of $at"
  say "files $files, async $async: a last save that fails ends with 3, one cut short by a kill is never used"

  # ---- a slow disk, and rank 0 slow with the last of all writes (case O087): no rank goes on to the next save, or
  # ends, before a checkpoint is complete
  begin "$name, slow"
  log=log fault="op=write path=.writing- path=/$data delay_ms=3 rank=1;op=rename path=/latest delay_ms=200 rank=0"
  expect_exit 0 2 "${these[@]}" run.steps=3
  log='' fault=''
  # where saves are behind the training, it goes on while the first one is slow
  order=$(grep -oE '^(step 2/3|saved .*step-00000001) ' "$out" | cut -c1-5 | tr -d '\n')
  if grep -qE '^saves +behind the training' "$out"; then
    [ "$async" = true ] && [ "$order" = "step saved" ] || fail "$at: training did not go on while a checkpoint was written"
  else
    [ "$order" = "savedstep " ] || fail "$at: training went on before the checkpoint was complete"
  fi
  good_but 3
  awk '$3 == "rename" && $4 ~ /\/latest$/ { complete++ }
       match($4, /\.writing-[0-9]+/) && substr($4, RSTART + 9, RLENGTH - 9) > complete + 1 { print "too early: " $0; bad = 1 }
       $3 == "exit" { ended++; if (complete != 3) { print "ends too early: " $0; bad = 1 } }
       END { exit bad || ended != 2 }' log || fail "$at: a rank did not wait for a checkpoint to be complete"
  say "files $files, async $async: a slow disk changes nothing, and nobody runs ahead of an unfinished save"

  # ---- one checkpoint is kept, and the next one's writer hangs: the old one stays till the new one is complete (case O085)
  begin "$name, keep 1"
  fault="op=write path=.writing-2- delay_ms=20000 times=1 rank=0"
  start 2 "${these[@]}" checkpoint.keep=1 run.steps=3
  wait_for 20 is_writing 2
  verified "$(folder 1)"
  [ "$(cat run/checkpoints/latest)" = step-00000001 ] || fail "$at: latest names $(cat run/checkpoints/latest)"
  kill -KILL "$(rank_pid "$work/run" 0)"
  expect_end killed
  fault=''
  expect_exit 0 2 "${these[@]}" checkpoint.keep=1 run.steps=3
  expect_text "$out" "(step 1), life 2"
  [ "$(ls -A run/checkpoints | tr '\n' ' ')" = "latest step-00000003 " ] || fail "$at: left: $(ls -A run/checkpoints)"
  say "files $files, async $async: the only checkpoint stays while the next one is written"
done

# ---- a bit that flips in a complete checkpoint: each file of the newest ones in turn, at its head, middle and end
begin "files $files, flipped bits"
cp -r "$straight" run
step=$steps damaged=()
for file in "$(folder $step)"/*; do
  for place in head middle end sequence; do
    [ "$place" != sequence ] || [ "$(basename "$file")" = manifest.json ] || continue
    path=$(folder $step)/$(basename "$file")
    size=$(stat -c %s "$path")
    case $place in
      head) offset=9 ;;
      middle) offset=$((size / 2)) ;;
      end) offset=$((size - 2)) ;;
      sequence) offset=$(($(grep -ob '"sequence": ' "$path" | cut -d: -f1) + 12)) ;;
    esac
    # in the middle of the manifest: the last digit of a checksum
    [ "$place$(basename "$file")" != middlemanifest.json ] || offset=$(($(grep -ob '"xxh64": "' "$path" | head -n 1 | cut -d: -f1) + 25))
    byte=$(od -An -tu1 -j "$offset" -N 1 "$path")
    printf '%b' "\\x$(printf %02x $((byte ^ 1)))" | dd of="$path" bs=1 seek="$offset" conv=notrunc status=none
    damaged+=("$step:$(basename "$file")")
    step=$((step - 1))
  done
done
for which in "${damaged[@]}"; do
  path=$(folder "${which%%:*}") file=${which#*:}
  ! "$orthant" inspect --verify "$path" >"$out" 2>&1 || fail "$at: $path verifies with a flipped bit in $file"
  [ "$file" = manifest.json ] || expect_text "$out" "$file"
  refused 3 0 "$path|$([ "$file" = manifest.json ] || echo "$file")" train "$work/model_l.toml" run.output=other "checkpoint.resume=$path"
done
expect_exit 0 2 "${train[@]}" "run.steps=$((steps + 1))"
for which in "${damaged[@]}"; do expect_text "$out" "checkpoint passed over: $work/$(folder "${which%%:*}")"; done
[ "$(grep -c '^checkpoint passed over' "$out")" = ${#damaged[@]} ] || fail "a good checkpoint is passed over"
expect_text "$out" "(step $step), life 2"
"$check" steps run $((steps + 1)) || fail "rows of $at"
say "files $files: a flipped bit in any of ${#damaged[@]} places is found and named, and the checkpoint before is taken"

# ---- the name of the last complete one cannot be written: said, and mended by the next save
begin latest
fault="op=rename path=/latest error=EIO after=2 times=1"
expect_exit 0 2 "${train[@]}" run.steps=3
fault=''
cat "$out" "$err" >"$work/message"
expect_text "$work/message" "checkpoints/latest" "Input/output error"
[ "$(cat run/checkpoints/latest)" = step-00000003 ] || fail "$at: latest names $(cat run/checkpoints/latest)"
for step in 1 2 3; do [ $step = 2 ] && [ ! -e "$(folder 2)" ] || verified "$(folder $step)"; done
say "a pointer that cannot be moved is told, and no checkpoint suffers"

# ---- a file system without locks, and one that is read-only (case O093)
begin locks
for error in ENOLCK ENOSYS; do
  rm -rf run
  fault="op=flock error=$error"
  expect_exit 0 2 "${train[@]}" run.steps=2
  expect_exit 0 2 "${train[@]}" run.steps=3
  expect_text "$out" "(step 2), life 2"
  verified "$(folder 3)"
done
for error in ENOLCK ENOSYS EROFS; do
  fault="op=flock path=/run/ error=$error;op=open path=/run/ error=EROFS;op=unlink path=/run/ error=EROFS"
  expect_exit 0 0 inspect --verify "$(folder 3)"
  rm -rf elsewhere from.hf
  expect_exit 0 2 "${train[@]}" run.output=elsewhere "checkpoint.resume=$(folder 3)" run.steps=4
  expect_text "$out" "(step 3)"
  expect_exit 0 0 convert "$(folder 3)" from.hf
done
fault=''
say "saves need no file locks where there are none, and a read-only place without locks can be loaded from"
