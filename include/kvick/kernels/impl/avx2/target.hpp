// SPDX-License-Identifier: MIT
// The attributes of functions that use AVX2, FMA and F16C, so that no -march flag is
// needed. Compilers take target features only as an attribute of each function, hence a macro; it
// is undefined again at the end of kernels.hpp.
//
// Every helper that takes or returns a vector must carry KVICK_AVX2_INLINE: a vector must never
// cross a call that is not inlined, because its ABI depends on flags.
//
// Layer     kernels/impl.
#pragma once

#define KVICK_AVX2 __attribute__((target("avx2,fma,f16c")))
#define KVICK_AVX2_INLINE KVICK_AVX2 __attribute__((always_inline)) inline
