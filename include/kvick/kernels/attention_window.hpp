// SPDX-License-Identifier: MIT
// Which cached positions a query sees: all before it, or a sliding window and the first few.
//
// A window bounds the memory and the work of long sequences. Positions keep their own rotation:
// nothing is shifted or rotated again. The first tokens ("sinks") may stay visible for ever,
// because models put much of their attention there (Xiao et al. 2023, StreamingLLM).
//
// Layer     kernels: may include core.
#pragma once

#include <algorithm>

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// The query at position p sees [0, min(num_sinks, p + 1)) and the last `size` positions, its own
/// included.
struct AttentionWindow {
  int size = 0;       ///< 0: everything before
  int num_sinks = 0;  ///< first positions that stay visible; counts only with a size

  constexpr bool is_bounded() const noexcept { return size > 0; }

  /// First position of the window of the query at `position`: visible from here to its own.
  constexpr int first_position(int position) const noexcept {
    return is_bounded() ? std::max(0, position - size + 1) : 0;
  }

  friend constexpr bool operator==(const AttentionWindow&, const AttentionWindow&) = default;
};

}  // namespace kvick::inline v0_1
