#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Is the greedy text of a model the same on kvick and llama.cpp? 200 tokens from 20 prompts.
#
#   benchmarks/peers/same_text.sh MODEL.gguf
#
# For a model in f32: with rounded weights the two round activations differently. Both cache keys
# and values in f16. Needs Node.js 20 and npm.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
set_model MODEL.gguf "$@"
cd "$project"

install_npm node-llama-cpp
build_program kvick-generate
build_program kvick-tokenize
names=(Lily Tom Mia Ben Anna Max Rosa Leo Nora Sam Ella Finn Ruby Jack Clara Otto Momo Pip Coco Hugo)
for name in "${names[@]}"; do
  "$programs/kvick-tokenize" -m "$model" -p "Once upon a time, there was a brave child named $name."
done >"$peer/prompts.txt"
while IFS= read -r ids; do
  "$programs/kvick-generate" -m "$model" --prompt-ids "$ids" --ids -n 200 --temp 0 --kv f16 \
    --activations f32
done <"$peer/prompts.txt" >"$peer/ours.txt"
(cd "$peer" && node "$project/benchmarks/peers/llama_cpp_greedy.mjs" "$model" prompts.txt 200) \
  >"$peer/theirs.txt"
paste "$peer/ours.txt" "$peer/theirs.txt" |
  awk -F '\t' -v total=${#names[@]} '
    $1 == $2 && $1 != "" { same += 1 }
    END { print same + 0 " of " total " texts are the same"; exit same != total || NR != total }'
