// SPDX-License-Identifier: MIT
// Packed weights times int8 activations, for CPUs with AVX-512 VNNI.
//
// Few rows multiply from registers, 8 at a time; later tiles find the packed panel in the cache. Up
// to 8 rows memory is about the limit. Many rows first unpack a few panels to bytes and f32 scales,
// 512 inputs at a time, so that they stay in the first-level cache while every row passes over
// them: the dot-product units are the limit.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx512/math.hpp"
#include "kvick/kernels/impl/avx512/packed_panel.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"
#include "kvick/kernels/impl/strips.hpp"

namespace kvick::inline v0_1::detail::avx512 {

/// Four adjacent activations in every lane.
KVICK_AVX512_INLINE __m512i broadcast_step(const QuantizedGroup& group, int step) noexcept {
  std::int32_t four;
  std::memcpy(&four, group.values + step * kStepSize, sizeof four);
  return _mm512_set1_epi32(four);
}

/// What undoes the zero point, 2^kShift, of the integers that met activations of this sum.
template <int kShift>
KVICK_AVX512_INLINE __m512i undo_zero_point(std::int32_t minus_sum) noexcept {
  return _mm512_maskz_slli_epi32(kAllLanes, _mm512_set1_epi32(minus_sum), kShift);
}

KVICK_AVX512_INLINE __m512 to_float(__m512i v) noexcept {
  return _mm512_maskz_cvtepi32_ps(kAllLanes, v);
}

/// sum = fma(weight scale * activation scale, float(dot), sum)
KVICK_AVX512_INLINE __m512 add_scaled(__m512 weight_scale, __m512 activation_scale, __m512i dot,
                                      __m512 sum) noexcept {
  return _mm512_fmadd_ps(_mm512_mul_ps(weight_scale, activation_scale), to_float(dot), sum);
}

// ---- Few rows

/// Bytes ahead of the reading that are fetched: about what memory delivers within its latency.
inline constexpr int kPrefetchBytes = 4096;

KVICK_AVX512_INLINE void prefetch(const std::byte* from, int bytes) noexcept {
#pragma GCC unroll 64
  for (int i = 0; i < bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + kPrefetchBytes + i, _MM_HINT_T0);
  }
}

/// dots[m] += the products of steps [kFirst, kEnd). Two chains hide the latency of one.
template <int kRows, int kFirst, int kEnd>
KVICK_AVX512_INLINE void dot_steps(const __m512i (&steps)[kGroupSteps], const QuantizedGroup* x,
                                   Index x_stride, __m512i (&dots)[kRows]) noexcept {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    const QuantizedGroup& group = x[m * x_stride];
    __m512i odd = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int s = kFirst; s < kEnd; s += 2) {
      dots[m] = _mm512_dpbusd_epi32(dots[m], steps[s], broadcast_step(group, s));
      odd = _mm512_dpbusd_epi32(odd, steps[s + 1], broadcast_step(group, s + 1));
    }
    dots[m] = _mm512_add_epi32(dots[m], odd);
  }
}

/// sums[m] of one group, or of the integers alone where scales are per channel.
template <PackedFormat format, int kRows>
KVICK_AVX512_INLINE void add_group(const __m512i (&steps)[kGroupSteps], const GroupScales& scales,
                                   const QuantizedGroup* x, Index x_stride, __m512i (&dots)[kRows],
                                   __m512 (&sums)[kRows]) noexcept {
  constexpr PackedLayout kLayout = packed_layout(format);
  constexpr int kShift = zero_point_shift(kLayout);
  if constexpr (is_per_channel(format)) {
    dot_steps<kRows, 0, 8>(steps, x, x_stride, dots);
  } else if constexpr (kLayout.has_half_scales()) {
    __m512i high[kRows];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const QuantizedGroup& group = x[m * x_stride];
      dots[m] = undo_zero_point<kShift>(group.minus_low_sum);
      high[m] = undo_zero_point<kShift>(group.minus_sum - group.minus_low_sum);
    }
    dot_steps<kRows, 0, 4>(steps, x, x_stride, dots);
    dot_steps<kRows, 4, 8>(steps, x, x_stride, high);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m512 scale = _mm512_set1_ps(x[m * x_stride].scale);
      sums[m] = add_scaled(scales.scale, scale, dots[m], sums[m]);
      sums[m] = add_scaled(scales.second, scale, high[m], sums[m]);
    }
  } else {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      dots[m] = kLayout.has_minimum() ? _mm512_setzero_si512()
                                      : undo_zero_point<kShift>(x[m * x_stride].minus_sum);
    }
    dot_steps<kRows, 0, 8>(steps, x, x_stride, dots);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const QuantizedGroup& group = x[m * x_stride];
      sums[m] = add_scaled(scales.scale, _mm512_set1_ps(group.scale), dots[m], sums[m]);
      if constexpr (kLayout.has_minimum()) {
        sums[m] = _mm512_fmadd_ps(scales.second, _mm512_set1_ps(group.scaled_sum), sums[m]);
      }
    }
  }
}

/// Exact integer sums of whole rows to outputs.
template <int kShift>
KVICK_AVX512_INLINE __m512 scale_channels(const float* channel_scales,
                                          const QuantizedRowTotal& total, __m512i dot) noexcept {
  const __m512i exact = _mm512_add_epi32(dot, undo_zero_point<kShift>(total.minus_sum));
  const __m512 scale = _mm512_mul_ps(_mm512_load_ps(channel_scales), _mm512_set1_ps(total.scale));
  return _mm512_mul_ps(scale, to_float(exact));
}

/// One panel times kRows rows.
template <PackedFormat format, int kRows>
KVICK_AVX512 inline void multiply_few(const PackedPanels& weights, Index panel,
                                      const QuantizedRowsView& x, float* out) noexcept {
  constexpr PackedLayout kLayout = packed_layout(format);
  const Index out_stride = weights.num_panels * kPanelWidth;
  constexpr int kShift = zero_point_shift(kLayout);
  const std::byte* unit = weights.data + panel * weights.panel_bytes;
  const QuantizedGroup* group = x.groups;
  __m512 sums[kRows];
  __m512i dots[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    sums[m] = _mm512_setzero_ps();
    dots[m] = _mm512_setzero_si512();
  }
  for (Index left = x.num_groups; left > 0; unit += kLayout.unit_bytes()) {
    prefetch(unit, kLayout.unit_bytes());
    const std::byte* integers = unit + kLayout.scale_bytes;
    for (int i = 0; i < kLayout.groups_per_unit && left > 0; ++i, --left, ++group) {
      __m512i steps[kGroupSteps];
      load_integers<kLayout.integers>(integers, steps);
      add_group<format, kRows>(steps, load_scales<kLayout.scales>(unit, i), group, x.row_stride,
                               dots, sums);
      integers += kLayout.group_bytes();
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    if constexpr (is_per_channel(format)) {
      sums[m] = scale_channels<kShift>(weights.channel_scales + panel * kPanelWidth, x.totals[m],
                                       dots[m]);
    }
    _mm512_store_ps(out + m * out_stride + panel * kPanelWidth, sums[m]);
  }
}

// ---- Many rows

/// A group of one panel, unpacked.
struct alignas(64) UnpackedGroup {
  std::byte integers[kGroupSteps * kVectorBytes];
  float scale[kPanelWidth];
  float second[kPanelWidth];
};

/// Groups that are unpacked at a time, and panels. Tiles of 4 rows and 3 panels use 12 integer and
/// 12 float accumulators of the 32 registers.
inline constexpr Index kBlockGroups = 16;
inline constexpr int kStripPanels = 3;
inline constexpr int kTileRows = 4;
static_assert(sizeof(UnpackedGroup) * kBlockGroups * kStripPanels <= kMultiplyScratchBytes);

/// Groups [first, first + count) of kStripPanels panels as [count][num_panels].
template <PackedFormat format>
KVICK_AVX512 inline void unpack(const PackedPanels& weights, Index panel, Index num_panels,
                                Index first, Index count, UnpackedGroup* out) noexcept {
  constexpr PackedLayout kLayout = packed_layout(format);
  for (Index p = 0; p < num_panels; ++p) {
    const std::byte* const units = weights.data + (panel + p) * weights.panel_bytes;
    for (Index g = first; g < first + count; ++g) {
      const auto index = static_cast<int>(g % kLayout.groups_per_unit);
      const std::byte* const unit = units + g / kLayout.groups_per_unit * kLayout.unit_bytes();
      const std::byte* const integers = unit + kLayout.scale_bytes + index * kLayout.group_bytes();
      __m512i steps[kGroupSteps];
      load_integers<kLayout.integers>(integers, steps);
      UnpackedGroup& group = out[(g - first) * num_panels + p];
#pragma GCC unroll 8
      for (int s = 0; s < kGroupSteps; ++s) {
        _mm512_store_si512(group.integers + s * kVectorBytes, steps[s]);
      }
      const GroupScales scales = load_scales<kLayout.scales>(unit, index);
      _mm512_store_ps(group.scale, scales.scale);
      _mm512_store_ps(group.second, scales.second);
    }
  }
}

/// The part of a group that has one scale: all eight steps, or one half of them.
template <TileKind kind>
inline constexpr int kPartSteps = kind == TileKind::kHalfScales ? kGroupSteps / 2 : kGroupSteps;

/// dots[m][p] += the products of one step with one row.
template <int kPanels>
KVICK_AVX512_INLINE void dot_row(const __m512i (&step)[kPanels], const QuantizedGroup& x, int s,
                                 __m512i (&dots)[kPanels]) noexcept {
  const __m512i four = broadcast_step(x, s);
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) dots[p] = _mm512_dpbusd_epi32(dots[p], step[p], four);
}

template <int kPanels>
KVICK_AVX512_INLINE void load_step(const UnpackedGroup* weights, int s,
                                   __m512i (&step)[kPanels]) noexcept {
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) step[p] = load_bytes(weights[p].integers + s * kVectorBytes);
}

/// dots[m][p] += the products of steps [first, end).
template <int kPanels, int kFirst, int kEnd>
KVICK_AVX512_INLINE void dot_tile(const UnpackedGroup* weights, const QuantizedGroup* x,
                                  Index x_stride, __m512i (&dots)[kTileRows][kPanels]) noexcept {
#pragma GCC unroll 8
  for (int s = kFirst; s < kEnd; ++s) {
    __m512i step[kPanels];
    load_step(weights, s, step);
#pragma GCC unroll 8
    for (int m = 0; m < kTileRows; ++m) dot_row(step, x[m * x_stride], s, dots[m]);
  }
}

/// What the integers of a part start from, so that the zero points vanish.
template <TileKind kind, int kShift, int kPart>
KVICK_AVX512_INLINE __m512i start_of_part(const QuantizedGroup& x) noexcept {
  if constexpr (kind == TileKind::kMinimums) {
    return _mm512_setzero_si512();
  } else if constexpr (kind == TileKind::kHalfScales) {
    return undo_zero_point<kShift>(kPart == 0 ? x.minus_low_sum : x.minus_sum - x.minus_low_sum);
  } else {
    return undo_zero_point<kShift>(x.minus_sum);
  }
}

/// sums[p] = fma(weight scale * activation scale, float(dots[p]), sums[p]), and the minimums.
template <TileKind kind, int kPanels>
KVICK_AVX512_INLINE void finish_row(const __m512 (&scale)[kPanels], const UnpackedGroup* weights,
                                    const QuantizedGroup& x, const __m512i (&dots)[kPanels],
                                    __m512 (&sums)[kPanels]) noexcept {
  const __m512 row_scale = _mm512_set1_ps(x.scale);
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) sums[p] = add_scaled(scale[p], row_scale, dots[p], sums[p]);
  if constexpr (kind == TileKind::kMinimums) {
    const __m512 row_sum = _mm512_set1_ps(x.scaled_sum);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      sums[p] = _mm512_fmadd_ps(_mm512_load_ps(weights[p].second), row_sum, sums[p]);
    }
  }
}

template <TileKind kind, int kPart, int kPanels>
KVICK_AVX512_INLINE void load_scale(const UnpackedGroup* weights,
                                    __m512 (&scale)[kPanels]) noexcept {
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
    scale[p] = _mm512_load_ps(kPart == 0 ? weights[p].scale : weights[p].second);
  }
}

/// Keeps the compiler from computing with `later` before `sooner` is there. It costs nothing.
template <int kPanels>
KVICK_AVX512_INLINE void keep_order(__m512i (&sooner)[kPanels],
                                    __m512i (&later)[kPanels]) noexcept {
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) asm volatile("" : "+v"(sooner[p]), "+v"(later[p]));
}

/// One part of a group. The part before is finished row by row between the first products of this
/// one: all at once they would leave the multipliers waiting for conversions (5 % of the time).
template <TileKind kind, int kShift, int kPart, bool kHasBefore, int kPanels>
KVICK_AVX512_INLINE void multiply_part(const UnpackedGroup* weights, const QuantizedGroup* x,
                                       Index x_stride, __m512i (&dots)[kTileRows][kPanels],
                                       __m512 (&sums)[kTileRows][kPanels]) noexcept {
  constexpr int kSteps = kPartSteps<kind>;
  constexpr bool kSameGroup = kPart > 0;
  constexpr int kPartBefore = kind == TileKind::kHalfScales && !kSameGroup ? 1 : 0;
  const UnpackedGroup* const weights_before = kSameGroup ? weights : weights - kPanels;
  const QuantizedGroup* const x_before = kSameGroup ? x : x - 1;
  __m512 scale[kPanels];
  if constexpr (kHasBefore) load_scale<kind, kPartBefore>(weights_before, scale);
  __m512i step[kPanels];
  load_step(weights, kPart * kSteps, step);
#pragma GCC unroll 8
  for (int m = 0; m < kTileRows; ++m) {
    if constexpr (kHasBefore) {
      if (m > 0) keep_order(dots[m - 1], dots[m]);
      finish_row<kind>(scale, weights_before, x_before[m * x_stride], dots[m], sums[m]);
    }
    const __m512i start = start_of_part<kind, kShift, kPart>(x[m * x_stride]);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) dots[m][p] = start;
    dot_row(step, x[m * x_stride], kPart * kSteps, dots[m]);
  }
  dot_tile<kPanels, kPart * kSteps + 1, kPart * kSteps + kSteps>(weights, x, x_stride, dots);
}

template <TileKind kind, int kShift, bool kHasBefore, int kPanels>
KVICK_AVX512_INLINE void multiply_group(const UnpackedGroup* weights, const QuantizedGroup* x,
                                        Index x_stride, __m512i (&dots)[kTileRows][kPanels],
                                        __m512 (&sums)[kTileRows][kPanels]) noexcept {
  multiply_part<kind, kShift, 0, kHasBefore>(weights, x, x_stride, dots, sums);
  if constexpr (kind == TileKind::kHalfScales) {
    multiply_part<kind, kShift, 1, true>(weights, x, x_stride, dots, sums);
  }
}

/// Unpacked groups that every row meets, and the packed bytes that are unpacked after them. Those
/// are fetched a little after each tile: the wait for memory would cost 3 % of 512 rows' time.
struct Block {
  const UnpackedGroup* groups;  ///< [num_groups][kPanels]
  Index num_groups;
  __mmask16 old_sums;  ///< lanes of the sums to go on from: none for the first block, then all
  const std::byte* next;
  Index next_bytes;  ///< of each panel
  Index panel_bytes;
};

/// out[m][p] += groups of the block times kTileRows rows.
template <TileKind kind, int kShift, int kPanels>
KVICK_AVX512 inline void multiply_tile(const Block& block, const QuantizedGroup* x, Index x_stride,
                                       float* out, Index out_stride) noexcept {
  __m512 sums[kTileRows][kPanels];
  __m512i dots[kTileRows][kPanels];
#pragma GCC unroll 8
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      sums[m][p] = _mm512_maskz_load_ps(block.old_sums, out + m * out_stride + p * kPanelWidth);
    }
  }
  const UnpackedGroup* weights = block.groups;
  multiply_group<kind, kShift, false>(weights, x, x_stride, dots, sums);
  for (Index g = 1; g < block.num_groups; ++g) {
    weights += kPanels;
    ++x;
    multiply_group<kind, kShift, true>(weights, x, x_stride, dots, sums);
  }
  __m512 scale[kPanels];
  load_scale<kind, kind == TileKind::kHalfScales ? 1 : 0>(weights, scale);
#pragma GCC unroll 8
  for (int m = 0; m < kTileRows; ++m) {
    finish_row<kind>(scale, weights, x[m * x_stride], dots[m], sums[m]);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      _mm512_store_ps(out + m * out_stride + p * kPanelWidth, sums[m][p]);
    }
  }
}

/// The same for the integers of weights whose scales are per channel.
template <int kPanels>
KVICK_AVX512 inline void multiply_channel_tile(const Block& block, const QuantizedGroup* x,
                                               Index x_stride, float* out,
                                               Index out_stride) noexcept {
  __m512i dots[kTileRows][kPanels];
#pragma GCC unroll 8
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      dots[m][p] = _mm512_maskz_load_epi32(block.old_sums, out + m * out_stride + p * kPanelWidth);
    }
  }
  const UnpackedGroup* weights = block.groups;
  for (Index g = 0; g < block.num_groups; ++g, weights += kPanels, ++x) {
    dot_tile<kPanels, 0, kGroupSteps>(weights, x, x_stride, dots);
  }
#pragma GCC unroll 8
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      _mm512_store_si512(out + m * out_stride + p * kPanelWidth, dots[m][p]);
    }
  }
}

/// Every row times kPanels unpacked panels.
template <TileKind kind, int kShift, int kPanels>
inline void multiply_rows(const Block& block, const QuantizedGroup* x, Index x_stride, Index rows,
                          float* out, Index out_stride) noexcept {
  const Index num_tiles = (rows + kTileRows - 1) / kTileRows;
  const Index share = ((block.next_bytes + num_tiles - 1) / num_tiles + 63) / 64 * 64;
  Index fetched = 0;
  for (Index m = 0; m < rows; m += kTileRows) {
    if constexpr (kind == TileKind::kPerChannel) {
      multiply_channel_tile<kPanels>(block, x + m * x_stride, x_stride, out + m * out_stride,
                                     out_stride);
    } else {
      multiply_tile<kind, kShift, kPanels>(block, x + m * x_stride, x_stride, out + m * out_stride,
                                           out_stride);
    }
    const Index end = std::min(fetched + share, block.next_bytes);
    for (; fetched < end; fetched += 64) {
      for (int p = 0; p < kPanels; ++p) {
        _mm_prefetch(reinterpret_cast<const char*>(block.next + p * block.panel_bytes + fetched),
                     _MM_HINT_T1);
      }
    }
  }
}

template <TileKind kind, int kShift>
inline void multiply_rows(Index num_panels, const Block& block, const QuantizedGroup* x,
                          Index x_stride, Index rows, float* out, Index out_stride) noexcept {
  const auto multiply = num_panels == 3   ? multiply_rows<kind, kShift, 3>
                        : num_panels == 2 ? multiply_rows<kind, kShift, 2>
                                          : multiply_rows<kind, kShift, 1>;
  multiply(block, x, x_stride, rows, out, out_stride);
}

template <PackedFormat format>
KVICK_AVX512 inline void multiply_many(const PackedPanels& weights, const QuantizedRowsView& x,
                                       Index rows, float* out, std::byte* scratch) noexcept {
  constexpr PackedLayout kLayout = packed_layout(format);
  constexpr int kShift = zero_point_shift(kLayout);
  constexpr Index kBlockBytes = kBlockGroups / kLayout.groups_per_unit * kLayout.unit_bytes();
  auto* const unpacked = reinterpret_cast<UnpackedGroup*>(scratch);
  const Index out_stride = weights.num_panels * kPanelWidth;
  for (Index panel = 0; panel < weights.num_panels; panel += kStripPanels) {
    const Index panels = std::min<Index>(kStripPanels, weights.num_panels - panel);
    const std::byte* const data = weights.data + panel * weights.panel_bytes;
    for (Index first = 0; first < x.num_groups; first += kBlockGroups) {
      const Index count = std::min(kBlockGroups, x.num_groups - first);
      unpack<format>(weights, panel, panels, first, count, unpacked);
      const bool is_last = first + count == x.num_groups;
      const Index next =
          is_last ? panels * weights.panel_bytes : (first / kBlockGroups + 1) * kBlockBytes;
      const Block block{unpacked,    count,       first == 0 ? __mmask16{0} : kAllLanes,
                        data + next, kBlockBytes, weights.panel_bytes};
      multiply_rows<tile_kind(format), kShift>(panels, block, x.groups + first, x.row_stride, rows,
                                               out + panel * kPanelWidth, out_stride);
    }
  }
  if constexpr (is_per_channel(format)) {
    for (Index m = 0; m < rows; ++m) {
      for (Index j = 0; j < out_stride; j += kPanelWidth) {
        float* const sums = out + m * out_stride + j;
        _mm512_store_ps(sums, scale_channels<kShift>(weights.channel_scales + j, x.totals[m],
                                                     _mm512_load_si512(sums)));
      }
    }
  }
}

// ---- All formats

/// Most rows that take a panel's weights one tile of kRowTile after the other, the later ones from
/// the cache. With 1 row a step of a 1.1B Q8_0 model takes 31 ms, with 8 rows 36, with 16 rows 52;
/// unpacked for all rows at once, 16 rows take 70 ms or more.
inline constexpr Index kFewRows = 24;

template <PackedFormat format>
inline void multiply_format(const PackedPanels& weights, const QuantizedRowsView& x, Index rows,
                            float* out, std::byte* scratch) noexcept {
  if (rows > kFewRows) return multiply_many<format>(weights, x, rows, out, scratch);
  const Index out_stride = weights.num_panels * kPanelWidth;
  for (Index p = 0; p < weights.num_panels; ++p) {
    for (Index first = 0; first < rows; first += kRowTile) {
      const Index left = rows - first;
      const auto multiply = left == 1   ? multiply_few<format, 1>
                            : left == 2 ? multiply_few<format, 2>
                            : left <= 4 ? multiply_few<format, 4>
                            : left <= 6 ? multiply_few<format, 6>
                                        : multiply_few<format, 8>;
      QuantizedRowsView tile = x;
      tile.groups += first * x.row_stride;
      if constexpr (is_per_channel(format)) tile.totals += first;
      multiply(weights, p, tile, out + first * out_stride);
    }
  }
}

inline void multiply_int8(const PackedPanels& weights, const QuantizedRowsView& x, Index rows,
                          float* out, std::byte* scratch) noexcept {
  if (rows <= 0) return;
  for_quantized_format(weights.format, [&]<PackedFormat format>() {
    multiply_format<format>(weights, x, rows, out, scratch);
  });
}

}  // namespace kvick::inline v0_1::detail::avx512
