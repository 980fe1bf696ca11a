// SPDX-License-Identifier: MIT
// A sequence of a cache as bytes: to put it aside and take it back, or to resume a chat without
// computing its tokens again.
//
//   auto bytes = kvick::export_sequence(cache, 0, tokens, model.fingerprint());
//   auto again = kvick::import_sequence(other_cache, 3, bytes, model.fingerprint());   // the
//   tokens
//
// Format    Little-endian: StateHeader; the tokens as int32; for each layer and KV head the rows of
//           all positions as they are stored: keys, values, and of int8 their scales; a checksum of
//           all before. It names no blocks, so contiguous and paged caches of any block size take
//           each other's bytes, and results go on with the same bits.
// Errors    Bytes are not trusted: Error(kFormat) unless size, checksum and every field are as they
//           must be, Error(kArgument) if model, element type or sizes are not those of the cache;
//           Error(kUnsupported) for caches with a bounded window; Error(kIo) for files. Nothing is
//           changed then. Too little room is no error: nothing is imported.
// Threads   As other calls that change or read the sequence.
// Layer     cache: may include core, kernels.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvick/cache/kv_storage.hpp"
#include "kvick/core/checked.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/mapped_file.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/replacement_file.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

static_assert(std::endian::native == std::endian::little, "states are little-endian");

struct StateHeader {
  static constexpr std::array<char, 8> kMagic{'k', 'v', 'i', 'c', 'k', 'K', 'V', '1'};

  std::array<char, 8> magic = kMagic;
  std::uint64_t fingerprint = 0;  ///< of all that keys and values depend on beside the tokens
  std::uint32_t element_type = 0;
  std::uint32_t num_layers = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint64_t num_tokens = 0;
};
static_assert(sizeof(StateHeader) == 40);

/// The committed tokens of a sequence. `tokens` are these, in order: caches need not keep them.
std::vector<std::byte> export_sequence(const KVStorage& cache, int sequence,
                                       std::span<const TokenId> tokens, std::uint64_t fingerprint);

/// Fills an empty sequence; its tokens, or nothing if the cache has too little room.
template <class Cache>
std::optional<std::vector<TokenId>> import_sequence(Cache& cache, int sequence,
                                                    std::span<const std::byte> bytes,
                                                    std::uint64_t fingerprint);

/// The same with a file, which is replaced as a whole or not at all.
inline void save_sequence(const std::filesystem::path& path, const KVStorage& cache, int sequence,
                          std::span<const TokenId> tokens, std::uint64_t fingerprint);
template <class Cache>
std::optional<std::vector<TokenId>> load_sequence(const std::filesystem::path& path, Cache& cache,
                                                  int sequence, std::uint64_t fingerprint);

/// Tells changes apart, not forgeries: a word changed alone always gives another sum.
inline std::uint64_t state_checksum(std::span<const std::byte> bytes) noexcept;

// ---- Implementation: nothing below is API ----

namespace detail {

inline constexpr std::string_view kExport = "export_sequence";
inline constexpr std::string_view kImport = "import_sequence";

inline StateHeader state_header(const KVStorage& cache, std::size_t num_tokens,
                                std::uint64_t fingerprint) {
  return {.fingerprint = fingerprint,
          .element_type = static_cast<std::uint32_t>(cache.element_type()),
          .num_layers = static_cast<std::uint32_t>(cache.num_layers()),
          .num_kv_heads = static_cast<std::uint32_t>(cache.num_kv_heads()),
          .head_dim = static_cast<std::uint32_t>(cache.head_dim()),
          .num_tokens = num_tokens};
}

/// Bytes of a state, for sizes that a cache of this process has.
inline std::size_t state_bytes(const KVStorage& cache, std::size_t num_tokens) {
  const std::size_t per_token = sizeof(TokenId) + cache.bytes_per_token();
  return sizeof(StateHeader) + checked_product({num_tokens, per_token}, kExport) +
         sizeof(std::uint64_t);
}

inline void require_unbounded(const KVStorage& cache, std::string_view operation) {
  require(!cache.window().is_bounded(), ErrorCode::kUnsupported, operation,
          "a cache must keep all positions, got one with a window of ", cache.window().size);
}

/// The parts of rows in the order of the format, as (member of KVRun, bytes per row).
template <class Part>
void for_each_part(const KVStorage& cache, Part&& part) {
  const std::size_t row_bytes = element_row_bytes(cache.element_type(), cache.head_dim());
  part([](auto& run) { return &run.keys; }, row_bytes);
  part([](auto& run) { return &run.values; }, row_bytes);
  if (cache.element_type() != ElementType::kInt8) return;
  part([](auto& run) { return &run.key_scales; }, sizeof(float));
  part([](auto& run) { return &run.value_scales; }, sizeof(float));
}

/// Throws unless the bytes are a state of this cache and fingerprint; the number of its tokens.
inline int check_state(const KVStorage& cache, std::span<const std::byte> bytes,
                       std::uint64_t fingerprint) {
  require_unbounded(cache, kImport);
  StateHeader header;
  constexpr std::size_t kLeast = sizeof header + sizeof(std::uint64_t);
  require(bytes.size() >= kLeast, ErrorCode::kFormat, kImport, "a state must have at least ",
          kLeast, " bytes, got ", bytes.size());
  std::memcpy(&header, bytes.data(), sizeof header);
  require(header.magic == StateHeader::kMagic, ErrorCode::kFormat, kImport,
          "a state must begin with 'kvickKV1'");
  std::uint64_t sum;
  const std::size_t size = bytes.size() - sizeof sum;
  std::memcpy(&sum, bytes.data() + size, sizeof sum);
  require(sum == state_checksum(bytes.first(size)), ErrorCode::kFormat, kImport,
          "the checksum must fit the ", size,
          " bytes before it: the state is truncated or altered");
  const StateHeader want = state_header(cache, 0, fingerprint);
  require(header.fingerprint == want.fingerprint, ErrorCode::kArgument, kImport,
          "the state must be of the same model and settings");
  require(header.element_type == want.element_type && header.num_layers == want.num_layers &&
              header.num_kv_heads == want.num_kv_heads && header.head_dim == want.head_dim,
          ErrorCode::kArgument, kImport, "the state must have ", want.num_layers, " layers, ",
          want.num_kv_heads, " KV heads of ", want.head_dim, " and element type ",
          want.element_type, ", got ", header.num_layers, ", ", header.num_kv_heads, " of ",
          header.head_dim, " and ", header.element_type);
  // A token takes at least one byte, so the product below cannot overflow.
  require(header.num_tokens <= bytes.size() &&
              header.num_tokens <= static_cast<std::uint64_t>(std::numeric_limits<int>::max()) &&
              state_bytes(cache, static_cast<std::size_t>(header.num_tokens)) == bytes.size(),
          ErrorCode::kFormat, kImport, "the state must have the bytes of its ", header.num_tokens,
          " tokens, got ", bytes.size());
  return static_cast<int>(header.num_tokens);
}

}  // namespace detail

inline std::uint64_t state_checksum(std::span<const std::byte> bytes) noexcept {
  std::uint64_t sum = bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof sum) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    // Every step is one-to-one, so a change stays until another one takes it back.
    sum = std::rotl((sum ^ word) * 0xbf58476d1ce4e5b9u, 29);
  }
  return sum;
}

inline std::vector<std::byte> export_sequence(const KVStorage& cache, int sequence,
                                              std::span<const TokenId> tokens,
                                              std::uint64_t fingerprint) {
  using detail::kExport;
  const int length = cache.length(sequence);
  detail::require_unbounded(cache, kExport);
  detail::require(tokens.size() == static_cast<std::size_t>(length), ErrorCode::kArgument, kExport,
                  "tokens must be the ", length, " of sequence ", sequence, ", got ",
                  tokens.size());
  std::vector<std::byte> bytes(detail::state_bytes(cache, tokens.size()));
  std::byte* to = bytes.data();
  const auto put = [&to](const void* from, std::size_t size) {
    if (size > 0) std::memcpy(to, from, size);
    to += size;
  };
  const StateHeader header = detail::state_header(cache, tokens.size(), fingerprint);
  put(&header, sizeof header);
  put(tokens.data(), tokens.size_bytes());
  for (int layer = 0; layer < cache.num_layers(); ++layer) {
    for (int head = 0; head < cache.num_kv_heads(); ++head) {
      detail::for_each_part(cache, [&](auto member, std::size_t row_bytes) {
        for (int position = 0; position < length;) {
          const KVRun run = cache.run(layer, sequence, head, position);
          const int count = std::min(length - position, run.num_tokens);
          put(*member(run), static_cast<std::size_t>(count) * row_bytes);
          position += count;
        }
      });
    }
  }
  const std::uint64_t sum =
      state_checksum(std::span(bytes).first(bytes.size() - sizeof(std::uint64_t)));
  put(&sum, sizeof sum);
  return bytes;
}

template <class Cache>
std::optional<std::vector<TokenId>> import_sequence(Cache& cache, int sequence,
                                                    std::span<const std::byte> bytes,
                                                    std::uint64_t fingerprint) {
  using detail::kImport;
  const int length = detail::check_state(cache, bytes, fingerprint);
  detail::require(cache.reserved(sequence) == 0, ErrorCode::kArgument, kImport, "sequence ",
                  sequence, " must be empty, got ", cache.length(sequence), " tokens");
  std::vector<TokenId> tokens(static_cast<std::size_t>(length));
  if (!cache.reserve(sequence, length)) return std::nullopt;
  if (length == 0) return tokens;
  const std::byte* from = bytes.data() + sizeof(StateHeader);
  std::memcpy(tokens.data(), from, tokens.size() * sizeof(TokenId));
  from += tokens.size() * sizeof(TokenId);
  for (int layer = 0; layer < cache.num_layers(); ++layer) {
    for (int head = 0; head < cache.num_kv_heads(); ++head) {
      detail::for_each_part(cache, [&](auto member, std::size_t row_bytes) {
        for (int position = 0; position < length;) {
          const MutableKVRun run = cache.mutable_run(layer, sequence, head, position);
          const int count = std::min(length - position, run.num_tokens);
          const std::size_t size = static_cast<std::size_t>(count) * row_bytes;
          std::memcpy(*member(run), from, size);
          from += size;
          position += count;
        }
      });
    }
  }
  cache.commit(sequence, tokens);
  return tokens;
}

inline void save_sequence(const std::filesystem::path& path, const KVStorage& cache, int sequence,
                          std::span<const TokenId> tokens, std::uint64_t fingerprint) {
  const std::vector<std::byte> bytes = export_sequence(cache, sequence, tokens, fingerprint);
  ReplacementFile file(path, "save_sequence");
  file.write(bytes);
  file.commit();
}

template <class Cache>
std::optional<std::vector<TokenId>> load_sequence(const std::filesystem::path& path, Cache& cache,
                                                  int sequence, std::uint64_t fingerprint) {
  return import_sequence(cache, sequence, MappedFile(path).bytes(), fingerprint);
}

}  // namespace kvick::inline v0_1
