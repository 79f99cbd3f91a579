#!/usr/bin/env bash
# Models with experts from start to text: stops and goes on, other meshes, conversion with the selection bias, plan,
# verify, generate, and the meshes and layouts that are refused.
#   experts_resume.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
rm -rf "$work"
mkdir -p "$work"
sp=mesh.sequence_parallel=true

# tensor FOLDER NAME: the numbers of an F32 tensor of model.safetensors, one a line
tensor() {
  local file=$1/model.safetensors header begin end
  header=$(od -An -tu8 -N8 "$file" | tr -d ' ')
  read -r begin end < <(head -c $((8 + header)) "$file" | tail -c +9 | tr '}' '\n' |
    sed -nE 's/^.*"'"$2"'":\{"dtype":"F32",.*"data_offsets":\[([0-9]+),([0-9]+)\]$/\1 \2/p')
  od -An -v -w4 -tf4 -j $((8 + header + begin)) -N $((end - begin)) "$file" | tr -d ' '
}

# ---- a stop and a resume on the same mesh change no bit; other meshes go on, and stay on the curve
steps=12
for words in "mixtral 4" "deepseek 3 model.moe.bias_rate=0.001"; do
  read -r model layers rate <<<"$words"
  deck=$goldens/$model-tiny/deck.toml straight=$work/straight.$model run=$work/lives.$model
  common=(data.samples=480 log.eval_every=4 log.eval_steps=1 ${rate:+"$rate"})
  first=(mesh.ep=2 zero.stage=2)
  expect_exit 0 4 train "$deck" "run.output=$straight" "${common[@]}" "run.steps=$steps" "${first[@]}"
  at=0 life=1
  while read -r to overrides; do
    # shellcheck disable=SC2086
    expect_exit 0 4 train "$deck" "run.output=$run" "${common[@]}" "run.steps=$to" $overrides
    [ "$life" = 1 ] || expect_text "$out" "(step $at), life $life"
    "$check" traffic "$run" || fail "$model on $overrides: traffic"
    [ "$to" != 8 ] || diff <(bits "$straight" | head -n 10) <(bits "$run") || fail "$model stopped and resumed has other numbers"
    at=$to life=$((life + 1))
  done <<LIST
4 ${first[*]}
8 ${first[*]}
10 mesh.ep=4 zero.stage=3
12 mesh.tp=2 mesh.ep=2 mesh.etp=2 $sp
LIST
  "$check" steps "$run" $steps || fail "rows of all lives of $model"
  curves_near "$straight" "$run" 2e-5
  [ "$model" != mixtral ] || "$check" golden "$run" "$goldens/mixtral-tiny/golden.json" fp32 $steps || fail "mixtral left the golden curve"
  for step in 1 $steps; do
    sum=$(sed -nE 's/^\{"step": '"$step"',.*"expert_load": \[([0-9,]+)\].*/\1/p' "$run/metrics.jsonl" | tr ',' '+')
    [ "$((sum))" = $((8 * 64 * 2 * layers)) ] || fail "expert_load of $model, step $step: $sum"
  done
  say "$model: stop and resume change no bit, and other meshes of experts go on along the same curve"
done

# ---- checkpoint -> Hugging Face -> checkpoint -> Hugging Face, and generate and inspect from each of them
for model in mixtral deepseek; do
  run=$work/lives.$model checkpoint=$work/lives.$model/checkpoints/step-00000012
  expect_exit 0 0 inspect --verify "$checkpoint"
  expect_text "$out" "step 12" "layers.1.moe.experts.7.down.weight" "layers.1.moe.router.weight" "checksums agree"
  expect_exit 0 0 convert "$checkpoint" "$work/$model.hf"
  expect_exit 0 0 convert "$work/$model.hf" "$work/$model.back"
  expect_exit 0 0 convert "$work/$model.back" "$work/$model.hf2"
  for file in model.safetensors config.json; do
    cmp "$work/$model.hf/$file" "$work/$model.hf2/$file" || fail "$file of $model changed on the way"
  done
  expect_exit 0 0 convert "$goldens/$model-tiny" "$work/c.$model"
  expect_exit 0 0 convert "$work/c.$model" "$work/h.$model"
  cmp "$goldens/$model-tiny/model.safetensors" "$work/h.$model/model.safetensors" || fail "tensors of $model changed on the way"
  for source in "$run" "$checkpoint" "$work/$model.hf" "$work/$model.back"; do
    expect_exit 0 0 generate "$source" --prompt "And it came to pass" --max-tokens 8 --temperature 0
    [ -e "$work/$model.text" ] || cp "$out" "$work/$model.text"
    cmp "$out" "$work/$model.text" || fail "another text of $model from $source"
  done
  [ "$(head -c 19 "$work/$model.text")" = "And it came to pass" ] && [ "$(wc -c <"$work/$model.text")" -gt 21 ] || fail "not a text: $(cat "$work/$model.text")"
done
say "experts survive conversion there and back, and checkpoint, run and Hugging Face folder give one text"

# From where the folder had it each bias took 12 steps of 0.001, up or down, or none where the load was the mean.
expect_text "$work/deepseek.hf/config.json" '"n_routed_experts": 8' '"model_type": "deepseek_v3"'
for layer in 1 2 3; do
  name=model.layers.$layer.mlp.gate.e_score_correction_bias
  paste -d' ' <(tensor "$goldens/deepseek-tiny" "$name") <(tensor "$work/deepseek.hf" "$name") >"$work/bias"
  awk '{ by = ($2 - $1) / 0.001; off = by - (by < 0 ? int(by - 0.5) : int(by + 0.5)); if (off * off > 1e-6 || by > 12.001 || by < -12.001) bad = 1
         if (by * by > 0.5) moved++; n++ } END { exit bad || n != 8 || moved < 4 }' "$work/bias" || fail "selection bias of block $layer: $(cat "$work/bias")"
done
say "the selection bias moves by its rate, is saved, resumed and converted"

# ---- plan: an expert's pieces, cut over tp with etp = tp, whole without
expect_exit 0 0 plan "$goldens/mixtral-tiny/deck.toml" --ranks 4 --rank 1 mesh.tp=2 mesh.ep=2 mesh.etp=2 $sp
tr -s ' ' <"$out" >"$work/plan"
expect_text "$work/plan" "ep 2 x etp 2 x edp 1" "tp 1, cp 0, pp 0, dp 0; ep 0, edp 0" \
  "layers.0.moe.experts.0.gate.weight expert_ffn 96 x hidden 64 48 x 64 48, 0 48-95 edp" \
  "layers.0.moe.experts.3.down.weight hidden 64 x expert_ffn 96 64 x 48 0, 48 0-63 edp" \
  "layers.0.moe.router.weight experts 8 x hidden 64 8 x 64 0, 0 0-7 tp, cp, dp" "ep exchange "
if grep -q "experts.4." "$work/plan"; then fail "rank 1 of ep 2 has an expert of the other half"; fi
expect_exit 0 0 plan "$goldens/deepseek-tiny/deck.toml" --ranks 4 --rank 3 mesh.tp=2 mesh.ep=4 $sp zero.stage=1
tr -s ' ' <"$out" >"$work/plan"
expect_text "$work/plan" "ep 3, edp 0" "layers.2.moe.experts.7.up.weight expert_ffn 48 x hidden 64 48 x 64 0, 0 0-47 edp" \
  "layers.2.moe.router.bias experts 8 8 0 0-7 not trained"
if grep -q "experts.5." "$work/plan"; then fail "rank 3 of ep 4 has an expert of rank 2"; fi
say "plan lists the experts of a rank and their pieces"

# ---- verify on four ranks
layouts="ep2;ep4;tp2,ep2,sp;tp2,ep2,etp2,sp;pp2,ep2"
expect_exit 0 4 verify "$goldens/mixtral-tiny/deck.toml" --layouts "$layouts" --steps 3
expect_text "$out" "5 of 5 layouts passed"
expect_exit 0 4 verify "$goldens/deepseek-tiny/deck.toml" --layouts "tp2,ep4,sp;cp2,ep2,z2" --steps 2 run.reproducible=true model.moe.bias_rate=0.001
expect_text "$out" "the same bits" "2 of 2 layouts passed"
say "verify passes layouts of experts, to the bit in reproducible mode"

# ---- refused, with the reason
limit=10
train=(train "$goldens/mixtral-tiny/deck.toml" "run.output=$work/refused")
refused 2 2 "mesh.tp = 2 with experts needs mesh.sequence_parallel = true" "${train[@]}" mesh.tp=2
refused 2 2 "mesh.ep = 3 does not divide model.moe.experts = 8|ep divides tp x cp x dp = 1 x 1 x 2 = 2" "${train[@]}" mesh.ep=3
refused 2 2 "mesh.ep = 4|does not fit the mesh|ep divides tp x cp x dp = 1 x 1 x 2 = 2" "${train[@]}" mesh.ep=4
refused 2 2 "mesh.ep = 2 (etp = 2)|with etp = tp, ep divides cp x dp = 1 x 1 = 1" "${train[@]}" mesh.tp=2 mesh.ep=2 mesh.etp=2 $sp
refused 2 2 "mesh.etp = 3: must be 1 or the same as mesh.tp = 2" "${train[@]}" mesh.tp=2 mesh.etp=3 $sp
refused 2 0 "unknown key layout.hidden|a cut would need a sum over ranks behind each of them" "${train[@]}" layout.hidden=tp
refused 2 0 "layout.experts = \"tp\"|one axis cannot cut two dims of a tensor|allowed: \"ep\"" "${train[@]}" layout.experts=tp
refused 2 0 "layout.batch = \"cp\"|cp cuts the sequence|one axis cannot cut two dims of a tensor|allowed: \"dp\"" "${train[@]}" layout.batch=cp
refused 2 2 "mesh.ep = 2: the model has no experts" train "$goldens/llama-tiny/deck.toml" "run.output=$work/refused" mesh.ep=2
[ ! -e "$work/refused" ] || fail "a refused start left a run folder"
say "meshes and layouts that experts cannot have are refused with the reason"
