// SPDX-License-Identifier: MIT
// Which blocks of a paged cache belong to which sequence: the policy of PagedKVCache without its
// tensors, so that schedulers can be written and tested against it alone.
//
// Position p of a sequence lies in block table(sequence)[p / block_tokens]. Per step the driver
// calls reserve() before the forward pass and commit() after it, as with every cache:
//
//   kvick::BlockManager blocks({.num_blocks = 1000, .num_sequences = 16, .max_seq_len = 4096});
//   int cached = blocks.attach_prefix(0, prompt);              // found again, need not be computed
//   if (!blocks.reserve(0, int(prompt.size()) - cached)) ...   // not enough room: nothing changed
//   blocks.commit(0, prompt.subspan(cached));                  // computed: others may find it now
//
// Sharing   fork() and attach_prefix() share whole blocks. A block with several holders is copied
//           when one of them is granted positions in it (copy on write); reserve() says what to
//           copy. A block that is findable but held by one sequence alone is withdrawn and written
//           in place, so a sequence always fits a pool as large as itself.
// Prefixes  Blocks become findable when commit() has filled them: keys and values are then complete
//           and their tokens final. See BlockPool on why a hit is never wrong. At least the last
//           token of a prompt is left to compute, so that its logits exist.
// Windows   With a bounded AttentionWindow, blocks that no later token sees are given back by
//           commit(). What the window has left cannot be truncated back to.
// Eviction  Free blocks stay findable until taken. The least recently released goes first, and of
//           one sequence the deepest, which is the least shared.
// Errors    Error(kArgument) for indices and lengths out of range, Error(kCapacity) for a commit
//           beyond what is reserved; the state is then unchanged. Too little room is no error:
//           reserve() returns false.
// Threads   One at a time. No call allocates after construction.
// Source    Block tables: Kwon et al. 2023 (PagedAttention).
// Layer     cache: may include core, kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/cache/block_pool.hpp"
#include "kvick/cache/block_types.hpp"  // IWYU pragma: export
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

class BlockManager {
 public:
  explicit BlockManager(const BlockManagerOptions& options);

  const BlockManagerOptions& options() const noexcept { return options_; }
  int num_sequences() const noexcept { return options_.num_sequences; }
  int max_seq_len() const noexcept { return options_.max_seq_len; }
  int block_tokens() const noexcept { return options_.block_tokens; }
  int num_blocks() const noexcept { return options_.num_blocks; }

  /// Blocks that reservations can still get, cached ones included.
  int num_free_blocks() const noexcept { return pool_.num_free(); }
  /// Blocks that `num_tokens` (at least 0) tokens take in an empty sequence.
  int num_blocks_for(int num_tokens) const noexcept;

  int length(int sequence) const;
  int reserved(int sequence) const;
  /// Blocks of positions [0, reserved), kNoBlock where a window has given one back.
  std::span<const BlockId> table(int sequence) const;
  const BlockPool& pool() const noexcept { return pool_; }
  BlockStatistics statistics() const noexcept;

  /// What attach_prefix() would find.
  PrefixHit find_prefix(std::span<const TokenId> prompt, const PrefixKey& key = {}) const noexcept;

  /// Lets the empty sequence begin with what is cached of `prompt`, at most all but its last token,
  /// and belong to `key`; the new length. The rest is to be computed.
  int attach_prefix(int sequence, std::span<const TokenId> prompt, const PrefixKey& key = {});

  /// Makes room for `num_tokens` beyond the committed ones. Without that much room it returns false
  /// and changes nothing. An earlier, larger reservation stays. `copy` is what must be copied
  /// before the new positions are written, or nothing.
  [[nodiscard]] bool reserve(int sequence, int num_tokens, std::optional<BlockCopy>& copy);
  /// The same for drivers without tensors.
  [[nodiscard]] bool reserve(int sequence, int num_tokens);

  /// Lets the length grow by `tokens`, which must be reserved and computed.
  void commit(int sequence, std::span<const TokenId> tokens);

  /// Whether truncate() would do it, and not because of a window that has left positions it needs.
  bool can_truncate(int sequence, int length) const;

  /// Forgets all positions from `length` on, and the reservation. Takes time by the blocks given
  /// back.
  void truncate(int sequence, int length);

  /// Empties a sequence, whose key is then none.
  void release(int sequence);

  /// Makes the empty sequence `to` continue from the committed tokens of `from`, sharing its
  /// blocks.
  void fork(int from, int to);

  /// Makes all that is cached unfindable, as when weights change. Sequences that hold tokens go on,
  /// but none of what they computed or will compute is found.
  void forget_prefixes() noexcept;

 private:
  struct Sequence {
    int length = 0;
    int reserved = 0;
    int num_blocks = 0;           // entries of the table
    int first_kept = 0;           // blocks between the sinks and this one are given back
    PrefixNode node = kRootNode;  // of the last full block
    PrefixKey key;
  };

  const Sequence& at(int sequence, std::string_view operation) const;
  Sequence& at(int sequence, std::string_view operation);
  BlockId* entries(int sequence) noexcept;
  const BlockId* entries(int sequence) const noexcept;
  int num_sink_blocks() const noexcept { return num_blocks_for(options_.window.num_sinks); }
  template <class Found>
  PrefixHit walk_prefix(std::span<const TokenId> prompt, const PrefixKey& key, Found&& found) const;
  void require_empty(int sequence, std::string_view operation);
  bool keeps_window_of(const Sequence& state, int length) const noexcept;
  void drop_blocks(int sequence, int num_kept) noexcept;
  void drop_outside_window(int sequence) noexcept;

  BlockManagerOptions options_;
  BlockPool pool_;
  int table_size_;  // blocks of max_seq_len
  std::vector<Sequence> sequences_;
  std::vector<BlockId> tables_;  // [sequences][table_size]
  std::int64_t num_prompt_tokens_ = 0;
  std::int64_t num_hit_tokens_ = 0;
  std::uint64_t num_copies_ = 0;
};

// ---- Implementation: nothing below is API ----

inline BlockManager::BlockManager(const BlockManagerOptions& options)
    : options_(detail::checked_options(options)),
      pool_(options.num_blocks, options.block_tokens),
      table_size_(num_blocks_for(options.max_seq_len)),
      sequences_(static_cast<std::size_t>(options.num_sequences)),
      tables_(sequences_.size() * static_cast<std::size_t>(table_size_), kNoBlock) {}

inline int BlockManager::num_blocks_for(int num_tokens) const noexcept {
  const int size = options_.block_tokens;
  return num_tokens / size + (num_tokens % size != 0 ? 1 : 0);
}

inline const BlockManager::Sequence& BlockManager::at(int sequence,
                                                      std::string_view operation) const {
  detail::require(sequence >= 0 && sequence < num_sequences(), ErrorCode::kArgument, operation,
                  "sequence must be in [0, ", num_sequences(), "), got ", sequence);
  return sequences_[static_cast<std::size_t>(sequence)];
}

inline BlockManager::Sequence& BlockManager::at(int sequence, std::string_view operation) {
  return const_cast<Sequence&>(std::as_const(*this).at(sequence, operation));
}

inline BlockId* BlockManager::entries(int sequence) noexcept {
  return tables_.data() + Index{sequence} * table_size_;
}

inline const BlockId* BlockManager::entries(int sequence) const noexcept {
  return tables_.data() + Index{sequence} * table_size_;
}

inline int BlockManager::length(int sequence) const {
  return at(sequence, "BlockManager::length").length;
}

inline int BlockManager::reserved(int sequence) const {
  return at(sequence, "BlockManager::reserved").reserved;
}

inline std::span<const BlockId> BlockManager::table(int sequence) const {
  const Sequence& state = at(sequence, "BlockManager::table");
  return {entries(sequence), static_cast<std::size_t>(state.num_blocks)};
}

inline BlockStatistics BlockManager::statistics() const noexcept {
  BlockStatistics statistics{.num_blocks = num_blocks(),
                             .num_used = num_blocks() - pool_.num_free(),
                             .num_shared = pool_.num_shared(),
                             .num_cached = pool_.num_cached(),
                             .num_empty = pool_.num_free() - pool_.num_cached(),
                             .num_prompt_tokens = num_prompt_tokens_,
                             .num_hit_tokens = num_hit_tokens_,
                             .num_evictions = pool_.num_evictions(),
                             .num_copies = num_copies_};
  std::int64_t num_slots = 0;
  for (int s = 0; s < num_sequences(); ++s) {
    const Sequence& state = sequences_[static_cast<std::size_t>(s)];
    const BlockId* const blocks = entries(s);
    num_slots += std::int64_t{block_tokens()} *
                 (state.num_blocks - std::count(blocks, blocks + state.num_blocks, kNoBlock));
    statistics.num_unused_slots += std::int64_t{block_tokens()} * state.num_blocks - state.length;
  }
  if (num_slots > 0) {
    statistics.fragmentation =
        static_cast<double>(statistics.num_unused_slots) / static_cast<double>(num_slots);
  }
  return statistics;
}

/// Calls found(block) for each full block of the prompt that is cached, from the first on.
template <class Found>
PrefixHit BlockManager::walk_prefix(std::span<const TokenId> prompt, const PrefixKey& key,
                                    Found&& found) const {
  PrefixHit hit;
  if (!options_.reuses_prefixes || prompt.empty()) return hit;
  const auto size = static_cast<std::size_t>(block_tokens());
  const auto most = std::min(prompt.size(), static_cast<std::size_t>(max_seq_len())) / size;
  PrefixNode parent = kRootNode;
  for (std::size_t i = 0; i < most; ++i) {
    const BlockId block = pool_.find(parent, key, prompt.subspan(i * size, size));
    if (block == kNoBlock) break;
    parent = pool_.node(block);
    ++hit.num_blocks;
    hit.num_free_blocks += pool_.ref_count(block) == 0 ? 1 : 0;
    found(block);
  }
  hit.num_tokens = static_cast<int>(
      std::min(static_cast<std::size_t>(hit.num_blocks) * size, prompt.size() - 1));
  return hit;
}

inline PrefixHit BlockManager::find_prefix(std::span<const TokenId> prompt,
                                           const PrefixKey& key) const noexcept {
  return walk_prefix(prompt, key, [](BlockId) {});
}

inline int BlockManager::attach_prefix(int sequence, std::span<const TokenId> prompt,
                                       const PrefixKey& key) {
  constexpr std::string_view kOperation = "BlockManager::attach_prefix";
  Sequence& state = at(sequence, kOperation);
  require_empty(sequence, kOperation);
  state.key = key;
  // Each is held as soon as it is found: nothing that follows can evict it.
  BlockId* const blocks = entries(sequence);
  const PrefixHit hit = walk_prefix(prompt, key, [&](BlockId block) {
    pool_.acquire(block);
    blocks[state.num_blocks++] = block;
  });
  state.length = state.reserved = hit.num_tokens;
  const int num_full = hit.num_tokens / block_tokens();
  state.node = num_full == 0 ? kRootNode : pool_.node(blocks[num_full - 1]);
  num_prompt_tokens_ += static_cast<std::int64_t>(prompt.size());
  num_hit_tokens_ += hit.num_tokens;
  drop_outside_window(sequence);
  return hit.num_tokens;
}

inline bool BlockManager::reserve(int sequence, int num_tokens, std::optional<BlockCopy>& copy) {
  constexpr std::string_view kOperation = "BlockManager::reserve";
  Sequence& state = at(sequence, kOperation);
  detail::require(num_tokens >= 0, ErrorCode::kArgument, kOperation,
                  "num_tokens must be at least 0, got ", num_tokens);
  copy.reset();
  if (num_tokens > max_seq_len() - state.length) return false;
  const int end = state.length + num_tokens;
  if (end <= state.reserved) return true;

  // The block in which the length lies is written on. Who has reserved positions in it already is
  // the only one that writes there: others who came to share it since see only what is committed.
  BlockId* const blocks = entries(sequence);
  const int first = state.length / block_tokens();
  const bool continues = state.length % block_tokens() != 0 && state.reserved == state.length;
  const bool copies = continues && pool_.ref_count(blocks[first]) > 1;
  const int num_new = num_blocks_for(end) - state.num_blocks;
  if (num_new + (copies ? 1 : 0) > pool_.num_free()) return false;

  if (copies) {
    copy = BlockCopy{blocks[first], pool_.allocate(), state.length % block_tokens()};
    pool_.copy_tokens(copy->from, copy->to);
    pool_.release(copy->from);
    blocks[first] = copy->to;
    ++num_copies_;
  } else if (continues) {
    pool_.withdraw(blocks[first]);
  }
  for (int i = 0; i < num_new; ++i) blocks[state.num_blocks++] = pool_.allocate();
  state.reserved = end;
  return true;
}

inline bool BlockManager::reserve(int sequence, int num_tokens) {
  std::optional<BlockCopy> copy;
  return reserve(sequence, num_tokens, copy);
}

inline void BlockManager::commit(int sequence, std::span<const TokenId> tokens) {
  constexpr std::string_view kOperation = "BlockManager::commit";
  Sequence& state = at(sequence, kOperation);
  const int room = state.reserved - state.length;
  detail::require(tokens.size() <= static_cast<std::size_t>(room), ErrorCode::kCapacity, kOperation,
                  "tokens must be reserved before, got ", tokens.size(), " with ", room,
                  " reserved in sequence ", sequence);
  const BlockId* const blocks = entries(sequence);
  while (!tokens.empty()) {
    const BlockId block = blocks[state.length / block_tokens()];
    const int offset = state.length % block_tokens();
    const auto part =
        tokens.first(std::min(tokens.size(), static_cast<std::size_t>(block_tokens() - offset)));
    pool_.record(block, offset, part);
    state.length += static_cast<int>(part.size());
    tokens = tokens.subspan(part.size());
    if (state.length % block_tokens() != 0 || !options_.reuses_prefixes) continue;
    pool_.publish(block, state.node, state.key);
    state.node = pool_.node(block);
  }
  drop_outside_window(sequence);
}

/// Whether all positions that a token at `length` sees are there.
inline bool BlockManager::keeps_window_of(const Sequence& state, int length) const noexcept {
  return state.first_kept <= num_sink_blocks() || length <= num_sink_blocks() * block_tokens() ||
         options_.window.first_position(length) >= state.first_kept * block_tokens();
}

inline bool BlockManager::can_truncate(int sequence, int length) const {
  const Sequence& state = at(sequence, "BlockManager::can_truncate");
  return length >= 0 && length <= state.length && keeps_window_of(state, length);
}

inline void BlockManager::truncate(int sequence, int length) {
  constexpr std::string_view kOperation = "BlockManager::truncate";
  Sequence& state = at(sequence, kOperation);
  detail::require(length >= 0 && length <= state.length, ErrorCode::kArgument, kOperation,
                  "length must be in [0, ", state.length, "] of sequence ", sequence, ", got ",
                  length);
  const int first_kept = state.first_kept * block_tokens();
  detail::require(keeps_window_of(state, length), ErrorCode::kArgument, kOperation,
                  "length must be at least ", first_kept + options_.window.size - 1, " or at most ",
                  num_sink_blocks() * block_tokens(),
                  ", because the window has left positions before ", first_kept, ", got ", length);
  drop_blocks(sequence, num_blocks_for(length));
  const int num_full = length / block_tokens();
  if (num_full < state.length / block_tokens()) {
    const BlockId last = num_full == 0 ? kNoBlock : entries(sequence)[num_full - 1];
    state.node = num_full == 0 ? kRootNode : last == kNoBlock ? kNoNode : pool_.node(last);
  }
  state.first_kept = std::min(state.first_kept, state.num_blocks);
  state.length = state.reserved = length;
}

inline void BlockManager::release(int sequence) {
  at(sequence, "BlockManager::release");
  drop_blocks(sequence, 0);
  sequences_[static_cast<std::size_t>(sequence)] = {};
}

inline void BlockManager::fork(int from, int to) {
  constexpr std::string_view kOperation = "BlockManager::fork";
  const Sequence& source = at(from, kOperation);
  Sequence& target = at(to, kOperation);
  require_empty(to, kOperation);
  const int num_blocks = num_blocks_for(source.length);
  const BlockId* const blocks = entries(from);
  for (int i = 0; i < num_blocks; ++i) {
    if (blocks[i] != kNoBlock) pool_.acquire(blocks[i]);
  }
  std::copy_n(blocks, num_blocks, entries(to));
  target = source;
  target.reserved = source.length;
  target.num_blocks = num_blocks;
}

inline void BlockManager::forget_prefixes() noexcept {
  pool_.forget_nodes();
  for (Sequence& state : sequences_) {
    if (state.reserved > 0) state.node = kNoNode;
  }
}

inline void BlockManager::require_empty(int sequence, std::string_view operation) {
  const Sequence& state = at(sequence, operation);
  detail::require(state.reserved == 0, ErrorCode::kArgument, operation, "sequence ", sequence,
                  " must be empty, got ", state.length, " tokens and ",
                  state.reserved - state.length, " reserved");
}

/// Gives back all blocks but the first `num_kept`, the deepest first.
inline void BlockManager::drop_blocks(int sequence, int num_kept) noexcept {
  Sequence& state = sequences_[static_cast<std::size_t>(sequence)];
  BlockId* const blocks = entries(sequence);
  while (state.num_blocks > num_kept) {
    const BlockId block = blocks[--state.num_blocks];
    if (block != kNoBlock) pool_.release(block);
  }
}

/// Gives back the blocks that the token at `length`, and so any after it, does not see.
inline void BlockManager::drop_outside_window(int sequence) noexcept {
  if (!options_.window.is_bounded()) return;
  Sequence& state = sequences_[static_cast<std::size_t>(sequence)];
  BlockId* const blocks = entries(sequence);
  const int end = std::min(options_.window.first_position(state.length) / block_tokens(),
                           state.length / block_tokens());
  for (int i = std::max(state.first_kept, num_sink_blocks()); i < end; ++i) {
    if (blocks[i] != kNoBlock) pool_.release(blocks[i]);
    blocks[i] = kNoBlock;
    state.first_kept = i + 1;
  }
}

}  // namespace kvick::inline v0_1
