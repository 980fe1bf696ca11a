#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing (Debian), builds the tests and runs them.
#
#   bash tests/run.sh [CTEST_ARGUMENT...]     for example: -R ThreadPool
#
# BUILD_DIR  build folder; build/tests of the repository, or build/tests-CXX when CXX is set
# CXX        compiler, g++ or clang++ for example
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=../.ci/lib.sh
source "$root/.ci/lib.sh"
build_dir=${BUILD_DIR:-$root/build/tests${CXX:+-$(basename "$CXX")}}

trap print_times EXIT
timed packages install_packages "${test_packages[@]}"
# -O1: results do not depend on the level, and it builds in half the time of Release.
build "$root" "$build_dir" all -DKVICK_BUILD_TESTS=ON -DKVICK_BUILD_BENCHMARKS=OFF \
  -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -DNDEBUG"
timed tests ctest --test-dir "$build_dir" --output-on-failure --no-tests=error \
  --parallel "$(num_cores)" "$@"
