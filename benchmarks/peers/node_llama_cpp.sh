# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# Sourced at the top of the project: installs llama.cpp, as npm's node-llama-cpp packages it with
# ready-made CPU binaries, into build/peers, and sets `peer` to that folder.
peer=$PWD/build/peers
if [ ! -d "$peer/node_modules/node-llama-cpp" ]; then
  mkdir -p "$peer"
  (cd "$peer" && npm init -y >/dev/null && npm install --no-fund --no-audit node-llama-cpp)
fi
