// SPDX-License-Identifier: MIT
// Kernels for CPUs with AVX-512: one zmm register holds the 16 lanes of the contract.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include "kvick/kernels/impl/avx512/attention.hpp"
#include "kvick/kernels/impl/avx512/elementwise.hpp"
#include "kvick/kernels/impl/avx512/float_linear.hpp"
#include "kvick/kernels/impl/avx512/int8_linear.hpp"
#include "kvick/kernels/impl/avx512/quantize.hpp"
#include "kvick/kernels/impl/avx512/stored_attention.hpp"

#undef KVICK_AVX512
#undef KVICK_AVX512_INLINE
