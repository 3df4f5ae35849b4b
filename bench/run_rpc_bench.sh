#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run_rpc_bench.sh [--with-pulsing] [--buf-mb N] [--max-size-mb N]: the reference
# system's own command line on bench/compare.lua. Environment: BUF_MB (64),
# MAX_SIZE_MB (BUF_MB / 4, at most 16), WITH_PULSING=1. The columns are S/Ray and
# S/Pul: Ray's and Pulsing's mean over ours. Buffers here are made for each size,
# so BUF_MB only bounds the sizes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n 's/^# //p' "$0" | sed 1d; }

with_pulsing=${WITH_PULSING:-0} buffer=${BUF_MB:-64} largest=${MAX_SIZE_MB:-}
while [ $# -gt 0 ]; do
  case $1 in
    --with-pulsing) with_pulsing=1 ;;
    --buf-mb) buffer=${2-}; shift ;;
    --max-size-mb) largest=${2-0}; shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift || true # a word without its number, which is told below
done
for number in "$buffer" "${largest:-1}"; do
  case $number in '' | *[!0-9]* | 0* | ???????*)
    echo "'$number' is no size in MB" >&2; exit 2 ;; esac
done
[ -n "$largest" ] || largest=$((buffer / 4 > 16 ? 16 : buffer / 4))
[ "$largest" -gt 0 ] || largest=1
[ "$largest" -le "$buffer" ] || largest=$buffer

sizes=1K
for ((size = 4; size <= largest * 1024; size *= 4)); do sizes=$sizes,${size}K; done
peers=perigee,ray-bytes
[ "$with_pulsing" != 1 ] || peers=$peers,pulsing
.ci/deps build bench
make --silent all peers
exec spec/support/with luajit bench/compare.lua --modes echo \
  --sizes "$sizes" --peers "$peers" --titles "ray-bytes=S/Ray,pulsing=S/Pul"
