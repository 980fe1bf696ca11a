#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing (Debian), builds the programs and generates text.
#
#   bash examples/quickstart.sh               with a small model of random weights, written on the spot
#   bash examples/quickstart.sh MODEL.gguf    with a real one
#
# BUILD_DIR  build folder; build/quickstart of the repository
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=../.ci/lib.sh
source "$root/.ci/lib.sh"
build_dir=${BUILD_DIR:-$root/build/quickstart}
model=${1:-}
if [ -n "$model" ] && [ ! -f "$model" ]; then
  echo "quickstart: no such model file: $model" >&2
  exit 1
fi

trap print_times EXIT
timed packages install_packages "${example_packages[@]}"
build "$root" "$build_dir" kvick_examples -DKVICK_BUILD_TESTS=OFF -DKVICK_BUILD_BENCHMARKS=OFF

if [ -z "$model" ]; then
  model=$build_dir/random.gguf
  timed model "$build_dir/examples/kvick-random-model" "$model"
  echo
  echo "The weights of this model are random, so its text is noise: it shows that the engine runs."
  echo "For real text give a model file: bash examples/quickstart.sh MODEL.gguf"
fi
echo
timed generate "$build_dir/examples/kvick-generate" -m "$model" -p "Once upon a time" -n 64
