// SPDX-License-Identifier: MIT
// Kernels for AArch64 CPUs with dot products: four NEON registers hold the 16 lanes of the
// contract.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include "kvick/kernels/impl/neon/elementwise.hpp"
#include "kvick/kernels/impl/neon/float_linear.hpp"
#include "kvick/kernels/impl/neon/int8_linear.hpp"
#include "kvick/kernels/impl/neon/quantize.hpp"

#undef KVICK_NEON
#undef KVICK_NEON_INLINE
