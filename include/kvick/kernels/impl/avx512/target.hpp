// SPDX-License-Identifier: MIT
// The attributes of functions that use AVX-512 (F, BW, DQ, VL, VNNI), so that no -march flag is
// needed. Compilers take target features only as an attribute of each function, hence a macro; it
// is undefined again at the end of kernels.hpp.
//
// Every helper that takes or returns a vector must carry KVICK_AVX512_INLINE: a vector must never
// cross a call that is not inlined, because its ABI depends on flags.
//
// Layer     kernels/impl.
#pragma once

#define KVICK_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))
#define KVICK_AVX512_INLINE KVICK_AVX512 __attribute__((always_inline)) inline
