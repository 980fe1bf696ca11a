// SPDX-License-Identifier: MIT
// The floating-point mode that every result assumes.
//
// Round to nearest even, gradual underflow (no flush-to-zero, no denormals-are-zero) and no traps.
// A host may run with another mode, for example one linked with -ffast-math startup code, so every
// public entry that computes and every worker thread puts a guard on its stack. On architectures
// other than x86-64 and AArch64 only the rounding is set.
//
// Guarantee Calls made between construction and destruction run in this mode. Arithmetic written in
//           the very scope of the guard may be moved across it by the compiler: guard a call.
// Threads   The mode belongs to the calling thread.
// Layer     core.
#pragma once

#include "kvick/core/version.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#else
#include <cfenv>
#endif

namespace kvick::inline v0_1 {

/// Sets the mode and restores the caller's when it goes out of scope. On x86-64, where both share a
/// register, exception flags raised in between are dropped too.
class ScopedFpEnvironment {
 public:
  ScopedFpEnvironment() noexcept;
  ~ScopedFpEnvironment();
  ScopedFpEnvironment(const ScopedFpEnvironment&) = delete;
  ScopedFpEnvironment& operator=(const ScopedFpEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  unsigned saved_;
#elif defined(__aarch64__)
  std::uint64_t saved_;
#else
  int saved_;
#endif
};

// ---- Implementation: nothing below is API ----

#if defined(__x86_64__)

// MXCSR: rounding in bits 13-14, flush-to-zero bit 15, denormals-are-zero bit 6, masks 7-12.
inline ScopedFpEnvironment::ScopedFpEnvironment() noexcept : saved_(_mm_getcsr()) {
  constexpr unsigned kMode = 0xe040, kMasks = 0x1f80;
  _mm_setcsr((saved_ & ~kMode) | kMasks);
}
inline ScopedFpEnvironment::~ScopedFpEnvironment() { _mm_setcsr(saved_); }

#elif defined(__aarch64__)

// FPCR: rounding in bits 22-23, flush-to-zero bits 24 and 19, flush inputs bit 0, alternate
// behaviour bits 1-2, traps 8-15, default NaN bit 25, and bit 26, which makes f16 conversions use a
// format without infinities.
inline ScopedFpEnvironment::ScopedFpEnvironment() noexcept {
  __asm__ volatile("mrs %0, fpcr" : "=r"(saved_)::"memory");
  const std::uint64_t mode = saved_ & ~std::uint64_t{0x7c8ff07};
  __asm__ volatile("msr fpcr, %0" ::"r"(mode) : "memory");
}
inline ScopedFpEnvironment::~ScopedFpEnvironment() {
  __asm__ volatile("msr fpcr, %0" ::"r"(saved_) : "memory");
}

#else

inline ScopedFpEnvironment::ScopedFpEnvironment() noexcept : saved_(std::fegetround()) {
  std::fesetround(FE_TONEAREST);
}
inline ScopedFpEnvironment::~ScopedFpEnvironment() { std::fesetround(saved_); }

#endif

}  // namespace kvick::inline v0_1
