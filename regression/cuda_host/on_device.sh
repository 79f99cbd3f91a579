#!/usr/bin/env bash
# Runs a test on a GPU; where there is none CTest counts it as skipped (77).
#   on_device.sh COMMAND…
set -euo pipefail
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  echo "no GPU here"
  exit 77
fi
exec "$@"
