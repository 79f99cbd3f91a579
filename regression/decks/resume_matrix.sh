#!/usr/bin/env bash
# 2 N steps are N steps, a stop, and N steps more, to the last bit on the same mesh: each case is a run of 2 N steps and
# a copy of its folder in another place, cut back to step N as a kill leaves it, that goes on.
#   resume_matrix.sh ORTHANT CHECK_RUN WORK FAMILY STAGES [ASYNC]
#     the lines of resume_matrix.cases with this family and one of these ZeRO stages (as 0123); ASYNC: both, or, by
#     default, one value of checkpoint.async for each line, alternating
set -euo pipefail
. "$(dirname "$0")/lib.sh"
family=${4:?a family} stages=${5:?ZeRO stages} async=${6:-one}
prepare
N=3

# Tiny models with all their parts, dropout where the family has it.
deck() {
  case $1 in
    gpt2) cat "$work/model_g.toml" ;;
    llama) cat "$work/model_l.toml" ;;
    qwen3) sed -e 's/family = "llama"/family = "qwen3"\ntie_embeddings = true/' -e 's/head_dim = 8/head_dim = 12/' "$work/model_l.toml" ;;
    mixtral)
      sed 's/family = "llama"/family = "mixtral"/' "$work/model_l.toml"
      printf '[model.moe]\nexperts = 4\ntop_k = 2\nffn = 48\naux_loss = 0.01\n'
      ;;
    deepseek)
      sed -e 's/family = "llama"/family = "deepseek"/' -e '/kv_heads\|head_dim/d' "$work/model_l.toml"
      printf '[model.moe]\nexperts = 8\ntop_k = 3\nffn = 16\nshared_experts = 1\nfirst_dense_layers = 1\ngroups = 4\ntop_groups = 2\nbias_rate = 0.01\n'
      printf '[model.mla]\nq_lora_rank = 12\nkv_lora_rank = 10\nnope_dim = 6\nrope_dim = 4\nv_dim = 8\n'
      ;;
    *) fail "no family $1" ;;
  esac
}
deck "$family" >"$work/$family.toml"

# Both places are called `run` seen from where orthant stands for them: the name goes into checkpoints.
run=$work/run count=0
settings=(batch.global=8 data.samples=96 "run.steps=$((2 * N))" "checkpoint.every=$N" checkpoint.keep=2 optimizer.schedule=cosine
  optimizer.warmup_steps=2 optimizer.decay_steps=20)
one_case() {
  local stage=$1 async=$2 last half what="$family, zero $1, async $2, ${*:3}"
  shift 2
  last=checkpoints/step-$(printf %08d $((2 * N))) half=checkpoints/step-$(printf %08d $N)
  rm -rf "$run" "$work/moved"
  expect_exit 0 4 train "$work/$family.toml" "run.output=$run" "${settings[@]}" "zero.stage=$stage" "checkpoint.async=$async" "$@"
  "$check" steps "$run" $((2 * N)) || fail "$what: rows of the straight run"
  [ -d "$run/$half" ] && [ -d "$run/$last" ] || fail "$what: left in checkpoints: $(ls -A "$run/checkpoints")"

  # the folder is moved away and a copy of it goes on in its place
  mv "$run" "$work/moved"
  cp -r "$work/moved" "$run"
  rm -r "${run:?}/$last"
  { head -n "$((N + 1))" "$work/moved/metrics.jsonl" && printf '{"step": %s, "tokens": 7' $((N + 2)); } >"$run/metrics.jsonl"
  expect_exit 0 4 train "$work/$family.toml" "run.output=$run" "${settings[@]}" "zero.stage=$stage" "checkpoint.async=$async" "$@"
  expect_text "$out" "(step $N), life 2"
  "$check" steps "$run" $((2 * N)) || fail "$what: rows of the resumed run"
  diff <(bits "$work/moved") <(bits "$run") || fail "$what: other numbers after a resume"
  [ "$(cd "$run/$last" && echo *)" = "$(cd "$work/moved/$last" && echo *)" ] || fail "$what: other files in the last checkpoint"
  for file in "$run/$last"/*; do
    cmp "$file" "$work/moved/$last/$(basename "$file")" || fail "$what: another $(basename "$file") after a resume"
  done
  count=$((count + 1))
  say "$what"
}

turn=0
while read -r of stage overrides; do
  turn=$((turn + 1))
  [ "$of" = "$family" ] && [[ $stages == *"$stage"* ]] || continue
  for value in true false; do
    # the other value in each next line, and begun anew with each next family
    [ "$async" = both ] || [ "$value" = "$([ $(((turn + (turn - 1) / 4) % 2)) = 0 ] && echo true || echo false)" ] || continue
    # shellcheck disable=SC2086
    one_case "$stage" "$value" $overrides
  done
done < <(grep -E '^[a-z]' "$decks/resume_matrix.cases")
if [ "$async" = both ]; then wanted=$((2 * ${#stages})); else wanted=${#stages}; fi
[ "$count" = "$wanted" ] || fail "$count cases of $family instead of $wanted: resume_matrix.cases is to have each stage once"
