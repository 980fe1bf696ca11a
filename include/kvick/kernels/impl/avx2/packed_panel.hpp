// SPDX-License-Identifier: MIT
// Unpacking groups of packed panels to bytes and f32 scales, for CPUs with AVX2.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx2/math.hpp"
#include "kvick/kernels/impl/avx2/target.hpp"
#include "kvick/kernels/packed_format.hpp"

namespace kvick::inline v0_1::detail::avx2 {

/// A group of one panel, unpacked.
struct alignas(64) UnpackedGroup {
  std::byte integers[kGroupSteps * kVectorBytes];  ///< as stored, or magnitudes
  std::byte negated[kGroupSteps * kVectorBytes];   ///< with magnitudes: the signed integers
  float scale[kPanelWidth];
  float second[kPanelWidth];  ///< scale of the second half, or minimum
};

/// Groups that are unpacked at a time: 18 KiB, less than a first-level cache.
inline constexpr Index kBlockGroups = 16;
static_assert(sizeof(UnpackedGroup) * kBlockGroups <= kMultiplyScratchBytes);

/// Bytes ahead of the reading that are fetched: about what memory delivers within its latency.
inline constexpr int kPrefetchBytes = 4096;

inline void prefetch(const std::byte* from, int bytes) noexcept {
  for (int i = 0; i < bytes; i += 64) {
    __builtin_prefetch(from + kPrefetchBytes + i, /*rw=*/0, /*locality=*/3);
  }
}

KVICK_AVX2_INLINE __m256i load32(const std::byte* from) noexcept {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}
KVICK_AVX2_INLINE void store32(std::byte* to, __m256i v) noexcept {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), v);
}
KVICK_AVX2_INLINE __m256 load_f16(const std::byte* from) noexcept {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
}
/// Eight bytes as floats; `is_signed` for int8.
KVICK_AVX2_INLINE __m256 bytes_to_floats(__m128i bytes, bool is_signed) noexcept {
  return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
}
KVICK_AVX2_INLINE __m128i load8(const std::byte* from) noexcept {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}

/// Bit `from` of every byte moved to bit `to`; neighbours move along and are masked by the caller.
KVICK_AVX2_INLINE __m256i move_bits(__m256i v, int from, int to) noexcept {
  return from > to ? _mm256_srli_epi16(v, from - to) : _mm256_slli_epi16(v, to - from);
}

/// value | (bits & mask)
KVICK_AVX2_INLINE __m256i insert_bits(__m256i value, __m256i bits, int mask) noexcept {
  return _mm256_or_si256(value, _mm256_and_si256(bits, _mm256_set1_epi8(static_cast<char>(mask))));
}

/// Half the lanes (32 bytes at `offset` of every vector) of a group's integers, unsigned.
template <PackedIntegers kind>
KVICK_AVX2_INLINE void unpack_lanes(const std::byte* group, int offset, std::byte* out) noexcept {
  if constexpr (kind == PackedIntegers::kBytes) {
#pragma GCC unroll 8
    for (int s = 0; s < kGroupSteps; ++s) {
      store32(out + s * kVectorBytes + offset, load32(group + s * kVectorBytes + offset));
    }
  } else {
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    const std::byte* const high_bits = group + 4 * kVectorBytes + offset;
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const __m256i pair = load32(group + s * kVectorBytes + offset);
      __m256i low = _mm256_and_si256(pair, nibble);
      __m256i high = _mm256_and_si256(_mm256_srli_epi16(pair, 4), nibble);
      if constexpr (kind == PackedIntegers::kNibblesPlus1Bit) {
        const __m256i fifth = load32(high_bits);
        low = insert_bits(low, move_bits(fifth, s, 4), 0x10);
        high = insert_bits(high, move_bits(fifth, s + 4, 4), 0x10);
      }
      if constexpr (kind == PackedIntegers::kNibblesPlus2Bits) {
        low = insert_bits(low, move_bits(load32(high_bits), 2 * s, 4), 0x30);
        high = insert_bits(high, move_bits(load32(high_bits + kVectorBytes), 2 * s, 4), 0x30);
      }
      store32(out + s * kVectorBytes + offset, low);
      store32(out + (s + 4) * kVectorBytes + offset, high);
    }
  }
}

/// Magnitudes and signed values of bytes stored 128 too high.
KVICK_AVX2_INLINE void split_signs(const std::byte* group, UnpackedGroup& out) noexcept {
#pragma GCC unroll 4
  for (int i = 0; i < kGroupSteps * kVectorBytes; i += 32) {
    const __m256i value =
        _mm256_xor_si256(load32(group + i), _mm256_set1_epi8(static_cast<char>(0x80)));
    store32(out.integers + i, _mm256_abs_epi8(value));  // 128 as unsigned
    store32(out.negated + i, value);
  }
}

/// 6-bit scale and minimum of eight outputs from `lane` on, see unpack_k_scales.
KVICK_AVX2_INLINE void unpack_6bit(const std::byte* unit, int group, int lane,
                                   UnpackedGroup& out) noexcept {
  const auto plane = [unit, lane](int i) { return unit + 64 + 16 * i + lane; };
  const __m128i six = _mm_set1_epi8(63);
  const __m128i four = _mm_set1_epi8(15);
  const __m128i top = _mm_set1_epi8(0x30);
  __m128i scale;
  __m128i minimum;
  if (group < 4) {
    scale = _mm_and_si128(load8(plane(group)), six);
    minimum = _mm_and_si128(load8(plane(group + 4)), six);
  } else {
    const __m128i nibbles = load8(plane(group + 4));
    scale = _mm_or_si128(_mm_and_si128(nibbles, four),
                         _mm_and_si128(_mm_srli_epi16(load8(plane(group - 4)), 2), top));
    minimum = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(nibbles, 4), four),
                           _mm_and_si128(_mm_srli_epi16(load8(plane(group)), 2), top));
  }
  const __m256 minus_dmin = _mm256_xor_ps(load_f16(unit + 32 + 2 * lane), _mm256_set1_ps(-0.0f));
  _mm256_store_ps(out.scale + lane,
                  _mm256_mul_ps(load_f16(unit + 2 * lane), bytes_to_floats(scale, false)));
  _mm256_store_ps(out.second + lane, _mm256_mul_ps(minus_dmin, bytes_to_floats(minimum, false)));
}

/// Scales of eight outputs from `lane` on.
template <PackedScales kind>
KVICK_AVX2_INLINE void unpack_scales(const std::byte* unit, int group, int lane,
                                     UnpackedGroup& out) noexcept {
  if constexpr (kind == PackedScales::kF16) {
    _mm256_store_ps(out.scale + lane, load_f16(unit + 32 * group + 2 * lane));
  } else if constexpr (kind == PackedScales::kF32) {
    _mm256_store_ps(out.scale + lane, _mm256_load_ps(reinterpret_cast<const float*>(unit) + lane));
  } else if constexpr (kind == PackedScales::kF16WithMinimum) {
    _mm256_store_ps(out.scale + lane, load_f16(unit + 2 * lane));
    _mm256_store_ps(out.second + lane, load_f16(unit + 32 + 2 * lane));
  } else if constexpr (kind == PackedScales::kPacked6Bit) {
    unpack_6bit(unit, group, lane, out);
  } else if constexpr (kind == PackedScales::kInt8) {
    const __m256 d = load_f16(unit + 2 * lane);
    const std::byte* const planes = unit + 64 + 32 * group + lane;
    _mm256_store_ps(out.scale + lane, _mm256_mul_ps(d, bytes_to_floats(load8(planes), true)));
    _mm256_store_ps(out.second + lane, _mm256_mul_ps(d, bytes_to_floats(load8(planes + 16), true)));
  }
}

/// Groups [first, first + count) of a panel. With `kSplitSigns`, bytes become magnitudes and signed
/// values.
template <PackedFormat format, bool kSplitSigns>
KVICK_AVX2 inline void unpack(const std::byte* panel, Index first, Index count,
                              UnpackedGroup* out) noexcept {
  constexpr PackedLayout kLayout = packed_layout(format);
  for (Index g = first; g < first + count; ++g, ++out) {
    const auto index = static_cast<int>(g % kLayout.groups_per_unit);
    const std::byte* const unit = panel + g / kLayout.groups_per_unit * kLayout.unit_bytes();
    const std::byte* const integers = unit + kLayout.scale_bytes + index * kLayout.group_bytes();
    if (index == 0) prefetch(unit, kLayout.unit_bytes());
    if constexpr (kSplitSigns && kLayout.integers == PackedIntegers::kBytes) {
      split_signs(integers, *out);
    } else {
      unpack_lanes<kLayout.integers>(integers, 0, out->integers);
      unpack_lanes<kLayout.integers>(integers, 32, out->integers);
    }
    unpack_scales<kLayout.scales>(unit, index, 0, *out);
    unpack_scales<kLayout.scales>(unit, index, 8, *out);
  }
}

}  // namespace kvick::inline v0_1::detail::avx2
