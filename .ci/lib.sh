# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034  # the lists are used by the scripts that source this
# Sourced by tests/run.sh, examples/quickstart.sh and .ci/run: Debian packages, builds, and times.

build_packages=(g++ cmake ninja-build libeigen3-dev)
example_packages=("${build_packages[@]}" libcli11-dev nlohmann-json3-dev)
# numpy is for comparisons with the float64 oracle only; pkg-config for one way to use the library.
test_packages=("${example_packages[@]}" libgtest-dev python3-numpy pkg-config)
ci_packages=("${test_packages[@]}" git libbenchmark-dev clang clang-tidy libclang-rt-dev
  clang-format shellcheck)
arm64_packages=("${ci_packages[@]}" g++-aarch64-linux-gnu qemu-user)

# CMake reads it when a build folder is new; ninja is much faster than make when little has changed.
export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}

# install_packages NAME...: installs what is missing. A complete machine needs no network and no
# rights. One that is not Debian's must bring the same things itself: CMake says what it lacks.
install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    echo "Not a Debian system: expecting what these Debian packages hold: $*" >&2
    return 0
  fi
  local package missing=() as_root=()
  for package in "$@"; do
    # The word is "installed" in "install ok installed"; a removed package says "deinstall ok ...".
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then return 0; fi

  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
  if command -v apt-get >/dev/null && command -v "${as_root[0]:-true}" >/dev/null; then
    echo "Installing ${missing[*]}" >&2
    if "${as_root[@]}" apt-get update -q &&
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}"; then
      return 0
    fi
  fi
  echo "Please install these packages, then try again: ${missing[*]}" >&2
  return 1
}

num_cores() { nproc 2>/dev/null || getconf _NPROCESSORS_ONLN; }

# build SOURCE FOLDER TARGET [CMAKE_OPTION...]: configures, then builds the target with every core.
build() {
  local source=$1 folder=$2 target=$3
  shift 3
  timed configure cmake -S "$source" -B "$folder" "$@"
  timed build cmake --build "$folder" --target "$target" --parallel "$(num_cores)"
}

# timed LABEL COMMAND...: runs it and notes its seconds for print_times.
times=()
timed() {
  local label=$1 start=$SECONDS status=0
  shift
  echo "== $label"
  "$@" || status=$?
  times+=("$label $((SECONDS - start)) s$([ $status -eq 0 ] || echo " (failed)")")
  return $status
}

print_times() {
  if [ ${#times[@]} -gt 0 ]; then
    printf '== times:'
    printf ' %s;' "${times[@]}"
    printf '\n'
  fi
}
