#!/usr/bin/env bash
# One golden case: trains regression/goldens/<model>-tiny on some ranks and compares curve and traffic. With an override
# run.steps=N the first N steps of the golden count.
#   golden.sh ORTHANT CHECK_RUN WORK NAME MODEL RANKS PRECISION [override…]      (launcher words in $LAUNCH, rank count follows)
set -euo pipefail
orthant=$1 check=$2 work=$3 name=$4 model=$5 ranks=$6 precision=$7
shift 7
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../goldens/$model-tiny
run=$work/$name
rm -rf "$run"
mkdir -p "$work"
read -r -a launch <<<"$LAUNCH"
set -- "${@//=@\//=$here/}"  # files of this folder
steps=()
for word in "$@"; do
  if [[ $word == run.steps=* ]]; then steps=("${word#run.steps=}"); fi
done
"${launch[@]}" "$ranks" "$orthant" train "$golden/deck.toml" "run.output=$run" log.every=20 "$@"
"$check" golden "$run" "$golden/golden.json" "$precision" "${steps[@]}"
"$check" traffic "$run"
rm -rf "$run"
