# SPDX-License-Identifier: MIT
# Debian's g++-aarch64-linux-gnu, and qemu-user to run what it builds. Header-only packages of the
# host (Eigen, nlohmann_json) serve the target as well.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
