// SPDX-License-Identifier: MIT
// Writes GGUF files, version 3, that GgufFile reads back.
//
//   GgufWriter writer;
//   writer.add("general.architecture", "llama");
//   writer.add("llama.block_count", std::uint32_t{22});
//   writer.add_tensor("output_norm.weight", TensorType::kF32, {2048}, std::as_bytes(std::span(w)));
//   writer.write("model.gguf");
//
// The same calls give the same bytes: keys and tensors in the order they were added, padding 0. The
// key `general.alignment` (u32) sets the alignment of tensor data; 32 without it. The keys
// `split.*` are written as given: to merge a split model into one file, leave them out.
//
// Errors    Error(kArgument) for whatever the reader would refuse, when it is added; Error(kIo)
//           with path and reason if the file cannot be written. The file appears at `path` complete
//           or not at all: it is written beside it under a temporary name and then renamed.
// Threads   One at a time.
// Source    GGUF format, version 3.
// Layer     gguf: may include core, quant.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/checked.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/replacement_file.hpp"
#include "kvick/gguf/gguf_tensor.hpp"
#include "kvick/gguf/gguf_value.hpp"

namespace kvick::inline v0_1 {

/// Takes the next bytes of a file.
using GgufSink = std::function<void(std::span<const std::byte>)>;
/// Makes the data of a tensor at write time, in any number of pieces, so that it need never be in
/// memory as a whole. Called once per write.
using GgufProducer = std::function<void(const GgufSink& sink)>;

class GgufWriter {
 public:
  /// A scalar (bool, integer, float, double, text) or a range of them. The type in the file is the
  /// one of T: std::uint32_t becomes u32, double f64, anything that converts to std::string_view
  /// string.
  template <class T>
  void add(std::string_view key, const T& value);
  template <class T>
  void add(std::string_view key, std::initializer_list<T> values);
  /// A copy of a value that was read, under its own key.
  void add(const GgufValue& value);

  /// `data` is not copied: it must stay valid until the last `write`. dims[0] is the fastest.
  void add_tensor(std::string_view name, TensorType type, const std::vector<std::uint64_t>& dims,
                  std::span<const std::byte> data);
  /// `producer` must give exactly the bytes that type and dims call for.
  void add_tensor(std::string_view name, TensorType type, const std::vector<std::uint64_t>& dims,
                  GgufProducer producer);
  /// A tensor that was read; its file must stay open until the last `write`.
  void add_tensor(const GgufTensor& tensor);

  /// Replaces what is at `path`.
  void write(const std::filesystem::path& path) const;
  std::vector<std::byte> to_bytes() const;

 private:
  struct PlannedTensor {
    std::string name;
    TensorType type;
    std::vector<std::uint64_t> dims;
    std::uint64_t num_bytes;
    GgufProducer producer;
  };

  void add_encoded(std::string_view key, std::span<const std::byte> type_and_value);
  /// Without `num_given_bytes`, the producer's bytes are counted when it runs.
  void plan_tensor(std::string_view name, TensorType type, std::span<const std::uint64_t> dims,
                   std::optional<std::size_t> num_given_bytes, GgufProducer producer);
  std::vector<std::byte> encode_header() const;
  void write_to(const GgufSink& sink) const;

  std::vector<std::byte> metadata_;  // encoded keys and values
  std::uint64_t num_values_ = 0;
  std::set<std::string, std::less<>> keys_;
  std::uint32_t alignment_ = detail::kDefaultGgufAlignment;
  std::vector<PlannedTensor> tensors_;
  std::set<std::string, std::less<>> tensor_names_;
};

// ---- Implementation: nothing below is API ----

namespace detail {

inline void append_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <class T>
void append_number(std::vector<std::byte>& out, T value) {
  append_bytes(out, std::as_bytes(std::span(&value, 1)));
}

inline void append_string(std::vector<std::byte>& out, std::string_view text) {
  append_number<std::uint64_t>(out, text.size());
  append_bytes(out, std::as_bytes(std::span(text)));
}

template <class T>
concept GgufTextLike = std::convertible_to<const T&, std::string_view>;
template <class T>
concept GgufWritable = std::same_as<T, bool> || GgufInteger<T> || GgufFloat<T> || GgufTextLike<T>;

/// The type that T is written as.
template <GgufWritable T>
constexpr GgufType gguf_type_of() noexcept {
  if constexpr (GgufTextLike<T>) return GgufType::kString;
  if constexpr (std::same_as<T, bool>) return GgufType::kBool;
  if constexpr (std::same_as<T, float>) return GgufType::kFloat32;
  if constexpr (std::same_as<T, double>) return GgufType::kFloat64;
  constexpr bool kSigned = std::is_signed_v<T>;
  switch (sizeof(T)) {
    case 1: return kSigned ? GgufType::kInt8 : GgufType::kUint8;
    case 2: return kSigned ? GgufType::kInt16 : GgufType::kUint16;
    case 4: return kSigned ? GgufType::kInt32 : GgufType::kUint32;
    default: return kSigned ? GgufType::kInt64 : GgufType::kUint64;
  }
}

template <GgufWritable T>
void append_element(std::vector<std::byte>& out, const T& value) {
  if constexpr (GgufTextLike<T>) {
    append_string(out, value);
  } else if constexpr (std::same_as<T, bool>) {
    append_number<std::uint8_t>(out, value ? 1 : 0);
  } else {
    append_number(out, value);
  }
}

inline void append_type(std::vector<std::byte>& out, GgufType type) {
  append_number(out, static_cast<std::uint32_t>(type));
}

inline void write_zeros(const GgufSink& sink, std::uint64_t count) {
  static constexpr std::array<std::byte, 4096> kZeros = {};
  for (std::uint64_t left = count; left > 0;) {
    const std::uint64_t now = std::min<std::uint64_t>(left, kZeros.size());
    sink(std::span(kZeros).first(static_cast<std::size_t>(now)));
    left -= now;
  }
}

/// Bytes from `position` to the next multiple of `alignment`, a power of two.
constexpr std::uint64_t padding_after(std::uint64_t position, std::uint64_t alignment) noexcept {
  return (alignment - position % alignment) % alignment;
}

}  // namespace detail

template <class T>
void GgufWriter::add(std::string_view key, const T& value) {
  std::vector<std::byte> encoded;
  if constexpr (detail::GgufWritable<T>) {
    detail::append_type(encoded, detail::gguf_type_of<T>());
    detail::append_element(encoded, value);
  } else {
    static_assert(std::ranges::sized_range<const T>, "a scalar or a range of scalars");
    using Element = std::ranges::range_value_t<const T>;
    detail::append_type(encoded, GgufType::kArray);
    detail::append_type(encoded, detail::gguf_type_of<Element>());
    detail::append_number<std::uint64_t>(encoded, std::ranges::size(value));
    for (const auto& element : value) detail::append_element<Element>(encoded, element);
  }
  add_encoded(key, encoded);
}

template <class T>
void GgufWriter::add(std::string_view key, std::initializer_list<T> values) {
  add(key, std::span<const T>(values.begin(), values.size()));
}

inline void GgufWriter::add(const GgufValue& value) {
  std::vector<std::byte> encoded;
  detail::append_type(encoded, value.type());
  if (value.is_array()) {
    detail::append_type(encoded, value.element_type());
    detail::append_number<std::uint64_t>(encoded, value.num_elements());
  }
  detail::append_bytes(encoded, value.encoded());
  add_encoded(value.key(), encoded);
}

inline void GgufWriter::add_encoded(std::string_view key,
                                    std::span<const std::byte> type_and_value) {
  const detail::RuleContext context{"GgufWriter::add", "", ErrorCode::kArgument};
  detail::check_gguf_key(context, key);
  context.require(!keys_.contains(key), detail::Item{"key", key}, " was added before");
  if (key == detail::kAlignmentKey) {
    detail::ByteCursor cursor(type_and_value, context);
    const GgufValue value = detail::read_gguf_value(key, cursor);
    context.require(value.type() == GgufType::kUint32, key, " must be u32, got ",
                    kvick::name(value.type()));
    detail::check_gguf_alignment(context, value.get<std::uint32_t>());
    alignment_ = value.get<std::uint32_t>();
  }
  keys_.emplace(key);
  detail::append_string(metadata_, key);
  detail::append_bytes(metadata_, type_and_value);
  ++num_values_;
}

inline void GgufWriter::plan_tensor(std::string_view name, TensorType type,
                                    std::span<const std::uint64_t> dims,
                                    std::optional<std::size_t> num_given_bytes,
                                    GgufProducer producer) {
  const detail::RuleContext context{"GgufWriter::add_tensor", "", ErrorCode::kArgument};
  const detail::Item item{"tensor", name};
  detail::check_tensor_name(context, name);
  detail::check_num_dims(context, item, dims.size());
  GgufTensor tensor;
  tensor.name = name;
  tensor.type = type;
  std::copy(dims.begin(), dims.end(), tensor.dims.begin());
  const std::uint64_t num_bytes = detail::checked_tensor_bytes(context, tensor);
  context.require(num_given_bytes.value_or(num_bytes) == num_bytes, item, " needs ", num_bytes,
                  " bytes of data, got ", num_given_bytes.value_or(0));
  context.require(tensor_names_.emplace(name).second, item, " was added before");
  tensors_.push_back(
      {std::string(name), type, {dims.begin(), dims.end()}, num_bytes, std::move(producer)});
}

inline void GgufWriter::add_tensor(std::string_view name, TensorType type,
                                   const std::vector<std::uint64_t>& dims,
                                   std::span<const std::byte> data) {
  plan_tensor(name, type, dims, data.size(), [data](const GgufSink& sink) { sink(data); });
}

inline void GgufWriter::add_tensor(std::string_view name, TensorType type,
                                   const std::vector<std::uint64_t>& dims, GgufProducer producer) {
  plan_tensor(name, type, dims, std::nullopt, std::move(producer));
}

inline void GgufWriter::add_tensor(const GgufTensor& tensor) {
  const auto num_dims = static_cast<std::size_t>(tensor.num_dims);
  const std::span<const std::uint64_t> all(tensor.dims);
  // An impossible number of dimensions goes on as 0, which is refused by its name.
  const auto dims = all.first(num_dims <= all.size() ? num_dims : 0);
  plan_tensor(tensor.name, tensor.type, dims, tensor.data.size(),
              [data = tensor.data](const GgufSink& sink) { sink(data); });
}

inline std::vector<std::byte> GgufWriter::encode_header() const {
  std::vector<std::byte> out;
  detail::append_bytes(out, std::as_bytes(std::span(detail::kGgufMagic)));
  detail::append_number<std::uint32_t>(out, 3);  // version
  detail::append_number<std::uint64_t>(out, tensors_.size());
  detail::append_number(out, num_values_);
  detail::append_bytes(out, metadata_);
  std::uint64_t offset = 0;
  for (const PlannedTensor& tensor : tensors_) {
    detail::append_string(out, tensor.name);
    detail::append_number(out, static_cast<std::uint32_t>(tensor.dims.size()));
    detail::append_bytes(out, std::as_bytes(std::span(tensor.dims)));
    detail::append_number(out, static_cast<std::uint32_t>(tensor.type));
    detail::append_number(out, offset);
    std::uint64_t end = 0;
    const bool fits = try_add(offset, tensor.num_bytes, end) &&
                      try_align_up(end, alignment_, offset) &&
                      offset <= static_cast<std::uint64_t>(INT64_MAX);
    detail::require(fits, ErrorCode::kArgument, "GgufWriter::write", "tensors up to ",
                    detail::in_quotes(tensor.name), " must fit in a file of 2^63 bytes");
  }
  return out;
}

inline void GgufWriter::write_to(const GgufSink& sink) const {
  const std::vector<std::byte> header = encode_header();
  sink(header);
  if (!tensors_.empty()) {
    detail::write_zeros(sink, detail::padding_after(header.size(), alignment_));
  }
  for (const PlannedTensor& tensor : tensors_) {
    std::uint64_t num_written = 0;
    const auto require_exact = [&](bool ok, std::uint64_t num_bytes) {
      detail::require(ok, ErrorCode::kArgument, "GgufWriter::write", "the producer of tensor ",
                      detail::in_quotes(tensor.name), " must give ", tensor.num_bytes,
                      " bytes, gave ", num_bytes);
    };
    tensor.producer([&](std::span<const std::byte> bytes) {
      require_exact(bytes.size() <= tensor.num_bytes - num_written, num_written + bytes.size());
      sink(bytes);
      num_written += bytes.size();
    });
    require_exact(num_written == tensor.num_bytes, num_written);
    detail::write_zeros(sink, detail::padding_after(num_written, alignment_));
  }
}

inline void GgufWriter::write(const std::filesystem::path& path) const {
  ReplacementFile file(path, "GgufWriter::write");
  write_to([&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.commit();
}

inline std::vector<std::byte> GgufWriter::to_bytes() const {
  std::vector<std::byte> out;
  write_to([&](std::span<const std::byte> bytes) { detail::append_bytes(out, bytes); });
  return out;
}

}  // namespace kvick::inline v0_1
