// SPDX-License-Identifier: MIT
// Stop strings: passes text on until one of them appears, and never passes on a part of it.
//
// Works on bytes, so stop strings may begin and end anywhere within tokens or characters. Text is
// held back only while it may be the start of a stop string. The match is the one that is complete
// first, the longest of those that end together; so it does not depend on how the text was split.
//
// This is the automaton of Aho and Corasick: its state is the longest suffix of the text that
// starts some stop string, which is exactly what is held back. A byte costs amortized constant
// time, times the number of different bytes that may follow a shared start.
//
// Errors    Error(kArgument) for an empty stop string.
// Threads   One per sequence; not shared.
// Source    Aho, Corasick: Efficient String Matching (1975).
// Layer     text.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"

namespace kvick::inline v0_1 {

class StopMatcher {
 public:
  /// Without stop strings everything passes.
  explicit StopMatcher(std::span<const std::string> stop_strings = {});

  /// The text that can be passed on: what was held back and `bytes`, up to what may be the start of
  /// a stop string. After a match: what stood before it, and then nothing more.
  std::string push(std::string_view bytes);

  /// What is still held back, for the end of the text. Nothing after a match.
  std::string finish();

  bool has_matched() const noexcept { return match_.has_value(); }
  /// Index of the stop string that was found.
  std::optional<std::size_t> match() const noexcept { return match_; }

 private:
  struct Node {  // a start of one or more stop strings
    std::size_t parent = 0;
    std::size_t depth = 0;           // its length
    std::size_t fallback = 0;        // its longest proper suffix that is a node
    unsigned char byte = 0;          // its last
    std::optional<std::size_t> end;  // the longest stop string that is a suffix of it
    std::vector<std::size_t> children;
  };
  static constexpr std::size_t kRoot = 0;

  std::size_t child(std::size_t node, unsigned char byte) const noexcept;
  std::size_t step(std::size_t node, unsigned char byte) const noexcept;
  void insert(std::string_view stop_string, std::size_t index);
  void link_fallbacks();

  std::vector<Node> nodes_;
  std::vector<std::size_t> lengths_;  // of the stop strings
  std::size_t state_ = kRoot;
  std::string held_;  // the text of state_
  std::optional<std::size_t> match_;
};

// ---- Implementation: nothing below is API ----

inline StopMatcher::StopMatcher(std::span<const std::string> stop_strings) : nodes_(1) {
  for (std::size_t i = 0; i < stop_strings.size(); ++i) insert(stop_strings[i], i);
  link_fallbacks();
}

/// The child for `byte`, or the root.
inline std::size_t StopMatcher::child(std::size_t node, unsigned char byte) const noexcept {
  for (const std::size_t next : nodes_[node].children) {
    if (nodes_[next].byte == byte) return next;
  }
  return kRoot;
}

/// The longest suffix of `node` followed by `byte` that is a node.
inline std::size_t StopMatcher::step(std::size_t node, unsigned char byte) const noexcept {
  for (;;) {
    const std::size_t next = child(node, byte);
    if (next != kRoot || node == kRoot) return next;
    node = nodes_[node].fallback;
  }
}

inline void StopMatcher::insert(std::string_view stop_string, std::size_t index) {
  detail::require(!stop_string.empty(), ErrorCode::kArgument, "StopMatcher",
                  "a stop string must not be empty, got an empty one at index ", index);
  std::size_t node = kRoot;
  for (const char c : stop_string) {
    const auto byte = static_cast<unsigned char>(c);
    std::size_t next = child(node, byte);
    if (next == kRoot) {
      next = nodes_.size();
      nodes_.push_back({node, nodes_[node].depth + 1, kRoot, byte, std::nullopt, {}});
      nodes_[node].children.push_back(next);
    }
    node = next;
  }
  if (!nodes_[node].end) nodes_[node].end = index;  // of two equal ones, the first
  lengths_.push_back(stop_string.size());
}

inline void StopMatcher::link_fallbacks() {
  std::vector<std::size_t> queue = {kRoot};  // by depth, so that suffixes come first
  for (std::size_t i = 0; i < queue.size(); ++i) {
    Node& node = nodes_[queue[i]];
    if (node.depth > 1) node.fallback = step(nodes_[node.parent].fallback, node.byte);
    if (!node.end) node.end = nodes_[node.fallback].end;
    queue.insert(queue.end(), node.children.begin(), node.children.end());
  }
}

inline std::string StopMatcher::push(std::string_view bytes) {
  if (match_) return {};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    state_ = step(state_, static_cast<unsigned char>(bytes[i]));
    match_ = nodes_[state_].end;
    if (!match_) continue;
    held_ += bytes.substr(0, i + 1);
    held_.resize(held_.size() - lengths_[*match_]);
    return std::exchange(held_, {});
  }
  held_ += bytes;
  const std::size_t num_free = held_.size() - nodes_[state_].depth;
  std::string text = held_.substr(0, num_free);
  held_.erase(0, num_free);
  return text;
}

inline std::string StopMatcher::finish() {
  state_ = kRoot;
  return std::exchange(held_, {});
}

}  // namespace kvick::inline v0_1
