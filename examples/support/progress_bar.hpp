// SPDX-License-Identifier: MIT
// A progress bar on standard error, if that is a terminal. It disappears at the end.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>

#include "system.hpp"

namespace programs {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label)
      : label_(std::move(label)), is_shown_(is_error_output_a_terminal()) {}
  ~ProgressBar() {
    if (last_percent_ >= 0) std::fputs("\r\033[K", stderr);  // to the line's start, erase it
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Draws only when the percentage changes.
  void update(std::size_t done, std::size_t total) {
    if (!is_shown_ || total == 0) return;
    const int percent =
        static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
    if (percent == last_percent_) return;
    last_percent_ = percent;
    const auto num_marks = static_cast<std::size_t>(percent * kWidth / 100);
    const std::string marks(num_marks, '#');
    std::fprintf(stderr, "\r%s [%-*s] %3d %%", label_.c_str(), kWidth, marks.c_str(), percent);
  }

 private:
  static constexpr int kWidth = 40;

  std::string label_;
  bool is_shown_;
  int last_percent_ = -1;
};

}  // namespace programs
