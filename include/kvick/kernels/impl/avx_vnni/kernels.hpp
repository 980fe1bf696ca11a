// SPDX-License-Identifier: MIT
// Packed weights times int8 activations, for CPUs with AVX-VNNI: the tiles of AVX2 with the
// dot-product instruction. All other kernels are AVX2's.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx2/kernels.hpp"
#include "kvick/kernels/impl/strips.hpp"

// As KVICK_AVX2 in avx2/target.hpp. VNNI's function may inline AVX2's, whose features are fewer.
#define KVICK_AVX_VNNI __attribute__((target("avx2,fma,f16c,avxvnni")))
#define KVICK_AVX_VNNI_INLINE KVICK_AVX_VNNI __attribute__((always_inline)) inline

namespace kvick::inline v0_1::detail::avx_vnni {

using avx2::UnpackedGroup;

/// dots[m][half of the lanes] += the products of steps [kFirst, kEnd) of one group.
template <int kRows, int kFirst, int kEnd>
KVICK_AVX_VNNI_INLINE void dot_tile(const UnpackedGroup& weights, const QuantizedGroup* x,
                                    Index x_stride, __m256i (&dots)[kRows][2]) noexcept {
#pragma GCC unroll 8
  for (int s = kFirst; s < kEnd; ++s) {
    const __m256i low = avx2::load32(weights.integers + s * kVectorBytes);
    const __m256i high = avx2::load32(weights.integers + s * kVectorBytes + 32);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const __m256i four = avx2::broadcast_step(x[m * x_stride], s);
      dots[m][0] = _mm256_dpbusd_avx_epi32(dots[m][0], low, four);
      dots[m][1] = _mm256_dpbusd_avx_epi32(dots[m][1], high, four);
    }
  }
}

/// As avx2::multiply_tile; integers keep their zero point.
template <TileKind kind, int kRows>
KVICK_AVX_VNNI inline void multiply_tile(const UnpackedGroup* weights, Index num_groups,
                                         const QuantizedGroup* x, Index x_stride, int zero_shift,
                                         float* out, Index out_stride) noexcept {
  constexpr int kUnsigned = 1;  // integers as stored, see avx2::start_tile
  __m256i dots[kRows][2];
  if constexpr (kind == TileKind::kPerChannel) avx2::load_dots(out, out_stride, dots);
  for (Index g = 0; g < num_groups; ++g, ++weights, ++x) {
    if constexpr (kind == TileKind::kPerChannel) {
      dot_tile<kRows, 0, 8>(*weights, x, x_stride, dots);
    } else if constexpr (kind == TileKind::kHalfScales) {
      avx2::start_tile<kind, kUnsigned>(x, x_stride, false, zero_shift, dots);
      dot_tile<kRows, 0, 4>(*weights, x, x_stride, dots);
      avx2::add_tile(weights->scale, x, x_stride, dots, out, out_stride);
      avx2::start_tile<kind, kUnsigned>(x, x_stride, true, zero_shift, dots);
      dot_tile<kRows, 4, 8>(*weights, x, x_stride, dots);
      avx2::add_tile(weights->second, x, x_stride, dots, out, out_stride);
    } else {
      avx2::start_tile<kind, kUnsigned>(x, x_stride, false, zero_shift, dots);
      dot_tile<kRows, 0, 8>(*weights, x, x_stride, dots);
      avx2::add_tile(weights->scale, x, x_stride, dots, out, out_stride);
      if constexpr (kind == TileKind::kMinimums) {
        avx2::add_minimums<kRows>(weights->second, x, x_stride, out, out_stride);
      }
    }
  }
  if constexpr (kind == TileKind::kPerChannel) avx2::store_dots(dots, out, out_stride);
}

struct AvxVnniTiles {
  static constexpr bool kSplitsSigns = false;
  static constexpr bool has_zero_point(PackedIntegers /*kind*/) noexcept { return true; }
  template <PackedFormat format, int kRows>
  static constexpr auto kTile = multiply_tile<tile_kind(format), kRows>;
};

inline void multiply_int8(const PackedPanels& weights, const QuantizedRowsView& x, Index rows,
                          float* out, std::byte* scratch) noexcept {
  for_quantized_format(weights.format, [&]<PackedFormat format>() {
    avx2::multiply_format<format, AvxVnniTiles>(weights, x, rows, out, scratch);
  });
}

}  // namespace kvick::inline v0_1::detail::avx_vnni

#undef KVICK_AVX_VNNI
#undef KVICK_AVX_VNNI_INLINE
