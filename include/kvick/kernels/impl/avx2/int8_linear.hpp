// SPDX-License-Identifier: MIT
// Packed weights times int8 activations, for CPUs with AVX2 but no dot-product instruction.
//
// The instruction at hand, vpmaddubsw, multiplies unsigned by signed bytes and adds pairs in 16
// bits, which saturate. Bytes are therefore split into magnitude and sign, and the sign goes to the
// activation; integers of 4, 5 and 6 bits are small enough to add up 8, 4 and 2 such pairs before
// they must widen.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx2/packed_panel.hpp"
#include "kvick/kernels/impl/avx2/target.hpp"
#include "kvick/kernels/impl/strips.hpp"

namespace kvick::inline v0_1::detail::avx2 {

/// Steps whose products fit 16 bits together: n * 2 * 127 * largest integer <= 32767. 0 for bytes,
/// which are split into magnitude and sign.
constexpr int num_steps_in_16_bits(PackedIntegers kind) noexcept {
  switch (kind) {
    case PackedIntegers::kNibbles: return 8;           // 30,480
    case PackedIntegers::kNibblesPlus1Bit: return 4;   // 31,496
    case PackedIntegers::kNibblesPlus2Bits: return 2;  // 32,004
    default: return 0;
  }
}

/// Four adjacent activations in every lane.
KVICK_AVX2_INLINE __m256i broadcast_step(const QuantizedGroup& group, int step) noexcept {
  std::int32_t four;
  std::memcpy(&four, group.values + step * kStepSize, sizeof four);
  return _mm256_set1_epi32(four);
}

/// What undoes a zero point of 2^shift.
KVICK_AVX2_INLINE __m256i undo_zero_point(std::int32_t minus_sum, int shift) noexcept {
  return _mm256_sll_epi32(_mm256_set1_epi32(minus_sum), _mm_cvtsi32_si128(shift));
}

/// Where the dot products of a tile start: split bytes have no zero point.
template <TileKind kind, int kSteps, int kRows>
KVICK_AVX2_INLINE void start_tile(const QuantizedGroup* x, Index x_stride, bool second_half,
                                  int shift, __m256i (&dots)[kRows][2]) noexcept {
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    __m256i start = _mm256_setzero_si256();
    const QuantizedGroup& group = x[m * x_stride];
    if constexpr (kind == TileKind::kPlain && kSteps != 0) {
      start = undo_zero_point(group.minus_sum, shift);
    } else if constexpr (kind == TileKind::kHalfScales) {
      start = undo_zero_point(
          second_half ? group.minus_sum - group.minus_low_sum : group.minus_low_sum, shift);
    }
    dots[m][0] = start;
    dots[m][1] = start;
  }
}

/// dots[m][half of the lanes] += the products of steps [kFirst, kEnd) of one group.
template <int kSteps, int kRows, int kFirst, int kEnd>
KVICK_AVX2_INLINE void dot_tile(const UnpackedGroup& weights, const QuantizedGroup* x,
                                Index x_stride, __m256i (&dots)[kRows][2]) noexcept {
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (kSteps == 0) {
#pragma GCC unroll 8
    for (int s = kFirst; s < kEnd; ++s) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const int at = s * kVectorBytes + 32 * h;
        const __m256i magnitude = load32(weights.integers + at);
        const __m256i sign = load32(weights.negated + at);
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) {
          const __m256i four = _mm256_sign_epi8(broadcast_step(x[m * x_stride], s), sign);
          const __m256i pairs = _mm256_maddubs_epi16(magnitude, four);
          dots[m][h] = _mm256_add_epi32(dots[m][h], _mm256_madd_epi16(pairs, ones));
        }
      }
    }
  } else {
    constexpr int kChunk = kSteps < kEnd - kFirst ? kSteps : kEnd - kFirst;
#pragma GCC unroll 4
    for (int c = kFirst; c < kEnd; c += kChunk) {
      __m256i pairs[kRows][2];
#pragma GCC unroll 8
      for (int s = c; s < c + kChunk; ++s) {
        const __m256i low = load32(weights.integers + s * kVectorBytes);
        const __m256i high = load32(weights.integers + s * kVectorBytes + 32);
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) {
          const __m256i four = broadcast_step(x[m * x_stride], s);
          const __m256i first = _mm256_maddubs_epi16(low, four);
          const __m256i second = _mm256_maddubs_epi16(high, four);
          pairs[m][0] = s == c ? first : _mm256_add_epi16(pairs[m][0], first);
          pairs[m][1] = s == c ? second : _mm256_add_epi16(pairs[m][1], second);
        }
      }
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
        dots[m][0] = _mm256_add_epi32(dots[m][0], _mm256_madd_epi16(pairs[m][0], ones));
        dots[m][1] = _mm256_add_epi32(dots[m][1], _mm256_madd_epi16(pairs[m][1], ones));
      }
    }
  }
}

/// out[m] = fma(weight scale * activation scale, float(dots[m]), out[m])
template <int kRows>
KVICK_AVX2_INLINE void add_tile(const float* scales, const QuantizedGroup* x, Index x_stride,
                                const __m256i (&dots)[kRows][2], float* out,
                                Index out_stride) noexcept {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m256 scale = _mm256_load_ps(scales + 8 * h);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      float* const sums = out + m * out_stride + 8 * h;
      const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(x[m * x_stride].scale));
      _mm256_store_ps(sums,
                      _mm256_fmadd_ps(both, _mm256_cvtepi32_ps(dots[m][h]), _mm256_load_ps(sums)));
    }
  }
}

/// out[m] = fma(minimum, scaled sum, out[m])
template <int kRows>
KVICK_AVX2_INLINE void add_minimums(const float* minimums, const QuantizedGroup* x, Index x_stride,
                                    float* out, Index out_stride) noexcept {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m256 minimum = _mm256_load_ps(minimums + 8 * h);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      float* const sums = out + m * out_stride + 8 * h;
      const __m256 row_sum = _mm256_set1_ps(x[m * x_stride].scaled_sum);
      _mm256_store_ps(sums, _mm256_fmadd_ps(minimum, row_sum, _mm256_load_ps(sums)));
    }
  }
}

/// Loads or stores the integer sums that per-channel formats keep in `out`.
template <int kRows>
KVICK_AVX2_INLINE void load_dots(const float* out, Index out_stride,
                                 __m256i (&dots)[kRows][2]) noexcept {
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    dots[m][0] = _mm256_castps_si256(_mm256_load_ps(out + m * out_stride));
    dots[m][1] = _mm256_castps_si256(_mm256_load_ps(out + m * out_stride + 8));
  }
}
template <int kRows>
KVICK_AVX2_INLINE void store_dots(const __m256i (&dots)[kRows][2], float* out,
                                  Index out_stride) noexcept {
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    _mm256_store_ps(out + m * out_stride, _mm256_castsi256_ps(dots[m][0]));
    _mm256_store_ps(out + m * out_stride + 8, _mm256_castsi256_ps(dots[m][1]));
  }
}

/// out[m] += num_groups unpacked groups of one panel times kRows rows. The sums stay in `out`, in
/// the first-level cache: 16 registers hold the integers only.
template <TileKind kind, int kSteps, int kRows>
KVICK_AVX2 inline void multiply_tile(const UnpackedGroup* weights, Index num_groups,
                                     const QuantizedGroup* x, Index x_stride, int zero_shift,
                                     float* out, Index out_stride) noexcept {
  __m256i dots[kRows][2];
  if constexpr (kind == TileKind::kPerChannel) load_dots(out, out_stride, dots);
  for (Index g = 0; g < num_groups; ++g, ++weights, ++x) {
    if constexpr (kind == TileKind::kPerChannel) {
      dot_tile<kSteps, kRows, 0, 8>(*weights, x, x_stride, dots);
    } else if constexpr (kind == TileKind::kHalfScales) {
      start_tile<kind, kSteps>(x, x_stride, false, zero_shift, dots);
      dot_tile<kSteps, kRows, 0, 4>(*weights, x, x_stride, dots);
      add_tile(weights->scale, x, x_stride, dots, out, out_stride);
      start_tile<kind, kSteps>(x, x_stride, true, zero_shift, dots);
      dot_tile<kSteps, kRows, 4, 8>(*weights, x, x_stride, dots);
      add_tile(weights->second, x, x_stride, dots, out, out_stride);
    } else {
      start_tile<kind, kSteps>(x, x_stride, false, zero_shift, dots);
      dot_tile<kSteps, kRows, 0, 8>(*weights, x, x_stride, dots);
      add_tile(weights->scale, x, x_stride, dots, out, out_stride);
      if constexpr (kind == TileKind::kMinimums) {
        add_minimums<kRows>(weights->second, x, x_stride, out, out_stride);
      }
    }
  }
  if constexpr (kind == TileKind::kPerChannel) store_dots(dots, out, out_stride);
}

/// Exact integer sums of whole rows, kept in `out`, to outputs.
template <bool kHasZeroPoint>
KVICK_AVX2 inline void scale_channels(const PackedPanels& weights, const QuantizedRowsView& x,
                                      Index rows, int zero_shift, float* out) noexcept {
  const Index out_stride = weights.num_panels * kPanelWidth;
  for (Index m = 0; m < rows; ++m) {
    const QuantizedRowTotal& total = x.totals[m];
    const __m256i start =
        kHasZeroPoint ? undo_zero_point(total.minus_sum, zero_shift) : _mm256_setzero_si256();
    for (Index j = 0; j < out_stride; j += 8) {
      float* const sums = out + m * out_stride + j;
      const __m256i dot = _mm256_add_epi32(_mm256_castps_si256(_mm256_load_ps(sums)), start);
      const __m256 scale =
          _mm256_mul_ps(_mm256_load_ps(weights.channel_scales + j), _mm256_set1_ps(total.scale));
      _mm256_store_ps(sums, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(dot)));
    }
  }
}

/// What differs between CPUs with and without the dot-product instruction.
struct Avx2Tiles {
  static constexpr bool kSplitsSigns = true;
  static constexpr bool has_zero_point(PackedIntegers kind) noexcept {
    return kind != PackedIntegers::kBytes;
  }
  template <PackedFormat format, int kRows>
  static constexpr auto kTile =
      multiply_tile<tile_kind(format), num_steps_in_16_bits(packed_layout(format).integers), kRows>;
};

/// Panel by panel: unpacks some groups, then passes over the rows, 4, 2 or 1 at a time.
template <PackedFormat format, class Tiles>
inline void multiply_format(const PackedPanels& weights, const QuantizedRowsView& x, Index rows,
                            float* out, std::byte* scratch) noexcept {
  constexpr PackedLayout kLayout = packed_layout(format);
  auto* const unpacked = reinterpret_cast<UnpackedGroup*>(scratch);
  const Index out_stride = weights.num_panels * kPanelWidth;
  const int shift = zero_point_shift(kLayout);
  std::fill_n(out, rows * out_stride, 0.0f);
  for (Index p = 0; p < weights.num_panels; ++p) {
    const std::byte* const panel = weights.data + p * weights.panel_bytes;
    for (Index first = 0; first < x.num_groups; first += kBlockGroups) {
      const Index count = std::min(kBlockGroups, x.num_groups - first);
      unpack<format, Tiles::kSplitsSigns>(panel, first, count, unpacked);
      for (Index m = 0; m < rows;) {
        const Index left = rows - m;
        auto tile = Tiles::template kTile<format, 1>;
        if (left == 2) tile = Tiles::template kTile<format, 2>;
        if (left >= 3) tile = Tiles::template kTile<format, 4>;
        tile(unpacked, count, x.groups + m * x.row_stride + first, x.row_stride, shift,
             out + m * out_stride + p * kPanelWidth, out_stride);
        m += left >= 3 ? 4 : left;
      }
    }
  }
  if constexpr (is_per_channel(format)) {
    scale_channels<Tiles::has_zero_point(kLayout.integers)>(weights, x, rows, shift, out);
  }
}

inline void multiply_int8(const PackedPanels& weights, const QuantizedRowsView& x, Index rows,
                          float* out, std::byte* scratch) noexcept {
  for_quantized_format(weights.format, [&]<PackedFormat format>() {
    multiply_format<format, Avx2Tiles>(weights, x, rows, out, scratch);
  });
}

}  // namespace kvick::inline v0_1::detail::avx2
