// SPDX-License-Identifier: MIT
// From two neighbouring tokens to their merge: an open-addressing hash table over all merges.
//
// Half of the slots stay empty. The hash is keyed anew for every table: merges and texts come from
// outside, and known keys would let them be chosen to collide.
//
// Threads   Immutable once filled.
// Layer     text.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvick/core/matrix.hpp"
#include "kvick/text/piece_index.hpp"
#include "kvick/text/vocabulary.hpp"

namespace kvick::inline v0_1 {

class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = 0;    ///< the lower, the earlier it is done
    TokenId token = kNoToken;  ///< what both become; kNoToken: they never merge
  };

  /// Room for `max_merges`.
  explicit MergeTable(std::size_t max_merges)
      : key_(detail::random_key()),
        mask_(std::bit_ceil(2 * max_merges + 1) - 1),
        slots_(mask_ + 1) {}

  /// The first merge of a pair counts.
  void insert(TokenId left, TokenId right, Merge merge);

  Merge find(TokenId left, TokenId right) const noexcept;

 private:
  struct Slot {
    std::uint64_t pair = 0;
    Merge merge;
  };

  std::size_t slot_of(std::uint64_t pair) const noexcept;

  static std::uint64_t pair_of(TokenId left, TokenId right) noexcept {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }

  std::uint64_t key_;
  std::size_t mask_;  // slots_.size() - 1; the size is a power of two
  std::vector<Slot> slots_;
};

// ---- Implementation: nothing below is API ----

/// The slot of the pair, or the empty one where it belongs.
inline std::size_t MergeTable::slot_of(std::uint64_t pair) const noexcept {
  std::size_t i = detail::mix_bits(pair ^ key_) & mask_;
  while (slots_[i].merge.token != kNoToken && slots_[i].pair != pair) i = (i + 1) & mask_;
  return i;
}

inline void MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t pair = pair_of(left, right);
  Slot& slot = slots_[slot_of(pair)];
  if (slot.merge.token == kNoToken) slot = {pair, merge};
}

inline MergeTable::Merge MergeTable::find(TokenId left, TokenId right) const noexcept {
  return slots_[slot_of(pair_of(left, right))].merge;
}

}  // namespace kvick::inline v0_1
