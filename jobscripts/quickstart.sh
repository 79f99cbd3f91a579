#!/usr/bin/env bash
# From a fresh clone to a trained model: set-up, build, a real text, training on 4 ranks, the loss curve, some lines
# of text from the model. May be run again: what is done already is not done twice.
#   bash jobscripts/quickstart.sh [TEXT]     TEXT: a text file of your own (default: the King James Bible)
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
trap 'report_failure $?' EXIT

if [ $# -gt 1 ] || [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  sed -n '2,4s/^# *//p' "$0"
  if [ $# -eq 1 ]; then exit 0; else exit 2; fi
fi
text_given=
if [ $# -eq 1 ]; then
  if [ ! -f "$1" ] || [ ! -r "$1" ] || [ ! -s "$1" ]; then
    echo "$1 is not a readable text file with something in it" >&2
    exit 2
  fi
  text_given=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
fi
cd "$root"
data=runs/quickstart-data
run=runs/quickstart
orthant=build/cpu/orthant

stage "set-up"
set_up

stage "build"
build cpu orthant

stage "text"
mkdir -p "$data"
if [ -n "$text_given" ]; then
  cp "$text_given" "$data/text.new"
elif command -v bible >/dev/null; then
  # one verse a line, without its reference; a blank line before each chapter
  bible -f "gen1:1-rev22:21" </dev/null | awk '
    match($0, /^[0-9A-Za-z]+:[0-9]+ /) {
      reference = substr($0, 1, RLENGTH - 1); sub(/:.*/, "", reference)
      if (chapter != "" && reference != chapter) print ""
      chapter = reference; $0 = substr($0, RLENGTH + 1)
    }
    { print }' >"$data/text.new"
else
  echo "the program bible (Debian package bible-kjv) is not here;" >&2
  echo "give a text of your own: bash jobscripts/quickstart.sh TEXT" >&2
  exit 2
fi
same=no
if cmp -s "$data/text.new" "$data/text.txt"; then same=yes; fi
if [ $same = no ] || [ ! -e "$data/text.idx" ]; then
  rm -rf "$data/pieces" "$data/text.bin" "$data/text.idx"
  if [ $same = no ] && [ -e "$run" ]; then
    # a checkpoint belongs to the text it was trained on
    n=1
    while [ -e "$run-$n" ]; do n=$((n + 1)); done
    mv "$run" "$run-$n"
    echo "another text than before: the earlier run is now $run-$n"
  fi
  mv "$data/text.new" "$data/text.txt"
  # Documents are what a data set is split by: pieces at line ends, so that the last few are for validation.
  mkdir "$data/pieces"
  split --elide-empty-files --numeric-suffixes --suffix-length=2 --additional-suffix=.txt --number=l/50 \
    "$data/text.txt" "$data/pieces/"
  "$orthant" tokenize --tokenizer bytes --output "$data/new" "$data"/pieces/*.txt
  mv "$data/new.bin" "$data/text.bin"
  mv "$data/new.idx" "$data/text.idx"  # last: it stands for a complete data set
  rm -rf "$data/pieces"
else
  rm -f "$data/text.new"
fi
echo "$data/text.txt: $(wc -c <"$data/text.txt") bytes"

stage "training"
if grep -qs '"state" *: *"finished"' "$run/status.json" && [ ! input/quickstart.toml -nt "$run/status.json" ]; then
  echo "$run is complete (remove the folder to train again)"
else
  # bf16 products where the processor has them; elsewhere they would be emulated, and slower than fp32
  precision=fp32
  if grep -qsE '^flags.* (avx512_bf16|amx_bf16)' /proc/cpuinfo; then precision=bf16; fi
  echo "precision $precision"
  launch 4 "$orthant" train input/quickstart.toml "run.output=$run" "precision.compute=$precision"
fi

stage "loss curve"
"$orthant" plot "$run"

stage "text from the model"
checkpoint=$run/checkpoints/latest
if [ -f "$checkpoint" ]; then checkpoint=$run/checkpoints/$(cat "$checkpoint"); fi  # a file that names the folder
"$orthant" generate "$checkpoint" --tokenizer bytes --prompt "In the beginning" --max-tokens 200 \
  --temperature 0.8 --seed 1
