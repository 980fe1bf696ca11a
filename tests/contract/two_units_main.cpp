// SPDX-License-Identifier: MIT
// One of two translation units that include every header and are linked into one program: a
// function or variable that is not inline fails the link. Both must also see one and the same
// object.
#include <cstdio>

#include "kvick/kvick.hpp"

const void* version_seen_by_other_unit();

int main() {
  if (version_seen_by_other_unit() != kvick::kVersion) {
    std::fputs("kvick::kVersion has two addresses in one program\n", stderr);
    return 1;
  }
  return 0;
}
