// SPDX-License-Identifier: MIT
// What speculation did: counts, rates and times.
//
// Layer     speculative: may include core.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kvick/core/version.hpp"
#include "kvick/speculative/draft_source.hpp"

namespace kvick::inline v0_1 {

struct SpeculativeStatistics {
  std::int64_t num_rounds = 0;        ///< forward passes of the target, the prompt's last one too
  std::int64_t num_draft_rounds = 0;  ///< of them with drafted tokens
  std::int64_t num_drafted = 0;       ///< tokens
  std::int64_t num_accepted = 0;      ///< of them; those after the end of a text do not count
  std::int64_t num_generated = 0;     ///< tokens of the result

  double acceptance_rate = 0;       ///< accepted / drafted
  double mean_accepted_length = 0;  ///< tokens per round with drafts: accepted ones and one more

  double prefill_seconds = 0;  ///< evaluating prompts, up to the first token
  double draft_seconds = 0;
  double verify_seconds = 0;  ///< forward passes of the target after the prompt's
  double sampling_seconds = 0;

  /// How often a token was drafted at this place of a draft, and accepted.
  std::array<std::int64_t, kMaxDraftTokens> drafted_at = {};
  std::array<std::int64_t, kMaxDraftTokens> accepted_at = {};

  /// Share of tokens drafted at `position` that were accepted; 0 if there were none.
  double acceptance_at(int position) const noexcept {
    const auto i = static_cast<std::size_t>(position);
    if (i >= drafted_at.size() || drafted_at[i] == 0) return 0;
    return static_cast<double>(accepted_at[i]) / static_cast<double>(drafted_at[i]);
  }

  /// Counts a round.
  void record(std::size_t drafted, std::size_t accepted, std::size_t generated) noexcept {
    ++num_rounds;
    num_generated += static_cast<std::int64_t>(generated);
    if (drafted == 0) return;
    ++num_draft_rounds;
    num_drafted += static_cast<std::int64_t>(drafted);
    num_accepted += static_cast<std::int64_t>(accepted);
    for (std::size_t i = 0; i < std::min(drafted, drafted_at.size()); ++i) {
      ++drafted_at[i];
      if (i < accepted) ++accepted_at[i];
    }
    acceptance_rate = static_cast<double>(num_accepted) / static_cast<double>(num_drafted);
    mean_accepted_length =
        1.0 + static_cast<double>(num_accepted) / static_cast<double>(num_draft_rounds);
  }
};

}  // namespace kvick::inline v0_1
