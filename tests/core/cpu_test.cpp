// SPDX-License-Identifier: MIT
#include "kvick/core/cpu.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/environment_variable.hpp"

namespace kvick {
namespace {

ErrorCode code_of_parsing(std::string_view text, std::string& message) {
  try {
    parse_isa(text);
  } catch (const Error& error) {
    message = error.message();
    return error.code();
  }
  ADD_FAILURE() << "no error for " << text;
  return ErrorCode::kIo;
}

TEST(Isa, NamesAreDistinct) {
  std::set<std::string_view> names;
  for (const Isa isa : kAllIsas) names.insert(name(isa));
  EXPECT_EQ(names, (std::set<std::string_view>{"portable", "avx2", "avx_vnni", "avx512_vnni",
                                               "neon_dotprod"}));
}

TEST(Isa, EverySupportedOneParsesBack) {
  for (const Isa isa : supported_isas()) EXPECT_EQ(parse_isa(name(isa)), isa);
}

TEST(Isa, SupportedOnesAreListedNarrowToWideFromPortable) {
  const std::vector<Isa> isas = supported_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kPortable);
  EXPECT_EQ(isas.back(), best_isa());
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  for (const Isa isa : kAllIsas) {
    EXPECT_EQ(is_supported(isa), std::count(isas.begin(), isas.end(), isa) == 1) << name(isa);
  }
}

TEST(Isa, UnknownNamesAreQuotedAndTheKnownOnesListed) {
  for (const std::string text : {"", "AVX2", "avx2 ", "sse\n"}) {
    std::string message;
    EXPECT_EQ(code_of_parsing(text, message), ErrorCode::kArgument);
    EXPECT_EQ(message,
              "[parse_isa] the ISA must be one of portable, avx2, avx_vnni, avx512_vnni, "
              "neon_dotprod, got " +
                  detail::in_quotes(text));
  }
}

TEST(Isa, UnsupportedOnesAreRefused) {
  for (const Isa isa : kAllIsas) {
    if (is_supported(isa)) continue;
    std::string message;
    EXPECT_EQ(code_of_parsing(name(isa), message), ErrorCode::kUnsupported);
    EXPECT_NE(message.find("portable"), std::string::npos) << message;
    EXPECT_NE(message.find("got " + std::string(name(isa))), std::string::npos) << message;
  }
}

TEST(Isa, NoMachineHasBothX86AndNeon) {
  EXPECT_FALSE(is_supported(Isa::kAvx2) && is_supported(Isa::kNeonDotprod));
}

TEST(DefaultIsa, IsTheBestWithoutKvickIsa) {
  for (const char* const value : {static_cast<const char*>(nullptr), ""}) {
    const support::ScopedEnvironmentVariable variable("KVICK_ISA", value);
    EXPECT_EQ(default_isa(), best_isa());
  }
}

TEST(DefaultIsa, IsTheOneKvickIsaNames) {
  for (const Isa isa : supported_isas()) {
    const support::ScopedEnvironmentVariable variable("KVICK_ISA", std::string(name(isa)).c_str());
    EXPECT_EQ(default_isa(), isa);
  }
}

TEST(DefaultIsa, RefusesAnUnknownKvickIsa) {
  const support::ScopedEnvironmentVariable variable("KVICK_ISA", "fast");
  try {
    default_isa();
    FAIL() << "expected Error(kArgument)";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kArgument);
    EXPECT_NE(error.message().find("got 'fast'"), std::string_view::npos) << error.message();
  }
}

TEST(CpuBrand, HasNoSurroundingBlanks) {
  const std::string brand = cpu_brand();
  EXPECT_EQ(brand.find('\0'), std::string::npos);
  if (!brand.empty()) {
    EXPECT_NE(brand.front(), ' ');
    EXPECT_NE(brand.back(), ' ');
  }
}

#if defined(__x86_64__)

// What CPUID and XGETBV say on a CPU that has every feature.
struct Registers {
  detail::CpuidRegisters leaf1;
  detail::CpuidRegisters leaf7;
  detail::CpuidRegisters leaf7_1;
  std::uint64_t states = 0;

  detail::X86Features features() const {
    return detail::x86_features(leaf1, leaf7, leaf7_1, states);
  }
};

// Bit numbers as in the manuals of Intel and AMD.
Registers everything() {
  Registers r;
  r.leaf1.ecx = 1u << 12 | 1u << 20 | 1u << 23 | 1u << 28 | 1u << 29;  // FMA SSE4.2 POPCNT AVX F16C
  r.leaf7.ebx = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;   // AVX2 AVX512 F, DQ, BW, VL
  r.leaf7.ecx = 1u << 11;                                              // AVX512_VNNI
  r.leaf7_1.eax = 1u << 4;                                             // AVX-VNNI
  r.states =
      1u << 1 | 1u << 2 | 1u << 5 | 1u << 6 | 1u << 7;  // XMM, YMM, opmask, both halves of ZMM
  return r;
}

TEST(X86Features, AreAllThereWhenEveryBitIs) {
  const detail::X86Features f = everything().features();
  EXPECT_TRUE(f.avx2);
  EXPECT_TRUE(f.avx_vnni);
  EXPECT_TRUE(f.avx512_vnni);
}

TEST(X86Features, IgnoreAllOtherBits) {
  Registers others = everything();
  for (std::uint32_t* const word :
       {&others.leaf1.eax, &others.leaf1.ebx, &others.leaf1.ecx, &others.leaf1.edx,
        &others.leaf7.eax, &others.leaf7.ebx, &others.leaf7.ecx, &others.leaf7.edx,
        &others.leaf7_1.eax, &others.leaf7_1.ebx, &others.leaf7_1.ecx, &others.leaf7_1.edx}) {
    *word = ~*word;
  }
  const detail::X86Features f = others.features();
  EXPECT_FALSE(f.avx2 || f.avx_vnni || f.avx512_vnni);
}

TEST(X86Features, NeedEveryBitOfTheirLevel) {
  const auto without = [](auto member, auto word, int bit) {
    Registers r = everything();
    (r.*member).*word &= ~(1u << bit);
    return r.features();
  };
  using Leaf = detail::CpuidRegisters;
  for (const int bit : {12, 20, 23, 28, 29}) {
    const detail::X86Features f = without(&Registers::leaf1, &Leaf::ecx, bit);
    EXPECT_FALSE(f.avx2 || f.avx_vnni || f.avx512_vnni) << "leaf 1, ECX bit " << bit;
  }
  const detail::X86Features no_avx2 = without(&Registers::leaf7, &Leaf::ebx, 5);
  EXPECT_FALSE(no_avx2.avx2 || no_avx2.avx_vnni || no_avx2.avx512_vnni);
  for (const int bit : {16, 17, 30, 31}) {
    const detail::X86Features f = without(&Registers::leaf7, &Leaf::ebx, bit);
    EXPECT_TRUE(f.avx2 && f.avx_vnni) << "leaf 7, EBX bit " << bit;
    EXPECT_FALSE(f.avx512_vnni) << "leaf 7, EBX bit " << bit;
  }
  const detail::X86Features no_avx512_vnni = without(&Registers::leaf7, &Leaf::ecx, 11);
  EXPECT_TRUE(no_avx512_vnni.avx2 && no_avx512_vnni.avx_vnni);
  EXPECT_FALSE(no_avx512_vnni.avx512_vnni);
  const detail::X86Features no_avx_vnni = without(&Registers::leaf7_1, &Leaf::eax, 4);
  EXPECT_TRUE(no_avx_vnni.avx2 && no_avx_vnni.avx512_vnni);
  EXPECT_FALSE(no_avx_vnni.avx_vnni);
}

TEST(X86Features, NeedTheRegisterStatesThatTheSystemSaves) {
  for (const int bit : {1, 2}) {
    Registers r = everything();
    r.states &= ~(1ull << bit);
    const detail::X86Features f = r.features();
    EXPECT_FALSE(f.avx2 || f.avx_vnni || f.avx512_vnni) << "XCR0 bit " << bit;
  }
  for (const int bit : {5, 6, 7}) {
    Registers r = everything();
    r.states &= ~(1ull << bit);
    const detail::X86Features f = r.features();
    EXPECT_TRUE(f.avx2 && f.avx_vnni) << "XCR0 bit " << bit;
    EXPECT_FALSE(f.avx512_vnni) << "XCR0 bit " << bit;
  }
}

#if defined(__linux__)

// The kernel detects independently.
TEST(IsSupported, AgreesWithTheKernel) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) flags.insert(word);
    break;
  }
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags";
  const auto has = [&](std::initializer_list<const char*> all) {
    return std::all_of(all.begin(), all.end(), [&](const char* f) { return flags.count(f) != 0; });
  };
  const bool avx2 = has({"avx", "avx2", "fma", "f16c", "sse4_2", "popcnt"});
  EXPECT_EQ(is_supported(Isa::kAvx2), avx2);
  if (avx2 && has({"avx_vnni"})) {  // kernels before 5.12 do not know the name
    EXPECT_TRUE(is_supported(Isa::kAvxVnni));
  }
  EXPECT_EQ(is_supported(Isa::kAvx512Vnni),
            avx2 && has({"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"}));
}

#endif
#endif

}  // namespace
}  // namespace kvick
