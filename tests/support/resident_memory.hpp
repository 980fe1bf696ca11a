// SPDX-License-Identifier: MIT
// How much memory this process has in use.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace support {

/// Pages of this process that are in memory; Linux.
inline std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace support
