#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds kvick-bench and measures everything it knows, in less than ten minutes on two cores.
#
#   bash benchmarks/run.sh               a model of TinyLlama's size with random weights: no download
#   bash benchmarks/run.sh MODEL.gguf    your own
#
# Leaves report.html (plots, for any browser), report.json and report.csv in build/benchmarks/, and
# says how the shares of the machine's limits compare with benchmarks/baseline.json where that is of
# the same model and instruction set. Let nothing else run meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source-path=SCRIPTDIR source=../.ci/lib.sh
source .ci/lib.sh

model=(--synthetic tinyllama-1.1b)
if [ $# -gt 0 ]; then model=(--model "$(realpath "$1")"); fi
folder=build/benchmarks

install_packages "${example_packages[@]}"
build . "$folder" kvick-bench -DKVICK_BUILD_TESTS=OFF -DKVICK_BUILD_BENCHMARKS=OFF
trap print_times EXIT
timed measure "$folder/examples/kvick-bench" all "${model[@]}" --rounds 4 \
  --types f16,q8_0,q4_0 --cache-tokens 32 --requests 10 --output-median 16 --output-high 48 \
  --html "$folder/report.html" --json "$folder/report.json" --csv "$folder/report.csv"
echo "report: $PWD/$folder/report.html"
"$folder/examples/kvick-bench" check "$folder/report.json" || true
