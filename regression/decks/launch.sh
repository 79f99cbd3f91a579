#!/usr/bin/env bash
# Starts that must be refused, before anything is written, with one message and exit code 2 on all ranks.
#   launch.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prepare
limit=10  # a refusal takes no longer
run=$work/run
train=(train "$work/model_l.toml" "run.output=$run")

refused 2 3 "2 x 1 x 2|= 4|3 ranks were launched|a legal mesh" "${train[@]}" mesh.tp=2 mesh.pp=2
refused 2 3 "1 x 1 x 1 x 2 = 2|3 ranks were launched|a legal mesh" "${train[@]}" mesh.dp=2
refused 2 4 "2 x 1 x 1 x 4 = 8|4 ranks were launched|tp = 2, cp = 1, pp = 1, dp = 2" "${train[@]}" mesh.tp=2 mesh.dp=4
refused 2 2 "mesh.tp = 0|2 ranks were launched|tp = 1, cp = 1, pp = 1, dp = 2" "${train[@]}" mesh.tp=0
refused 2 2 "mesh.tp = -1|>= 1|2 ranks were launched" "${train[@]}" mesh.tp=-1
refused 2 2 "mesh.ep = 3" "${train[@]}" mesh.ep=3
refused 2 0 "2 x 1 x 1|1 rank was launched|tp = 1" "${train[@]}" mesh.tp=2
say "a mesh that does not fit the ranks is refused with sizes, product, ranks and a legal mesh"

refused 2 2 "batch.global = 10|batch.micro x dp = 2 x 2|8 or 12" "${train[@]}" batch.global=10 batch.micro=2
refused 2 2 "batch.global = 3|1 x 2|2 or 4" "${train[@]}" batch.global=3
refused 2 2 "heads|tp = 2" "${train[@]}" mesh.tp=2 model.heads=3 model.kv_heads=3
refused 2 0 "model.context|64|data.sequence" train "$work/model_g.toml" "run.output=$run" data.sequence=128
say "sizes that do not divide are refused with their values"

for variable in SLURM_NTASKS OMPI_COMM_WORLD_SIZE PMI_SIZE; do
  (
    export "$variable=4" SLURM_PROCID=2
    refused 2 0 "4 tasks ($variable)|1 rank|--mpi=|run.allow_singletons=true" "${train[@]}"
  )
done
[ ! -e "$run" ] || fail "a refused start left $run"
say "N copies of one rank are refused, and no refused start leaves a run folder"
(
  export SLURM_NTASKS=4 SLURM_PROCID=0
  expect_exit 0 0 "${train[@]}" run.allow_singletons=true
)
(
  export SLURM_NTASKS=1 SLURM_PROCID=0
  expect_exit 0 0 "${train[@]}" checkpoint.resume=never
)
[ ! -s "$err" ] || fail "a start of one task is not silent"
unset SLURM_PROCID
(
  export SLURM_NTASKS=4  # the shell of an allocation, not a step
  expect_exit 0 0 "${train[@]}" checkpoint.resume=never
)
say "the override works, one task is no warning, and neither is a shell inside an allocation"

refused 2 0 "4 problems|unknown key mesh.hidden|optimizer.lr = -3|>= 0|unknown key model.layrs|model.layers|run.steps" \
  "${train[@]}" mesh.hidden=2 optimizer.lr=-3 model.layrs=3 run.steps=zero
refused 2 0 "--tensor-model-parallel-size|mesh.tp = 2" "${train[@]}" tensor_model_parallel_size=2
refused 2 0 "unknown key optimizer.weight_decy|optimizer.weight_decay" "${train[@]}" optimizer.weight_decy=0.1
refused 2 2 "no_such.toml" train "$work/no_such.toml"
refused 2 0 "deck is required" train
say "all problems of a deck come together, with the nearest key or ours for Megatron's"

while read -r key feature; do
  refused 2 0 "${key%%=*}|$feature" "${train[@]}" "$key"
done <<'LIST'
model.mup=true maximal update
memory.offload=optimizer offloading
optimizer.name=muon adamw, sgd
log.tensorboard=true TensorBoard
comm.transport=nccl NCCL
LIST
say "features this build lacks are refused by name"

refused 2 2 "memory.limit_gb|optimizer|mesh.tp" "${train[@]}" memory.limit_gb=0.0001 checkpoint.resume=never
say "a run that needs more memory than allowed is refused, naming the largest kind"

cores=$(getconf _NPROCESSORS_ONLN)
expect_exit 0 1 "${train[@]}" run.steps=1 "run.threads=$((cores + 1))" checkpoint.resume=never
expect_text "$out" "rank 0 (tp 0, cp 0, pp 0, dp 0) on" "$((cores + 1)) threads, no GPU" "warning: 1 rank(s) share cores ($((cores + 1)) threads on"
expect_exit 0 1 "${train[@]}" run.steps=1 run.threads=1 checkpoint.resume=never
if grep -q "share cores" "$out"; then fail "one thread is too much for $cores cores"; fi
say "cores and threads of each rank are shown, and that they do not fit"

for words in "--help" "--version" "help deck" "help deck mesh" "help megatron" "train --help" "inspect --help"; do
  # shellcheck disable=SC2086
  expect_exit 0 0 $words
  [ -s "$out" ] && [ ! -s "$err" ] || fail "orthant $words prints nothing, or something on standard error"
done
expect_exit 0 0 help deck
expect_text "$out" "[mesh]" sequence_parallel "[checkpoint]" watchdog_s
expect_exit 2 0 no-such-command
expect_text "$err" no-such-command
expect_exit 2 0
say "help needs no launcher; an unknown command is exit 2"
