// SPDX-License-Identifier: MIT
// A table of which token follows which few tokens: a model's own habits, to draft by.
//
// It learns from texts, those that the model wrote best of all, can be kept in a file, and drafts
// for every later text at the price of a look-up per token. For each context it keeps one token,
// which followed most often by the majority vote of Boyer and Moore. Longest contexts first.
//
//   kvick::NgramTable table({.vocab_size = model.vocab_size()});
//   table.learn(result.tokens);
//   table.save("habits.kvng");
//   kvick::NgramDraft draft(table);      // a DraftSource
//
// Format    Little-endian: NgramTableHeader; entries; a checksum of all before.
// Memory    An entry per context seen, (order + 2) 32-bit words, in a table at most half full. When
//           max_entries are in use, new contexts are not learned any more.
// Time      O(order) per token learned or looked up, whatever a file holds: of contexts made to
//           collide, those that find no place nearby are left out.
// Errors    Bytes are not trusted: Error(kFormat) unless size, checksum and every field are as they
//           must be; Error(kArgument) for options out of range, tokens outside of the vocabulary
//           and a file of another one; Error(kIo) for files.
// Threads   Any number of readers, or one that learns.
// Layer     speculative: may include core, cache, sampling.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "kvick/cache/sequence_state.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/mapped_file.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/replacement_file.hpp"
#include "kvick/speculative/draft_source.hpp"

namespace kvick::inline v0_1 {

struct NgramTableOptions {
  int vocab_size = 0;
  int order = 3;                       ///< tokens of the longest context, in [1, 8]
  std::int64_t max_entries = 1 << 22;  ///< 160 to 320 MiB, at 3 tokens of context
};

struct NgramTableHeader {
  static constexpr std::array<char, 8> kMagic{'k', 'v', 'i', 'c', 'k', 'N', 'G', '1'};

  std::array<char, 8> magic = kMagic;
  std::int32_t vocab_size = 0;
  std::int32_t order = 0;
  std::int64_t max_entries = 0;
  std::int64_t num_entries = 0;
};
static_assert(sizeof(NgramTableHeader) == 32);

class NgramTable {
 public:
  explicit NgramTable(const NgramTableOptions& options);

  const NgramTableOptions& options() const noexcept { return options_; }
  /// Contexts that are known.
  std::int64_t size() const noexcept { return num_entries_; }

  /// Counts for every token of the text but the first what stands before it.
  void learn(std::span<const TokenId> text);

  /// The token that most often follows the longest known end of `text`, or kNoNext.
  TokenId next(std::span<const TokenId> text) const noexcept;
  static constexpr TokenId kNoNext = -1;

  std::vector<std::byte> to_bytes() const;
  /// `vocab_size` is that of the model to draft for.
  static NgramTable from_bytes(std::span<const std::byte> bytes, int vocab_size);

  /// A file is replaced as a whole or not at all.
  void save(const std::filesystem::path& path) const;
  static NgramTable load(const std::filesystem::path& path, int vocab_size);

 private:
  // An entry is order + 2 words: the context, oldest token first and padded in front with kPad; the
  // token that follows; its votes, 0 where the entry is free.
  static constexpr std::int32_t kPad = -1;
  static constexpr std::int64_t kMostEntries = 1 << 28;

  std::size_t width() const noexcept { return static_cast<std::size_t>(options_.order) + 2; }
  std::size_t num_slots() const noexcept { return words_.size() / width(); }
  static constexpr std::size_t kNoSlot = static_cast<std::size_t>(-1);
  static constexpr std::size_t kMaxProbes = 128;  // half full, a million contexts need about 30
  std::size_t slot_of(std::span<const TokenId> context) const noexcept;
  void vote(std::span<const TokenId> context, TokenId next);
  void grow();

  std::int32_t* entry(std::size_t slot) noexcept { return words_.data() + slot * width(); }
  const std::int32_t* entry(std::size_t slot) const noexcept {
    return words_.data() + slot * width();
  }
  std::int32_t votes(std::size_t slot) const noexcept { return entry(slot)[options_.order + 1]; }
  bool has_context(std::size_t slot, std::span<const TokenId> context) const noexcept;
  void add(std::span<const TokenId> context, TokenId next, std::int32_t num_votes);
  void add_stored(const std::int32_t* words);

  NgramTableOptions options_;
  std::int64_t num_entries_ = 0;
  std::vector<std::int32_t> words_;
};

/// Drafts by a table, which must live as long. Several may share it.
class NgramDraft {
 public:
  explicit NgramDraft(const NgramTable& table) : table_(&table) {}

  void propose(const DraftContext& context, Draft& draft);

 private:
  const NgramTable* table_;
  std::vector<TokenId> end_;  // the last tokens of the text, and the drafted ones
};

// ---- Implementation: nothing below is API ----

inline NgramTable::NgramTable(const NgramTableOptions& options) : options_(options) {
  constexpr std::string_view kOperation = "NgramTable";
  detail::require(options.vocab_size >= 1, ErrorCode::kArgument, kOperation,
                  "vocab_size must be at least 1, got ", options.vocab_size);
  detail::require(options.order >= 1 && options.order <= 8, ErrorCode::kArgument, kOperation,
                  "order must be in [1, 8], got ", options.order);
  detail::require(options.max_entries >= 1 && options.max_entries <= kMostEntries,
                  ErrorCode::kArgument, kOperation, "max_entries must be in [1, ", kMostEntries,
                  "], got ", options.max_entries);
  words_.resize(width() * 64);
}

inline void NgramTable::learn(std::span<const TokenId> text) {
  for (const TokenId token : text) {
    detail::require(token >= 0 && token < options_.vocab_size, ErrorCode::kArgument,
                    "NgramTable::learn", "tokens must be in [0, ", options_.vocab_size, "), got ",
                    token);
  }
  for (std::size_t i = 1; i < text.size(); ++i) {
    const std::size_t longest = std::min(i, static_cast<std::size_t>(options_.order));
    for (std::size_t n = 1; n <= longest; ++n) vote(text.subspan(i - n, n), text[i]);
  }
}

inline TokenId NgramTable::next(std::span<const TokenId> text) const noexcept {
  for (std::size_t n = std::min(text.size(), static_cast<std::size_t>(options_.order)); n > 0;
       --n) {
    const std::size_t slot = slot_of(text.last(n));
    if (slot != kNoSlot && votes(slot) > 0) return entry(slot)[options_.order];
  }
  return kNoNext;
}

inline void NgramTable::vote(std::span<const TokenId> context, TokenId next) {
  const std::size_t slot = slot_of(context);
  if (slot == kNoSlot) return;
  if (votes(slot) == 0) {
    if (num_entries_ < options_.max_entries) add(context, next, 1);
    return;
  }
  std::int32_t& winner = entry(slot)[options_.order];
  std::int32_t& count = entry(slot)[options_.order + 1];
  if (winner == next) {
    if (count < std::numeric_limits<std::int32_t>::max()) ++count;
  } else if (count > 1) {
    --count;
  } else {
    winner = next;
  }
}

/// Adds a context unless it is there.
inline void NgramTable::add(std::span<const TokenId> context, TokenId next,
                            std::int32_t num_votes) {
  if (2 * static_cast<std::size_t>(num_entries_ + 1) > num_slots()) grow();
  const std::size_t slot = slot_of(context);
  if (slot == kNoSlot || votes(slot) > 0) return;
  std::int32_t* const words = entry(slot);
  const auto order = static_cast<std::size_t>(options_.order);
  std::fill(words, words + (order - context.size()), kPad);
  std::copy(context.begin(), context.end(), words + (order - context.size()));
  words[order] = next;
  words[order + 1] = num_votes;
  ++num_entries_;
}

/// Adds an entry as it is stored.
inline void NgramTable::add_stored(const std::int32_t* words) {
  const auto order = static_cast<std::size_t>(options_.order);
  const auto padding = static_cast<std::size_t>(
      std::find_if(words, words + order, [](auto word) { return word != kPad; }) - words);
  add({words + padding, order - padding}, words[order], words[order + 1]);
}

inline void NgramTable::grow() {
  std::vector<std::int32_t> old(2 * words_.size());
  old.swap(words_);
  num_entries_ = 0;
  for (std::size_t at = 0; at < old.size(); at += width()) {
    if (old[at + width() - 1] > 0) add_stored(old.data() + at);
  }
}

/// Where the context is, or the free slot where it would be, or kNoSlot.
inline std::size_t NgramTable::slot_of(std::span<const TokenId> context) const noexcept {
  std::uint64_t hash = context.size();
  for (const TokenId token : context) {
    hash = std::rotl((hash ^ static_cast<std::uint32_t>(token)) * 0x9e3779b97f4a7c15u, 31);
  }
  hash *= 0xbf58476d1ce4e5b9u;
  const std::size_t mask = num_slots() - 1;  // a power of two
  std::size_t slot = static_cast<std::size_t>(hash >> 32) & mask;
  for (std::size_t i = 0; i < kMaxProbes; ++i) {
    if (votes(slot) == 0 || has_context(slot, context)) return slot;
    slot = (slot + 1) & mask;
  }
  return kNoSlot;
}

inline bool NgramTable::has_context(std::size_t slot,
                                    std::span<const TokenId> context) const noexcept {
  const std::int32_t* const end = entry(slot) + options_.order;
  const std::int32_t* const begin = end - context.size();
  return std::equal(context.begin(), context.end(), begin) &&
         (begin == entry(slot) || begin[-1] == kPad);
}

inline std::vector<std::byte> NgramTable::to_bytes() const {
  const NgramTableHeader header{.vocab_size = options_.vocab_size,
                                .order = options_.order,
                                .max_entries = options_.max_entries,
                                .num_entries = num_entries_};
  const std::size_t entry_bytes = width() * sizeof(std::int32_t);
  std::vector<std::byte> bytes(
      sizeof header + static_cast<std::size_t>(num_entries_) * entry_bytes + sizeof(std::uint64_t));
  std::byte* to = bytes.data();
  const auto put = [&to](const void* from, std::size_t size) {
    std::memcpy(to, from, size);
    to += size;
  };
  put(&header, sizeof header);
  for (std::size_t slot = 0; slot < num_slots(); ++slot) {
    if (votes(slot) > 0) put(entry(slot), entry_bytes);
  }
  const std::uint64_t sum =
      state_checksum(std::span(bytes).first(bytes.size() - sizeof(std::uint64_t)));
  put(&sum, sizeof sum);
  return bytes;
}

inline NgramTable NgramTable::from_bytes(std::span<const std::byte> bytes, int vocab_size) {
  constexpr std::string_view kOperation = "NgramTable::from_bytes";
  const auto check = [&](bool ok, auto... parts) {
    detail::require(ok, ErrorCode::kFormat, kOperation, parts...);
  };
  NgramTableHeader header;
  std::uint64_t sum;
  check(bytes.size() >= sizeof header + sizeof sum, "a table must have at least ",
        sizeof header + sizeof sum, " bytes, got ", bytes.size());
  std::memcpy(&header, bytes.data(), sizeof header);
  check(header.magic == NgramTableHeader::kMagic, "a table must begin with 'kvickNG1'");
  const std::size_t size = bytes.size() - sizeof sum;
  std::memcpy(&sum, bytes.data() + size, sizeof sum);
  check(sum == state_checksum(bytes.first(size)), "the checksum must fit the ", size,
        " bytes before it: the table is truncated or altered");
  check(header.order >= 1 && header.order <= 8, "order must be in [1, 8], got ", header.order);
  const auto order = static_cast<std::size_t>(header.order);
  const std::size_t entry_bytes = (order + 2) * sizeof(std::int32_t);
  check(header.max_entries >= 1 && header.max_entries <= kMostEntries,
        "max_entries must be in [1, ", kMostEntries, "], got ", header.max_entries);
  check(header.num_entries >= 0 && header.num_entries <= header.max_entries &&
            (size - sizeof header) % entry_bytes == 0 &&
            static_cast<std::size_t>(header.num_entries) == (size - sizeof header) / entry_bytes,
        "a table must have the bytes of its ", header.num_entries, " entries, at most ",
        header.max_entries, ", got ", bytes.size());
  detail::require(header.vocab_size == vocab_size, ErrorCode::kArgument, kOperation,
                  "a table must be of the model's ", vocab_size, " tokens, got ",
                  header.vocab_size);
  NgramTable table(
      {.vocab_size = vocab_size, .order = header.order, .max_entries = header.max_entries});
  std::vector<std::int32_t> words(order + 2);
  for (std::int64_t i = 0; i < header.num_entries; ++i) {
    std::memcpy(words.data(),
                bytes.data() + sizeof header + static_cast<std::size_t>(i) * entry_bytes,
                entry_bytes);
    // Padding, if any, stands in front; at least one token of context.
    bool is_padding = true, is_valid = words[order - 1] != kPad && words[order + 1] > 0;
    for (std::size_t w = 0; w <= order; ++w) {
      is_padding = is_padding && w < order && words[w] == kPad;
      is_valid = is_valid && (is_padding || (words[w] >= 0 && words[w] < vocab_size));
    }
    check(is_valid, "an entry must have 1 to ", order,
          " tokens of context, a token and votes, but ", "entry ", i, " has not");
    table.add_stored(words.data());
    check(table.size() == i + 1, "contexts must differ and not collide, but entry ", i,
          " repeats one or finds no place");
  }
  return table;
}

inline void NgramTable::save(const std::filesystem::path& path) const {
  const std::vector<std::byte> bytes = to_bytes();
  ReplacementFile file(path, "NgramTable::save");
  file.write(bytes);
  file.commit();
}

inline NgramTable NgramTable::load(const std::filesystem::path& path, int vocab_size) {
  return from_bytes(MappedFile(path).bytes(), vocab_size);
}

inline void NgramDraft::propose(const DraftContext& context, Draft& draft) {
  const auto order = static_cast<std::size_t>(table_->options().order);
  const auto end = context.tokens.last(std::min(order, context.tokens.size()));
  end_.assign(end.begin(), end.end());
  for (int i = 0; i < context.max_tokens; ++i) {
    const TokenId token = table_->next(end_);
    if (token == NgramTable::kNoNext) return;
    draft.tokens.push_back(token);
    end_.push_back(token);
  }
}

}  // namespace kvick::inline v0_1
