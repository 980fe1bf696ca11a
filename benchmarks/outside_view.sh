#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Whether kvick-bench tells the truth, seen from outside: a second process notes when tokens come out
# of a pipe, and reads the kernel's figure of the peak of memory. Prints both sides and how far they
# differ; fails above 2 %.
#
#   benchmarks/outside_view.sh PATH/kvick-bench [OPTION...]     options of kvick-bench, such as -m
set -euo pipefail
if [ $# -lt 1 ] || [ ! -x "$1" ]; then
  echo "usage: benchmarks/outside_view.sh PATH/kvick-bench [OPTION...]" >&2
  exit 2
fi
program=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

mkfifo "$folder/tokens"
"$program" serve "$@" --concurrency 4 --requests 16 --slots 4 --output-median 64 --output-sigma 0.1 \
  --output-high 96 --check-tokens 0 --events "$folder/tokens" --json "$folder/serve.json" >/dev/null &
pid=$!
(
  while peak=$(grep -s '^VmHWM' /proc/$pid/status | tr -dc 0-9) && [ -n "$peak" ]; do
    echo "$peak" >"$folder/peak"
    sleep 0.01
  done
) &
times=()
while read -r _; do times+=("$EPOCHREALTIME"); done <"$folder/tokens"
wait $pid
wait

number() { sed "s/.*\"$1\"[^0-9]*\([0-9.]*\).*/\1/" "$folder/serve.json"; }
inside_rate=$(sed 's/.*"between the first and the last token"[^[]*\[\([0-9.]*\).*/\1/' "$folder/serve.json")
printf '%s\n' "${times[@]}" | awk -v inside_rate="$inside_rate" -v inside_bytes="$(number 'peak memory in bytes')" \
  -v outside_kilobytes="$(cat "$folder/peak")" '
  { time[NR] = $1 }
  function compare(what, inside, outside, percent) {
    percent = 100 * (inside / outside - 1)
    printf "%-12s inside %.6g, outside %.6g: %+.2f %%\n", what, inside, outside, percent
    if (percent > 2 || percent < -2) differs = 1
  }
  END {
    for (n = 1; n < NR && time[n + 1] - time[1] < 0.0005; n++);  # those of the first step
    compare("tokens/s", inside_rate, (NR - n) / (time[NR] - time[1]))
    compare("peak bytes", inside_bytes, 1024 * outside_kilobytes)
    exit differs
  }'
