// SPDX-License-Identifier: MIT
// Private to gguf: one file's bytes into checked metadata and tensor views.
//
// Nothing the file says is used before it has been checked against the bytes that are there: counts
// before loops and allocations, sizes with overflow-checked arithmetic. So time is O(n log n) and
// memory O(n) in the bytes of metadata, whatever the file contains. Tensor data is never touched.
//
// Errors    Error(kFormat) for a broken rule, Error(kUnsupported) for a version, byte order, nested
//           array or tensor type this library cannot read; both name the file.
// Source    GGUF format, versions 2 and 3 (the same layout; 3 added big-endian files).
// Layer     gguf.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/checked.hpp"
#include "kvick/gguf/byte_cursor.hpp"
#include "kvick/gguf/gguf_tensor.hpp"
#include "kvick/gguf/gguf_value.hpp"

namespace kvick::inline v0_1::detail {

/// Positions by unique name: sorted once, found in O(log n).
class NameIndex {
 public:
  void add(std::string_view name) { entries_.emplace_back(name, entries_.size()); }

  /// Ends the adding. Returns a name that was added twice, if there is one.
  std::optional<std::string_view> sort() {
    std::sort(entries_.begin(), entries_.end());
    const auto same_name = [](const Entry& a, const Entry& b) { return a.first == b.first; };
    const auto twin = std::adjacent_find(entries_.begin(), entries_.end(), same_name);
    return twin == entries_.end() ? std::nullopt : std::optional(twin->first);
  }

  /// How many names were added before this one.
  std::optional<std::size_t> find(std::string_view name) const {
    const auto before = [](const Entry& entry, std::string_view key) { return entry.first < key; };
    const auto entry = std::lower_bound(entries_.begin(), entries_.end(), name, before);
    if (entry == entries_.end() || entry->first != name) return std::nullopt;
    return entry->second;
  }

 private:
  using Entry = std::pair<std::string_view, std::size_t>;
  std::vector<Entry> entries_;
};

/// What stands in one file. Tensor names are not yet known to be unique.
struct GgufContent {
  std::uint32_t version = 0;
  std::uint32_t alignment = kDefaultGgufAlignment;
  std::vector<GgufValue> values;  // in file order
  NameIndex value_index;
  std::vector<GgufTensor> tensors;  // in file order
};

/// Key length and one byte, type, one byte of value.
inline constexpr std::size_t kMinValueBytes = 8 + 1 + 4 + 1;
/// Name length and one byte, number of dimensions, one dimension, type, offset.
inline constexpr std::size_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;

inline std::uint32_t read_gguf_version(ByteCursor& cursor) {
  const RuleContext& context = cursor.context();
  const auto magic = cursor.take(kGgufMagic.size(), {"the header"});
  const std::string_view found(reinterpret_cast<const char*>(magic.data()), magic.size());
  context.require(found == kGgufMagic, "a GGUF file must start with 'GGUF', this one starts with ",
                  in_quotes(found));
  const auto version = cursor.read<std::uint32_t>({"the header"});
  if (version != 0 && (version & 0xffff) == 0) {
    context.fail(ErrorCode::kUnsupported,
                 "big-endian files are not supported; convert the model to little-endian");
  }
  if (version == 1) {
    context.fail(ErrorCode::kUnsupported,
                 "version 1 (2023) is not supported, only 2 and 3; convert the model again");
  }
  if (version != 2 && version != 3) {
    context.fail(ErrorCode::kUnsupported, "version must be 2 or 3, got ", version);
  }
  return version;
}

inline void read_gguf_values(ByteCursor& cursor, std::uint64_t count, GgufContent& content) {
  cursor.require_room(count, kMinValueBytes, {"the metadata"});
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string_view key = cursor.read_string({"a metadata key"});
    check_gguf_key(cursor.context(), key);
    content.values.push_back(read_gguf_value(key, cursor));
    content.value_index.add(key);
  }
  const auto twin = content.value_index.sort();
  cursor.context().require(!twin, Item{"key", twin.value_or("")}, " stands twice in the metadata");
}

/// Everything but `data`, which needs the end of all tensor infos; `offset` is still relative.
inline GgufTensor read_gguf_tensor_info(ByteCursor& cursor) {
  GgufTensor tensor;
  tensor.name = cursor.read_string({"a tensor name"});
  const RuleContext& context = cursor.context();
  check_tensor_name(context, tensor.name);
  const Item item{"tensor", tensor.name};
  const auto num_dims = cursor.read<std::uint32_t>(item);
  check_num_dims(context, item, num_dims);
  tensor.num_dims = static_cast<int>(num_dims);
  for (std::uint32_t i = 0; i < num_dims; ++i) tensor.dims[i] = cursor.read<std::uint64_t>(item);
  tensor.type = TensorType{cursor.read<std::uint32_t>(item)};
  tensor.offset = cursor.read<std::uint64_t>(item);
  return tensor;
}

/// Finds the bytes of `tensor`, whose offset counts from `data_start`.
inline void place_gguf_tensor(const RuleContext& context, std::span<const std::byte> file,
                              std::uint64_t data_start, std::uint64_t alignment,
                              GgufTensor& tensor) {
  const Item item{"tensor", tensor.name};
  const std::uint64_t num_bytes = checked_tensor_bytes(context, tensor);
  context.require(tensor.offset % alignment == 0, item,
                  " must have an offset that is a multiple of ", alignment, ", got ",
                  tensor.offset);
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const bool fits = try_add(data_start, tensor.offset, begin) && try_add(begin, num_bytes, end);
  context.require(fits, item, " must end within 64 bits, got offset ", tensor.offset, " and ",
                  num_bytes, " bytes");
  context.require(end <= file.size(), item, " ends at byte ", end, " but the file has ",
                  file.size());
  tensor.offset = begin;
  tensor.data = file.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(num_bytes));
}

/// No writer makes tensors that share bytes: a file that has them is corrupt.
inline void check_no_overlap(const RuleContext& context, std::span<const GgufTensor> tensors) {
  std::vector<const GgufTensor*> by_offset;
  by_offset.reserve(tensors.size());
  for (const GgufTensor& tensor : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < by_offset.size(); ++i) {
    const GgufTensor& first = *by_offset[i - 1];
    const GgufTensor& second = *by_offset[i];
    context.require(first.offset + first.data.size() <= second.offset, Item{"tensor", second.name},
                    " starts at byte ", second.offset, " inside ", Item{"tensor", first.name},
                    ", which ends at byte ", first.offset + first.data.size());
  }
}

inline GgufContent parse_gguf(std::span<const std::byte> file, const RuleContext& context) {
  ByteCursor cursor(file, context);
  GgufContent content;
  content.version = read_gguf_version(cursor);
  const auto num_tensors = cursor.read<std::uint64_t>({"the header"});
  const auto num_values = cursor.read<std::uint64_t>({"the header"});
  read_gguf_values(cursor, num_values, content);
  if (const auto found = content.value_index.find(kAlignmentKey)) {
    const auto alignment = content.values[*found].get<std::uint64_t>();
    check_gguf_alignment(context, alignment);
    content.alignment = static_cast<std::uint32_t>(alignment);
  }

  cursor.require_room(num_tensors, kMinTensorInfoBytes, {"the tensor list"});
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    content.tensors.push_back(read_gguf_tensor_info(cursor));
  }
  std::uint64_t data_start = 0;
  context.require(try_align_up(cursor.position(), content.alignment, data_start),
                  "the tensor data must start within 64 bits");
  for (GgufTensor& tensor : content.tensors) {
    place_gguf_tensor(context, file, data_start, content.alignment, tensor);
  }
  check_no_overlap(context, content.tensors);
  return content;
}

}  // namespace kvick::inline v0_1::detail
