#!/usr/bin/env bash
# Files that cannot be read or written: exit 3, one message that names the file, and nothing lost.
#   files.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
run=$work/run
train=(train "$work/model_l.toml" "run.output=$run")

# ---- data
bad=$work/bad
spoil() { cp "$work/stream.bin" "$bad.bin"; cp "$work/stream.idx" "$bad.idx"; }
spoil; truncate -s -100 "$bad.bin"
refused 3 2 "$bad.bin|truncated" "${train[@]}" "data.train=[\"$bad\"]"
spoil; truncate -s -8 "$bad.idx"
refused 3 0 "$bad.idx|truncated" "${train[@]}" "data.train=[\"$bad\"]"
spoil; printf X | dd of="$bad.idx" conv=notrunc status=none
refused 3 0 "$bad.idx|magic" "${train[@]}" "data.train=[\"$bad\"]"
spoil; printf '\011' | dd of="$bad.idx" bs=1 seek=17 conv=notrunc status=none
refused 3 0 "$bad.idx|token type is 9" "${train[@]}" "data.train=[\"$bad\"]"
rm "$bad.bin"
refused 3 0 "$bad.bin" "${train[@]}" "data.train=[\"$bad\"]"
say "damaged and missing data files are refused"

# ---- ids outside the vocabulary: '@' is byte 64, the first id that a vocabulary of 64 lacks
mkdir "$work/ids"
for d in 0 1 2 3; do
  text=$(head -c 300 "$work/text.1/0$d.txt" | tr '@' '1')
  if [ "$d" = 2 ]; then text=${text:0:123}@${text:124}; fi
  printf %s "$text" >"$work/ids/$d.txt"
done
expect_exit 0 0 tokenize --tokenizer bytes --eod 10 --output "$work/outside" "$work"/ids/*.txt
messages=()
for mesh in "1 mesh.tp=1" "2 mesh.tp=2" "2 mesh.dp=2"; do
  rm -rf "$run"
  refused 3 "${mesh%% *}" "token 123 of document 2|is 64|vocabulary is 64|model.vocab" "${train[@]}" "data.train=[\"$work/outside\"]" model.vocab=64 run.steps=9 "${mesh##* }"
  messages+=("$(grep '^orthant: ' "$err")")
done
[ "${messages[0]}" = "${messages[1]}" ] && [ "${messages[0]}" = "${messages[2]}" ] || fail "other words on another mesh: ${messages[*]}"
# the same with an id that needs 32 bits, in a file written by hand: u64 and i32 little-endian
le() { local n=$1 i; for ((i = 0; i < $2; i++)); do printf "\\x$(printf %02x $((n >> (8 * i) & 255)))"; done; }
{
  for ((i = 0; i < 200; i++)); do le $((i == 150 ? 70000 : 5)) 4; done
} >"$work/wide.bin"
{
  printf 'MMIDIDX\0\0'; le 1 8; le 4 1; le 1 8; le 2 8; le 200 4; le 0 8; le 0 8; le 1 8
} >"$work/wide.idx"
refused 3 1 "token 150 of document 0|is 70000|vocabulary is 65" "${train[@]}" "data.train=[\"$work/wide\"]" run.steps=9
say "an id outside the vocabulary is refused with document, position, id and vocabulary, the same on each mesh"

# ---- model files
for damage in header truncated; do
  rm -rf "$work/model" "$run"
  cp -r "$goldens/llama-tiny" "$work/model"
  chmod -R u+w "$work/model"
  case $damage in
    header) printf '\377\377\377\377\377\377\377\177' | dd of="$work/model/model.safetensors" conv=notrunc status=none ;;
    truncated) truncate -s -64 "$work/model/model.safetensors" ;;
  esac
  refused 3 2 "model.safetensors" train "$goldens/llama-tiny/deck.toml" "run.output=$run" "model.load=$work/model" run.steps=1
done
say "safetensors files with a bad header or a missing end are refused"

# ---- folders
: >"$work/file"
refused 3 2 "$work/file" train "$work/model_l.toml" "run.output=$work/file/run"
rm -rf "$run"
refused 3 2 "$work/file" "${train[@]}" "checkpoint.folder=$work/file"
[ ! -s "$run/metrics.jsonl" ] || fail "steps were trained although no checkpoint could be written"
if [ "$(id -u)" != 0 ]; then
  mkdir -p "$work/closed"
  chmod 555 "$work/closed"
  refused 3 2 "$work/closed" train "$work/model_l.toml" "run.output=$work/closed/run"
fi
say "a folder that cannot be written is refused before the first step"
