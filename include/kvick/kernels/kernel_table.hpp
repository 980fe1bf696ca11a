// SPDX-License-Identifier: MIT
// The choice of kernels for this CPU: the only door to code written for one instruction set.
//
// A table is chosen once and passed down, so hot loops never ask for the ISA, and tests can run
// every table the CPU supports.
//
// Errors    kernel_table throws Error(kUnsupported) for an ISA that this CPU or build lacks.
// Layer     kernels: may include core.
#pragma once

#include "kvick/core/cpu.hpp"
#include "kvick/kernels/contract.hpp"

namespace kvick::inline v0_1 {

/// The kernels for `isa`; Error(kUnsupported) if this CPU or build lacks it.
inline const KernelTable& kernel_table(Isa isa = default_isa());

}  // namespace kvick::inline v0_1

// ---- Implementation: nothing below is API ----

#include "kvick/kernels/impl/portable/kernels.hpp"
#if defined(__x86_64__)
#include "kvick/kernels/impl/avx2/kernels.hpp"
#include "kvick/kernels/impl/avx512/kernels.hpp"
#endif

namespace kvick::inline v0_1 {
namespace detail {

inline constexpr KernelTable kPortableKernels{.isa = Isa::kPortable,
                                              .multiply_int8 = portable::multiply_int8,
                                              .multiply_float = portable::multiply_float,
                                              .quantize_groups = portable::quantize_groups,
                                              .quantize_row = portable::quantize_row,
                                              .accumulate_panel = portable::accumulate_panel,
                                              .sum_of_squares = portable::sum_of_squares,
                                              .silu_multiply = portable::silu_multiply,
                                              .attend_tile = portable::attend_tile};
#if defined(__x86_64__)
template <Isa isa>
inline constexpr KernelTable kAvx2Kernels{.isa = isa,
                                          .multiply_int8 = portable::multiply_int8,
                                          .multiply_float = portable::multiply_float,
                                          .quantize_groups = portable::quantize_groups,
                                          .quantize_row = portable::quantize_row,
                                          .accumulate_panel = avx2::accumulate_panel,
                                          .sum_of_squares = avx2::sum_of_squares,
                                          .silu_multiply = avx2::silu_multiply,
                                          .attend_tile = avx2::attend_tile};
inline constexpr KernelTable kAvx512Kernels{.isa = Isa::kAvx512Vnni,
                                            .multiply_int8 = avx512::multiply_int8,
                                            .multiply_float = avx512::multiply_float,
                                            .quantize_groups = avx512::quantize_groups,
                                            .quantize_row = avx512::quantize_row,
                                            .accumulate_panel = avx512::accumulate_panel,
                                            .sum_of_squares = avx512::sum_of_squares,
                                            .silu_multiply = avx512::silu_multiply,
                                            .attend_tile = avx512::attend_tile};
#else
// Float kernels of other CPUs are the portable ones: std::fma is one instruction there.
inline constexpr KernelTable kNeonKernels{.isa = Isa::kNeonDotprod,
                                          .multiply_int8 = portable::multiply_int8,
                                          .multiply_float = portable::multiply_float,
                                          .quantize_groups = portable::quantize_groups,
                                          .quantize_row = portable::quantize_row,
                                          .accumulate_panel = portable::accumulate_panel,
                                          .sum_of_squares = portable::sum_of_squares,
                                          .silu_multiply = portable::silu_multiply,
                                          .attend_tile = portable::attend_tile};
#endif

}  // namespace detail

inline const KernelTable& kernel_table(Isa isa) {
  detail::require(is_supported(isa), ErrorCode::kUnsupported, "kernel_table",
                  "isa must be one this CPU supports, got ", name(isa));
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2: return detail::kAvx2Kernels<Isa::kAvx2>;
    case Isa::kAvxVnni: return detail::kAvx2Kernels<Isa::kAvxVnni>;
    case Isa::kAvx512Vnni: return detail::kAvx512Kernels;
#else
    case Isa::kNeonDotprod: return detail::kNeonKernels;
#endif
    default: return detail::kPortableKernels;
  }
}

}  // namespace kvick::inline v0_1
