// SPDX-License-Identifier: MIT
// How many threads this process may keep busy.
//
// The least of what three places allow: the affinity mask, the CPU quota of the process's control
// groups (a container's limit, invisible in the number of CPUs), and the number of CPUs.
//
// Errors    None: a file that is missing or unreadable sets no limit.
// Source    Linux kernel documentation: cgroup-v2 (cpu.max), CFS bandwidth control (cpu.cfs_*).
// Layer     core.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// At least 1.
inline int default_num_threads();

// ---- Implementation: nothing below is API ----

namespace detail {

/// CPUs in a quota of `quota` microseconds per `period`, rounded up; nothing unless both are
/// positive.
inline std::optional<int> cpus_of_quota(long long quota, long long period) noexcept {
  if (quota <= 0 || period <= 0) return std::nullopt;
  const long long cpus = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<int>(std::min<long long>(cpus, std::numeric_limits<int>::max()));
}

inline std::optional<long long> parse_number(std::string_view text) noexcept {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  long long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// cgroup v2's cpu.max: "max 100000" or "150000 100000"; nothing for no limit or another text.
inline std::optional<int> parse_cpu_max(std::string_view text) noexcept {
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const auto quota = parse_number(text.substr(0, space));
  const auto period = parse_number(text.substr(space + 1));
  if (!quota || !period) return std::nullopt;
  return cpus_of_quota(*quota, *period);
}

/// Whether `name` is in "name,name,...".
inline bool lists(std::string_view names, std::string_view name) noexcept {
  for (;;) {
    const std::size_t comma = names.find(',');
    if (names.substr(0, comma) == name) return true;
    if (comma == std::string_view::npos) return false;
    names.remove_prefix(comma + 1);
  }
}

/// The path of the process in /proc/self/cgroup, whose lines are "id:controllers:path": the line
/// whose controllers hold `controller`, or for an empty one the line of cgroup v2, "0::path".
inline std::optional<std::string> cgroup_path(std::string_view text, std::string_view controller) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const bool found = lists(line.substr(first + 1, second - first - 1), controller);
    if (found) return std::string(line.substr(second + 1));
  }
  return std::nullopt;
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The quota set in one folder of a control group tree, of either version.
inline std::optional<int> cpus_of_folder(const std::string& folder) {
  if (const auto cpus = parse_cpu_max(read_text(folder + "/cpu.max"))) return cpus;
  const auto quota = parse_number(read_text(folder + "/cpu.cfs_quota_us"));
  const auto period = parse_number(read_text(folder + "/cpu.cfs_period_us"));
  return quota && period ? cpus_of_quota(*quota, *period) : std::nullopt;
}

/// The least quota of the folder `root + path` and every folder above it, down to `root`.
inline int cpus_of_tree(const std::string& root, std::string path) {
  int least = std::numeric_limits<int>::max();
  for (;;) {
    if (const auto cpus = cpus_of_folder(root + path)) least = std::min(least, *cpus);
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return least;
    path.erase(slash);
  }
}

/// What the control groups of this process allow.
inline int cpus_of_cgroups() {
  const std::string memberships = read_text("/proc/self/cgroup");
  int least = std::numeric_limits<int>::max();
  if (const auto path = cgroup_path(memberships, "")) {
    least = std::min(least, cpus_of_tree("/sys/fs/cgroup", *path));
  }
  if (const auto path = cgroup_path(memberships, "cpu")) {
    least = std::min(least, cpus_of_tree("/sys/fs/cgroup/cpu", *path));
  }
  return least;
}

/// CPUs in the affinity mask, for masks of any size; nothing if it cannot be read.
inline std::optional<int> cpus_of_affinity() {
#if defined(__linux__)
  constexpr int kMaxCpus = 1 << 16;
  for (int cpus = 1024; cpus <= kMaxCpus; cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<std::size_t>(cpus));
    if (set == nullptr) return std::nullopt;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus));
    const bool read = sched_getaffinity(0, bytes, set) == 0;
    const int count = read ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (read) return count;
  }
#endif
  return std::nullopt;
}

}  // namespace detail

inline int default_num_threads() {
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (const auto cpus = detail::cpus_of_affinity()) threads = std::min(threads, *cpus);
  threads = std::min(threads, detail::cpus_of_cgroups());
  return std::max(1, threads);
}

}  // namespace kvick::inline v0_1
