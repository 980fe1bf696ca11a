// SPDX-License-Identifier: MIT
#include "support/allocation_counter.hpp"

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <new>
#include <thread>
#include <vector>

#include "support/sanitizers.hpp"

namespace {

// Volatile, so that the compiler does not remove a pair of new and delete.
volatile std::size_t num_bytes = 1 << 20;

TEST(AllocationCounter, SeesEveryFormOfNew) {
  struct alignas(128) Wide {
    char bytes[128];
  };
  auto before = support::num_allocations();
  ::operator delete(::operator new(num_bytes));
  EXPECT_EQ(support::num_allocations(), ++before);
  ::operator delete[](::operator new[](num_bytes));
  EXPECT_EQ(support::num_allocations(), ++before);
  ::operator delete(::operator new(num_bytes, std::nothrow), std::nothrow);
  EXPECT_EQ(support::num_allocations(), ++before);
  ::operator delete[](::operator new[](num_bytes, std::nothrow), std::nothrow);
  EXPECT_EQ(support::num_allocations(), ++before);
  constexpr std::align_val_t kAlignment{128};
  ::operator delete(::operator new(num_bytes, kAlignment), kAlignment);
  EXPECT_EQ(support::num_allocations(), ++before);
  ::operator delete[](::operator new[](num_bytes, kAlignment), kAlignment);
  EXPECT_EQ(support::num_allocations(), ++before);
  ::operator delete(::operator new(num_bytes, kAlignment, std::nothrow), kAlignment, std::nothrow);
  EXPECT_EQ(support::num_allocations(), ++before);
  ::operator delete[](::operator new[](num_bytes, kAlignment, std::nothrow), kAlignment,
                      std::nothrow);
  EXPECT_EQ(support::num_allocations(), ++before);
  const std::vector<Wide> wide(num_bytes / sizeof(Wide));
  EXPECT_EQ(support::num_allocations(), ++before);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(wide.data()) % alignof(Wide), 0u);
}

TEST(AllocationCounter, RemembersTheLargestRequestUntilReset) {
  support::reset_largest_allocation();
  EXPECT_LT(support::largest_allocation(), num_bytes);
  { const std::vector<char> large(num_bytes + 3); }
  { const std::vector<char> small(10); }
  EXPECT_EQ(support::largest_allocation(), num_bytes + 3);
  support::reset_largest_allocation();
  EXPECT_LT(support::largest_allocation(), num_bytes);
}

TEST(AllocationCounter, CountsAllThreads) {
  constexpr std::size_t kThreads = 4, kEach = 1000;
  const auto before = support::num_allocations();
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      for (std::size_t i = 0; i < kEach; ++i) ::operator delete(::operator new(num_bytes));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(support::num_allocations() - before, kThreads * kEach);
}

#if defined(__GLIBC__) && !defined(KVICK_TEST_SANITIZED)

TEST(AllocationCounter, SeesEigensTemporaries) {
  const auto before = support::num_allocations();
  const Eigen::VectorXf temporary(static_cast<Eigen::Index>(num_bytes / sizeof(float)));
  EXPECT_EQ(support::num_allocations(), before + 1);
  EXPECT_NE(temporary.data(), nullptr);
}

#endif

}  // namespace
