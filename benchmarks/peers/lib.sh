# shellcheck shell=bash disable=SC2034  # the names are used by the scripts that source this
# SPDX-License-Identifier: MIT
# Sourced by the scripts beside it: the project's folder, and npm's packages in build/peers.
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
peer=$project/build/peers
# shellcheck source-path=SCRIPTDIR source=../../.ci/lib.sh
source "$project/.ci/lib.sh"

# set_model ARGUMENTS "$@": `model` becomes the path of the file that the first argument names; says
# how to call the script where it names none.
set_model() {
  local arguments=$1
  shift
  if [ $# -lt 1 ] || [ ! -f "$1" ]; then
    echo "usage: $0 $arguments" >&2
    exit 2
  fi
  model=$(realpath "$1")
}

# install_npm PACKAGE...: those that are missing.
install_npm() {
  local package
  mkdir -p "$peer"
  for package in "$@"; do
    [ -d "$peer/node_modules/$package" ] ||
      (cd "$peer" && { [ -f package.json ] || npm init -y >/dev/null; } &&
        npm install --no-fund --no-audit "$package")
  done
}

# build_program NAME: of the examples, as $programs/NAME.
programs=$project/build/programs/examples
build_program() {
  build . build/programs "$1" -DKVICK_BUILD_TESTS=OFF -DKVICK_BUILD_BENCHMARKS=OFF
}
