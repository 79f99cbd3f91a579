#!/usr/bin/env bash
# orthant verify on the small Llama: layouts agree within the bound, to the bit in reproducible mode and in a repetition;
# what is past a bound is exit 1 with a tensor's name; it leaves no files.
#   verify.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
rm -rf "$work"
mkdir -p "$work/here"
cd "$work/here"
verify=(verify "$goldens/llama-tiny/deck.toml")
# row LAYOUT: its columns, blanks squeezed
row() { tr -s ' ' <"$out" | grep -F -m 1 -- "$1 " || fail "no row of $1"; }

expect_exit 0 4 "${verify[@]}" --layouts "tp2,pp2;dp4;cp2,tp2,sp" --steps 3
expect_text "$out" "reference  one rank: loss 5.5" "2e-05 in loss, 0.001 relative" "3 of 3 layouts passed"
for layout in tp2,pp2 dp4 tp2,cp2,sp; do [[ $(row "$layout") == *" pass" ]] || fail "$layout does not pass"; done
say "three layouts of four ranks are within the bound of one rank"

expect_exit 0 4 "${verify[@]}" --layouts "tp2,pp2;cp2,tp2,sp;pp2,v2,z3" --steps 2 run.reproducible=true
expect_text "$out" "the same bits"
for layout in tp2,pp2 tp2,cp2,sp pp2,dp2,v2,z3; do
  [ "$(row "$layout")" = "$layout 0 0 0 pass" ] || fail "$layout differs in reproducible mode"
done
say "reproducible mode has no differences"

expect_exit 1 4 "${verify[@]}" --layouts "tp2,pp2" --steps 2 --bound 0
[[ $(row tp2,pp2) == *" FAIL" ]] || fail "rounding passes a bound of 0"
expect_text "$out" "past the bound from step 1" "first tensor that differs: embedding.tokens.weight [" \
  "on rank 0 (tp 0, cp 0, pp 0, dp 0)" "1 of 1 layout failed"
expect_exit 1 2 "${verify[@]}" --layouts "tp2" --steps 2 --bound 1e-12
expect_text "$out" "1e-12 in loss, 5e-11 relative" "first tensor that differs: "
say "past the bound is exit 1, naming step, tensor, element and rank"

expect_exit 0 2 "${verify[@]}" --steps 2 --repeat
for layout in dp2 pp2 cp2 tp2 tp2,sp; do
  [[ $(row "$layout") == *" same bits pass" ]] || fail "$layout is not among all, or does not repeat"
done
expect_exit 0 2 "${verify[@]}" --layouts all --steps 1 batch.micro=8
expect_text "$out" "skipped    1 layout" "4 of 4 layouts passed"
say "all layouts of two ranks, each twice with the same bits; what a deck cannot have is skipped and counted"

expect_exit 1 2 "${verify[@]}" --layouts "tp3;pp2" --steps 1
[[ $(row tp3) == *" refused" && $(row pp2) == *" pass" ]] || fail "the refused layout is not told apart"
expect_text "$out" "a legal mesh for 2 ranks" "1 of 2 layouts failed"
expect_exit 0 2 "${verify[@]}" --layouts "tp2;tp2,z1" --steps 1 memory.limit_gb=0.006
expect_text "$out" "one rank   this run needs" "reference  tp2: loss" "2 of 2 layouts passed"
expect_exit 1 2 "${verify[@]}" --layouts "tp2" --steps 1 memory.limit_gb=0.006
expect_text "$out" "nothing was compared"
say "a layout that was named and cannot run is a failure; without memory for one rank the first layout is the reference"

refused 2 2 "tp2,foo|\"foo\"|tpN, cpN, ppN, dpN|all_to_all|zero_bubble" "${verify[@]}" --layouts "dp2;tp2,foo"
refused 2 2 "\"tp2\" says tp a second time" "${verify[@]}" --layouts "tp2,tp2"
refused 2 2 "unknown key model.layrs" "${verify[@]}" model.layrs=3
refused 2 0 "sleep" "${verify[@]}" run.timing=sleep
refused 2 0 "--steps" "${verify[@]}" --steps 0
refused 3 2 "no_such" "${verify[@]}" --steps 1 "data.train=$work/no_such"
say "wrong words, decks and data have their exit codes"

[ -z "$(ls -A "$work/here")" ] || fail "verify left files behind: $(ls -A "$work/here")"
say "nothing is written"
