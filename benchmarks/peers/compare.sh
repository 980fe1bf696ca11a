#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# kvick beside llama.cpp on the same file, in turns: prefill and decode, tokens/s and their ratio.
#
#   benchmarks/peers/compare.sh MODEL.gguf [ROUNDS]
#
# Needs Node.js 20 and npm; installs node-llama-cpp, with its ready-made CPU binaries, into
# build/peers. Let nothing else run meanwhile.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
set_model "MODEL.gguf [ROUNDS]" "$@"
cd "$project"
rounds=${2:-5}
threads=$(num_cores)
script=$PWD/benchmarks/peers/llama_cpp_speed.mjs
log=$peer/compare.jsonl

install_npm node-llama-cpp
build . build/benchmarks kvick-model-speed -DKVICK_BUILD_TESTS=OFF -DKVICK_BUILD_EXAMPLES=OFF

: >"$log"
for ((round = 1; round <= rounds; ++round)); do
  echo "== round $round of $rounds" >&2
  build/benchmarks/benchmarks/kvick-model-speed "$model" --threads "$threads" --rounds 1 --plain |
    sed 's/^{/{"who":"kvick",/' >>"$log"
  (cd "$peer" && node "$script" "$model" 512 64 "$threads") |
    sed 's/^{/{"who":"llama.cpp",/' >>"$log"
done
# shellcheck disable=SC2016  # the dollars are JavaScript's
node -e '
  const lines = require("fs").readFileSync(process.argv[1], "utf8").trim().split("\n").map(JSON.parse);
  const of = (who, what) => lines.filter((line) => line.who === who).map((line) => line[what]);
  const middle = (values) => values.slice().sort((a, b) => a - b)[values.length >> 1];
  for (const what of ["prefill", "decode"]) {
    const ours = of("kvick", what), theirs = of("llama.cpp", what);
    const ratios = ours.map((value, i) => value / theirs[i]);
    console.log(`${what}: kvick ${middle(ours).toFixed(1)}, llama.cpp ${middle(theirs).toFixed(1)} tokens/s;` +
      ` ratio ${middle(ratios).toFixed(2)} [${Math.min(...ratios).toFixed(2)}, ${Math.max(...ratios).toFixed(2)}]`);
  }' "$log"
