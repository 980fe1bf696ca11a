// SPDX-License-Identifier: MIT
// Finds tokens that are matched in a text before it is encoded, such as <|im_end|>.
//
// Matches never overlap. Where candidates do, the longer one wins; among equals the lower token,
// then the earlier place. This equals searching the whole text for one token after another, longest
// first, as llama.cpp does, at the cost of one pass: tokens are sorted, a table of first bytes
// rejects most places, and at the others a binary search per byte narrows the range of tokens that
// still fit. So the number of tokens hardly matters, and the longest (kMaxSpecialPieceBytes) bounds
// the work per byte.
//
// Threads   Immutable after construction.
// Layer     text.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "kvick/core/matrix.hpp"

namespace kvick::inline v0_1 {

struct SpecialMatch {
  std::size_t offset = 0;  ///< in bytes
  std::size_t length = 0;
  TokenId token = -1;

  bool operator==(const SpecialMatch&) const = default;
};

class SpecialMatcher {
 public:
  /// Matches nothing.
  SpecialMatcher() = default;
  /// Texts must differ; empty ones are left out.
  explicit SpecialMatcher(std::vector<std::pair<std::string, TokenId>> tokens);

  /// All matches, by offset.
  std::vector<SpecialMatch> find(std::string_view text) const;

  /// Every token that stands at the front of `text`, the shortest first: visit(length, token).
  template <class Visit>
  void visit_prefixes(std::string_view text, Visit&& visit) const;

 private:
  struct Range {
    std::size_t begin = 0;  // in tokens_
    std::size_t end = 0;
  };

  Range narrow(Range range, std::size_t depth, unsigned char byte) const noexcept;
  SpecialMatch longest_match(std::string_view text, std::size_t offset,
                             std::size_t max_length) const;

  std::vector<std::pair<std::string, TokenId>> tokens_;  // sorted by text
  std::array<Range, 256> by_first_byte_{};
};

// ---- Implementation: nothing below is API ----

inline SpecialMatcher::SpecialMatcher(std::vector<std::pair<std::string, TokenId>> tokens)
    : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const auto& token) { return token.first.empty(); });
  std::sort(tokens_.begin(), tokens_.end());
  for (std::size_t byte = 0; byte < by_first_byte_.size(); ++byte) {
    by_first_byte_[byte] = narrow({0, tokens_.size()}, 0, static_cast<unsigned char>(byte));
  }
}

/// Those tokens of `range`, all longer than `depth` and equal before it, that have `byte` there.
inline SpecialMatcher::Range SpecialMatcher::narrow(Range range, std::size_t depth,
                                                    unsigned char byte) const noexcept {
  const auto byte_at = [&](const auto& token) {
    return static_cast<unsigned char>(token.first[depth]);
  };
  // Usually all of them share the byte: most tokens differ at their ends.
  if (range.begin < range.end && byte_at(tokens_[range.begin]) == byte &&
      byte_at(tokens_[range.end - 1]) == byte) {
    return range;
  }
  const auto first = tokens_.begin() + static_cast<Index>(range.begin);
  const auto last = tokens_.begin() + static_cast<Index>(range.end);
  const auto low =
      std::partition_point(first, last, [&](const auto& t) { return byte_at(t) < byte; });
  const auto high =
      std::partition_point(low, last, [&](const auto& t) { return byte_at(t) == byte; });
  return {static_cast<std::size_t>(low - tokens_.begin()),
          static_cast<std::size_t>(high - tokens_.begin())};
}

/// The longest token at `offset` of at most `max_length` bytes; length 0 if there is none.
inline SpecialMatch SpecialMatcher::longest_match(std::string_view text, std::size_t offset,
                                                  std::size_t max_length) const {
  SpecialMatch match{offset, 0, -1};
  visit_prefixes(text.substr(offset, max_length), [&](std::size_t length, TokenId token) {
    match.length = length;
    match.token = token;
  });
  return match;
}

template <class Visit>
void SpecialMatcher::visit_prefixes(std::string_view text, Visit&& visit) const {
  if (text.empty()) return;
  Range range = by_first_byte_[static_cast<unsigned char>(text.front())];
  for (std::size_t depth = 1; range.begin < range.end; ++depth) {
    // A token that ends here is a prefix of all others in the range, so it is sorted first.
    if (tokens_[range.begin].first.size() == depth) {
      visit(depth, tokens_[range.begin].second);
      ++range.begin;
    }
    if (depth == text.size()) break;
    range = narrow(range, depth, static_cast<unsigned char>(text[depth]));
  }
}

inline std::vector<SpecialMatch> SpecialMatcher::find(std::string_view text) const {
  // Only the longest candidate of each place is kept. When a stronger match cuts it off, the
  // longest that still fits replaces it. The room before the cut halves each time (the new match
  // lies between and is at least as long as what it cuts), so a place is looked at a logarithmic
  // number of times.
  std::vector<SpecialMatch> candidates;
  if (tokens_.empty()) return candidates;
  for (std::size_t offset = 0; offset < text.size(); ++offset) {
    const SpecialMatch match = longest_match(text, offset, text.size());
    if (match.length > 0) candidates.push_back(match);
  }
  std::vector<SpecialMatch> matches;
  if (candidates.empty()) return matches;

  const auto is_weaker = [](const SpecialMatch& a, const SpecialMatch& b) {
    return std::tuple(b.length, a.token, a.offset) > std::tuple(a.length, b.token, b.offset);
  };
  std::string is_taken(text.size(), '\0');  // one flag per byte
  std::make_heap(candidates.begin(), candidates.end(), is_weaker);
  while (!candidates.empty()) {
    std::pop_heap(candidates.begin(), candidates.end(), is_weaker);
    const SpecialMatch match = candidates.back();
    candidates.pop_back();
    const std::string_view bytes = std::string_view(is_taken).substr(match.offset, match.length);
    const std::size_t room = std::min(bytes.find('\1'), bytes.size());
    if (room == match.length) {
      is_taken.replace(match.offset, match.length, match.length, '\1');
      matches.push_back(match);
    } else if (const auto shorter = longest_match(text, match.offset, room); shorter.length > 0) {
      candidates.push_back(shorter);
      std::push_heap(candidates.begin(), candidates.end(), is_weaker);
    }
  }
  std::sort(matches.begin(), matches.end(),
            [](const SpecialMatch& a, const SpecialMatch& b) { return a.offset < b.offset; });
  return matches;
}

}  // namespace kvick::inline v0_1
