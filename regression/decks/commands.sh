#!/usr/bin/env bash
# From text to text: tokenize, inspect, train, convert there and back, generate, plot, bench.
#   commands.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare

# ---- tokenize: JSON lines on one rank and on three give the bytes of the golden data set
expect_exit 0 0 tokenize --tokenizer bytes --output "$work/ruth" "$goldens/data/ruth.jsonl"
expect_exit 0 3 tokenize --tokenizer bytes --output "$work/ruth.3" "$goldens/data/ruth.jsonl"
for end in bin idx; do
  cmp "$work/ruth.$end" "$goldens/data/ruth.$end" || fail "ruth.$end is not the golden one"
  cmp "$work/ruth.$end" "$work/ruth.3.$end" || fail "ruth.$end depends on the ranks"
done
expect_exit 0 0 inspect --verify "$work/ruth"
expect_text "$out" "documents" "tokens of type u16" "all tokens read"
expect_exit 0 0 tokenize --tokenizer bytes --decode "$work/stream"
cat "$work"/text.1/*.txt >"$work/plain"
tr -d '\n\012' <"$out" | cmp - "$work/plain" || fail "--decode gives another text"
say "tokenize gives the golden data set on any number of ranks, and decodes to the text"

# ---- inspect a deck: the samples of the golden order
deck=$goldens/llama-tiny/deck.toml
sum=$(sed -nE '0,/"sha256"/s/.*"sha256": *"([0-9a-f]{64})".*/\1/p' "$goldens/data/order.json")
expect_exit 0 0 inspect "$deck" --samples 480
expect_text "$out" "sha256 $sum"
expect_exit 0 0 inspect "$deck" --step 60
expect_text "$out" "samples 472 to 479" "document"
expect_exit 2 0 inspect "$deck" model.layrs=3
expect_text "$err" model.layers
say "inspect shows the samples of a deck, with the golden checksum"

# ---- train, then look at the checkpoint
run=$work/run
expect_exit 0 2 train "$deck" "run.output=$run" run.steps=5 mesh.tp=2
checkpoint=$run/checkpoints/step-00000005
[ "$(cat "$run/checkpoints/latest")" = step-00000005 ] || fail "latest names $(cat "$run/checkpoints/latest")"
expect_exit 0 0 inspect --verify "$checkpoint"
expect_text "$out" "step 5" "parameters" "checksums agree"
expect_exit 0 0 inspect "$run"
expect_text "$out" "latest complete: step 5"
expect_exit 0 0 inspect "$run" --step 5
expect_text "$out" "samples 32 to 39"
cp -r "$checkpoint" "$work/damaged"
printf '\125\252' | dd of="$work/damaged/state.h5" bs=1 seek=300000 conv=notrunc status=none
expect_exit 1 0 inspect --verify "$work/damaged"
expect_text "$out" BAD state.h5
expect_exit 0 0 train "$run/deck.toml" "run.output=$work/again" mesh.tp=1
curves_near "$run" "$work/again" 2e-5
say "the checkpoint verifies, a damaged one ends with 1, and the resolved deck repeats the run"

# ---- convert: checkpoint -> Hugging Face -> checkpoint -> Hugging Face, and a foreign folder there and back
expect_exit 0 0 convert "$checkpoint" "$work/hf"
expect_exit 0 0 convert "$work/hf" "$work/back"
expect_exit 0 0 convert "$work/back" "$work/hf2"
for file in model.safetensors config.json; do cmp "$work/hf/$file" "$work/hf2/$file" || fail "$file changed on the way"; done
for model in gpt2 llama qwen3; do
  expect_exit 0 0 convert "$goldens/$model-tiny" "$work/c.$model"
  expect_exit 0 0 convert "$work/c.$model" "$work/h.$model"
  cmp "$goldens/$model-tiny/model.safetensors" "$work/h.$model/model.safetensors" || fail "tensors of $model changed on the way"
  diff -b "$goldens/$model-tiny/config.json" "$work/h.$model/config.json" || fail "config.json of $model changed on the way"
done
expect_exit 2 0 convert "$checkpoint" "$work/hf"
expect_text "$err" "not empty"
expect_exit 3 0 convert "$work/masks" "$work/nothing"
say "conversion there and back keeps every bit"

# ---- generate: the same text twice, from the checkpoint, the run, and the Hugging Face folder
for model in "$checkpoint" "$checkpoint" "$run" "$work/hf" "$work/back"; do
  expect_exit 0 0 generate "$model" --prompt "And it came to pass" --max-tokens 40 --temperature 0
  [ -e "$work/text" ] || cp "$out" "$work/text"
  cmp "$out" "$work/text" || fail "another text from $model"
done
[ "$(head -c 19 "$work/text")" = "And it came to pass" ] && [ "$(wc -c <"$work/text")" -gt 40 ] || fail "not a text: $(cat "$work/text")"
expect_exit 0 0 generate "$run" --prompt Go --max-tokens 40 --seed 1
cp "$out" "$work/text1"
expect_exit 0 0 generate "$run" --prompt Go --max-tokens 40 --seed 1
cmp "$out" "$work/text1" || fail "the seed does not fix the text"
expect_exit 0 0 generate "$run" --prompt Go --max-tokens 40 --seed 2
if cmp -s "$out" "$work/text1"; then fail "the seed changes nothing"; fi
say "greedy text is the same from checkpoint, run and Hugging Face folder; the seed fixes drawn text"

# ---- plot and bench
expect_exit 0 0 plot "$run" "$work/again"
expect_exit 0 0 plot "$run"
[ "$(head -c 5 "$run/loss.svg")" = "<?xml" ] || [ "$(head -c 4 "$run/loss.svg")" = "<svg" ] || fail "loss.svg is no SVG"
[ "$(head -c 4 "$run/loss.png" | od -An -tx1 | tr -d ' ')" = 89504e47 ] || fail "loss.png is no PNG"
[ -s "$run/loss-2-runs.svg" ] || fail "no plot of two runs"
expect_exit 3 0 plot "$work/masks"
expect_exit 0 2 bench step "$deck" mesh.tp=2 --steps 2
[ "$(grep -cE '^\{.*"tokens_per_s":[0-9.]+.*\}$' "$out")" = 1 ] || fail "bench step prints no JSON line"
say "plots are there, and bench step measures"

# ---- bench io: every rank count and file layout; nothing is left behind, and nothing of others is touched
io=$work/io
state_bytes=$(wc -c <"$checkpoint/state.h5")
for layout in "0 -1 1" "2 -1 1" "2 1 3"; do
  read -r ranks files wanted <<<"$layout"
  expect_exit 0 "$ranks" bench io "$deck" "run.output=$io" mesh.dp="$((ranks ? ranks : 1))" "checkpoint.files=$files" --repeat 2
  line=$(grep -E '^\{.*\}$' "$out") || fail "bench io prints no JSON line"
  [ "$(wc -l <<<"$line")" = 1 ] || fail "bench io prints several JSON lines"
  for time in write durable read read_verified; do
    grep -qE "\"$time\":\{\"best_gb_per_s\":[0-9.e-]+,\"best_seconds\":[0-9.e-]+,\"gb_per_s\":[0-9.e-]+,\"seconds\":[0-9.e-]+\}" <<<"$line" || fail "no times of $time: $line"
  done
  for fact in "\"files\":$wanted," "\"checkpoint.files\":$files," "\"ranks\":$((ranks ? ranks : 1)),"; do
    grep -qF "$fact" <<<"$line" || fail "no $fact in $line"
  done
  bytes=$(sed -nE 's/.*"bytes":([0-9]+).*/\1/p' <<<"$line")
  near "$bytes" "$state_bytes" $((state_bytes / 10)) || fail "$bytes bytes, and a checkpoint of the run has $state_bytes"
  [ ! -e "$io" ] || fail "bench io left $io"
done
mkdir -p "$io/bench_io"
touch "$io/bench_io/mine"
refused 2 2 "bench_io is there already" bench io "$deck" "run.output=$io"
[ -e "$io/bench_io/mine" ] || fail "bench io removed the file of another"
refused 3 2 "$work/plain" bench io "$deck" "run.output=$work/plain/io"
refused 2 0 "what is to be measured" bench deck
refused 2 0 "--repeat" bench io "$deck" --repeat 0
say "bench io measures writes and reads, and leaves nothing"
