// SPDX-License-Identifier: MIT
// Damaged copies of a model file: random bytes, extreme numbers, cuts, moved and zeroed ranges,
// more of them in the header than chance would have.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvick/gguf/gguf_file.hpp"

namespace support {

/// Makes damaged copies of a valid model.
class ModelMutator {
 public:
  using Bytes = std::vector<std::byte>;

  ModelMutator(Bytes valid, std::uint64_t seed) : valid_(std::move(valid)), random_(seed) {
    Bytes copy = valid_;
    const std::byte* const begin = copy.data();  // stays when the vector is moved
    const auto file = kvick::GgufFile::from_bytes(std::move(copy));
    const auto offset = [&](const void* place) {
      return static_cast<std::size_t>(static_cast<const std::byte*>(place) - begin);
    };
    for (const kvick::GgufValue& value : file.metadata()) {
      if (!value.is_array()) values_.push_back(offset(value.encoded().data()));
    }
    tensors_ = offset(file.tensors().front().name.data());
    header_ = offset(file.tensors().front().data.data());
    for (const auto& tensor : file.tensors()) {
      tensors_ = std::min(tensors_, offset(tensor.name.data()));
      header_ = std::min(header_, offset(tensor.data.data()));
    }
  }

  /// A damaged copy; what_was_done() says how.
  Bytes next() {
    Bytes bytes = valid_;
    what_was_done_.clear();
    do {
      mutate(bytes);
    } while (below(4) == 0);
    return bytes;
  }
  const std::string& what_was_done() const { return what_was_done_; }

 private:
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }

  std::uint64_t extreme() {
    constexpr std::uint64_t kExtremes[] = {0,
                                           1,
                                           2,
                                           31,
                                           1 << 16,
                                           (1 << 24) - 1,
                                           1 << 24,
                                           INT32_MAX,
                                           std::uint64_t{1} << 31,
                                           UINT32_MAX,
                                           std::uint64_t{1} << 32,
                                           std::uint64_t{1} << 60,
                                           INT64_MAX,
                                           std::uint64_t{1} << 63,
                                           UINT64_MAX - 31,
                                           UINT64_MAX};
    return kExtremes[below(std::size(kExtremes))];
  }

  /// Somewhere in the header, half the time where the tensors are described.
  std::size_t header_place() {
    const std::size_t begin = below(2) == 0 ? 0 : tensors_;
    return begin + below(header_ - begin);
  }
  std::size_t place(std::size_t size) {
    return std::min(below(2) == 0 ? header_place() : below(size), size - 1);
  }

  void mutate(Bytes& bytes) {
    const std::size_t at = place(bytes.size());
    // Short more often than long: many a mutant should be well enough to run.
    const std::size_t length = std::min(1 + below(std::size_t{1} << below(12)), bytes.size() - at);
    const auto note = [&](const char* what, std::size_t where) {
      what_was_done_ += std::string(what) + " at " + std::to_string(where) + "; ";
    };
    const auto put = [&](const char* what, std::size_t where, std::uint64_t value,
                         std::size_t width) {
      if (bytes.size() < where + width) return;
      note((what + (" " + std::to_string(value))).c_str(), where);
      std::memcpy(&bytes[where], &value, width);
    };
    switch (below(8)) {
      case 0:
        note("random bytes in the header", 0);
        for (std::size_t i = 1 + below(8); i > 0; --i) {
          bytes[std::min(header_place(), bytes.size() - 1)] = static_cast<std::byte>(random_());
        }
        return;
      case 1:
        note("random bytes", at);
        for (std::size_t i = 0; i < length; ++i) bytes[at + i] = static_cast<std::byte>(random_());
        return;
      case 2: return put("64-bit number", header_place(), extreme(), 8);
      case 3: return put("32-bit number", header_place(), extreme(), 4);
      case 4: return put("value", values_[below(values_.size())], extreme(), 4);
      case 5: note("truncated", at); return bytes.resize(at + 1);
      case 6: {
        note("range of another place", at);
        const std::size_t from = below(bytes.size() - length + 1);
        const Bytes range(bytes.begin() + static_cast<std::ptrdiff_t>(from),
                          bytes.begin() + static_cast<std::ptrdiff_t>(from + length));
        const auto to = bytes.begin() + static_cast<std::ptrdiff_t>(at);
        if (below(2) == 0) {
          std::copy(range.begin(), range.end(), to);
        } else {
          bytes.insert(to, range.begin(), range.end());
        }
        return;
      }
      default:
        note("zeros", at);
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), length, std::byte{0});
    }
  }

  Bytes valid_;
  std::mt19937_64 random_;
  std::vector<std::size_t> values_;  // where metadata values begin that are no arrays
  std::size_t tensors_ = 0;          // where the descriptions of tensors begin
  std::size_t header_ = 0;           // bytes before the first tensor's data
  std::string what_was_done_;
};

}  // namespace support
