// SPDX-License-Identifier: MIT
// Byte-pair encoding's loop: of all neighbours that may merge, the best pair first, until none may.
//
// Symbols are a list within a vector, merges wait in a heap. A merge may be outdated when its turn
// comes: a symbol only grows or vanishes, so an equal length of both means that neither changed.
// n log n for n symbols, without recursion.
//
// Layer     text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {
namespace detail {

/// Ends of the list of symbols.
inline constexpr std::uint32_t kNoSymbol = UINT32_MAX;

/// `symbols` have previous, next, length (0 once merged into the left neighbour) and token; the
/// first is symbol 0. find_merge(left) gives the merge of symbol `left` with its next, which
/// has left, length (of both) and token, or nothing. is_worse orders merges; `heap` is work space.
template <class Symbol, class Merge, class FindMerge, class IsWorse>
void merge_best_first(std::vector<Symbol>& symbols, std::vector<Merge>& heap, FindMerge find_merge,
                      IsWorse is_worse) {
  heap.clear();
  for (std::uint32_t i = 0; i < symbols.size(); ++i) {
    if (const std::optional<Merge> merge = find_merge(i)) heap.push_back(*merge);
  }
  std::make_heap(heap.begin(), heap.end(), is_worse);
  const auto queue = [&](std::uint32_t left) {
    if (const std::optional<Merge> merge = find_merge(left)) {
      heap.push_back(*merge);
      std::push_heap(heap.begin(), heap.end(), is_worse);
    }
  };
  while (!heap.empty()) {
    const Merge best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), is_worse);
    heap.pop_back();
    Symbol& left = symbols[best.left];
    if (left.length == 0 || left.next == kNoSymbol) continue;
    Symbol& right = symbols[left.next];
    if (left.length + right.length != best.length) continue;
    left.length = best.length;
    left.token = best.token;
    left.next = right.next;
    right.length = 0;
    if (left.next != kNoSymbol) symbols[left.next].previous = best.left;
    if (left.previous != kNoSymbol) queue(left.previous);
    queue(best.left);
  }
}

}  // namespace detail
}  // namespace kvick::inline v0_1
