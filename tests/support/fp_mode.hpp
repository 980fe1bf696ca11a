// SPDX-License-Identifier: MIT
// Floating-point modes that a host may be in, and what arithmetic looks like from inside.
//
//   const support::ScopedFpMode mode(support::FpMode::kFlush);
//   EXPECT_EQ(support::observed_fp_mode(), support::FpMode::kFlush);
#pragma once

#include <bit>
#include <cfenv>
#include <cstdint>
#include <ostream>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace support {

enum class FpMode { kDefault, kFlush, kUp, kDown, kTowardZero };

inline std::ostream& operator<<(std::ostream& out, FpMode mode) {
  constexpr const char* kNames[] = {"default", "flush", "up", "down", "toward zero"};
  return out << kNames[static_cast<int>(mode)];
}

/// Modes other than the default that this machine can be put in.
inline std::vector<FpMode> foreign_fp_modes() {
#if defined(__x86_64__)
  return {FpMode::kFlush, FpMode::kUp, FpMode::kDown, FpMode::kTowardZero};
#else
  return {FpMode::kUp, FpMode::kDown, FpMode::kTowardZero};
#endif
}

class ScopedFpMode {
 public:
  explicit ScopedFpMode(FpMode mode) {
    std::fegetenv(&saved_);
    std::fesetround(mode == FpMode::kUp           ? FE_UPWARD
                    : mode == FpMode::kDown       ? FE_DOWNWARD
                    : mode == FpMode::kTowardZero ? FE_TOWARDZERO
                                                  : FE_TONEAREST);
#if defined(__x86_64__)
    constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
    const unsigned cleared = _mm_getcsr() & ~(kFlushToZero | kDenormalsAreZero);
    _mm_setcsr(mode == FpMode::kFlush ? cleared | kFlushToZero | kDenormalsAreZero : cleared);
#endif
  }
  ~ScopedFpMode() { std::fesetenv(&saved_); }
  ScopedFpMode(const ScopedFpMode&) = delete;
  ScopedFpMode& operator=(const ScopedFpMode&) = delete;

 private:
  std::fenv_t saved_;
};

/// The mode that arithmetic shows, not the one that registers claim. Half of a pair of flush modes
/// counts as flushing.
[[gnu::noinline]] inline FpMode observed_fp_mode() {
  const auto add = [](float a, float b) {
    volatile float x = a, y = b;
    return x + y;
  };
  const auto multiply_bits = [](float a, float b) {
    volatile float x = a, y = b;
    volatile float product = x * y;
    return std::bit_cast<std::uint32_t>(static_cast<float>(product));
  };
  const bool flushes_results = multiply_bits(0x1p-126f, 0.5f) == 0;
  const bool flushes_operands = multiply_bits(0x1p-130f, 0x1p10f) == 0;
  if (flushes_results || flushes_operands) return FpMode::kFlush;
  const bool is_up = add(1.0f, 0x1p-30f) != 1.0f;
  const bool is_down = add(-1.0f, -0x1p-30f) != -1.0f;
  const bool is_nearest = add(1.0f, 0x1.8p-24f) == 1.0f + 0x1p-23f && !is_up;
  if (is_nearest && !is_down) return FpMode::kDefault;
  return is_up ? FpMode::kUp : is_down ? FpMode::kDown : FpMode::kTowardZero;
}

}  // namespace support
