// SPDX-License-Identifier: MIT
// The values that logits may have.
//
// Errors    Error(kArgument) for what no distribution could have.
// Layer     sampling: may include core.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>

#include "kvick/core/error.hpp"

namespace kvick::inline v0_1::detail {

/// Throws if logits are empty, NaN, +inf or all -inf.
inline void check_logits(std::span<const float> logits, std::string_view operation) {
  require(!logits.empty(), ErrorCode::kArgument, operation, "logits must not be empty");
  bool any_finite = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    require(!(std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()),
            ErrorCode::kArgument, operation, "logits must be below +inf and not NaN, got ",
            logits[i], " for token ", i);
    any_finite = any_finite || std::isfinite(logits[i]);
  }
  require(any_finite, ErrorCode::kArgument, operation,
          "one logit must be finite, got -inf for all ", logits.size(), " tokens");
}

}  // namespace kvick::inline v0_1::detail
