// SPDX-License-Identifier: MIT
// A place for the files of one test.
#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <system_error>

namespace support {

/// A new empty directory that disappears with its content.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    do {  // random_device: tests of several processes run at once
      path_ = std::filesystem::temp_directory_path() /
              ("kvick-test-" + std::to_string(std::random_device{}()));
    } while (!std::filesystem::create_directory(path_));
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace support
