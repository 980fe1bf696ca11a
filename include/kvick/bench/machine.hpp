// SPDX-License-Identifier: MIT
// What figures depend on and this process can tell: machine, build, memory.
//
// Units     Bytes.
// Source    Linux: /proc/self/status (VmHWM, VmRSS), /proc/meminfo (proc(5)).
// Layer     bench: may include core.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "kvick/bench/report.hpp"
#include "kvick/core/cpu.hpp"
#include "kvick/core/thread_count.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// The most memory this process has occupied so far, mapped files included, as the kernel counts
/// it; nothing where the system does not tell.
inline std::optional<std::uint64_t> peak_memory_bytes();

/// CPU, instruction set in use, cores, memory.
inline FactGroup machine_facts(Isa isa, int num_threads);
/// Version, compiler, whether optimized.
inline FactGroup build_facts();

// ---- Implementation: nothing below is API ----

namespace detail {

/// The kilobytes on the line of `path` that begins with `key`, in bytes.
inline std::optional<std::uint64_t> proc_bytes(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t begin = line.find_first_of("0123456789");
    if (begin == std::string::npos) return std::nullopt;
    std::uint64_t kilobytes = 0;
    std::from_chars(line.data() + begin, line.data() + line.size(), kilobytes);
    return kilobytes * 1024;
  }
  return std::nullopt;
}

inline std::string gigabytes(std::uint64_t bytes) {
  return with_decimals(static_cast<double>(bytes) * 1e-9, 1) + " GB";
}

inline std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "g++ " __VERSION__;
#else
  return "unknown";
#endif
}

}  // namespace detail

inline std::optional<std::uint64_t> peak_memory_bytes() {
  return detail::proc_bytes("/proc/self/status", "VmHWM:");
}

inline FactGroup machine_facts(Isa isa, int num_threads) {
  FactGroup group{"machine", {}};
  const std::string brand = cpu_brand();
  group.facts.emplace_back("cpu", brand.empty() ? "unknown" : brand);
  group.facts.emplace_back("instruction set", std::string(name(isa)));
  group.facts.emplace_back("cores", std::to_string(std::thread::hardware_concurrency()) + ", " +
                                        std::to_string(default_num_threads()) + " of them usable");
  group.facts.emplace_back("threads", std::to_string(num_threads));
  if (const auto memory = detail::proc_bytes("/proc/meminfo", "MemTotal:")) {
    group.facts.emplace_back("memory", detail::gigabytes(*memory));
  }
  return group;
}

inline FactGroup build_facts() {
#if defined(__OPTIMIZE__)
  const char* const optimized = "yes";
#else
  const char* const optimized = "no";
#endif
#if defined(NDEBUG)
  const char* const assertions = "off";
#else
  const char* const assertions = "on";
#endif
  return {"build",
          {{"kvick", kVersion},
           {"compiler", detail::compiler()},
           {"optimized", optimized},
           {"assertions", assertions}}};
}

}  // namespace kvick::inline v0_1
