// SPDX-License-Identifier: MIT
// A GGUF model file: its metadata and views of its tensors.
//
// Opening maps the file, reads the metadata and checks everything it says; it costs the metadata's
// size, not the model's. Tensor data is read from disk when first touched.
//
// A model may be split over files `<prefix>-00001-of-0000N.gguf`. Opening the first opens all;
// metadata is the first one's, tensors come in the order of the parts. What counts is the key
// `split.count` (absent, 0 and 1 mean a whole model), not the name.
//
// Stricter than the format, for models nobody writes: tensors of 0 elements, names of 64 bytes or
// more, bools other than 0 and 1, and overlapping tensors are refused. More tolerant: gaps between
// tensors, any power of two as alignment, any integer type where an integer is expected. A tensor
// whose type is known but not supported (IQ2_XS, ...) is listed by `tensors()` with its data, so
// that tools can inspect and copy it, and refused by `find_tensor()` and `tensor()`.
//
// Errors    Error(kIo) if a file cannot be mapped or a part is missing; Error(kFormat) for a broken
//           rule; Error(kUnsupported) for versions other than 2 and 3, big-endian files, arrays of
//           arrays, and tensor types whose size is unknown. Messages name the key or
//           tensor, and while opening the file. An untrusted file can do no more than cause one of
//           these.
// Threads   Immutable: any number of readers. See mapped_file.hpp about files truncated by others.
// Source    GGUF format, versions 2 and 3.
// Layer     gguf: may include core, quant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/mapped_file.hpp"
#include "kvick/gguf/gguf_parser.hpp"
#include "kvick/gguf/gguf_tensor.hpp"
#include "kvick/gguf/gguf_value.hpp"

namespace kvick::inline v0_1 {

/// Owns the bytes that every key, value and tensor views. Move-only; views survive a move.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);
  /// A whole model in memory; `name` stands for the file name in messages.
  static GgufFile from_bytes(std::vector<std::byte> bytes, std::string name = "memory");

  GgufFile(GgufFile&&) noexcept = default;
  GgufFile& operator=(GgufFile&&) noexcept = default;

  /// The path that was opened, or the given name.
  const std::string& name() const noexcept { return name_; }
  /// Of the first part: 2 or 3.
  std::uint32_t version() const noexcept { return content_.version; }
  /// Of the first part.
  std::uint32_t alignment() const noexcept { return content_.alignment; }
  int num_parts() const noexcept { return num_parts_; }

  /// In file order.
  std::span<const GgufValue> metadata() const noexcept { return content_.values; }
  /// nullptr if there is no such key. O(log n), as all look-ups here.
  const GgufValue* find(std::string_view key) const;
  /// The value of a key that must be there; see gguf_value.hpp for T.
  template <class T>
  T get(std::string_view key) const;
  /// Nothing if there is no such key; a key of another type still throws.
  template <class T>
  std::optional<T> try_get(std::string_view key) const;
  template <class T>
  T get_or(std::string_view key, T fallback) const;

  /// In file order, part after part.
  std::span<const GgufTensor> tensors() const noexcept { return content_.tensors; }
  /// nullptr if there is no such tensor; Error(kUnsupported) if its type is not supported.
  const GgufTensor* find_tensor(std::string_view name) const;
  /// A tensor that must be there.
  const GgufTensor& tensor(std::string_view name) const;

  /// Frees the memory that holds a tensor of this file, for example once it has been packed
  /// elsewhere. Its data stays valid and is read again from disk if touched.
  void release_pages(const GgufTensor& tensor) const noexcept;

 private:
  GgufFile() = default;
  void open_other_parts(const std::filesystem::path& first, const detail::RuleContext& context);
  void index_tensors(const detail::RuleContext& context);

  static constexpr std::string_view kOperation = "GgufFile";

  std::string name_;
  std::vector<MappedFile> files_;  // one per part; none for a model in memory
  std::vector<std::byte> memory_;
  int num_parts_ = 1;
  detail::GgufContent content_;  // of the first part, with the tensors of all
  detail::NameIndex tensor_index_;
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// The five digits of a part's file name end here.
inline constexpr std::uint32_t kMaxGgufParts = 99999;

/// `prefix`-00002-of-00009.gguf for part 1 (counted from 0) of 9.
inline std::string split_file_name(std::string_view prefix, std::uint32_t part,
                                   std::uint32_t num_parts) {
  char suffix[48];
  std::snprintf(suffix, sizeof suffix, "-%05u-of-%05u.gguf", part + 1, num_parts);
  return std::string(prefix) + suffix;
}

/// The prefix in the name of this part; nothing if it is named otherwise.
inline std::optional<std::string> split_prefix(const std::string& file_name, std::uint32_t part,
                                               std::uint32_t num_parts) {
  const std::string suffix = split_file_name("", part, num_parts);
  if (!file_name.ends_with(suffix)) return std::nullopt;
  return file_name.substr(0, file_name.size() - suffix.size());
}

/// The value of `key`, or `fallback` if the file has no such key.
template <class T>
T value_or(const GgufContent& content, std::string_view key, T fallback) {
  const auto found = content.value_index.find(key);
  return found ? content.values[*found].get<T>() : fallback;
}

/// How many files the model is split over; 0 or 1 for a whole model (merging tools write 0).
inline std::uint32_t num_split_parts(const GgufContent& content) {
  return value_or<std::uint32_t>(content, "split.count", 1);
}

/// What messages about a file start with.
inline std::string file_prefix(std::string_view name) { return concat("'", name, "': "); }

/// Paths of parts 1 to `num_parts` - 1 (counted from 0) of the model whose part 0 is `first`, after
/// checking that `first` is part 0 and that the others exist.
inline std::vector<std::filesystem::path> find_other_parts(const std::filesystem::path& first,
                                                           const GgufContent& content,
                                                           const RuleContext& context) {
  const std::uint32_t num_parts = num_split_parts(content);
  context.require(num_parts <= kMaxGgufParts, "split.count must be at most ", kMaxGgufParts,
                  ", got ", num_parts);
  const auto part = value_or<std::uint32_t>(content, "split.no", 0);
  context.require(part < num_parts, "split.no must be less than split.count = ", num_parts,
                  ", got ", part);
  const auto prefix = split_prefix(first.filename().string(), part, num_parts);
  context.require(part == 0, "this is part ", part + 1, " of ", num_parts, "; open part 1, '",
                  split_file_name(prefix.value_or("..."), 0, num_parts), "', instead");
  context.require(prefix.has_value(), "part 1 of ", num_parts, " must be named '",
                  split_file_name("...", 0, num_parts), "' so that its other parts can be found");

  std::vector<std::filesystem::path> others;
  std::string missing;
  std::size_t num_missing = 0;
  constexpr std::size_t kMaxNamedMissing = 4;  // also ends the search after a false split.count
  for (std::uint32_t i = 1; i < num_parts && num_missing <= kMaxNamedMissing; ++i) {
    const std::string file_name = split_file_name(*prefix, i, num_parts);
    others.push_back(first.parent_path() / file_name);
    std::error_code ignored;
    if (std::filesystem::exists(others.back(), ignored)) continue;
    ++num_missing;
    missing += num_missing > kMaxNamedMissing ? ", ..." : concat(" '", file_name, "'");
  }
  if (num_missing > 0) {
    context.fail(ErrorCode::kIo, "the model has ", num_parts,
                 " parts; missing beside it:", missing);
  }
  return others;
}

inline void check_part(const GgufContent& content, const RuleContext& context, std::uint32_t part,
                       std::uint32_t num_parts) {
  const auto found_part = value_or<std::uint32_t>(content, "split.no", 0);
  const std::uint32_t found_num_parts = num_split_parts(content);
  context.require(found_part == part && found_num_parts == num_parts, "must be part ", part + 1,
                  " of ", num_parts, " by its name, but its split.no and split.count say part ",
                  std::uint64_t{found_part} + 1, " of ", found_num_parts);
}

}  // namespace detail

inline GgufFile::GgufFile(const std::filesystem::path& path) : name_(path.string()) {
  files_.emplace_back(path);
  const std::string prefix = detail::file_prefix(name_);
  const detail::RuleContext context{kOperation, prefix};
  content_ = detail::parse_gguf(files_.front().bytes(), context);
  if (detail::num_split_parts(content_) > 1) open_other_parts(path, context);
  index_tensors(context);
}

inline GgufFile GgufFile::from_bytes(std::vector<std::byte> bytes, std::string name) {
  GgufFile file;
  file.name_ = std::move(name);
  file.memory_ = std::move(bytes);
  const std::string prefix = detail::file_prefix(file.name_);
  const detail::RuleContext context{"GgufFile::from_bytes", prefix};
  file.content_ = detail::parse_gguf(file.memory_, context);
  const std::uint32_t num_parts = detail::num_split_parts(file.content_);
  if (num_parts > 1) {
    context.fail(ErrorCode::kUnsupported, "a model split over ", num_parts,
                 " files cannot be read from memory; open its first file by path");
  }
  file.index_tensors(context);
  return file;
}

inline void GgufFile::open_other_parts(const std::filesystem::path& first,
                                       const detail::RuleContext& context) {
  const auto others = detail::find_other_parts(first, content_, context);
  num_parts_ = static_cast<int>(others.size()) + 1;
  for (const std::filesystem::path& path : others) {
    const int part = static_cast<int>(files_.size());
    files_.emplace_back(path);
    const std::string prefix = detail::file_prefix(path.string());
    const detail::RuleContext part_context{kOperation, prefix};
    detail::GgufContent content = detail::parse_gguf(files_.back().bytes(), part_context);
    detail::check_part(content, part_context, static_cast<std::uint32_t>(part),
                       static_cast<std::uint32_t>(num_parts_));
    for (GgufTensor& tensor : content.tensors) {
      tensor.part = part;
      content_.tensors.push_back(tensor);
    }
  }
  const std::uint64_t num_tensors = content_.tensors.size();
  const auto declared = try_get<std::uint64_t>("split.tensors.count").value_or(num_tensors);
  context.require(declared == num_tensors, "split.tensors.count is ", declared, " but the ",
                  num_parts_, " parts have ", num_tensors, " tensors");
}

inline void GgufFile::index_tensors(const detail::RuleContext& context) {
  for (const GgufTensor& tensor : content_.tensors) tensor_index_.add(tensor.name);
  const auto twin = tensor_index_.sort();
  context.require(!twin, detail::Item{"tensor", twin.value_or("")}, " stands twice in the model");
}

inline const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = content_.value_index.find(key);
  return found ? &content_.values[*found] : nullptr;
}

template <class T>
T GgufFile::get(std::string_view key) const {
  const GgufValue* value = find(key);
  detail::require(value != nullptr, ErrorCode::kFormat, "GgufFile::get", "'", name_,
                  "': ", detail::Item{"key", key}, " is missing");
  return value->get<T>();
}

template <class T>
std::optional<T> GgufFile::try_get(std::string_view key) const {
  const GgufValue* value = find(key);
  return value != nullptr ? std::optional<T>(value->get<T>()) : std::nullopt;
}

template <class T>
T GgufFile::get_or(std::string_view key, T fallback) const {
  const GgufValue* value = find(key);
  return value != nullptr ? value->get<T>() : fallback;
}

inline const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  if (!found) return nullptr;
  const GgufTensor& tensor = content_.tensors[*found];
  if (!tensor.is_supported()) {
    std::string supported;
    for (const TensorTypeInfo& type : tensor_types()) supported.append(" ").append(type.name);
    throw Error(ErrorCode::kUnsupported, "GgufFile::find_tensor",
                detail::concat("'", name_, "': ", detail::Item{"tensor", name}, " has type ",
                               tensor.type_name(), ", supported are", supported));
  }
  return &tensor;
}

inline const GgufTensor& GgufFile::tensor(std::string_view name) const {
  const GgufTensor* found = find_tensor(name);
  detail::require(found != nullptr, ErrorCode::kFormat, "GgufFile::tensor", "'", name_,
                  "': ", detail::Item{"tensor", name}, " is missing");
  return *found;
}

inline void GgufFile::release_pages(const GgufTensor& tensor) const noexcept {
  const auto part = static_cast<std::size_t>(tensor.part);
  if (part < files_.size()) files_[part].release_pages(tensor.data);
}

}  // namespace kvick::inline v0_1
