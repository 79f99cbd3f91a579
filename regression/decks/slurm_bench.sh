#!/usr/bin/env bash
# Rates on 4 nodes x 2 ranks of real Slurm: every collective on each axis and on all ranks, checked, as CSV; and the
# pre-flight check of the job script, which shows all four nodes before step 1.
#   slurm_bench.sh ORTHANT CHECK_RUN WORK
set -euo pipefail
. "$(dirname "$0")/slurm_lib.sh"
prepare_jobs
read -r -a launcher <<<"srun --nodes=4 --ntasks-per-node=2 --kill-on-bad-exit=1 --ntasks"
csv=$work/rows.csv
limit=120 expect_exit 0 8 bench comm mesh.tp=2 mesh.pp=2 mesh.dp=2 --repeat 3 --csv "$csv"
[ "$(head -n 1 "$csv")" = "axis,size_of_axis,nodes_spanned,operation,bytes,calls,seconds,seconds_min,algorithm_gb_per_s,bus_gb_per_s,transport" ] || fail "$(head -n 1 "$csv")"
tail -n +2 "$csv" | awk -F, '
  BEGIN {
    split("tp,2,1 pp,2,2 dp,2,2 world,8,4", axes, " ")
    n = split("broadcast scatter gather reduce all_gather reduce_scatter all_reduce all_to_all send_receive", ops, " ")
    for (a in axes) for (o = 1; o <= n; o++) for (b = 8; b <= 1048576; b *= 2) { wanted[axes[a] "," ops[o] "," b] = 1; left++ }
  }
  {
    key = $1 "," $2 "," $3 "," $4 "," $5
    if (!(key in wanted) || NF != 11 || !($7 > 0) || !($9 > 0) || !($10 > 0)) { print "not asked for, twice, or no rate: " $0; bad = 1; next }
    delete wanted[key]; left--
  }
  END { if (left) print left " rows are missing"; exit bad || left }' >"$work/odd" || fail "rows of bench comm: $(head -n 3 "$work/odd")"
say "bench comm on four nodes: $(($(wc -l <"$csv") - 1)) rows, 9 operations on tp (inside a node), pp, dp and the world, 8 B to 1 MiB"

# The job script measures the nodes by default.
sed "s/^steps = .*/steps = 3/" model_l.toml >look.toml
job=$(ORTHANT_PREFLIGHT=yes submit look -- look.toml "run.output=$work/look" data.samples=128000 batch.global=8 mesh.tp=2)
ended "$job" COMPLETED 0:0
log=$(echo "$work"/look/logs/*.life-1.out)
expect_text "$log" preflight
for node in n1 n2 n3 n4; do
  grep -Eq "^ *$node +2 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+" "$log" || fail "no rates of $node: $(grep -A 8 preflight "$log")"
done
[ "$(grep -n -m 1 preflight "$log" | cut -d: -f1)" -lt "$(grep -n -m 1 '^step' "$log" | cut -d: -f1)" ] || fail "the nodes were not measured before step 1"
say "the job script's pre-flight check shows the rates of four nodes before step 1"
