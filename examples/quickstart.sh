#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing (Debian), builds the programs, tells a story and shows what the library
# gains on the model.
#
#   bash examples/quickstart.sh               with the demo model, which is part of the sources
#   bash examples/quickstart.sh MODEL.gguf    with another one
#
# BUILD_DIR  build folder; build/quickstart of the repository
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=../.ci/lib.sh
source "$root/.ci/lib.sh"
build_dir=${BUILD_DIR:-$root/build/quickstart}
models=$root/examples/models
model=${1:-$models/kvick-stories-3m-q8_0.gguf}
if [ ! -f "$model" ]; then
  echo "quickstart: no such model file: $model" >&2
  exit 1
fi

trap print_times EXIT
timed packages install_packages "${example_packages[@]}"
build "$root" "$build_dir" kvick_examples -DKVICK_BUILD_TESTS=OFF -DKVICK_BUILD_BENCHMARKS=OFF
generate=$build_dir/examples/kvick-generate

echo
tell() {
  printf 'Once upon a time'
  "$generate" -m "$model" -p "Once upon a time" -n 300 --seed 1
}
timed story tell

# One thread: a model as small as the demo model gains little by more, and much is lost when others
# use the machine.
speed=(-n 200 --temp 0 --ignore-eos --json)
if [[ $model == "$models"/* ]]; then speed+=(-t 1); fi

# rate OPTION...: tokens per second of decoding 200 tokens, from the summary of a run
rate() {
  "$generate" -m "$model" -p "Once upon a time" "${speed[@]}" "$@" |
    tail -n 1 | grep -oE '"decode_tokens_per_second":[0-9.e+]+' | cut -d : -f 2
}

# row LABEL BEFORE AFTER
row() {
  awk -v label="$1" -v a="$2" -v b="$3" \
    'BEGIN { printf "  %-32s %9.0f %9.0f   x %.1f\n", label, a, b, b / a }'
}

gains() {
  local int8
  int8=$(rate --weights q8_0)
  echo
  printf '  %-32s %9s %9s\n' "tokens/s of 200 new tokens" before after
  row "no cache -> cache" "$(rate --weights q8_0 --no-cache)" "$int8"
  row "f32 -> int8 weights" "$(rate --weights f32)" "$int8"
  if [[ $model == "$models"/* ]]; then  # which has a small relative
    row "alone -> with a draft model" "$int8" \
      "$(rate --weights q8_0 --draft "$models/kvick-stories-draft-q8_0.gguf")"
  fi
}
timed gains gains
