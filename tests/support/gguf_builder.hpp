// SPDX-License-Identifier: MIT
// GGUF files byte by byte, right or wrong, for tests of the reader; written from the format's
// description and sharing nothing with GgufWriter.
//
//   support::GgufBuilder file;
//   file.value("general.name", 8, support::ByteString().string("x"));
//   file.num_tensors = UINT64_MAX;   // a lie
//   GgufFile::from_bytes(file.build());
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "support/temporary_directory.hpp"

namespace support {

/// Bytes put one after another, little-endian.
class ByteString {
 public:
  template <class T>
  ByteString& number(T value) {
    const auto* begin = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), begin, begin + sizeof(T));
    return *this;
  }
  ByteString& u8(std::uint8_t value) { return number(value); }
  ByteString& u32(std::uint32_t value) { return number(value); }
  ByteString& u64(std::uint64_t value) { return number(value); }
  ByteString& text(std::string_view text) {
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
    return *this;
  }
  /// Length, then text.
  ByteString& string(std::string_view value) { return u64(value.size()).text(value); }
  ByteString& append(std::span<const std::byte> other) {
    bytes_.insert(bytes_.end(), other.begin(), other.end());
    return *this;
  }
  ByteString& zeros(std::size_t count) {
    bytes_.resize(bytes_.size() + count);
    return *this;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

struct BuiltTensor {
  std::string name = "t";
  std::vector<std::uint64_t> dims = {8};
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
  std::optional<std::uint32_t> num_dims = {};  // declared; true if absent
};

struct GgufBuilder {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::optional<std::uint64_t> num_tensors = {};  // declared; true if absent
  std::optional<std::uint64_t> num_values = {};
  std::vector<BuiltTensor> tensors = {};
  std::uint64_t alignment = 32;  // where the data begins; does not write the key
  std::size_t data_bytes = 0;

  GgufBuilder& value(std::string_view key, std::uint32_t type, const ByteString& encoded) {
    values_.string(key).u32(type).append(encoded.bytes());
    ++num_true_values_;
    return *this;
  }
  GgufBuilder& u32(std::string_view key, std::uint32_t number) {
    return value(key, 4, ByteString().u32(number));
  }
  GgufBuilder& text(std::string_view key, std::string_view content) {
    return value(key, 8, ByteString().string(content));
  }
  /// An array value with the given declared count.
  GgufBuilder& array(std::string_view key, std::uint32_t element_type, std::uint64_t count,
                     const ByteString& elements) {
    return value(key, 9, ByteString().u32(element_type).u64(count).append(elements.bytes()));
  }
  GgufBuilder& tensor(BuiltTensor info) {
    tensors.push_back(std::move(info));
    return *this;
  }

  std::vector<std::byte> build() const {
    ByteString out;
    out.text(magic).u32(version);
    out.u64(num_tensors.value_or(tensors.size())).u64(num_values.value_or(num_true_values_));
    out.append(values_.bytes());
    for (const BuiltTensor& info : tensors) {
      out.string(info.name);
      out.u32(info.num_dims.value_or(static_cast<std::uint32_t>(info.dims.size())));
      for (const std::uint64_t dim : info.dims) out.u64(dim);
      out.u32(info.type).u64(info.offset);
    }
    if (data_bytes > 0) {
      while (out.bytes().size() % alignment != 0) out.u8(0);
      for (std::size_t i = 0; i < data_bytes; ++i) out.u8(static_cast<std::uint8_t>(i));
    }
    return out.bytes();
  }

 private:
  ByteString values_;
  std::uint64_t num_true_values_ = 0;
};

/// A small valid file that uses every part of the format: all value types, arrays of numbers and
/// strings, tensors of one and two dimensions, plain and in blocks.
inline GgufBuilder small_valid_gguf() {
  GgufBuilder file;
  file.text("general.architecture", "test");
  file.u32("general.alignment", 32);
  file.value("a.u8", 0, ByteString().u8(200));
  file.value("a.i8", 1, ByteString().number<std::int8_t>(-100));
  file.value("a.u16", 2, ByteString().number<std::uint16_t>(60000));
  file.value("a.i16", 3, ByteString().number<std::int16_t>(-30000));
  file.value("a.i32", 5, ByteString().number<std::int32_t>(-1));
  file.value("a.f32", 6, ByteString().number(1.5f));
  file.value("a.bool", 7, ByteString().u8(1));
  file.value("a.u64", 10, ByteString().u64(std::uint64_t{1} << 40));
  file.value("a.i64", 11, ByteString().number<std::int64_t>(-1));
  file.value("a.f64", 12, ByteString().number(0.1));
  file.array("a.floats", 6, 3, ByteString().number(0.5f).number(-1.0f).number(2.0f));
  file.array("a.bools", 7, 2, ByteString().u8(0).u8(1));
  file.array("a.ints", 5, 2, ByteString().number<std::int32_t>(7).number<std::int32_t>(-7));
  file.array("a.strings", 8, 3, ByteString().string("one").string("").string("three"));
  file.tensor({.name = "plain", .dims = {4, 2}, .type = 0, .offset = 0});  // 32 bytes
  file.tensor({.name = "blocks", .dims = {32}, .type = 8, .offset = 32});  // 34 bytes
  file.data_bytes = 66;
  return file;
}

/// Expects kvick::Error with this code whose message holds all `parts`.
template <class Action>
void expect_error(kvick::ErrorCode code, std::initializer_list<std::string_view> parts,
                  Action&& action) {
  try {
    action();
    ADD_FAILURE() << "expected kvick::Error (" << kvick::name(code) << ")";
  } catch (const kvick::Error& error) {
    EXPECT_EQ(kvick::name(error.code()), kvick::name(code)) << error.what();
    for (const std::string_view part : parts) {
      EXPECT_NE(error.message().find(part), std::string_view::npos)
          << "'" << part << "' is not in: " << error.what();
    }
  }
}

inline void write_bytes(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

inline std::vector<std::byte> read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

}  // namespace support
