// SPDX-License-Identifier: MIT
// The version of the library.
//
// Every declaration lives in the inline namespace `v0_1` of this release, so that two releases can
// be linked into one process without clashing.
//
// Layer     core.
#pragma once

#define KVICK_VERSION_MAJOR 0
#define KVICK_VERSION_MINOR 1
#define KVICK_VERSION_PATCH 0

// gcc also names the parts of -ffast-math that reorder; clang names only the whole.
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "kvick promises identical bits on every path; -ffast-math breaks that. Build without it."
#endif

namespace kvick::inline v0_1 {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace kvick::inline v0_1
