// SPDX-License-Identifier: MIT
// Loops that do nothing but the operation that limits a kernel, once per instruction set.
//
// All operands are 1, so each loop returns how many multiply-adds (or loads of eight bytes) it
// stands for, modulo 2^32 or as long as a float can count. The instructions are written as asm
// where one instruction is the limit: compilers see that operands never change and that all chains
// of sums are equal, and compute equal ones once; and gcc 12 moves accumulators of vpdpbusd to the
// stack. Elsewhere empty asm statements hide the same.
//
// Layer     benchmarks: outside of kernels/, intrinsics are used only here.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kvick/core/matrix.hpp"

namespace measure::loops {

using kvick::Index;

/// Operands in memory: 64 vectors of the widest kind, well within the first-level cache.
inline constexpr std::size_t kOperandBytes = 4096;

/// `iterations` times the same work on `operands` (kOperandBytes); returns its count, see above.
using ComputeLoop = std::uint32_t (*)(const std::byte* operands, Index iterations);

/// Reads [begin, end), a multiple of 2 KiB, and returns the sum of its 8-byte words. Prefetches
/// `distance` bytes ahead unless that is 0.
using ReadLoop = std::uint64_t (*)(const std::byte* begin, const std::byte* end, Index distance);

// ---- Plain C++, as the portable kernels are compiled: what vectors it uses is up to the compiler

/// Keeps the compiler from using what it knows of memory.
inline void forget_memory() noexcept { __asm__ volatile("" ::: "memory"); }

/// Sums of products of T in int32: int8 as stored, or int16 as if they were widened before.
template <class T>
std::uint32_t portable_dot(const std::byte* operands, Index iterations) {
  constexpr int kCount = static_cast<int>(kOperandBytes / 2 / sizeof(T));
  const T* const a = reinterpret_cast<const T*>(operands);
  const T* const b = a + kCount;
  std::uint32_t sum = 0;
  for (Index i = 0; i < iterations; ++i) {
    forget_memory();
    std::int32_t dot = 0;
    for (int k = 0; k < kCount; ++k) dot += std::int32_t{a[k]} * std::int32_t{b[k]};
    sum += static_cast<std::uint32_t>(dot);
  }
  return sum;
}

/// One lane per output: 16 outputs whose sums stay in registers.
template <bool kFused>
std::uint32_t portable_multiply_add(const std::byte* operands, Index iterations) {
  constexpr int kLanes = 16;
  constexpr int kDepth = static_cast<int>(kOperandBytes / sizeof(float)) / kLanes - 1;
  const float* const panel = reinterpret_cast<const float*>(operands);
  const float* const x = panel + kDepth * kLanes;
  float sums[kLanes] = {};
  for (Index i = 0; i < iterations; ++i) {
    forget_memory();
    for (int k = 0; k < kDepth; ++k) {
      for (int j = 0; j < kLanes; ++j) {
        const float w = panel[k * kLanes + j];
        sums[j] = kFused ? std::fma(w, x[j], sums[j]) : w * x[j] + sums[j];
      }
    }
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return static_cast<std::uint32_t>(total);
}

/// kStreams ranges are read side by side, a cache line or more of each in turn.
template <int kStreams, bool kPrefetch, int kLocality>
std::uint64_t portable_read(const std::byte* begin, const std::byte* end, Index distance) {
  const Index length = (end - begin) / kStreams;
  std::uint64_t sums[8] = {};
  for (Index at = 0; at < length; at += 64) {
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* const from = begin + s * length + at;
      if constexpr (kPrefetch) __builtin_prefetch(from + distance, 0, kLocality);
      const auto* const words = reinterpret_cast<const std::uint64_t*>(from);
      for (int i = 0; i < 8; ++i) sums[i] += words[i];
    }
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

#if defined(__x86_64__)

#define MEASURE_AVX2 __attribute__((target("avx2,fma")))
#define MEASURE_AVX_VNNI __attribute__((target("avx2,fma,avxvnni")))
#define MEASURE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2")))

/// The sum of 32-bit or 64-bit lanes, or of f32 lanes, in memory.
template <class Sum, class Lane>
Sum sum_of_lanes(const Lane* lanes, int count) noexcept {
  Sum sum = 0;
  for (int i = 0; i < count; ++i) sum += static_cast<Sum>(lanes[i]);
  return sum;
}

// ---- AVX-512 VNNI

/// vpdpbusd on kChains accumulators; activations in a register, or as a memory operand.
template <int kChains, bool kFromMemory>
MEASURE_AVX512 std::uint32_t avx512_dpbusd(const std::byte* operands, Index iterations) {
  __m512i sums[kChains];
#pragma GCC unroll 32
  for (int c = 0; c < kChains; ++c) sums[c] = _mm512_setzero_si512();
  const __m512i ones = _mm512_set1_epi8(1);
  const auto* const vectors = reinterpret_cast<const __m512i*>(operands);
  for (Index i = 0; i < iterations; ++i) {
#pragma GCC unroll 32
    for (int c = 0; c < kChains; ++c) {
      if constexpr (kFromMemory) {
        __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sums[c]) : "v"(ones), "m"(vectors[c]));
      } else {
        __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(sums[c]) : "v"(ones));
      }
    }
  }
  alignas(64) std::uint32_t lanes[16];
#pragma GCC unroll 32
  for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_epi32(sums[0], sums[c]);
  _mm512_store_si512(lanes, sums[0]);
  return sum_of_lanes<std::uint32_t>(lanes, 16);
}

template <int kChains, bool kFromMemory>
MEASURE_AVX512 std::uint32_t avx512_fma(const std::byte* operands, Index iterations) {
  __m512 sums[kChains];
#pragma GCC unroll 32
  for (int c = 0; c < kChains; ++c) sums[c] = _mm512_setzero_ps();
  const __m512 ones = _mm512_set1_ps(1.0f);
  const auto* const vectors = reinterpret_cast<const __m512*>(operands);
  for (Index i = 0; i < iterations; ++i) {
#pragma GCC unroll 32
    for (int c = 0; c < kChains; ++c) {
      if constexpr (kFromMemory) {
        __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(sums[c]) : "v"(ones), "m"(vectors[c]));
      } else {
        __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(sums[c]) : "v"(ones));
      }
    }
  }
  alignas(64) float lanes[16];
#pragma GCC unroll 32
  for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_ps(sums[0], sums[c]);
  _mm512_store_ps(lanes, sums[0]);
  return static_cast<std::uint32_t>(sum_of_lanes<float>(lanes, 16));
}

/// As portable_read; 4 cache lines of a stream in turn.
template <int kStreams, bool kPrefetch, int kLocality>
MEASURE_AVX512 std::uint64_t avx512_read(const std::byte* begin, const std::byte* end,
                                         Index distance) {
  constexpr int kLines = 4;
  const Index length = (end - begin) / kStreams;
  __m512i sums[kLines];
#pragma GCC unroll 4
  for (int i = 0; i < kLines; ++i) sums[i] = _mm512_setzero_si512();
  for (Index at = 0; at < length; at += 64 * kLines) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* const from = begin + s * length + at;
#pragma GCC unroll 4
      for (int i = 0; i < kLines; ++i) {
        if constexpr (kPrefetch) __builtin_prefetch(from + distance + 64 * i, 0, kLocality);
        sums[i] = _mm512_add_epi64(sums[i], _mm512_load_si512(from + 64 * i));
      }
    }
  }
  alignas(64) std::uint64_t lanes[8];
#pragma GCC unroll 4
  for (int i = 1; i < kLines; ++i) sums[0] = _mm512_add_epi64(sums[0], sums[i]);
  _mm512_store_si512(lanes, sums[0]);
  return sum_of_lanes<std::uint64_t>(lanes, 8);
}

// ---- AVX-VNNI and AVX2

template <int kChains, bool kFromMemory>
MEASURE_AVX_VNNI std::uint32_t avx_vnni_dpbusd(const std::byte* operands, Index iterations) {
  __m256i sums[kChains];
#pragma GCC unroll 32
  for (int c = 0; c < kChains; ++c) sums[c] = _mm256_setzero_si256();
  const __m256i ones = _mm256_set1_epi8(1);
  const auto* const vectors = reinterpret_cast<const __m256i*>(operands);
  for (Index i = 0; i < iterations; ++i) {
#pragma GCC unroll 32
    for (int c = 0; c < kChains; ++c) {
      if constexpr (kFromMemory) {
        sums[c] = _mm256_dpbusd_avx_epi32(sums[c], ones, vectors[c]);
      } else {
        sums[c] = _mm256_dpbusd_avx_epi32(sums[c], ones, ones);
      }
    }
  }
  alignas(32) std::uint32_t lanes[8];
#pragma GCC unroll 32
  for (int c = 1; c < kChains; ++c) sums[0] = _mm256_add_epi32(sums[0], sums[c]);
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums[0]);
  return sum_of_lanes<std::uint32_t>(lanes, 8);
}

/// How AVX2 multiplies int8. Two instructions of each 32 products need a multiplier in the first
/// two ways, so they have one limit where there are two multipliers; the way of nibbles needs 1
/// 1/8.
enum class Avx2Way {
  kSign,    ///< |w| and sign(x, w), vpmaddubsw, vpmaddwd, vpaddd: w of 8 bits, |w| kept over rows
  kWords,   ///< w and x widened to int16 before: vpmaddwd, vpaddd, twice for 32 products
  kNibbles  ///< w of 4 bits: eight vpmaddubsw are added up in int16 before one vpmaddwd
};

template <Avx2Way kWay, int kChains>
MEASURE_AVX2 std::uint32_t avx2_multiply(const std::byte* /*operands*/, Index iterations) {
  constexpr int kNibbleSteps = 8;  // 15 * 127 * 2 * 8 fits int16
  __m256i sums[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) sums[c] = _mm256_setzero_si256();
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i w = kWay == Avx2Way::kWords ? ones : _mm256_set1_epi8(1);
  __m256i x = w;
  for (Index i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) {
      __asm__ volatile("" : "+x"(sums[c]), "+x"(w), "+x"(x));
      if constexpr (kWay == Avx2Way::kSign) {
        const __m256i pairs = _mm256_maddubs_epi16(w, _mm256_sign_epi8(x, w));
        sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(pairs, ones));
      } else if constexpr (kWay == Avx2Way::kWords) {
        sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(w, x));
      } else {
        __m256i pairs = _mm256_maddubs_epi16(w, x);
#pragma GCC unroll 8
        for (int s = 1; s < kNibbleSteps; ++s) {
          __asm__ volatile("" : "+x"(w), "+x"(x));
          pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w, x));
        }
        sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
  alignas(32) std::uint32_t lanes[8];
#pragma GCC unroll 16
  for (int c = 1; c < kChains; ++c) sums[0] = _mm256_add_epi32(sums[0], sums[c]);
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums[0]);
  return sum_of_lanes<std::uint32_t>(lanes, 8);
}

template <int kChains, bool kFromMemory>
MEASURE_AVX2 std::uint32_t avx2_fma(const std::byte* operands, Index iterations) {
  __m256 sums[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) sums[c] = _mm256_setzero_ps();
  const __m256 ones = _mm256_set1_ps(1.0f);
  const auto* const vectors = reinterpret_cast<const __m256*>(operands);
  for (Index i = 0; i < iterations; ++i) {
#pragma GCC unroll 32
    for (int c = 0; c < kChains; ++c) {
      if constexpr (kFromMemory) {
        __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(sums[c]) : "x"(ones), "m"(vectors[c]));
      } else {
        __asm__ volatile("vfmadd231ps %1, %1, %0" : "+x"(sums[c]) : "x"(ones));
      }
    }
  }
  alignas(32) float lanes[8];
#pragma GCC unroll 16
  for (int c = 1; c < kChains; ++c) sums[0] = _mm256_add_ps(sums[0], sums[c]);
  _mm256_store_ps(lanes, sums[0]);
  return static_cast<std::uint32_t>(sum_of_lanes<float>(lanes, 8));
}

template <int kStreams, bool kPrefetch, int kLocality>
MEASURE_AVX2 std::uint64_t avx2_read(const std::byte* begin, const std::byte* end, Index distance) {
  constexpr int kHalves = 4;  // two cache lines of a stream in turn
  const Index length = (end - begin) / kStreams;
  __m256i sums[kHalves];
#pragma GCC unroll 4
  for (int i = 0; i < kHalves; ++i) sums[i] = _mm256_setzero_si256();
  for (Index at = 0; at < length; at += 32 * kHalves) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* const from = begin + s * length + at;
#pragma GCC unroll 4
      for (int i = 0; i < kHalves; ++i) {
        if constexpr (kPrefetch) {
          if (i % 2 == 0) __builtin_prefetch(from + distance + 32 * i, 0, kLocality);
        }
        const auto* const half = reinterpret_cast<const __m256i*>(from + 32 * i);
        sums[i] = _mm256_add_epi64(sums[i], _mm256_load_si256(half));
      }
    }
  }
  alignas(32) std::uint64_t lanes[4];
#pragma GCC unroll 4
  for (int i = 1; i < kHalves; ++i) sums[0] = _mm256_add_epi64(sums[0], sums[i]);
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums[0]);
  return sum_of_lanes<std::uint64_t>(lanes, 4);
}

#undef MEASURE_AVX2
#undef MEASURE_AVX_VNNI
#undef MEASURE_AVX512

#endif  // __x86_64__

}  // namespace measure::loops
