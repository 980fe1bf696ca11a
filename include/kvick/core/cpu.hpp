// SPDX-License-Identifier: MIT
// Which instruction sets this CPU and operating system offer, and which one to use.
//
// The answer comes from CPUID and XGETBV, not from compiler flags: the kernels carry their own
// target attributes. Results never depend on the choice; speed does.
//
// Errors    Error(kArgument) for a name that is no ISA, Error(kUnsupported) for one this CPU lacks.
// Threads   Pure functions; default_isa reads the environment.
// Source    Intel SDM vol. 2A (CPUID leaves 1 and 7), vol. 1 section 13 (XCR0); AMD APM vol. 3.
// Layer     core.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "kvick/core/error.hpp"

namespace kvick::inline v0_1 {

/// Levels of instruction sets, narrow to wide.
enum class Isa {
  kPortable,    ///< plain C++
  kAvx2,        ///< AVX2, FMA and F16C
  kAvxVnni,     ///< kAvx2 and AVX-VNNI
  kAvx512Vnni,  ///< kAvx2 and AVX-512 F, BW, DQ, VL, VNNI
  kNeonDotprod  ///< AArch64 with the dot-product extension
};

/// All levels, narrow to wide.
inline constexpr std::array<Isa, 5> kAllIsas = {Isa::kPortable, Isa::kAvx2, Isa::kAvxVnni,
                                                Isa::kAvx512Vnni, Isa::kNeonDotprod};

/// "portable", "avx2", "avx_vnni", "avx512_vnni" or "neon_dotprod".
constexpr std::string_view name(Isa isa) noexcept;

/// Whether this CPU, with this operating system and build, can run code for `isa`.
inline bool is_supported(Isa isa) noexcept;

/// Every supported level, narrow to wide; kPortable is always there.
inline std::vector<Isa> supported_isas();

/// The widest supported level.
inline Isa best_isa() noexcept;

/// The supported level with this name.
inline Isa parse_isa(std::string_view name);

/// The level named by KVICK_ISA in the environment; best_isa() if that is unset or empty.
inline Isa default_isa();

/// The processor's own name, for reports; empty if unknown.
inline std::string cpu_brand();

// ---- Implementation: nothing below is API ----

constexpr std::string_view name(Isa isa) noexcept {
  switch (isa) {
    case Isa::kPortable: return "portable";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvxVnni: return "avx_vnni";
    case Isa::kAvx512Vnni: return "avx512_vnni";
    case Isa::kNeonDotprod: return "neon_dotprod";
  }
  return "unknown";
}

namespace detail {

#if defined(__x86_64__)

struct CpuidRegisters {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

/// All zeros where the CPU has no such leaf.
inline CpuidRegisters cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) noexcept {
  CpuidRegisters r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

/// The register states that the operating system saves; requires OSXSAVE.
inline std::uint64_t enabled_states() noexcept {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

constexpr bool has_bits(std::uint64_t value, std::uint64_t bits) noexcept {
  return (value & bits) == bits;
}

struct X86Features {
  bool avx2 = false;
  bool avx_vnni = false;
  bool avx512_vnni = false;
};

/// The three x86 levels, from CPUID leaves 1, 7 and 7.1 and XCR0 alone.
constexpr X86Features x86_features(const CpuidRegisters& leaf1, const CpuidRegisters& leaf7,
                                   const CpuidRegisters& leaf7_1, std::uint64_t states) noexcept {
  constexpr std::uint32_t kFma = 1u << 12, kAvx = 1u << 28, kF16c = 1u << 29;  // 1.ECX
  // 1.ECX; compilers turn these two on together with AVX2.
  constexpr std::uint32_t kSse42 = 1u << 20, kPopcnt = 1u << 23;
  constexpr std::uint32_t kAvx2 = 1u << 5;                             // 7.EBX
  constexpr std::uint32_t kAvx512F = 1u << 16, kAvx512Dq = 1u << 17;   // 7.EBX
  constexpr std::uint32_t kAvx512Bw = 1u << 30, kAvx512Vl = 1u << 31;  // 7.EBX
  constexpr std::uint32_t kAvx512Vnni = 1u << 11;                      // 7.ECX
  constexpr std::uint32_t kAvxVnni = 1u << 4;                          // 7.1.EAX
  constexpr std::uint64_t kYmmStates = 0x6, kZmmStates = 0xe6;  // with opmask and both zmm halves
  X86Features f;
  f.avx2 = has_bits(leaf1.ecx, kFma | kAvx | kF16c | kSse42 | kPopcnt) &&
           has_bits(leaf7.ebx, kAvx2) && has_bits(states, kYmmStates);
  f.avx_vnni = f.avx2 && has_bits(leaf7_1.eax, kAvxVnni);
  f.avx512_vnni = f.avx2 && has_bits(states, kZmmStates) && has_bits(leaf7.ecx, kAvx512Vnni) &&
                  has_bits(leaf7.ebx, kAvx512F | kAvx512Dq | kAvx512Bw | kAvx512Vl);
  return f;
}

inline X86Features detect_x86_features() noexcept {
  constexpr std::uint32_t kOsXsave = 1u << 27;  // 1.ECX
  const CpuidRegisters leaf1 = cpuid(1);
  if (!has_bits(leaf1.ecx, kOsXsave)) return {};
  const CpuidRegisters leaf7 = cpuid(7);
  return x86_features(leaf1, leaf7, leaf7.eax >= 1 ? cpuid(7, 1) : CpuidRegisters{},
                      enabled_states());
}

#endif

template <class Isas>
std::string list_names(const Isas& isas) {
  std::string text;
  for (const Isa isa : isas) text += (text.empty() ? "" : ", ") + std::string(name(isa));
  return text;
}

}  // namespace detail

inline bool is_supported(Isa isa) noexcept {
  if (isa == Isa::kPortable) return true;
#if defined(__x86_64__)
  static const detail::X86Features features = detail::detect_x86_features();
  return (isa == Isa::kAvx2 && features.avx2) || (isa == Isa::kAvxVnni && features.avx_vnni) ||
         (isa == Isa::kAvx512Vnni && features.avx512_vnni);
#elif defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kAsimdDp = 1ul << 20;  // HWCAP_ASIMDDP
  return isa == Isa::kNeonDotprod && (getauxval(AT_HWCAP) & kAsimdDp) != 0;
#else
  return false;
#endif
}

inline std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : kAllIsas) {
    if (is_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

inline Isa best_isa() noexcept {
  Isa best = Isa::kPortable;
  for (const Isa isa : kAllIsas) {
    if (is_supported(isa)) best = isa;
  }
  return best;
}

namespace detail {

inline Isa parse_isa(std::string_view text, std::string_view operation) {
  for (const Isa isa : kAllIsas) {
    if (name(isa) != text) continue;
    require(is_supported(isa), ErrorCode::kUnsupported, operation,
            "the ISA must be one this CPU has (", list_names(supported_isas()), "), got ", text);
    return isa;
  }
  throw Error(ErrorCode::kArgument, operation,
              concat("the ISA must be one of ", list_names(kAllIsas), ", got ", in_quotes(text)));
}

}  // namespace detail

inline Isa parse_isa(std::string_view text) { return detail::parse_isa(text, "parse_isa"); }

inline Isa default_isa() {
  const char* const choice = std::getenv("KVICK_ISA");
  return choice == nullptr || *choice == '\0' ? best_isa() : detail::parse_isa(choice, "KVICK_ISA");
}

inline std::string cpu_brand() {
  std::string brand;
#if defined(__x86_64__)
  constexpr std::uint32_t kFirst = 0x80000002, kLast = 0x80000004;
  if (static_cast<std::uint32_t>(__get_cpuid_max(0x80000000, nullptr)) < kLast) return brand;
  for (std::uint32_t leaf = kFirst; leaf <= kLast; ++leaf) {
    const detail::CpuidRegisters r = detail::cpuid(leaf);
    for (const std::uint32_t word : {r.eax, r.ebx, r.ecx, r.edx}) {
      for (int shift = 0; shift < 32; shift += 8) {
        const char c = static_cast<char>(word >> shift);
        if (c != '\0') brand += c;
      }
    }
  }
  brand.erase(0, brand.find_first_not_of(' '));
  brand.erase(brand.find_last_not_of(' ') + 1);
#endif
  return brand;
}

}  // namespace kvick::inline v0_1
