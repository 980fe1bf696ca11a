// SPDX-License-Identifier: MIT
// The other translation unit, see two_units_main.cpp.
#include "kvick/kvick.hpp"

const void* version_seen_by_other_unit();

const void* version_seen_by_other_unit() { return kvick::kVersion; }
