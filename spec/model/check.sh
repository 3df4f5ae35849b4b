#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check.sh: searches all states of each model. The search must find no bad state
# in the code as it is. With any one fence or re-check taken out (the NO_...
# names in a model's comment) it must find one. The last line is the totals.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
if ! command -v spin >/dev/null; then
  echo "spin is not installed"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# search MODEL [VARIANT]: prints "none", "found", or what went wrong.
search() {
  local model=$PWD/$1 log
  rm -f "$work"/pan*
  log=$(cd "$work" && spin -a ${2:+"-D$2"} "$model" 2>&1 &&
    gcc -std=gnu11 -O1 -w -DSAFETY -o pan pan.c 2>&1 && ./pan -m100000 2>&1)
  case $log in
  *"max search depth"* | *truncated*) echo "$log" ;;
  *"errors: 0"*) echo none ;;
  *"errors: 1"*) echo found ;;
  *) echo "$log" ;;
  esac
}

# expect RESULT MODEL [VARIANT]
expect() {
  local result name="$2${3:+ without ${3#NO_}}"
  result=$(search "$2" "${3:-}")
  if [ "$result" = "$1" ]; then
    passed=$((passed + 1))
    echo "ok      $name: bad states: $result"
  else
    failed=$((failed + 1))
    echo "failed  $name: bad states: $result, expected: $1"
  fi
}

for model in *.pml; do
  expect none "$model"
  for variant in $(grep -oE -- '-DNO_[A-Z_]+' "$model" | sort -u); do
    expect found "$model" "${variant#-D}"
  done
done
echo
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
