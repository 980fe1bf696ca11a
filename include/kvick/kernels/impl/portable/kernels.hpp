// SPDX-License-Identifier: MIT
// Kernels in plain C++: the definition that every other implementation must equal.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include "kvick/kernels/impl/portable/attention.hpp"
#include "kvick/kernels/impl/portable/elementwise.hpp"
#include "kvick/kernels/impl/portable/float_linear.hpp"
#include "kvick/kernels/impl/portable/int8_linear.hpp"
