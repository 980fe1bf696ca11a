// SPDX-License-Identifier: MIT
// Drafts by repetition: what followed the last time when the text read like this.
//
// The end of the text is looked for in the text itself, and the tokens after the longest match are
// proposed, of equally long ones those after the latest. Good for edits of code, summaries that
// quote, answers that repeat the question; free of any model.
//
// Time      O(1) per new token; per proposal one comparison of the text with the indexed one (1 us
//           for 4,000 tokens) and max_candidates comparisons of max_match tokens.
// Memory    16 to 24 bytes per token, flat: hash chains as of LZ77 compressors.
// Threads   One at a time.
// Source    Saxena 2023 (prompt lookup decoding); Yang et al. 2023 (LLMA).
// Layer     speculative: may include core, sampling.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/speculative/draft_source.hpp"

namespace kvick::inline v0_1 {

struct PromptLookupOptions {
  int min_match = 2;        ///< tokens that must be equal, in [1, 16]
  int max_match = 32;       ///< longer matches are not told apart
  int max_candidates = 16;  ///< places that are compared, the latest first
};

/// A DraftSource.
class PromptLookup {
 public:
  explicit PromptLookup(const PromptLookupOptions& options = {});

  /// The index learns what the text has gained. After another text, it starts again.
  void propose(const DraftContext& context, Draft& draft);

  /// The place after the longest match, or nothing: 0. `tokens` are those of the last proposal.
  std::size_t find(std::span<const TokenId> tokens) const noexcept;

 private:
  static constexpr std::int32_t kNone = -1;

  void follow(std::span<const TokenId> tokens);
  void insert(std::span<const TokenId> tokens, std::size_t end) noexcept;
  std::size_t bucket(const TokenId* last) const noexcept;

  PromptLookupOptions options_;
  // Places in the text are numbers of tokens before them.
  std::vector<std::int32_t> latest_;    // by bucket: the latest place after such tokens
  std::vector<std::int32_t> previous_;  // by place: the place before it in the same bucket
  std::vector<TokenId> text_;           // that was indexed
};

// ---- Implementation: nothing below is API ----

inline PromptLookup::PromptLookup(const PromptLookupOptions& options) : options_(options) {
  constexpr std::string_view kOperation = "PromptLookup";
  detail::require(options.min_match >= 1 && options.min_match <= 16, ErrorCode::kArgument,
                  kOperation, "min_match must be in [1, 16], got ", options.min_match);
  detail::require(options.max_match >= options.min_match, ErrorCode::kArgument, kOperation,
                  "max_match must be at least min_match = ", options.min_match, ", got ",
                  options.max_match);
  detail::require(options.max_candidates >= 1, ErrorCode::kArgument, kOperation,
                  "max_candidates must be at least 1, got ", options.max_candidates);
}

inline void PromptLookup::propose(const DraftContext& context, Draft& draft) {
  follow(context.tokens);
  const std::size_t place = find(context.tokens);
  if (place == 0) return;
  // Where the match reaches the end of the text, the draft repeats itself, as a loop would.
  const std::size_t size = context.tokens.size();
  for (std::size_t i = place; draft.tokens.size() < static_cast<std::size_t>(context.max_tokens);
       ++i) {
    draft.tokens.push_back(i < size ? context.tokens[i] : draft.tokens[i - size]);
  }
}

inline std::size_t PromptLookup::find(std::span<const TokenId> tokens) const noexcept {
  const auto min_match = static_cast<std::size_t>(options_.min_match);
  if (tokens.size() <= min_match || latest_.empty()) return 0;
  const std::size_t end = tokens.size();
  std::size_t best_length = min_match - 1, best = 0;
  // The end itself is the latest of its bucket: begin before it.
  std::int32_t place = previous_[end];
  for (int i = 0; i < options_.max_candidates && place != kNone; ++i) {
    const auto candidate = static_cast<std::size_t>(place);
    const std::size_t limit = std::min(candidate, static_cast<std::size_t>(options_.max_match));
    std::size_t length = 0;
    while (length < limit && tokens[candidate - 1 - length] == tokens[end - 1 - length]) ++length;
    if (length > best_length) {
      best_length = length;
      best = candidate;
    }
    place = previous_[candidate];
  }
  return best;
}

/// Indexes what `tokens` has beyond text_; all of it, if it does not go on from there.
inline void PromptLookup::follow(std::span<const TokenId> tokens) {
  const bool goes_on =
      tokens.size() >= text_.size() && std::equal(text_.begin(), text_.end(), tokens.begin());
  std::size_t num_indexed = text_.size();
  if (!goes_on) {
    text_.clear();
    num_indexed = 0;
    std::fill(latest_.begin(), latest_.end(), kNone);
  }
  text_.insert(text_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(num_indexed),
               tokens.end());
  previous_.resize(text_.size() + 1);
  if (latest_.size() < text_.size()) {  // twice as many buckets as there are, and all again
    latest_.assign(std::bit_ceil(std::max<std::size_t>(2 * text_.size(), 256)), kNone);
    num_indexed = 0;
  }
  const auto min_match = static_cast<std::size_t>(options_.min_match);
  for (std::size_t end = std::max(num_indexed + 1, min_match); end <= text_.size(); ++end) {
    insert(text_, end);
  }
}

inline void PromptLookup::insert(std::span<const TokenId> tokens, std::size_t end) noexcept {
  std::int32_t& latest = latest_[bucket(tokens.data() + end - 1)];
  previous_[end] = latest;
  latest = static_cast<std::int32_t>(end);
}

/// Of the min_match tokens up to `last`. Other tokens may share it.
inline std::size_t PromptLookup::bucket(const TokenId* last) const noexcept {
  std::uint64_t hash = 0;
  for (int i = 0; i < options_.min_match; ++i) {
    hash = (hash ^ static_cast<std::uint32_t>(*(last - i))) * 0x9e3779b97f4a7c15u;
  }
  return static_cast<std::size_t>(hash >> 32) & (latest_.size() - 1);
}

}  // namespace kvick::inline v0_1
