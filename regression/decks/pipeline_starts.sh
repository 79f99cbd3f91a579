#!/usr/bin/env bash
# Pipelines and ZeRO before the first step: what is refused, where the blocks go, and what `plan` says and draws.
#   pipeline_starts.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
rm -rf "$work"
mkdir -p "$work"
cp "$decks/model_l.toml" "$work"  # no data: nothing here comes to reading them
limit=10
run=$work/run deck=$work/model_l.toml
train=(train "$deck" "run.output=$run")
# plan makes the same checks without a launcher; a few starts stand for all of them.
planned() { refused 2 0 "$2" plan "$deck" --ranks "$1" "${@:3}"; }

refused 2 4 "model.layers = 1|3 pieces|4 x 1 = 4 chunks" "${train[@]}" mesh.pp=4 model.layers=1
planned 2 "model.layers = 4|6 pieces|2 x 4 = 8 chunks" mesh.pp=2 pipeline.schedule=interleaved pipeline.virtual_stages=4
planned 2 "pipeline.virtual_stages = 2|interleaved|zero_bubble|\"1f1b\"" mesh.pp=2 pipeline.virtual_stages=2
planned 2 "pipeline.virtual_stages = 3|V form" mesh.pp=2 pipeline.virtual_stages=3 pipeline.schedule=zero_bubble
planned 4 "pipeline.stage_layers adds up to 5|model.layers = 4" mesh.pp=4 "pipeline.stage_layers=[1,1,1,2]"
planned 4 "pipeline.stage_layers has 2 entries|4 x 1 = 4 chunks" mesh.pp=4 "pipeline.stage_layers=[2,2]"
planned 4 "pipeline.stage_layers: entry 2 is 0" mesh.pp=4 "pipeline.stage_layers=[2,0,1,1]"
refused 2 4 "zero.shard = 3 does not divide|4 x 1 = 4" "${train[@]}" zero.stage=1 zero.shard=3
planned 2 "zero.shard = 2|zero.stage = 0" zero.shard=2
say "more chunks than pieces, chunks a schedule has not, other sums of blocks and shards that do not divide are refused"

# csv NAME "STAGE ACTION…"…: a file of one chunk a stage
csv() {
  local file=$work/$1.csv row word words
  shift
  for row in "$@"; do
    read -r -a words <<<"$row"
    for word in "${words[@]:1}"; do echo "${words[0]},${word:0:1},0,${word:1}"; done
  done >"$file"
}
csv good "0 F0 F1 B0 B1" "1 F0 B0 F1 B1"
csv missing "0 F0 F1 B0 B1" "1 F0 B0 F1"
csv early "0 F0 F1 B0 B1" "1 F0 F1 B1 F1 B0"
csv stuck "0 F0 B0 F1 B1" "1 F0 F1 B0 B1"
csv letters "0 F0 F1 B0 X1" "1 F0 B0 F1 B1"
csv micros "0 F0 F1 B0 B1" "1 F0 B0 F2 B2"
planned 2 "missing.csv|stage 1: B1 of chunk 0 is missing" mesh.pp=2 batch.micro=4 "pipeline.schedule=$work/missing.csv"
planned 2 "early.csv|stage 1: F1 of chunk 0 stands twice" mesh.pp=2 batch.micro=4 "pipeline.schedule=$work/early.csv"
refused 2 2 "stuck.csv|deadlock|stage 0 waits|stage 1 waits" "${train[@]}" mesh.pp=2 batch.micro=4 "pipeline.schedule=$work/stuck.csv"
planned 2 "letters.csv, line 4|F, B or W" mesh.pp=2 batch.micro=4 "pipeline.schedule=$work/letters.csv"
planned 2 "micros.csv, line 7|micro|0 to 1" mesh.pp=2 batch.micro=4 "pipeline.schedule=$work/micros.csv"
planned 2 "no_such.csv|neither a schedule|1f1b" mesh.pp=2 batch.micro=4 "pipeline.schedule=$work/no_such.csv"
[ ! -e "$run" ] || fail "a refused start left $run"
say "a schedule from a file with a missing, doubled, unknown or waiting action is refused by name"

# Every block stands on one stage, once, whatever divides what (case O024).
while read -r layers pp chunks; do
  mesh=("model.layers=$layers" "mesh.pp=$pp" "pipeline.virtual_stages=$chunks" pipeline.schedule=interleaved)
  expect_exit 0 0 plan "$deck" --ranks "$pp" "${mesh[@]}"
  held=$(grep -oE 'blocks? [0-9]+(-[0-9]+)?' "$out" | sed -E 's/blocks? //; s/^[0-9]+$/&-&/' | while IFS=- read -r a b; do seq "$a" "$b"; done | sort -n)
  [ "$held" = "$(seq "$layers")" ] || fail "$layers blocks on $pp stages of $chunks: $held"
  [ "$(grep -o 'embedding' "$out" | wc -l)$(grep -oE '(, |; )head' "$out" | wc -l)" = 11 ] || fail "embedding or head of $layers blocks on $pp stages"
done <<'LIST'
5 2 1
7 4 1
10 3 1
6 2 2
126 16 1
LIST
say "every block stands on one stage, once"

# What plan says and draws
for picture in map.svg map.png; do
  expect_exit 0 0 plan "$deck" --ranks 4 mesh.pp=4 pipeline.schedule=zero_bubble --map "$work/$picture"
  expect_text "$out" "zero_bubble: 4 stages" "idle share" "peak stash" "wrote $work/$picture"
done
[ "$(head -c 4 "$work/map.svg")" = "<svg" ] || [ "$(head -c 5 "$work/map.svg")" = "<?xml" ] || fail "map.svg is no SVG"
[ "$(head -c 4 "$work/map.png" | od -An -tx1 | tr -d ' ')" = 89504e47 ] || fail "map.png is no PNG"
expect_text "$work/map.svg" "idle" "stash"
expect_exit 0 0 plan "$deck" --ranks 2 mesh.pp=2 batch.micro=4 "pipeline.schedule=$work/good.csv" --rank 1
expect_text "$out" "rank 1" "pp 1" "head"
refused 2 0 "--search|not in this build" plan "$deck" --search
refused 2 0 "map.txt" plan "$deck" --ranks 4 mesh.pp=4 --map "$work/map.txt"
refused 2 0 "2 x|4 ranks" plan "$deck" --ranks 4 mesh.tp=2 mesh.pp=4
say "plan says idle share and stash, draws them, and refuses by name what it has not"
