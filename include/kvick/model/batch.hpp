// SPDX-License-Identifier: MIT
// The ragged batch: all that one forward pass computes.
//
// A prompt is a long segment, a decoding step a segment of one token, the verification of k drafted
// tokens a segment of k + 1 with all logits wanted, a chunk of a prompt a segment with none.
// Nothing else tells the phases apart.
//
// Errors    Batch::add throws Error(kArgument) for a segment that no model could compute.
// Layer     model: may include core.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"

namespace kvick::inline v0_1 {

/// Consecutive new tokens of one sequence.
struct Segment {
  int sequence = 0;                      ///< slot of the cache
  int first_position = 0;                ///< position of tokens[0]: tokens cached before it
  std::span<const TokenId> tokens = {};  ///< at least one; must outlive the batch
  int num_logits = 0;                    ///< the last num_logits tokens want logits
};

class Batch {
 public:
  Batch() = default;
  /// A batch of one segment.
  explicit Batch(const Segment& segment) { add(segment); }

  /// At most one segment per sequence. If it throws, the batch is as before.
  void add(const Segment& segment);
  /// Keeps the memory for the next step.
  void clear() noexcept;

  std::span<const Segment> segments() const noexcept { return segments_; }
  bool empty() const noexcept { return segments_.empty(); }
  Index num_tokens() const noexcept { return num_tokens_; }
  /// Rows of logits: those of the first segment, then of the second, each in order of position.
  Index num_logits() const noexcept { return num_logits_; }

 private:
  void grow_places();
  std::size_t find_place(int sequence) const noexcept;

  std::vector<Segment> segments_;
  std::vector<int> places_;  // open hash table of sequences, at most half full; -1: free
  Index num_tokens_ = 0;
  Index num_logits_ = 0;
};

// ---- Implementation: nothing below is API ----

inline void Batch::add(const Segment& segment) {
  constexpr const char* kOperation = "Batch::add";
  const auto num_tokens = static_cast<Index>(segment.tokens.size());
  detail::require(segment.sequence >= 0 && segment.first_position >= 0, ErrorCode::kArgument,
                  kOperation, "sequence and first_position must not be negative, got ",
                  segment.sequence, " and ", segment.first_position);
  detail::require(num_tokens > 0, ErrorCode::kArgument, kOperation,
                  "a segment must have tokens, got none for sequence ", segment.sequence);
  detail::require(num_tokens <= std::numeric_limits<int>::max() - segment.first_position,
                  ErrorCode::kArgument, kOperation, "positions must be below 2^31, got ",
                  num_tokens, " tokens from position ", segment.first_position);
  detail::require(segment.num_logits >= 0 && segment.num_logits <= num_tokens, ErrorCode::kArgument,
                  kOperation, "num_logits must be in [0, ", num_tokens, "], got ",
                  segment.num_logits);
  if (2 * (segments_.size() + 1) > places_.size()) grow_places();
  int& place = places_[find_place(segment.sequence)];
  detail::require(place != segment.sequence, ErrorCode::kArgument, kOperation,
                  "a sequence must have one segment in a batch, got two of sequence ",
                  segment.sequence);
  segments_.push_back(segment);
  place = segment.sequence;
  num_tokens_ += num_tokens;
  num_logits_ += segment.num_logits;
}

inline void Batch::grow_places() {
  places_ = std::vector<int>(std::max<std::size_t>(16, 2 * places_.size()), -1);
  for (const Segment& segment : segments_) places_[find_place(segment.sequence)] = segment.sequence;
}

/// Where the sequence is, or would be. Slots are few and adjacent: they rarely meet.
inline std::size_t Batch::find_place(int sequence) const noexcept {
  const std::size_t mask = places_.size() - 1;
  std::size_t i = static_cast<std::size_t>(sequence) & mask;
  while (places_[i] != -1 && places_[i] != sequence) i = (i + 1) & mask;
  return i;
}

inline void Batch::clear() noexcept {
  std::fill(places_.begin(), places_.end(), -1);
  segments_.clear();
  num_tokens_ = 0;
  num_logits_ = 0;
}

}  // namespace kvick::inline v0_1
