#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds and runs the consumer without CMake: build_with_pkg_config.sh PKG_CONFIG COMPILER OUTPUT
set -eu
pkg_config=$1 compiler=$2 output=$3
flags=$("$pkg_config" --cflags --libs kvick)
version=$("$pkg_config" --modversion kvick)
# shellcheck disable=SC2086  # the flags are a list
"$compiler" -std=c++20 -DPACKAGE_VERSION="\"$version\"" "${0%/*}/main.cpp" $flags -o "$output"
"$output"
