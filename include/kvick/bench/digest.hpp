// SPDX-License-Identifier: MIT
// One short word for all tokens of a run, to stand beside its speed: equal outputs have equal
// digests on every machine, so a fast path that computes something else is seen.
//
// Accuracy  64 bits: chance alone makes two different runs equal once in 1.8e19. Not a defence
//           against forgery.
// Source    FNV-1a (Fowler, Noll, Vo), over little-endian bytes.
// Layer     bench: may include core.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvick/core/matrix.hpp"

namespace kvick::inline v0_1 {

class OutputDigest {
 public:
  /// The outputs of the next request; where one ends and the next begins counts.
  void add(std::span<const TokenId> tokens) noexcept;
  /// The bits of the next logits.
  void add(std::span<const float> logits) noexcept;

  std::uint64_t value() const noexcept { return value_; }
  /// 16 hexadecimal digits.
  std::string text() const;

 private:
  void add_number(std::uint64_t number, int num_bytes) noexcept;

  std::uint64_t value_ = 0xcbf29ce484222325;
};

inline std::string digest_of(std::span<const std::vector<TokenId>> outputs);

// ---- Implementation: nothing below is API ----

inline void OutputDigest::add_number(std::uint64_t number, int num_bytes) noexcept {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  for (int i = 0; i < num_bytes; ++i) {
    value_ = (value_ ^ (number >> (8 * i) & 0xff)) * kPrime;
  }
}

inline void OutputDigest::add(std::span<const TokenId> tokens) noexcept {
  add_number(tokens.size(), 8);
  for (const TokenId token : tokens) add_number(static_cast<std::uint32_t>(token), 4);
}

inline void OutputDigest::add(std::span<const float> logits) noexcept {
  add_number(logits.size(), 8);
  for (const float logit : logits) add_number(std::bit_cast<std::uint32_t>(logit), 4);
}

inline std::string OutputDigest::text() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[value_ >> shift & 15];
  return text;
}

inline std::string digest_of(std::span<const std::vector<TokenId>> outputs) {
  OutputDigest digest;
  for (const std::vector<TokenId>& tokens : outputs) digest.add(tokens);
  return digest.text();
}

}  // namespace kvick::inline v0_1
