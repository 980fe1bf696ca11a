// SPDX-License-Identifier: MIT
// From a piece's text to its token: an open-addressing hash table over all pieces.
//
// Half of the slots stay empty, so a text that is no piece (the usual answer while encoding) costs
// one hash and about one slot. The hash is keyed anew for every index: pieces and texts come from
// outside, and known keys would let them be chosen to collide.
//
// Errors    Error(kFormat) for two equal pieces or more than 4 GiB of pieces.
// Threads   Immutable after construction.
// Layer     text.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/text/vocabulary.hpp"

namespace kvick::inline v0_1 {

class PieceIndex {
 public:
  /// Token i has the text pieces[i]. Empty pieces are left out. Copies what it needs.
  explicit PieceIndex(std::span<const std::string> pieces);

  /// The token whose piece is `text`, or kNoToken.
  TokenId find(std::string_view text) const noexcept;

  std::size_t max_piece_bytes() const noexcept { return max_piece_bytes_; }

 private:
  struct Slot {
    TokenId id = kNoToken;
    std::uint32_t tag = 0;     // upper half of the hash
    std::uint32_t offset = 0;  // of the piece within bytes_
    std::uint32_t length = 0;
  };

  std::uint64_t hash(std::string_view text) const noexcept;
  void insert(std::string_view piece, TokenId id);

  std::uint64_t key_;
  std::size_t mask_;  // slots_.size() - 1; the size is a power of two
  std::size_t max_piece_bytes_ = 0;
  std::vector<Slot> slots_;
  std::string bytes_;  // all pieces, one after another
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// 1 to 8 bytes as one integer: different texts of one length give different integers.
inline std::uint64_t load_up_to_8(const char* text, std::size_t length) noexcept {
  if (length >= 4) {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    std::memcpy(&first, text, 4);
    std::memcpy(&last, text + length - 4, 4);
    return std::uint64_t{first} << 32 | last;
  }
  const auto byte = [text](std::size_t i) -> std::uint64_t {
    return static_cast<unsigned char>(text[i]);
  };
  return byte(0) << 16 | byte(length / 2) << 8 | byte(length - 1);
}

/// Every bit of the result depends on every bit of `x` (the finalizer of MurmurHash3).
constexpr std::uint64_t mix_bits(std::uint64_t x) noexcept {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

inline std::uint64_t random_key() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace detail

inline PieceIndex::PieceIndex(std::span<const std::string> pieces)
    : key_(detail::random_key()),
      mask_(std::bit_ceil(2 * pieces.size() + 1) - 1),
      slots_(mask_ + 1) {
  std::size_t num_bytes = 0;
  for (const std::string& piece : pieces) num_bytes += piece.size();
  detail::require(num_bytes <= std::numeric_limits<std::uint32_t>::max(), ErrorCode::kFormat,
                  "PieceIndex", "pieces must have less than 2^32 bytes in all, got ", num_bytes);
  bytes_.reserve(num_bytes);
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    if (!pieces[id].empty()) insert(pieces[id], static_cast<TokenId>(id));
  }
}

inline std::uint64_t PieceIndex::hash(std::string_view text) const noexcept {
  std::uint64_t state = key_ + text.size();
  while (text.size() > 8) {
    state = detail::mix_bits(state ^ detail::load_up_to_8(text.data(), 8));
    text.remove_prefix(8);
  }
  return detail::mix_bits(state ^ detail::load_up_to_8(text.data(), text.size()));
}

inline TokenId PieceIndex::find(std::string_view text) const noexcept {
  if (text.empty() || text.size() > max_piece_bytes_) return kNoToken;
  const std::uint64_t h = hash(text);
  for (std::size_t i = h & mask_;; i = (i + 1) & mask_) {
    const Slot& slot = slots_[i];
    if (slot.id == kNoToken) return kNoToken;
    if (slot.tag == h >> 32 && slot.length == text.size() &&
        std::memcmp(bytes_.data() + slot.offset, text.data(), text.size()) == 0) {
      return slot.id;
    }
  }
}

inline void PieceIndex::insert(std::string_view piece, TokenId id) {
  const TokenId existing = find(piece);
  detail::require(existing == kNoToken, ErrorCode::kFormat, "PieceIndex",
                  "pieces must differ, got ", detail::in_quotes(piece), " as tokens ", existing,
                  " and ", id);
  const std::uint64_t h = hash(piece);
  std::size_t i = h & mask_;
  while (slots_[i].id != kNoToken) i = (i + 1) & mask_;
  slots_[i] = {id, static_cast<std::uint32_t>(h >> 32), static_cast<std::uint32_t>(bytes_.size()),
               static_cast<std::uint32_t>(piece.size())};
  bytes_ += piece;
  max_piece_bytes_ = std::max(max_piece_bytes_, piece.size());
}

}  // namespace kvick::inline v0_1
