// SPDX-License-Identifier: MIT
#include "kvick/core/fp_environment.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "support/fp_mode.hpp"

namespace kvick {
namespace {

using support::FpMode;
using support::observed_fp_mode;
using support::ScopedFpMode;

TEST(ScopedFpEnvironment, GivesTheDefaultModeAndRestoresTheCallersMode) {
  for (const FpMode mode : support::foreign_fp_modes()) {
    SCOPED_TRACE(::testing::Message() << mode);
    FpMode before{}, inside{}, after{};
    {
      const ScopedFpMode foreign(mode);
      before = observed_fp_mode();
      {
        const ScopedFpEnvironment guard;
        inside = observed_fp_mode();
      }
      after = observed_fp_mode();
    }
    EXPECT_EQ(before, mode);
    EXPECT_EQ(inside, FpMode::kDefault);
    EXPECT_EQ(after, mode);
    EXPECT_EQ(observed_fp_mode(), FpMode::kDefault);
  }
}

TEST(ScopedFpEnvironment, Nests) {
  FpMode inner{}, between{}, outer{};
  {
    const ScopedFpEnvironment first;
    {
      const ScopedFpMode foreign(FpMode::kUp);
      {
        const ScopedFpEnvironment second;
        inner = observed_fp_mode();
      }
      between = observed_fp_mode();
    }
    outer = observed_fp_mode();
  }
  EXPECT_EQ(inner, FpMode::kDefault);
  EXPECT_EQ(between, FpMode::kUp);
  EXPECT_EQ(outer, FpMode::kDefault);
}

TEST(ScopedFpEnvironment, RestoresWhenAnExceptionPasses) {
  FpMode after{};
  {
    const ScopedFpMode foreign(FpMode::kTowardZero);
    try {
      const ScopedFpEnvironment guard;
      throw 1;
    } catch (int) {
    }
    after = observed_fp_mode();
  }
  EXPECT_EQ(after, FpMode::kTowardZero);
}

TEST(ScopedFpEnvironment, LeavesOtherThreadsAlone) {
  FpMode other{};
  const ScopedFpMode foreign(FpMode::kDown);
  std::thread thread([&] {
    const ScopedFpMode mine(FpMode::kUp);
    std::thread([] { const ScopedFpEnvironment guard; }).join();
    other = observed_fp_mode();
  });
  thread.join();
  EXPECT_EQ(other, FpMode::kUp);
}

#if defined(__x86_64__)

// A host that debugs with traps on must not get a signal from inside.
TEST(ScopedFpEnvironment, MasksTraps) {
  constexpr unsigned kInvalidMask = 0x0080;
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved & ~kInvalidMask);
  {
    const ScopedFpEnvironment guard;
    volatile float zero = 0.0f;
    volatile float nan = zero / zero;
    (void)nan;
  }
  const unsigned restored = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(restored, saved & ~kInvalidMask);
}

#endif

}  // namespace
}  // namespace kvick
