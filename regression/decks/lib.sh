# Shared by the system tests of this folder: source it with the arguments ORTHANT CHECK_RUN WORK; $LAUNCH holds the
# launcher's words, the rank count follows them. Every command runs under a time limit, so that a hang is a failure.
orthant=$1 check=$2 work=$3
decks=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
goldens=$(cd "$decks/../goldens" && pwd)
limit=${TEST_LIMIT:-60}
read -r -a launcher <<<"${LAUNCH:?the words that launch ranks, up to the number of ranks}"
out=$work/out err=$work/err

say() { echo "ok: $*"; }
skip() { echo "SKIPPED: $*"; }
fail() {
  echo "FAILED: $*" >&2
  local file
  for file in "$out" "$err"; do
    [ -s "$file" ] && { echo "---- $(basename "$file")"; tail -n 40 "$file"; } >&2
  done
  exit 1
}

# The words in front of `orthant` for a number of ranks; 0 = no launcher.
launch_words() {
  if [ "$1" = 0 ]; then words=(); else words=("${launcher[@]}" "$1"); fi
}

# expect_exit CODE RANKS argument…: runs orthant; its exit code must be CODE. Output lands in $out and $err.
expect_exit() {
  local code=$1 ranks=$2 rc=0 words
  shift 2
  launch_words "$ranks"
  timeout -k 5 "$limit" ${words[@]+"${words[@]}"} "$orthant" "$@" >"$out" 2>"$err" </dev/null || rc=$?
  [ "$rc" != 124 ] || fail "no end after $limit s: $ranks ranks: $*"
  [ "$rc" = "$code" ] || fail "exit $rc instead of $code: $ranks ranks: $*"
}

# start RANKS argument…: the same in the background; `job` is its process id, output lands in $out.job and $err.job.
start() {
  local ranks=$1 words
  shift
  launch_words "$ranks"
  : >"$out.job" 2>"$err.job"  # nothing of an earlier job may be waited for
  timeout -k 5 "$limit" ${words[@]+"${words[@]}"} "$orthant" "$@" >"$out.job" 2>"$err.job" </dev/null &
  job=$!
}

# expect_end CODE: waits for the job of `start`. CODE may be "killed": any code but 0, 124 and those of an orderly end.
expect_end() {
  local rc=0
  { wait "$job"; } 2>/dev/null || rc=$?  # the shell's own word on a killed job is no news
  cp "$out.job" "$out"
  cp "$err.job" "$err"
  case $1 in
    killed) case $rc in 0 | 1 | 2 | 3 | 5 | 75 | 124) fail "a job with a killed rank ended with $rc" ;; esac ;;
    *) [ "$rc" = "$1" ] || fail "the job ended with $rc instead of $1" ;;
  esac
}

# Exactly one message, whatever the launcher adds of its own.
one_message() {
  local n
  n=$(grep -c '^orthant: ' "$err" || true)
  [ "$n" = 1 ] || fail "$n messages instead of one"
}

# expect_text FILE word…: each word (a fixed string) stands in the file.
expect_text() {
  local file=$1 word
  shift
  for word in "$@"; do grep -qF -- "$word" "$file" || fail "\"$word\" is missing in $(basename "$file")"; done
}

# refused CODE RANKS "word|word…" argument…: the run ends with CODE, one message, and the message holds each word.
refused() {
  local code=$1 ranks=$2 list=$3
  shift 3
  local expected=()
  IFS='|' read -r -a expected <<<"$list"
  expect_exit "$code" "$ranks" "$@"
  one_message
  expect_text "$err" "${expected[@]}"
}

# column RUN KEY: "step value" for each row that has the key.
column() { sed -nE 's/^\{"step": ([0-9]+),.*"'"$2"'": ([^,}]+).*/\1 \2/p' "$1/metrics.jsonl"; }
# value RUN STEP KEY
value() { column "$1" "$3" | sed -n "s/^$2 //p"; }
# Every bit of a run that may not depend on time: rows as text, from step $2 on.
bits() {
  awk -v from="${2:-1}" -F'"seconds"' '{ split($1, w, /[ ,]+/); if (w[2] + 0 >= from) print $1 }' "$1/metrics.jsonl"
}
status() { sed -nE 's/.*"'"$2"'": ?"?([^",}]*).*/\1/p' "$1/status.json"; }

# near A B BOUND: |A - B| <= BOUND, and both are numbers.
near() { awk -v a="$1" -v b="$2" -v bound="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a ~ /^[-+.0-9]/ && b ~ /^[-+.0-9]/ && d <= bound) }'; }
# curves_near RUN RUN BOUND: losses of all steps
curves_near() {
  paste -d' ' <(column "$1" loss) <(column "$2" loss) >"$work/curves"
  awk -v bound="$3" '{ d = $2 - $4; if (d < 0) d = -d; if (NF != 4 || $1 != $3 || !(d <= bound)) { print "step " $1 ": " $2 " against " $4 " (" $3 ")"; bad = 1 } n++ }
    END { exit bad || !n }' "$work/curves" >&2 || fail "the curves of $1 and $2 differ by more than $3"
}

# wait_for SECONDS command…: until the command succeeds.
wait_for() {
  local end=$((SECONDS + $1))
  shift
  until "$@" 2>/dev/null; do
    [ "$SECONDS" -lt "$end" ] || { cp "$out.job" "$out"; cp "$err.job" "$err"; fail "waited in vain: $*"; }
    sleep 0.02
  done
}
has_rows() { [ "$(wc -l <"$1/metrics.jsonl")" -ge "$2" ]; }

# pids RUN: the processes of a run (not its launcher), found by their run folder.
pids() {
  local p program
  program=$(readlink -f "$orthant")
  for p in /proc/[0-9]*; do
    [ "$(readlink "$p/exe" 2>/dev/null)" = "$program" ] || continue
    grep -qzxF "run.output=$1" "$p/cmdline" 2>/dev/null && basename "$p"
  done
  return 0
}
# rank_pid RUN RANK: one rank, by the launcher's environment variable; lone_pid RUN: a run without a launcher.
rank_pid() {
  local p
  for p in $(pids "$1"); do
    grep -qzxE "(OMPI_COMM_WORLD_RANK|PMI_RANK)=$2" "/proc/$p/environ" 2>/dev/null && { echo "$p"; return 0; }
  done
  fail "no process of rank $2 in $1"
}
lone_pid() {
  local p
  p=$(pids "$1")
  [ -n "$p" ] || fail "no process of $1"
  echo "$p"
}

# A stream of characters with codes below 65, so that bytes are tokens of the small models: noisy, but learnable.
# text DOCUMENTS LENGTH SEED: files in the folder of that seed
text() {
  awk -v documents="$1" -v n="$2" -v x="$3" -v folder="$work/text.$3" 'BEGIN {
    for (d = 0; d < documents; d++) {
      file = sprintf("%s/%02d.txt", folder, d)
      for (i = 0; i < n; i++) {
        x = (x * 75 + 74) % 65537
        at = x % 5 ? (at * 3 + d) % 17 : x % 17
        printf "%c", 48 + at >file
      }
      close(file)
    }
  }'
}

# Fresh folder with decks, data (eod = 10) and a mask of 0 and 1 for the training tokens.
prepare() {
  rm -rf "$work"
  mkdir -p "$work/text.1" "$work/text.2" "$work/masks"
  cp "$decks"/model_?.toml "$work"
  text 6 3000 1
  text 2 2000 2
  local file
  for file in "$work"/text.1/*.txt; do tr '0-7' '\000' <"$file" | tr '8-@' '\001' >"$work/masks/$(basename "$file")"; done
  expect_exit 0 0 tokenize --tokenizer bytes --eod 10 --output "$work/stream" "$work"/text.1/*.txt
  expect_exit 0 0 tokenize --tokenizer bytes --eod 10 --output "$work/held_out" "$work"/text.2/*.txt
  expect_exit 0 0 tokenize --tokenizer bytes --eod 1 --output "$work/mask" "$work"/masks/*.txt
}
