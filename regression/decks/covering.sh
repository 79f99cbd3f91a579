#!/usr/bin/env bash
# Cases of regression/tools/covering.cpp: twenty steps of regression/goldens/<model>-tiny each, curve and traffic
# compared.
#   covering.sh ORTHANT CHECK_RUN WORK case NAME MODEL RANKS PRECISION [override…]
#   covering.sh ORTHANT CHECK_RUN WORK all COVERING SECONDS    the legal cases one after the other till the time is up
#   covering.sh ORTHANT CHECK_RUN WORK rules COVERING N        `plan` takes N legal cases, refuses N for each rule
# Launcher words in $LAUNCH, the rank count follows.
set -euo pipefail
orthant=$1 check=$2 work=$3 mode=$4
shift 4
goldens=$(cd "$(dirname "$0")/../goldens" && pwd)
mkdir -p "$work"
read -r -a launch <<<"${LAUNCH:?the words that start ranks}"

# The samples are those of the golden's sixty steps: their number is part of the order they come in.
train() {
  local name=$1 model=$2 ranks=$3 precision=$4
  shift 4
  local run=$work/$name golden=$goldens/$model-tiny good=0
  rm -rf "$run"
  timeout 170 "${launch[@]}" "$ranks" "$orthant" train "$golden/deck.toml" "run.output=$run" run.steps=20 \
    data.samples=480 log.every=20 "$@" </dev/null &&
    "$check" golden "$run" "$golden/golden.json" "$precision" 20 && "$check" traffic "$run" || good=$?
  rm -rf "$run"
  [ $good -eq 0 ] || echo "$name: exit code $good$([ $good -ne 124 ] || echo ', out of time')"
  return $good
}

all_cases() {
  local covering=$1 end=$((SECONDS + $2)) list=$work/all.cases total=0 run=0 failed=()
  "$covering" all >"$list"
  total=$(wc -l <"$list")
  while read -r -a words && [ "$SECONDS" -lt "$end" ] && [ ${#failed[@]} -lt 5 ]; do
    run=$((run + 1))
    if ! train "${words[@]}" >"$work/all.log" 2>&1; then
      failed+=("${words[*]}")
      echo "FAILED: ${words[*]}"
      tail -n 30 "$work/all.log"
    fi
  done <"$list"
  rm -f "$list" "$work/all.log"
  echo "passed: $((run - ${#failed[@]})) of $run cases, of $total there are"
  [ "$run" -gt 0 ] && [ ${#failed[@]} -eq 0 ]
}

plans() {  # what the program says to a case: 0, or 2 and why
  local model=$2 ranks=$3
  shift 4
  "$orthant" plan "$goldens/$model-tiny/deck.toml" --ranks "$ranks" "$@" >"$work/plan.log" 2>&1 </dev/null
}

rules() {
  local covering=$1 count=$2 legal=$work/legal.cases refused=$work/refused.cases wrong=0 code
  "$covering" all | awk -v n="$count" 'NR <= n' >"$legal"
  "$covering" refused | awk -v n="$count" '++seen[$1] <= n' >"$refused"
  while read -r -a words; do
    plans "${words[@]}" && continue
    echo "refused, but legal by covering.cpp: ${words[*]}" && cat "$work/plan.log" && wrong=1
  done <"$legal"
  while read -r -a words; do
    code=0
    plans "${words[@]}" || code=$?
    [ $code -eq 2 ] && continue
    echo "exit code $code, but refused by covering.cpp: ${words[*]}" && cat "$work/plan.log" && wrong=1
  done <"$refused"
  return $wrong
}

case $mode in
  case) train "$@" ;;
  all) all_cases "$@" ;;
  rules) rules "$@" ;;
  *) echo "covering.sh: no mode $mode" && exit 2 ;;
esac
