// SPDX-License-Identifier: MIT
// Kernels for CPUs with AVX2, FMA and F16C: two ymm registers hold the 16 lanes of the contract.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include "kvick/kernels/impl/avx2/attention.hpp"
#include "kvick/kernels/impl/avx2/elementwise.hpp"
#include "kvick/kernels/impl/avx2/float_linear.hpp"
#include "kvick/kernels/impl/avx2/int8_linear.hpp"
#include "kvick/kernels/impl/avx2/quantize.hpp"

#undef KVICK_AVX2
#undef KVICK_AVX2_INLINE
