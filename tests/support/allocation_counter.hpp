// SPDX-License-Identifier: MIT
// Counts the heap allocations of the whole test program, in every thread.
//
//   const auto before = support::num_allocations();
//   step();
//   EXPECT_EQ(support::num_allocations(), before);
//
// Counted are operator new in all its forms and, with glibc and without sanitizers, malloc and its
// kin as well: Eigen's temporaries come from malloc. Refused requests count too (not under Clang's
// thread sanitizer). Mappings do not (AlignedBuffer from 2 MiB on).
//
// Threads   Any thread may call any function at any time.
#pragma once

#include <cstddef>

namespace support {

/// Allocations since the program started.
std::size_t num_allocations() noexcept;

/// Bytes of the largest single request since the last reset.
std::size_t largest_allocation() noexcept;
void reset_largest_allocation() noexcept;

}  // namespace support
