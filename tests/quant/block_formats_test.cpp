// SPDX-License-Identifier: MIT
#include "kvick/quant/block_formats.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvick {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Bytes = std::vector<std::uint8_t>;

std::span<const std::byte> as_block(const Bytes& bytes) { return std::as_bytes(std::span(bytes)); }

std::vector<float> decoded(TensorType type, const Bytes& bytes) {
  const TensorTypeInfo& format = info(type);
  std::vector<float> values(bytes.size() / format.block_bytes * format.block_size,
                            std::numeric_limits<float>::quiet_NaN());
  dequantize(type, as_block(bytes), values);
  return values;
}

// ---- The formats once more, one value at a time and in double, straight from their description.
// All products and sums are exact in double (multiples of 2^-24 below 2^27).

double half_at(const std::uint8_t* bytes) {
  const int bits = bytes[0] | (bytes[1] << 8);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  if (exponent == 31) return fraction != 0 ? kNan : sign * kInfinity;
  return sign *
         (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

int nibble(const std::uint8_t* qs, int e) { return e < 16 ? qs[e] & 15 : qs[e - 16] >> 4; }

int five_bits(const std::uint8_t* qh, const std::uint8_t* qs, int e) {
  std::uint32_t high = 0;
  std::memcpy(&high, qh, 4);
  return nibble(qs, e) + (((high >> e) & 1) != 0 ? 16 : 0);
}

// Scale and minimum of group i from the twelve bytes of a K format.
std::pair<int, int> k_scale(const std::uint8_t* s, int i) {
  if (i < 4) return {s[i] & 63, s[i + 4] & 63};
  return {(s[i + 4] & 15) | ((s[i - 4] >> 6) << 4), (s[i + 4] >> 4) | ((s[i] >> 6) << 4)};
}

double q4_k_or_q5_k(const std::uint8_t* b, int e, bool has_fifth_bit) {
  const std::uint8_t* qs = b + (has_fifth_bit ? 48 : 16);
  const int a = e / 64;
  const int i = e / 32;
  const int l = e % 32;
  int q = (qs[32 * a + l] >> (4 * (i % 2))) & 15;
  if (has_fifth_bit) q += 16 * ((b[16 + l] >> i) & 1);
  const auto [scale, minimum] = k_scale(b + 4, i);
  return half_at(b) * scale * q - half_at(b + 2) * minimum;
}

double q6_k(const std::uint8_t* b, int e) {
  const int h = e / 128;
  const int t = e / 32 % 4;
  const int l = e % 32;
  const int byte = b[64 * h + (t % 2 == 0 ? 0 : 32) + l];
  const int low = t < 2 ? byte & 15 : byte >> 4;
  const int high = (b[128 + 32 * h + l] >> (2 * t)) & 3;
  const auto scale = static_cast<std::int8_t>(b[192 + 8 * h + 2 * t + l / 16]);
  return half_at(b + 208) * scale * ((low | (high << 4)) - 32);
}

double value_at(TensorType type, const std::uint8_t* b, int e) {
  switch (type) {
    case TensorType::kF32: {
      float x = 0;
      std::memcpy(&x, b, 4);
      return x;
    }
    case TensorType::kF16: return half_at(b);
    case TensorType::kBF16: {
      const std::uint8_t widened[4] = {0, 0, b[0], b[1]};
      return value_at(TensorType::kF32, widened, 0);
    }
    case TensorType::kQ4_0: return half_at(b) * (nibble(b + 2, e) - 8);
    case TensorType::kQ4_1: return half_at(b) * nibble(b + 4, e) + half_at(b + 2);
    case TensorType::kQ5_0: return half_at(b) * (five_bits(b + 2, b + 6, e) - 16);
    case TensorType::kQ5_1: return half_at(b) * five_bits(b + 4, b + 8, e) + half_at(b + 2);
    case TensorType::kQ8_0: return half_at(b) * static_cast<std::int8_t>(b[2 + e]);
    case TensorType::kQ4_K: return q4_k_or_q5_k(b, e, false);
    case TensorType::kQ5_K: return q4_k_or_q5_k(b, e, true);
    case TensorType::kQ6_K: return q6_k(b, e);
  }
  return kNan;
}

class BlockFormats : public ::testing::TestWithParam<TensorType> {};

TEST_P(BlockFormats, RandomBytesDecodeToTheExactValueRoundedOnce) {
  constexpr unsigned kSeed = 1234;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  const TensorTypeInfo& format = info(GetParam());
  const std::size_t num_blocks = 20'000;
  std::mt19937 random(kSeed);
  Bytes bytes(num_blocks * format.block_bytes);  // scales of every kind, infinite and NaN as well
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  const std::vector<float> values = decoded(GetParam(), bytes);

  int num_nans = 0;
  for (std::size_t i = 0; i < num_blocks; ++i) {
    for (std::uint32_t e = 0; e < format.block_size; ++e) {
      const float got = values[i * format.block_size + e];
      const auto want = static_cast<float>(
          value_at(GetParam(), &bytes[i * format.block_bytes], static_cast<int>(e)));
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << "block " << i << " value " << e;
        ++num_nans;
      } else {
        ASSERT_EQ(got, want) << "block " << i << " value " << e;
      }
    }
  }
  EXPECT_GT(num_nans, 0) << "the sample should contain special scales";
}

TEST_P(BlockFormats, UnalignedBytesDecodeAlike) {
  const TensorTypeInfo& format = info(GetParam());
  std::mt19937 random(5);
  Bytes bytes(3 * format.block_bytes);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random() & 0x3b);  // no NaN
  const std::vector<float> want = decoded(GetParam(), bytes);
  for (std::size_t offset = 1; offset < 4; ++offset) {
    Bytes shifted(offset, 0xff);
    shifted.insert(shifted.end(), bytes.begin(), bytes.end());
    std::vector<float> got(want.size());
    dequantize(GetParam(), as_block(shifted).subspan(offset), got);
    EXPECT_EQ(got, want) << "offset " << offset;
  }
}

TEST_P(BlockFormats, NothingDecodesToNothing) { EXPECT_NO_THROW(dequantize(GetParam(), {}, {})); }

TEST_P(BlockFormats, SizesThatDoNotFitAreNamed) {
  const TensorTypeInfo& format = info(GetParam());
  const Bytes bytes(2 * format.block_bytes);
  std::vector<float> values(2 * format.block_size + 1);
  const auto message = [&](std::size_t num_bytes, std::size_t num_values) -> std::string {
    try {
      dequantize(GetParam(), as_block(bytes).first(num_bytes), std::span(values).first(num_values));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kShape);
      return std::string(error.message());
    }
    return "";
  };
  EXPECT_EQ(message(bytes.size(), values.size() - 1), "");
  for (const std::size_t num_values : {values.size(), values.size() - 2, std::size_t{0}}) {
    const std::string text = message(bytes.size(), num_values);
    EXPECT_NE(text.find("[dequantize] " + std::string(format.name)), std::string::npos) << text;
    EXPECT_NE(text.find("and " + std::to_string(num_values) + " values"), std::string::npos);
  }
  const std::string partial = message(bytes.size() - 1, values.size() - 1);
  EXPECT_NE(partial.find(std::to_string(bytes.size() - 1) + " bytes"), std::string::npos);
  EXPECT_NE(message(bytes.size() - 1, format.block_size), "");
}

std::vector<TensorType> all_types() {
  std::vector<TensorType> types;
  for (const TensorTypeInfo& format : tensor_types()) types.push_back(format.type);
  return types;
}

INSTANTIATE_TEST_SUITE_P(Type, BlockFormats, ::testing::ValuesIn(all_types()),
                         [](const auto& test) {
                           return std::string(kvick::info(test.param).name);
                         });

// ---- Blocks worked by hand.

TEST(BlockFormatsByHand, F32F16BF16) {
  EXPECT_EQ(decoded(TensorType::kF32, {0x00, 0x00, 0x80, 0xbf}), std::vector<float>{-1.0f});
  EXPECT_EQ(decoded(TensorType::kF16, {0x00, 0x3c, 0x01, 0x80}),
            (std::vector<float>{1.0f, -0x1p-24f}));
  EXPECT_EQ(decoded(TensorType::kBF16, {0xc0, 0x3f, 0x49, 0xc0}),
            (std::vector<float>{1.5f, -3.140625f}));
}

TEST(BlockFormatsByHand, Q4_0) {
  Bytes block(18, 0x88);             // 8 is zero
  block[0] = 0x00, block[1] = 0x38;  // d = 0.5
  block[2 + 3] = 0x1f;
  std::vector<float> want(32, 0.0f);
  want[3] = 3.5f;    // (15 - 8) / 2
  want[19] = -3.5f;  // (1 - 8) / 2
  EXPECT_EQ(decoded(TensorType::kQ4_0, block), want);
}

TEST(BlockFormatsByHand, Q4_1) {
  Bytes block(20, 0x00);
  block[1] = 0x40;  // d = 2
  block[3] = 0xbc;  // m = -1
  block[4 + 3] = 0xa5;
  std::vector<float> want(32, -1.0f);
  want[3] = 9.0f;    // 5 * 2 - 1
  want[19] = 19.0f;  // 10 * 2 - 1
  EXPECT_EQ(decoded(TensorType::kQ4_1, block), want);
}

TEST(BlockFormatsByHand, Q5_0) {
  Bytes block(22, 0x00);
  block[1] = 0x3c;                                     // d = 1
  block[2] = 0x01, block[4] = 0x02, block[5] = 0x80;   // fifth bits of values 0, 17 and 31
  block[6] = 0x03, block[7] = 0x40, block[21] = 0xf1;  // values 0|16, 1|17, 15|31
  std::vector<float> want(32, -16.0f);
  want[0] = 3.0f;
  want[17] = 4.0f;
  want[15] = -15.0f;
  want[31] = 15.0f;
  EXPECT_EQ(decoded(TensorType::kQ5_0, block), want);
}

TEST(BlockFormatsByHand, Q5_1) {
  Bytes block(24, 0x00);
  block[1] = 0x34;  // d = 0.25
  block[3] = 0x49;  // m = 10
  block[4] = 0x04;  // fifth bit of value 2
  block[8 + 2] = 0x2f;
  std::vector<float> want(32, 10.0f);
  want[2] = 17.75f;  // 31 / 4 + 10
  want[18] = 10.5f;  // 2 / 4 + 10
  EXPECT_EQ(decoded(TensorType::kQ5_1, block), want);
}

TEST(BlockFormatsByHand, Q8_0) {
  Bytes block(34, 0x00);
  block[1] = 0xb0;  // d = -0.125
  block[2] = 0x80;  // -128, which writers avoid and readers accept
  block[3] = 0x01;
  block[33] = 0x7f;
  std::vector<float> want(32, 0.0f);
  want[0] = 16.0f;
  want[1] = -0.125f;
  want[31] = -15.875f;
  EXPECT_EQ(decoded(TensorType::kQ8_0, block), want);
}

// d = 1, dmin = 1/2; group 0: scale 63, minimum 1; group 5: scale 43, minimum 53; other groups 0.
void set_k_scales(Bytes& block) {
  block[1] = 0x3c, block[3] = 0x38;
  block[4 + 0] = 63, block[4 + 4] = 1;
  block[4 + 9] = 0x5b;                       // low nibbles of 43 = 0x2b and 53 = 0x35
  block[4 + 1] = 0x80, block[4 + 5] = 0xc0;  // their top two bits, 2 and 3
}

TEST(BlockFormatsByHand, Q4_K) {
  Bytes block(144, 0x00);
  set_k_scales(block);
  block[16] = 0x02;       // value 0 of group 0
  block[16 + 71] = 0x90;  // value 7 of group 5: high nibbles of bytes 64..95
  std::vector<float> want(256, 0.0f);
  for (std::size_t l = 0; l < 32; ++l) want[l] = -0.5f, want[160 + l] = -26.5f;
  want[0] = 125.5f;    // 63 * 2 - 0.5
  want[167] = 360.5f;  // 43 * 9 - 26.5
  EXPECT_EQ(decoded(TensorType::kQ4_K, block), want);
}

TEST(BlockFormatsByHand, Q5_K) {
  Bytes block(176, 0x00);
  set_k_scales(block);
  block[48] = 0x02, block[48 + 71] = 0x90;
  block[16] = 0x01;      // fifth bit of value 0 of group 0
  block[16 + 7] = 0x20;  // fifth bit of value 7 of group 5
  std::vector<float> want(256, 0.0f);
  for (std::size_t l = 0; l < 32; ++l) want[l] = -0.5f, want[160 + l] = -26.5f;
  want[0] = 1133.5f;    // 63 * 18 - 0.5
  want[167] = 1048.5f;  // 43 * 25 - 26.5
  EXPECT_EQ(decoded(TensorType::kQ5_K, block), want);
}

TEST(BlockFormatsByHand, Q6_K) {
  Bytes block(210, 0x00);
  block[209] = 0x38;       // d = 0.5
  block[192] = 0xfe;       // scale of values 0..15: -2
  block[192 + 15] = 10;    // scale of values 240..255
  block[0] = 0x05;         // value 0: low bits 5,
  block[128] = 0x03;       //          high bits 3: 53 - 32 = 21
  block[116] = 0x70;       // value 244: low bits 7,
  block[128 + 52] = 0x80;  //            high bits 2: 39 - 32 = 7
  std::vector<float> want(256, 0.0f);
  for (std::size_t l = 0; l < 16; ++l) want[l] = 32.0f, want[240 + l] = -160.0f;
  want[0] = -21.0f;
  want[244] = 35.0f;
  EXPECT_EQ(decoded(TensorType::kQ6_K, block), want);
}

// ---- Encoding.

std::vector<std::byte> encoded(TensorType type, const std::vector<float>& values) {
  const TensorTypeInfo& format = info(type);
  std::vector<std::byte> blocks(values.size() / format.block_size * format.block_bytes);
  quantize(type, values, blocks);
  return blocks;
}

TEST(Quantize, FloatTypesRoundEachValue) {
  const std::vector<float> values = {1.0f, -0.1f, 65504.0f, 1e-8f};
  const auto check = [&](TensorType type, std::vector<float> want) {
    std::vector<float> got(values.size());
    dequantize(type, encoded(type, values), got);
    EXPECT_EQ(got, want) << info(type).name;
  };
  check(TensorType::kF32, values);
  check(TensorType::kF16, {1.0f, -0x1.998p-4f, 65504.0f, 0.0f});
  check(TensorType::kBF16, {1.0f, -0x1.9ap-4f, 65536.0f, 0x1.58p-27f});
}

TEST(Quantize, Q8_0ByHand) {
  std::vector<float> values(32, 0.0f);
  values[0] = -254.0f;  // d = 2
  values[1] = 1.0f;     // ties go to even
  values[2] = 3.0f;
  values[3] = -5.0f;
  values[4] = 200.9f;
  const std::vector<std::byte> blocks = encoded(TensorType::kQ8_0, values);
  EXPECT_EQ(blocks[0], std::byte{0x00});
  EXPECT_EQ(blocks[1], std::byte{0x40});
  const auto q = [&](std::size_t j) { return static_cast<std::int8_t>(blocks[2 + j]); };
  EXPECT_EQ(q(0), -127);
  EXPECT_EQ(q(1), 0);
  EXPECT_EQ(q(2), 2);
  EXPECT_EQ(q(3), -2);
  EXPECT_EQ(q(4), 100);
  EXPECT_EQ(q(5), 0);
}

TEST(Quantize, Q8_0ChoosesTheNearestRepresentableValue) {
  constexpr unsigned kSeed = 99;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> values(32);
    const float size = std::ldexp(1.0f, round % 60 - 40);  // from subnormal scales to 2^19
    for (float& x : values) x = size * normal(random);
    const std::vector<std::byte> blocks = encoded(TensorType::kQ8_0, values);
    const double d = half_at(reinterpret_cast<const std::uint8_t*>(blocks.data()));
    for (std::size_t j = 0; j < 32; ++j) {
      const int q = static_cast<std::int8_t>(blocks[2 + j]);
      ASSERT_GE(q, -127);
      // Half a step, unless the scale was rounded down so far that the end of the range is nearest.
      const double error = std::fabs(d * q - static_cast<double>(values[j]));
      const bool is_end = std::abs(q) == 127 && std::fabs(values[j]) > 127 * d;
      // The quotient x / d is rounded to float before it is rounded to an integer: 2^-17 of slack.
      if (d == 0 || is_end) continue;
      ASSERT_LE(error, d * (0.5 + 0x1p-17)) << values[j] << " " << d;
    }
  }
}

TEST(Quantize, Q8_0OfTinyValuesIsZero) {
  const std::vector<std::byte> blocks = encoded(TensorType::kQ8_0, std::vector<float>(32, 1e-7f));
  EXPECT_EQ(blocks, std::vector<std::byte>(34));
}

TEST(Quantize, Q8_0RefusesWhatNoScaleCanHold) {
  for (const float x :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 8.4e6f}) {
    std::vector<float> values(64, 1.0f);
    values[40] = x;
    try {
      encoded(TensorType::kQ8_0, values);
      FAIL() << "expected Error(kArgument) for " << x;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kArgument);
    }
  }
}

TEST(Quantize, NamesTheTypesAndSizesItCannotDo) {
  const std::vector<float> values(256);
  std::vector<std::byte> blocks(100);
  try {
    quantize(static_cast<TensorType>(10), values, blocks);  // q2_k
    FAIL() << "expected Error(kUnsupported)";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(error.message().find("id 10"), std::string_view::npos);
  }
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_K}) {
    try {
      quantize(type, values, blocks);
      FAIL() << "expected Error(kShape) for " << info(type).name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kShape);
    }
  }
}

}  // namespace
}  // namespace kvick
