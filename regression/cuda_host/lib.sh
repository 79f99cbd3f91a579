# Shared by the scripts of this folder: source it with `orthant` (the program) and `work` (a folder of its own) set. $LAUNCH holds
# the launcher's words; what a command printed is in $text.
golden=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/../goldens/llama-tiny
text=$work/text
rm -rf "$work"
mkdir -p "$work"

# launch CODE DEVICES RANKS WORDS…: the program on a node with so many devices must end with that code
launch() {
  local code=$1 devices=$2 ranks=$3 got=0 words
  shift 3
  read -r -a words <<<"$LAUNCH"
  ORTHANT_CUDA_HOST_DEVICES=$devices "${words[@]}" "$ranks" "$orthant" "$@" >"$text" 2>&1 || got=$?
  if [ "$got" != "$code" ]; then
    cat "$text"
    echo "exit $got, not $code, with $devices devices, $ranks ranks, $*" >&2
    exit 1
  fi
}
# holds KIND FILE WORDS…: KIND is -F (as they stand) or -E (regular expressions)
holds() {
  local kind=$1 file=$2 words
  shift 2
  for words in "$@"; do
    if ! grep -q "$kind" -- "$words" "$file"; then
      cat "$file"
      echo "no \"$words\" in $file" >&2
      exit 1
    fi
  done
}
says() { holds -F "$text" "$@"; }
says_like() { holds -E "$text" "$@"; }
