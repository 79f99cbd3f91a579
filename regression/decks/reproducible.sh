#!/usr/bin/env bash
# Reproducible mode: the same bits on several meshes, 1 rank among them.
#   reproducible.sh ORTHANT CHECK_RUN WORK MODEL PRECISION STEPS "RANKS override…" …
set -euo pipefail
orthant=$1 check=$2 work=$3 model=$4 precision=$5 steps=$6
shift 6
here=$(cd "$(dirname "$0")" && pwd)
read -r -a launch <<<"$LAUNCH"
mkdir -p "$work"
runs=()
for mesh in "$@"; do
  read -r -a words <<<"${mesh//=@\//=$here/}"  # @/ is this folder
  run=$work/$model.$precision.${#runs[@]}
  rm -rf "$run"
  "${launch[@]}" "${words[0]}" "$orthant" train "$here/../goldens/$model-tiny/deck.toml" "run.output=$run" run.reproducible=true \
    "run.steps=$steps" "precision.compute=$precision" "${words[@]:1}" >"$run.log" 2>&1 || { cat "$run.log"; exit 1; }
  "$check" traffic "$run"
  runs+=("$run")
done
"$check" same "${runs[@]}"
rm -rf "${runs[@]}"
