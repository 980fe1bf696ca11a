#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# kvick beside llama.cpp on the same files, in turns, and its linear layers beside oneDNN, OpenBLAS
# and Eigen: one Markdown table of medians and ratios, with the least and the most of the rounds.
#
#   benchmarks/peers/compare.sh MODEL.gguf... [ROUNDS]
#
# Needs Node.js 20 and npm; installs node-llama-cpp, with its ready-made CPU binaries, into
# build/peers. oneDNN and OpenBLAS take part where CMake finds them (libdnnl-dev, libopenblas-dev).
# Let nothing else run meanwhile.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
rounds=5
models=()
for argument in "$@"; do
  if [[ $argument =~ ^[1-9][0-9]*$ ]] && [ ! -f "$argument" ]; then
    rounds=$argument
  else
    set_model "MODEL.gguf... [ROUNDS]" "$argument"
    models+=("$model")
  fi
done
if [ ${#models[@]} -eq 0 ]; then set_model "MODEL.gguf... [ROUNDS]"; fi
cd "$project"
threads=$(num_cores)
script=$PWD/benchmarks/peers/llama_cpp_speed.mjs
log=$peer/compare.jsonl
programs=build/benchmarks/benchmarks

{
  install_npm node-llama-cpp
  build . build/benchmarks kvick-model-speed -DKVICK_BUILD_TESTS=OFF -DKVICK_BUILD_BENCHMARKS=ON
  build . build/benchmarks kvick-linear-speed
} >&2

# note WHO MODEL: adds both to the line of JSON that comes in, and that to the log.
note() {
  sed "s|^{|{\"who\":\"$1\",\"model\":\"$(basename "$2" .gguf | tr -cd 'A-Za-z0-9._-')\",|" >>"$log"
}

: >"$log"
for ((round = 1; round <= rounds; ++round)); do
  for model in "${models[@]}"; do
    echo "== round $round of $rounds, $(basename "$model")" >&2
    "$programs/kvick-model-speed" "$model" --threads "$threads" --rounds 1 --plain |
      note kvick "$model"
    (cd "$peer" && node "$script" "$model" 512 64 "$threads") | note llama.cpp "$model"
  done
done
echo "== linear layers" >&2
"$programs/kvick-linear-speed" --threads "$threads" --peers --json >>"$log"
node benchmarks/peers/table.mjs "$log"
