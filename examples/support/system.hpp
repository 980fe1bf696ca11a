// SPDX-License-Identifier: MIT
// What programs ask of the operating system and the clock.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/resource.h>
#include <unistd.h>
#endif

namespace programs {

/// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The most memory this process has occupied so far, mapped model files included; 0 if unknown.
inline std::uint64_t peak_memory_bytes() {
#if defined(__unix__) || defined(__APPLE__)
  struct rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
#if defined(__APPLE__)
  constexpr std::uint64_t kUnitBytes = 1;
#else
  constexpr std::uint64_t kUnitBytes = 1024;
#endif
  return static_cast<std::uint64_t>(usage.ru_maxrss) * kUnitBytes;
#else
  return 0;
#endif
}

inline bool is_error_output_a_terminal() {
#if defined(__unix__) || defined(__APPLE__)
  return isatty(STDERR_FILENO) == 1;
#else
  return false;
#endif
}

inline bool is_input_a_terminal() {
#if defined(__unix__) || defined(__APPLE__)
  return isatty(STDIN_FILENO) == 1;
#else
  return false;
#endif
}

}  // namespace programs
