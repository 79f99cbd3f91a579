#!/usr/bin/env bash
# Set-up, build and the test suite. Arguments go to ctest:
#   bash regression/run.sh                 all tests but the exhaustive and the performance ones
#   bash regression/run.sh -L smoke        the tests with the label smoke
#   bash regression/run.sh -R unit.test_   by name
set -euo pipefail
# shellcheck source=../jobscripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../jobscripts/lib.sh"
trap 'report_failure $?' EXIT

stage "set-up"
set_up_tests

stage "build"
build cpu

stage "tests"
selection=(-LE "exhaustive|perf")
for argument in "$@"; do
  case $argument in
    -L* | -R* | -E* | -I* | --label* | --tests-* | --exclude-regex* | --rerun-failed) selection=() ;;
  esac
done
ctest --test-dir "$root/build/cpu" --output-on-failure --no-tests=error -j2 ${selection[@]+"${selection[@]}"} "$@"
echo "the tests passed; their output is in build/cpu/Testing/Temporary/LastTest.log"
