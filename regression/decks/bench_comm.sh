#!/usr/bin/env bash
# orthant bench comm: a row of numbers for each axis, operation and size; meshes with and without a deck; what it refuses.
#   bench_comm.sh ORTHANT CHECK_RUN WORK [large]
# large: to 1 GiB on two ranks, instead of all that.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
rm -rf "$work"
mkdir -p "$work"
csv=$work/rows.csv
head="axis,size_of_axis,nodes_spanned,operation,bytes,calls,seconds,seconds_min,algorithm_gb_per_s,bus_gb_per_s,transport"
operations="broadcast scatter gather reduce all_gather reduce_scatter all_reduce all_to_all send_receive"

# rows FILE "axis:ranks …" "operation …" FIRST LAST: each combination once and no other row; all numbers are finite and above
# 0, the mean is not below the least time, both rates follow from bytes and seconds,
# and the transport is MPI.
rows() {
  [ "$(head -n 1 "$1")" = "$head" ] || fail "$1 begins with $(head -n 1 "$1")"
  tail -n +2 "$1" | awk -F, -v axes="$2" -v ops="$3" -v first="$4" -v last="$5" '
    function off(a, b) { d = a / b - 1; return d > 1e-4 || d < -1e-4 }
    BEGIN {
      n = split(axes, a, " "); m = split(ops, o, " ")
      for (i = 1; i <= n; i++) { split(a[i], w, ":"); for (j = 1; j <= m; j++) for (b = first; b <= last; b *= 2) { wanted[w[1] "," w[2] "," o[j] "," b] = 1; left++ } }
    }
    {
      key = $1 "," $2 "," $4 "," $5
      if (!(key in wanted)) { print "not asked for, or twice: " $0; bad = 1; next }
      delete wanted[key]; left--
      for (i = 5; i <= 10; i++) if ($i !~ /^[0-9.]+(e[-+][0-9]+)?$/ || !($i > 0)) { print "no number above 0: " $i " in " $0; bad = 1 }
      r = $2; factor = $4 == "all_reduce" ? 2 * (r - 1) / r : $4 ~ /^(broadcast|reduce|send_receive)$/ ? 1 : (r - 1) / r
      if (NF != 11 || $11 != "mpi" || $3 != 1 || $8 > $7 * 1.00001 || off($9, $5 / $7 / 1e9) || off($10, $9 * factor)) { print "does not fit together: " $0; bad = 1 }
    }
    END { if (left) { print left " rows are missing"; for (k in wanted) print "missing: " k } exit bad || left > 0 }' >&2 || fail "the rows of $1"
}

if [ "${4:-}" = large ]; then
  limit=1500 expect_exit 0 2 bench comm --min 256KiB --max 1GiB --repeat 2 --csv "$csv"
  rows "$csv" world:2 "$operations" 262144 1073741824
  limit=1500 expect_exit 0 4 bench comm mesh.tp=2 --max 64MiB --csv "$csv"
  rows "$csv" "tp:2 dp:2 world:4" "$operations" 8 67108864
  say "messages up to 1 GiB are right and timed"
  exit
fi

expect_exit 0 4 bench comm mesh.tp=2 --seconds 0.001 --csv "$csv"
rows "$csv" "tp:2 dp:2 world:4" "$operations" 8 1048576
expect_text "$out" "transport MPI" "tp: 2 ranks on 1 node" "world: 4 ranks on 1 node"
[ "$(grep -c ' all_reduce ' "$out")" = 54 ] || fail "the table has not 18 sizes on each of 3 axes"
say "four ranks, tp 2 x dp 2: a row for each operation, axis and size from 8 B to 1 MiB"

expect_exit 0 4 bench comm "$goldens/llama-tiny/deck.toml" mesh.pp=2 zero.stage=1 --ops all_to_all,broadcast --min 12 --max 50 --repeat 3 --csv -
grep -E '^[a-z_]+,' "$out" >"$csv"
rows "$csv" "pp:2 dp:2 world:4" "broadcast all_to_all" 12 48
[ "$(cut -d, -f6 "$csv" | sort -u | tr '\n' ' ')" = "3 calls " ] || fail "not three calls in every row"
say "the mesh of a deck, two operations, sizes that ranks cannot share equally, rows on standard output"

expect_exit 0 3 bench comm --check --max 8KiB
expect_text "$out" "world: 9 operations x 11 sizes: the right result on each of 3 ranks"
expect_exit 0 0 bench comm --check --max 64
expect_text "$out" "the right result on each of 1 rank"
say "--check only checks, also on three ranks and on one"

refused 2 0 '"allreduce" is no operation|all_reduce' bench comm --ops allreduce
refused 2 2 "multiples of 4 bytes|--min 10" bench comm --min 10
refused 2 0 "1 GiB" bench comm --max 2GiB
refused 2 2 "optimizer.lr=1|without a deck" bench comm optimizer.lr=1
refused 2 2 "3 ranks, but 2 were launched" bench comm mesh.tp=3
refused 2 2 "need up to|memory.limit_gb|a smaller --max" bench comm "$goldens/llama-tiny/deck.toml" memory.limit_gb=0.001 --ops broadcast
refused 3 2 "--csv|$work/no/rows.csv" bench comm --max 8 --csv "$work/no/rows.csv"
refused 2 0 "--check" bench comm --check --csv "$csv"
say "what cannot be measured is refused by name"
