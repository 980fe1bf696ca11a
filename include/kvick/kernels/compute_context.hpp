// SPDX-License-Identifier: MIT
// What layers compute with: the threads and the kernels.
//
// Layer     kernels: may include core.
#pragma once

#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/kernels/kernel_table.hpp"

namespace kvick::inline v0_1 {

/// Passed by reference down the layers; neither choice changes a bit of any result.
struct ComputeContext {
  ThreadPool& pool;
  const KernelTable& kernels;
};

namespace detail {

/// Multiplications up to which a loop stays in one thread: at some 10 microseconds of work, waking
/// others costs more than it saves, above all on a busy machine.
inline constexpr Index kSerialWork = Index{1} << 16;

}  // namespace detail
}  // namespace kvick::inline v0_1
