#!/usr/bin/env bash
# A golden curve in four lives, each on another mesh: together they cut by every axis and with every ZeRO stage but 0.
#   golden_lives.sh ORTHANT CHECK_RUN WORK MODEL      (launcher words in $LAUNCH, rank count follows)
set -euo pipefail
orthant=$1 check=$2 run=$3 model=$4
golden=$(cd "$(dirname "$0")/../goldens/$model-tiny" && pwd)
rm -rf "$run"
mkdir -p "$run"
read -r -a launch <<<"$LAUNCH"
experts=()
case $model in mixtral | deepseek) experts=(mesh.ep=2) ;; esac
steps=0
for mesh in "mesh.tp=2 mesh.sequence_parallel=true mesh.dp=2" "mesh.pp=2 mesh.dp=2 zero.stage=2" "mesh.cp=2 mesh.dp=2 zero.stage=1" "mesh.dp=4 zero.stage=3"; do
  read -r -a words <<<"$mesh"
  from=$steps steps=$((steps + 15))
  "${launch[@]}" 4 "$orthant" train "$golden/deck.toml" "run.output=$run" "run.steps=$steps" data.samples=480 log.every=5 "${words[@]}" \
    ${experts[@]+"${experts[@]}"} >"$run/out"
  [ "$from" = 0 ] || grep -q "(step $from), life" "$run/out" || { cat "$run/out" && exit 1; }
done
"$check" golden "$run" "$golden/golden.json" fp32 60
rm -rf "$run"
