// SPDX-License-Identifier: MIT
// Where a scheduler's sequences have room: what it asks of a cache, and the slots it hands out.
//
// Every cache of this library fits, and BlockManager without tensors. What a room can beyond
// SequenceRoom (blocks, prefixes, forks) is used where it exists.
//
// Layer     serving: may include core, cache, model.
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "kvick/cache/block_types.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/model/language_model.hpp"

namespace kvick::inline v0_1 {

/// A SequenceCache that says how many sequences it has.
template <class R>
concept SequenceRoom = SequenceCache<R> && requires(const R& room) {
  { room.num_sequences() } -> std::convertible_to<int>;
};

/// Sequences take their room from one pool of blocks, which may run out.
template <class R>
concept BlockRoom = SequenceRoom<R> && requires(const R& room) {
  { room.num_blocks() } -> std::convertible_to<int>;
  { room.num_free_blocks() } -> std::convertible_to<int>;
  { room.num_blocks_for(1) } -> std::convertible_to<int>;
};

/// Sequences may begin with what is cached of their prompt.
template <class R>
concept PrefixRoom = SequenceRoom<R> &&
    requires(R room, const R& const_room, std::span<const TokenId> prompt, const PrefixKey& key) {
  { const_room.find_prefix(prompt, key) } -> std::same_as<PrefixHit>;
  { room.attach_prefix(0, prompt, key) } -> std::convertible_to<int>;
};

/// Sequences may continue another one. can_truncate() says whether truncate() would do.
template <class R>
concept ForkRoom = SequenceRoom<R> && requires(R room, const R& const_room) {
  room.fork(0, 1);
  { const_room.can_truncate(0, 1) } -> std::convertible_to<bool>;
};

/// Room for as many tokens in each slot as a sequence may have: for drivers whose cache is theirs.
class SlotRoom {
 public:
  /// Both at least 1.
  SlotRoom(int num_sequences, int max_seq_len);

  int num_sequences() const noexcept { return static_cast<int>(lengths_.size()); }
  int max_seq_len() const noexcept { return max_seq_len_; }
  int length(int sequence) const { return lengths_[checked(sequence)]; }
  [[nodiscard]] bool reserve(int sequence, int num_tokens) {
    return num_tokens <= max_seq_len_ - length(sequence);
  }
  void commit(int sequence, std::span<const TokenId> tokens) {
    lengths_[checked(sequence)] += static_cast<int>(tokens.size());
  }
  void truncate(int sequence, int length) { lengths_[checked(sequence)] = length; }
  void release(int sequence) { truncate(sequence, 0); }

 private:
  std::size_t checked(int sequence) const;

  std::vector<int> lengths_;
  int max_seq_len_;
};
static_assert(SequenceRoom<SlotRoom>);

// ---- Implementation: nothing below is API ----

inline SlotRoom::SlotRoom(int num_sequences, int max_seq_len) : max_seq_len_(max_seq_len) {
  detail::require(num_sequences >= 1 && max_seq_len >= 1, ErrorCode::kArgument, "SlotRoom",
                  "num_sequences and max_seq_len must be at least 1, got ", num_sequences, " and ",
                  max_seq_len);
  lengths_.resize(static_cast<std::size_t>(num_sequences));
}

inline std::size_t SlotRoom::checked(int sequence) const {
  detail::require(sequence >= 0 && sequence < num_sequences(), ErrorCode::kArgument, "SlotRoom",
                  "sequence must be in [0, ", num_sequences(), "), got ", sequence);
  return static_cast<std::size_t>(sequence);
}

namespace detail {

inline constexpr int kNoSlot = -1;

/// The slots of a room that are free, and how sequences begin in them.
template <SequenceRoom Room>
class RoomSlots {
 public:
  RoomSlots(Room& room, int num_slots) : room_(room) {
    for (int slot = num_slots; slot-- > 0;) free_.push_back(slot);
  }

  Room& room() noexcept { return room_; }
  const Room& room() const noexcept { return room_; }
  bool empty() const noexcept { return free_.empty(); }

  /// A sequence another one may begin with: the first `num_tokens` of those in `slot`.
  struct Source {
    int slot = kNoSlot;
    int num_tokens = 0;
  };

  /// A slot in which all of `tokens` are reserved, begun with what is cached of them or with
  /// `source`, whichever is more. None if that would leave less than `num_spare` blocks free.
  std::optional<int> begin(std::span<const TokenId> tokens, const PrefixKey& key,
                           const Source& source, int num_spare);

  /// Begins again if more of `tokens` is cached by now; false if that failed and the slot is empty.
  bool begin_again(int slot, std::span<const TokenId> tokens, const PrefixKey& key);

  void end(int slot) {
    room_.release(slot);
    free_.push_back(slot);  // never more than there were
  }

 private:
  PrefixHit find(std::span<const TokenId> tokens, const PrefixKey& key) const {
    if constexpr (PrefixRoom<Room>) return room_.find_prefix(tokens, key);
    return {};
  }
  bool is_plenty(const PrefixHit& hit, const Source& source, int num_tokens, int num_spare) const;
  void start(int slot, std::span<const TokenId> tokens, const PrefixKey& key, const Source& source);

  Room& room_;
  std::vector<int> free_;
};

/// Whether there are blocks enough, the one that may have to be copied included.
template <SequenceRoom Room>
bool RoomSlots<Room>::is_plenty(const PrefixHit& hit, const Source& source, int num_tokens,
                                int num_spare) const {
  if constexpr (BlockRoom<Room>) {
    const int num_blocks = room_.num_blocks_for(num_tokens);
    const int num_taken = source.slot != kNoSlot
                              ? num_blocks - room_.num_blocks_for(source.num_tokens) + 1
                              : num_blocks - hit.num_blocks + hit.num_free_blocks +
                                    (hit.num_tokens == num_tokens - 1 ? 1 : 0);
    return room_.num_free_blocks() - num_taken >= num_spare;
  }
  return true;
}

template <SequenceRoom Room>
void RoomSlots<Room>::start(int slot, std::span<const TokenId> tokens, const PrefixKey& key,
                            const Source& source) {
  if constexpr (ForkRoom<Room>) {
    if (source.slot != kNoSlot) {
      room_.fork(source.slot, slot);
      room_.truncate(slot, source.num_tokens);
      return;
    }
  }
  if constexpr (PrefixRoom<Room>) room_.attach_prefix(slot, tokens, key);
}

template <SequenceRoom Room>
std::optional<int> RoomSlots<Room>::begin(std::span<const TokenId> tokens, const PrefixKey& key,
                                          const Source& source, int num_spare) {
  if (free_.empty()) return std::nullopt;
  const PrefixHit hit = find(tokens, key);
  Source from;
  if constexpr (ForkRoom<Room>) {
    if (source.slot != kNoSlot && source.num_tokens > hit.num_tokens &&
        room_.can_truncate(source.slot, source.num_tokens)) {
      from = source;
    }
  }
  const auto num_tokens = static_cast<int>(tokens.size());
  if (num_spare > 0 && !is_plenty(hit, from, num_tokens, num_spare)) return std::nullopt;
  const int slot = free_.back();
  start(slot, tokens, key, from);
  if (!room_.reserve(slot, num_tokens - room_.length(slot))) {
    room_.release(slot);
    return std::nullopt;
  }
  free_.pop_back();
  return slot;
}

template <SequenceRoom Room>
bool RoomSlots<Room>::begin_again(int slot, std::span<const TokenId> tokens, const PrefixKey& key) {
  if (find(tokens, key).num_tokens <= room_.length(slot)) return true;
  room_.release(slot);
  start(slot, tokens, key, {});
  return room_.reserve(slot, static_cast<int>(tokens.size()) - room_.length(slot));
}

}  // namespace detail

}  // namespace kvick::inline v0_1
