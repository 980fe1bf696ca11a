#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Is the greedy text of a model the same on kvick and llama.cpp? 200 tokens from 20 prompts.
#
#   benchmarks/peers/same_text.sh MODEL.gguf
#
# For a model in f32: with rounded weights the two round activations differently. Both cache keys
# and values in f16. Needs Node.js 20 and npm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source-path=SCRIPTDIR source=../../.ci/lib.sh
source .ci/lib.sh
if [ $# -ne 1 ] || [ ! -f "$1" ]; then
  echo "usage: benchmarks/peers/same_text.sh MODEL.gguf" >&2
  exit 2
fi
model=$(realpath "$1")
script=$PWD/benchmarks/peers/llama_cpp_greedy.mjs
# shellcheck source-path=SCRIPTDIR source=node_llama_cpp.sh
source benchmarks/peers/node_llama_cpp.sh
build . build/peers/programs kvick-generate -DKVICK_BUILD_TESTS=OFF -DKVICK_BUILD_BENCHMARKS=OFF
build . build/peers/programs kvick-tokenize
programs=build/peers/programs/examples

names=(Lily Tom Mia Ben Anna Max Rosa Leo Nora Sam Ella Finn Ruby Jack Clara Otto Momo Pip Coco Hugo)
for name in "${names[@]}"; do
  "$programs/kvick-tokenize" -m "$model" -p "Once upon a time, there was a brave child named $name."
done >"$peer/prompts.txt"
while IFS= read -r ids; do
  "$programs/kvick-generate" -m "$model" --prompt-ids "$ids" --ids -n 200 --temp 0 --kv f16 \
    --activations f32 2>/dev/null
done <"$peer/prompts.txt" >"$peer/ours.txt"
(cd "$peer" && node "$script" "$model" prompts.txt 200) >"$peer/theirs.txt"
paste "$peer/ours.txt" "$peer/theirs.txt" |
  awk -F '\t' '$1 == $2 { same += 1 } END { print same + 0 " of " NR " texts are the same"; exit same != NR }'
