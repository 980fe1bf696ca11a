// SPDX-License-Identifier: MIT
// A file that appears complete or not at all.
//
// It is written beside its target under a temporary name and takes the target's place when it is
// committed. What was there stays until then, and if anything fails.
//
// Errors    Error(kIo) with path and reason if a file cannot be created, written or replaced.
// Threads   One at a time.
// Layer     core.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "kvick/core/error.hpp"
#include "kvick/core/io_error.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

class ReplacementFile {
 public:
  /// `operation` is what errors name; it must live as long.
  ReplacementFile(const std::filesystem::path& target, std::string_view operation);
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;
  /// Removes what was not committed.
  ~ReplacementFile();

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  std::filesystem::path target_;
  std::string_view operation_;
  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
  bool is_committed_ = false;
};

// ---- Implementation: nothing below is API ----

inline ReplacementFile::ReplacementFile(const std::filesystem::path& target,
                                        std::string_view operation)
    : target_(target), operation_(operation) {
  // Each attempt fails only if the name is taken, for example by a process that died.
  constexpr int kMaxAttempts = 1000;
  for (int i = 0; i < kMaxAttempts && file_ == nullptr; ++i) {
    path_ = target_;
    path_ += detail::concat(".tmp", i);
    file_ = std::fopen(path_.string().c_str(), "wbx");  // x: never an existing file
    if (file_ == nullptr && errno != EEXIST) break;
  }
  if (file_ == nullptr) detail::throw_io_error(operation_, "create", path_, errno);
}

inline ReplacementFile::~ReplacementFile() {
  if (file_ != nullptr) std::fclose(file_);
  std::error_code ignored;
  if (!is_committed_) std::filesystem::remove(path_, ignored);
}

inline void ReplacementFile::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;  // fwrite may not get a null pointer
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) {
    detail::throw_io_error(operation_, "write", path_, errno);
  }
}

inline void ReplacementFile::commit() {
  if (std::fclose(std::exchange(file_, nullptr)) != 0) {
    detail::throw_io_error(operation_, "write", path_, errno);
  }
  std::error_code error;
  std::filesystem::rename(path_, target_, error);
  if (error) detail::throw_io_error(operation_, "replace", target_, error.value());
  is_committed_ = true;
}

}  // namespace kvick::inline v0_1
