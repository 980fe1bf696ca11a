// SPDX-License-Identifier: MIT
// The choice of kernels for this CPU: the only door to code written for one instruction set.
//
// A table is chosen once and passed down, so hot loops never ask for the ISA, and tests can run
// every table the CPU supports.
//
// Building  Every source file that reaches this header compiles all kernels, some five seconds of
//           work. A program may compile them once instead: all its files define KVICK_COMPILED, and
//           one, which defines KVICK_COMPILED_SOURCE too, includes this header. CMake's target
//           kvick::compiled does both.
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

#if !defined(KVICK_COMPILED) || defined(KVICK_COMPILED_SOURCE)

#include "kvick/kernels/impl/portable/kernels.hpp"
#if defined(__x86_64__)
#include "kvick/kernels/impl/avx2/kernels.hpp"
#include "kvick/kernels/impl/avx512/kernels.hpp"
#include "kvick/kernels/impl/avx_vnni/kernels.hpp"
#elif defined(__aarch64__)
#include "kvick/kernels/impl/neon/kernels.hpp"
#endif

namespace kvick::inline v0_1 {
namespace detail {

inline constexpr KernelTable kPortableKernels{.isa = Isa::kPortable,
                                              .multiply_int8 = portable::multiply_int8,
                                              .multiply_float = portable::multiply_float,
                                              .quantize_groups = portable::quantize_groups,
                                              .quantize_row = portable::quantize_row,
                                              .sum_of_squares = portable::sum_of_squares,
                                              .silu_multiply = portable::silu_multiply,
                                              .attend_tile = portable::attend_tile,
                                              .attend_stored_tile = portable::attend_stored_tile,
                                              .merge_states = portable::merge_states,
                                              .load_keys = portable::load_keys,
                                              .load_values = portable::load_values,
                                              .store_elements = portable::store_elements};
#if defined(__x86_64__)
template <Isa isa>
inline constexpr KernelTable kAvx2Kernels{
    .isa = isa,
    .multiply_int8 = isa == Isa::kAvxVnni ? avx_vnni::multiply_int8 : avx2::multiply_int8,
    .multiply_float = avx2::multiply_float,
    .quantize_groups = avx2::quantize_groups,
    .quantize_row = avx2::quantize_row,
    .sum_of_squares = avx2::sum_of_squares,
    .silu_multiply = avx2::silu_multiply,
    .attend_tile = avx2::attend_tile,
    .attend_stored_tile = avx2::attend_stored_tile,
    .merge_states = avx2::merge_states,
    .load_keys = avx2::load_keys,
    .load_values = avx2::load_values,
    .store_elements = avx2::store_elements};
inline constexpr KernelTable kAvx512Kernels{.isa = Isa::kAvx512Vnni,
                                            .multiply_int8 = avx512::multiply_int8,
                                            .multiply_float = avx512::multiply_float,
                                            .quantize_groups = avx512::quantize_groups,
                                            .quantize_row = avx512::quantize_row,
                                            .sum_of_squares = avx512::sum_of_squares,
                                            .silu_multiply = avx512::silu_multiply,
                                            .attend_tile = avx512::attend_tile,
                                            .attend_stored_tile = avx512::attend_stored_tile,
                                            .merge_states = avx512::merge_states,
                                            .load_keys = avx512::load_keys,
                                            .load_values = avx512::load_values,
                                            .store_elements = avx512::store_elements};
#elif defined(__aarch64__)
// Attention is the portable one, where std::fma is one instruction here.
inline constexpr KernelTable kNeonKernels{.isa = Isa::kNeonDotprod,
                                          .multiply_int8 = neon::multiply_int8,
                                          .multiply_float = neon::multiply_float,
                                          .quantize_groups = neon::quantize_groups,
                                          .quantize_row = neon::quantize_row,
                                          .sum_of_squares = neon::sum_of_squares,
                                          .silu_multiply = neon::silu_multiply,
                                          .attend_tile = portable::attend_tile,
                                          .attend_stored_tile = portable::attend_stored_tile,
                                          .merge_states = portable::merge_states,
                                          .load_keys = portable::load_keys,
                                          .load_values = portable::load_values,
                                          .store_elements = portable::store_elements};
#endif

inline const KernelTable& find_kernel_table(Isa isa) noexcept {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2: return detail::kAvx2Kernels<Isa::kAvx2>;
    case Isa::kAvxVnni: return detail::kAvx2Kernels<Isa::kAvxVnni>;
    case Isa::kAvx512Vnni: return detail::kAvx512Kernels;
#elif defined(__aarch64__)
    case Isa::kNeonDotprod: return detail::kNeonKernels;
#endif
    default: return detail::kPortableKernels;
  }
}

#if defined(KVICK_COMPILED)
const KernelTable& compiled_kernel_table(Isa isa) noexcept;  // first declared, not to warn
const KernelTable& compiled_kernel_table(Isa isa) noexcept { return find_kernel_table(isa); }
#endif

}  // namespace detail
}  // namespace kvick::inline v0_1

#endif

namespace kvick::inline v0_1 {

#if defined(KVICK_COMPILED)
namespace detail {
const KernelTable& compiled_kernel_table(Isa isa) noexcept;
}  // namespace detail
#endif

inline const KernelTable& kernel_table(Isa isa) {
  detail::require(is_supported(isa), ErrorCode::kUnsupported, "kernel_table",
                  "isa must be one this CPU supports, got ", name(isa));
#if defined(KVICK_COMPILED)
  return detail::compiled_kernel_table(isa);
#else
  return detail::find_kernel_table(isa);
#endif
}

}  // namespace kvick::inline v0_1
