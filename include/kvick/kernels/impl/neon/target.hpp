// SPDX-License-Identifier: MIT
// The attributes of functions that use NEON with the dot-product extension of Armv8.2, so that no
// -march flag is needed. Compilers take target features only as an attribute of each function, and
// spell this one differently, hence a macro; it is undefined again at the end of kernels.hpp.
//
// Every helper that is always inlined must carry KVICK_NEON_INLINE, even if plain NEON is enough
// for it: under -march=armv9-a, say, a helper without the attribute could not be inlined.
//
// Layer     kernels/impl.
#pragma once

#if defined(__clang__)
#define KVICK_NEON __attribute__((target("dotprod")))
#else
#define KVICK_NEON __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define KVICK_NEON_INLINE KVICK_NEON __attribute__((always_inline)) inline
