// SPDX-License-Identifier: MIT
#include "kvick/quant/packed_weights.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nn/compute.hpp"
#include "quant/weight_parts.hpp"
#include "support/fp_mode.hpp"

namespace kvick {
namespace {

using support::expect_error;
using support::parts_of;
using support::random_quantized;
using support::random_weights;
using support::schemes_of;
using support::StoredWeights;
using support::WeightParts;

Matrix dequantized_rows(const PackedWeights& packed) {
  Matrix values(packed.out_features(), packed.in_features());
  for (Index o = 0; o < packed.out_features(); ++o) packed.dequantize_row(o, &values(o, 0));
  return values;
}

// The same bits, or both NaN.
::testing::AssertionResult same_weights(const Matrix& got, const Matrix& want) {
  const auto without_nans = [](const Matrix& values) -> Matrix {
    return values.unaryExpr([](float x) { return std::isnan(x) ? 12345.0f : x; });
  };
  return support::same_bits(without_nans(got), without_nans(want));
}

std::vector<std::byte> bytes_of(const PackedWeights& packed) {
  const PackedPanels panels = packed.panels(0, packed.num_panels());
  std::vector<std::byte> bytes(panels.data, panels.data + panels.num_panels * panels.panel_bytes);
  if (panels.channel_scales != nullptr) {
    const auto scales = std::as_bytes(
        std::span(panels.channel_scales, static_cast<std::size_t>(panels.num_panels * 16)));
    bytes.insert(bytes.end(), scales.begin(), scales.end());
  }
  return bytes;
}

StoredWeights stored(TensorType type, std::vector<std::byte> bytes, Index out, Index in) {
  StoredWeights weights{std::move(bytes), {}};
  weights.view = WeightView(type, weights.bytes, out, in);
  return weights;
}

// Random bytes, scales included: any f16 of them, or only finite ones.
StoredWeights any_bytes(TensorType type, Index out, Index in, unsigned seed, bool finite_scales) {
  const TensorTypeInfo& format = info(type);
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(static_cast<std::size_t>(out * in) / format.block_size *
                               format.block_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 255);
  if (finite_scales && format.block_size != 1) {
    const support::BlockFields fields = support::block_fields(type);
    for (std::size_t block = 0; block < bytes.size(); block += format.block_bytes) {
      for (std::size_t i = 0; i < (fields.has_minimum ? 2u : 1u); ++i) {
        std::byte& high = bytes[block + fields.scale + 2 * i + 1];
        if ((high & std::byte{0x7c}) == std::byte{0x7c}) high &= std::byte{0xfb};
      }
    }
  }
  return stored(type, std::move(bytes), out, in);
}

PackedFormat format_of(TensorType type) {
  switch (type) {
    case TensorType::kF32: return PackedFormat::kF32;
    case TensorType::kF16: return PackedFormat::kF16;
    case TensorType::kBF16: return PackedFormat::kBF16;
    case TensorType::kQ4_0: return PackedFormat::kQ4_0;
    case TensorType::kQ4_1: return PackedFormat::kQ4_1;
    case TensorType::kQ5_0: return PackedFormat::kQ5_0;
    case TensorType::kQ5_1: return PackedFormat::kQ5_1;
    case TensorType::kQ8_0: return PackedFormat::kQ8_0;
    case TensorType::kQ4_K: return PackedFormat::kQ4_K;
    case TensorType::kQ5_K: return PackedFormat::kQ5_K;
    case TensorType::kQ6_K: return PackedFormat::kQ6_K;
  }
  return PackedFormat::kF32;
}

// ---- The layout once more, bit by bit from its description

enum class Integers { kBytes, kNibbles, kFive, kSix };

struct Layout {
  Integers integers;
  int zero_point;
  Index groups_per_unit;
  Index scale_bytes;
  Index group_bytes;

  Index unit(Index group) const {
    return group / groups_per_unit * (scale_bytes + groups_per_unit * group_bytes);
  }
};

Layout layout_of(PackedFormat format) {
  switch (format) {
    case PackedFormat::kQ8_0: return {Integers::kBytes, 128, 2, 64, 512};
    case PackedFormat::kQ4_0: return {Integers::kNibbles, 8, 2, 64, 256};
    case PackedFormat::kQ4_1: return {Integers::kNibbles, 0, 1, 64, 256};
    case PackedFormat::kQ5_0: return {Integers::kFive, 16, 2, 64, 320};
    case PackedFormat::kQ5_1: return {Integers::kFive, 0, 1, 64, 320};
    case PackedFormat::kQ4_K: return {Integers::kNibbles, 0, 8, 256, 256};
    case PackedFormat::kQ5_K: return {Integers::kFive, 0, 8, 256, 320};
    case PackedFormat::kQ6_K: return {Integers::kSix, 32, 8, 320, 384};
    case PackedFormat::kGroup8: return {Integers::kBytes, 128, 1, 64, 512};
    case PackedFormat::kGroup4: return {Integers::kNibbles, 8, 1, 64, 256};
    case PackedFormat::kChannel8: return {Integers::kBytes, 128, 1, 0, 512};
    default: return {Integers::kNibbles, 8, 1, 0, 256};
  }
}

// What the description says of a panel: bytes, and which of their bits it speaks of.
struct DescribedPanel {
  explicit DescribedPanel(Index size)
      : bytes(static_cast<std::size_t>(size)), known(static_cast<std::size_t>(size)) {}

  void put(Index at, int value, int bits) {
    bytes.at(static_cast<std::size_t>(at)) |= static_cast<std::byte>(value & bits);
    known.at(static_cast<std::size_t>(at)) |= static_cast<std::byte>(bits);
  }
  void put_bytes(Index at, const void* from, int count) {
    std::uint8_t value[8];
    std::memcpy(value, from, static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) put(at + i, value[i], 0xff);
  }
  void put_integer(const Layout& layout, Index k, int j, int value) {
    const Index group = k / 32;
    const Index step = k % 32 / 4;
    const int s = static_cast<int>(step);
    const int stored = value + layout.zero_point;
    const Index first = layout.unit(group) + layout.scale_bytes +
                        group % layout.groups_per_unit * layout.group_bytes + 4 * j + k % 4;
    if (layout.integers == Integers::kBytes) return put(first + 64 * step, stored, 0xff);
    const int shift = step < 4 ? 0 : 4;
    put(first + 64 * (step % 4), (stored & 15) << shift, 15 << shift);
    if (layout.integers == Integers::kFive) put(first + 256, stored >> 4 << s, 1 << s);
    if (layout.integers == Integers::kSix) {
      put(first + 256 + 64 * (step / 4), stored >> 4 << (2 * (s % 4)), 3 << (2 * (s % 4)));
    }
  }
  void expect(const std::byte* got) const {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      ASSERT_EQ(std::to_integer<int>(got[i] & known[i]), std::to_integer<int>(bytes[i]))
          << "byte " << i << " of the panel";
    }
  }

  std::vector<std::byte> bytes;
  std::vector<std::byte> known;
};

// Scales of one block, which begins at input k, as lane j.
void put_block_scales(TensorType type, const Layout& layout, const std::byte* block, Index k, int j,
                      DescribedPanel& panel) {
  const Index group = k / 32;
  const Index unit = layout.unit(group);
  const support::BlockFields fields = support::block_fields(type);
  const std::byte* const scale = block + fields.scale;
  const bool has_two_groups = layout.groups_per_unit == 2;
  panel.put_bytes(unit + 2 * j + (has_two_groups ? 32 * (group % 2) : 0), scale, 2);
  if (fields.has_minimum) panel.put_bytes(unit + 32 + 2 * j, scale + 2, 2);
  for (std::size_t i = 0; i < fields.num_sub_scales; ++i) {
    panel.put_bytes(unit + 64 + 16 * static_cast<Index>(i) + j, block + fields.sub_scales + i, 1);
  }
}

constexpr std::byte kZeros[256] = {};

class PackedStoredWeights : public ::testing::TestWithParam<TensorType> {
 protected:
  TensorType type() const { return GetParam(); }
  Index block() const { return static_cast<Index>(info(type()).block_size); }
  // A few blocks, or any number of floats.
  Index some_inputs(int i) const { return block() == 1 ? 1 + 13 * i : block() * (1 + i % 4); }
};
INSTANTIATE_TEST_SUITE_P(Formats, PackedStoredWeights, ::testing::ValuesIn([] {
                           std::vector<TensorType> types;
                           for (const auto& format : tensor_types()) types.push_back(format.type);
                           return types;
                         }()),
                         [](const auto& tested) {
                           return std::string(kvick::info(tested.param).name);
                         });

TEST_P(PackedStoredWeights, DequantizeToTheBitsOfTheFormat) {
  ThreadPool pool(1);
  for (int out = 1; out <= 50; ++out) {
    const Index in = some_inputs(out);
    for (const bool finite_scales : {true, false}) {
      SCOPED_TRACE(::testing::Message() << out << " x " << in << ", seed " << out);
      const StoredWeights weights =
          any_bytes(type(), out, in, static_cast<unsigned>(out), finite_scales);
      const PackedWeights packed(weights.view, pool);
      EXPECT_EQ(packed.format(), format_of(type()));
      ASSERT_EQ(packed.out_features(), out);
      ASSERT_EQ(packed.in_features(), in);
      EXPECT_EQ(packed.num_panels(), (out + 15) / 16);
      EXPECT_FALSE(packed.empty());
      ASSERT_TRUE(same_weights(dequantized_rows(packed), weights.dequantized()));
    }
  }
}

TEST_P(PackedStoredWeights, DequantizeExtremeBitsToTheBitsOfTheFormat) {
  ThreadPool pool(1);
  for (const int fill : {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0, 0xaa, 0x55}) {
    for (const std::uint16_t scale : std::initializer_list<std::uint16_t>{
             0x0001, 0x8001, 0x03ff, 0x7bff, 0xfbff, 0x8000, 0x3c00}) {
      StoredWeights weights = any_bytes(type(), 17, 2 * block(), 1, true);
      std::memset(weights.bytes.data(), fill, weights.bytes.size());
      if (block() != 1) {
        const support::BlockFields fields = support::block_fields(type());
        for (std::size_t at = 0; at < weights.bytes.size(); at += info(type()).block_bytes) {
          std::memcpy(weights.bytes.data() + at + fields.scale, &scale, 2);
          if (fields.has_minimum) {
            std::memcpy(weights.bytes.data() + at + fields.scale + 2, &scale, 2);
          }
        }
      }
      const PackedWeights packed(weights.view, pool);
      ASSERT_TRUE(same_weights(dequantized_rows(packed), weights.dequantized()))
          << std::hex << fill << ", scale " << scale;
    }
  }
}

TEST_P(PackedStoredWeights, HaveEveryBitWhereItIsDescribed) {
  ThreadPool pool(1);
  const Layout layout = layout_of(format_of(type()));
  const auto block_bytes = static_cast<Index>(info(type()).block_bytes);
  for (const Index out : {Index{16}, Index{21}, Index{35}}) {
    for (const Index num_blocks : {1, 3, 4}) {
      const Index in = num_blocks * block();
      SCOPED_TRACE(::testing::Message() << out << " x " << in);
      const StoredWeights weights = any_bytes(type(), out, in, 5, true);
      const PackedWeights packed(weights.view, pool);
      const Matrix integers = parts_of(weights).integers;
      const PackedPanels panels = packed.panels(0, packed.num_panels());
      for (Index p = 0; p < panels.num_panels; ++p) {
        DescribedPanel panel(panels.panel_bytes);
        for (int j = 0; j < 16; ++j) {
          const Index o = 16 * p + j;
          for (Index b = 0; b < num_blocks; ++b) {
            const std::byte* const source =
                o < out ? weights.bytes.data() + (o * num_blocks + b) * block_bytes : kZeros;
            if (block() == 1) {
              panel.put_bytes((16 * b + j) * block_bytes, source, static_cast<int>(block_bytes));
              continue;
            }
            put_block_scales(type(), layout, source, b * block(), j, panel);
            for (Index k = b * block(); o < out && k < (b + 1) * block(); ++k) {
              panel.put_integer(layout, k, j, static_cast<int>(integers(o, k)));
            }
          }
        }
        panel.expect(panels.data + p * panels.panel_bytes);
      }
    }
  }
}

TEST_P(PackedStoredWeights, NeedNoAlignedSource) {
  ThreadPool pool(1);
  const StoredWeights weights = any_bytes(type(), 5, 2 * block(), 6, true);
  std::vector<std::byte> shifted(weights.bytes.size() + 1);
  std::memcpy(shifted.data() + 1, weights.bytes.data(), weights.bytes.size());
  const WeightView view(type(), std::span(shifted).subspan(1), 5, 2 * block());
  EXPECT_EQ(bytes_of(PackedWeights(view, pool)), bytes_of(PackedWeights(weights.view, pool)));
}

TEST_P(PackedStoredWeights, AreTheSameForAnyNumberOfThreads) {
  ThreadPool one(1);
  const StoredWeights weights = any_bytes(type(), 16 * 9 + 5, 2 * block(), 7, true);
  const std::vector<std::byte> want = bytes_of(PackedWeights(weights.view, one));
  for (const int num_threads : {2, 3}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(bytes_of(PackedWeights(weights.view, pool)), want) << num_threads << " threads";
  }
}

TEST_P(PackedStoredWeights, TakeTheBytesOfTheSourceWhereNothingIsPadded) {
  ThreadPool pool(1);
  const StoredWeights weights = any_bytes(type(), 48, 512, 8, true);
  // Q6_K alone has a gap, of 32 bytes beside the scales of each of the 3 x 2 units.
  const std::size_t gaps = type() == TensorType::kQ6_K ? 6 * 32 : 0;
  EXPECT_EQ(PackedWeights(weights.view, pool).size_bytes(), weights.bytes.size() + gaps);
}

// ---- Sizes by hand

std::size_t stored_size(TensorType type, Index out, Index in) {
  ThreadPool pool(1);
  return PackedWeights(any_bytes(type, out, in, 9, true).view, pool).size_bytes();
}

TEST(PackedWeights, SizesByHand) {
  // 16 outputs of 64 inputs: units of 64 B scales and 2 x 512, 2 x 256 or 2 x 320 B integers.
  EXPECT_EQ(stored_size(TensorType::kQ8_0, 16, 64), 1088u);
  EXPECT_EQ(stored_size(TensorType::kQ4_0, 16, 64), 576u);
  EXPECT_EQ(stored_size(TensorType::kQ5_0, 16, 64), 704u);
  EXPECT_EQ(stored_size(TensorType::kQ4_1, 16, 64), 640u);  // two units of 320
  EXPECT_EQ(stored_size(TensorType::kQ5_1, 16, 64), 768u);  // two units of 384
  EXPECT_EQ(stored_size(TensorType::kQ4_K, 16, 256), 2304u);
  EXPECT_EQ(stored_size(TensorType::kQ5_K, 16, 256), 2816u);
  EXPECT_EQ(stored_size(TensorType::kQ6_K, 16, 256), 3392u);  // 0.828 B a weight
  // Padding: 17 outputs are two panels, 96 inputs are two units of 64 but three of 32.
  EXPECT_EQ(stored_size(TensorType::kQ8_0, 17, 64), 2176u);
  EXPECT_EQ(stored_size(TensorType::kQ8_0, 1, 96), 2176u);
  EXPECT_EQ(stored_size(TensorType::kQ4_1, 1, 96), 960u);
  EXPECT_EQ(stored_size(TensorType::kF32, 16, 3), 192u);
  EXPECT_EQ(stored_size(TensorType::kF16, 16, 3), 128u);  // 96 rounded up to 64s
  EXPECT_EQ(stored_size(TensorType::kBF16, 33, 4), 384u);
}

TEST(PackedWeights, SizesOfQuantizedValuesByHand) {
  ThreadPool pool(1);
  const auto size = [&](const QuantizationScheme& scheme, Index out, Index in) {
    return PackedWeights(random_quantized(scheme, out, in, 1), pool).size_bytes();
  };
  EXPECT_EQ(size(per_group(32), 16, 32), 576u);  // 64 B scales, 512 B integers
  EXPECT_EQ(size(per_group(128), 16, 33), 1152u);
  EXPECT_EQ(size(per_group(32, {.num_bits = 4}), 16, 32), 320u);
  EXPECT_EQ(size(per_channel(), 16, 32), 576u);  // 512 B integers, 64 B scales of outputs
  EXPECT_EQ(size(per_channel({.num_bits = 4}), 17, 65), 2 * (3 * 256u + 64));
  EXPECT_EQ(size(per_tensor({.num_bits = 2}), 16, 32), 576u);  // a byte each
}

// ---- Single bytes by hand: see the description in packed_format.hpp

int byte_at(const PackedWeights& packed, Index at) {
  return std::to_integer<int>(packed.panels(0, packed.num_panels()).data[at]);
}

class BytesByHand : public ::testing::Test {
 protected:
  // Zeroed blocks of a format with 16 outputs or fewer; out_ rows of in_ inputs.
  void start(TensorType type, Index out, Index in) {
    type_ = type;
    out_ = out;
    in_ = in;
    bytes_.assign(
        static_cast<std::size_t>(out * in) / info(type).block_size * info(type).block_bytes,
        std::byte{0});
  }
  // Byte `at` of a block of an output.
  std::byte& block_byte(Index output, Index block, Index at) {
    const auto blocks = in_ / static_cast<Index>(info(type_).block_size);
    return bytes_[static_cast<std::size_t>(
        (output * blocks + block) * static_cast<Index>(info(type_).block_bytes) + at)];
  }
  PackedWeights pack() {
    ThreadPool pool(1);
    return PackedWeights(WeightView(type_, bytes_, out_, in_), pool);
  }

  TensorType type_ = TensorType::kF32;
  Index out_ = 0;
  Index in_ = 0;
  std::vector<std::byte> bytes_;
};

TEST_F(BytesByHand, Q8_0) {
  start(TensorType::kQ8_0, 17, 64);
  block_byte(16, 1, 2 + 5) = std::byte{7};     // output 16, input 37 is 7
  block_byte(16, 1, 2 + 6) = std::byte{0x80};  // and input 38 is -128
  block_byte(16, 1, 1) = std::byte{0x3c};      // its scale is 1
  const PackedWeights packed = pack();
  // Panel 1 begins at 1088, its group 1 at 64 + 512; step 1 at + 64; lane 0, second of four.
  EXPECT_EQ(byte_at(packed, 1088 + 641), 128 + 7);
  EXPECT_EQ(byte_at(packed, 1088 + 642), 0);
  EXPECT_EQ(byte_at(packed, 1088 + 643), 128);
  EXPECT_EQ(byte_at(packed, 1088 + 33), 0x3c);  // second f16 of 16, output 0
}

TEST_F(BytesByHand, Q4_0) {
  start(TensorType::kQ4_0, 3, 64);
  block_byte(2, 1, 2 + 6) = std::byte{0xd5};  // inputs 38 (5 - 8) and 54 (13 - 8)
  // Group 1 at 64 + 256; inputs 6 and 22 of it are step 1 and 5, third of four; output 2.
  EXPECT_EQ(byte_at(pack(), 320 + 64 + 8 + 2), 0xd5);
}

TEST_F(BytesByHand, Q4_1) {
  start(TensorType::kQ4_1, 4, 64);
  block_byte(3, 1, 3) = std::byte{0x40};  // minimum 2 of block 1
  block_byte(3, 1, 1) = std::byte{0x3c};  // scale 1
  const PackedWeights packed = pack();
  EXPECT_EQ(byte_at(packed, 320 + 32 + 7), 0x40);
  EXPECT_EQ(byte_at(packed, 320 + 7), 0x3c);
}

TEST_F(BytesByHand, Q5_0) {
  start(TensorType::kQ5_0, 2, 64);
  block_byte(1, 0, 2 + 3) = std::byte{0x80};           // the fifth bit of input 31
  EXPECT_EQ(byte_at(pack(), 64 + 256 + 4 + 3), 0x80);  // step 7
}

TEST_F(BytesByHand, Q5_1) {
  start(TensorType::kQ5_1, 1, 64);
  block_byte(0, 1, 4 + 1) = std::byte{0x02};  // the fifth bit of input 32 + 9: step 2
  EXPECT_EQ(byte_at(pack(), 384 + 64 + 256 + 1), 0x04);
}

TEST_F(BytesByHand, Q4_K) {
  start(TensorType::kQ4_K, 5, 256);
  block_byte(4, 0, 16 + 64 + 13) = std::byte{0xa0};  // inputs 160 + 13
  block_byte(4, 0, 16 + 64 + 29) = std::byte{0x30};  // and 160 + 29
  block_byte(4, 0, 4 + 9) = std::byte{0xe7};         // packed scales, byte 9
  block_byte(4, 0, 3) = std::byte{0x3c};             // dmin 1
  const PackedWeights packed = pack();
  EXPECT_EQ(byte_at(packed, 256 + 5 * 256 + 3 * 64 + 16 + 1), 0x3a);  // steps 3 and 7
  EXPECT_EQ(byte_at(packed, 64 + 9 * 16 + 4), 0xe7);
  EXPECT_EQ(byte_at(packed, 32 + 9), 0x3c);
}

TEST_F(BytesByHand, Q5_K) {
  start(TensorType::kQ5_K, 16, 256);
  block_byte(15, 0, 16 + 30) = std::byte{0x80};  // the fifth bit of input 7 * 32 + 30: step 7
  EXPECT_EQ(byte_at(pack(), 256 + 7 * 320 + 256 + 60 + 2), 0x80);
}

TEST_F(BytesByHand, Q6_K) {
  start(TensorType::kQ6_K, 3, 256);
  block_byte(2, 0, 128 + 32 + 19) = std::byte{0x30};  // the high bits of input 6 * 32 + 19: step 4
  block_byte(2, 0, 192 + 13) = std::byte{0x85};       // scale of the second half of group 6
  block_byte(2, 0, 209) = std::byte{0x3c};
  const PackedWeights packed = pack();
  EXPECT_EQ(byte_at(packed, 320 + 6 * 384 + 256 + 64 + 8 + 3), 0x03);
  EXPECT_EQ(byte_at(packed, 64 + 13 * 16 + 2), 0x85);
  EXPECT_EQ(byte_at(packed, 5), 0x3c);
}

TEST_F(BytesByHand, F16) {
  start(TensorType::kF16, 18, 3);
  block_byte(17, 2, 1) = std::byte{0x3c};  // 96 bytes of a panel are padded to 128
  EXPECT_EQ(byte_at(pack(), 128 + 2 * (2 * 16 + 1) + 1), 0x3c);
}

TEST_F(BytesByHand, QuantizedValues) {
  ThreadPool pool(1);
  Int8Matrix values = Int8Matrix::Zero(6, 70);
  values(5, 40) = -7;
  Matrix scales = Matrix::Zero(6, 2);
  scales(5, 0) = 1.0f;
  const PackedWeights nibbles(QuantizedMatrix(per_group(64, {.num_bits = 4}), values, scales),
                              pool);
  EXPECT_EQ(nibbles.format(), PackedFormat::kGroup4);
  // Unit 1 at 320; input 8 of it is step 2, whose partner, step 6, is 0.
  EXPECT_EQ(byte_at(nibbles, 320 + 64 + 2 * 64 + 20), 0x81);
  EXPECT_EQ(byte_at(nibbles, 20 + 3), 0x3f);        // the scale stands in groups 0
  EXPECT_EQ(byte_at(nibbles, 320 + 20 + 3), 0x3f);  // and 1,
  EXPECT_EQ(byte_at(nibbles, 640 + 20 + 3), 0);     // not in 2

  const PackedWeights bytes(QuantizedMatrix(per_channel(), values, scales.leftCols(1)), pool);
  EXPECT_EQ(bytes.format(), PackedFormat::kChannel8);
  EXPECT_EQ(byte_at(bytes, 512 + 2 * 64 + 20), 128 - 7);
  EXPECT_EQ(bytes.panels(0, 1).channel_scales[5], 1.0f);
}

// ---- From QuantizedMatrix

TEST(PackedQuantizedMatrix, DequantizesToTheBitsOfTheMatrix) {
  ThreadPool pool(1);
  unsigned seed = 0;
  for (int num_bits = 2; num_bits <= 8; ++num_bits) {
    for (const QuantizationScheme& scheme : schemes_of(num_bits)) {
      for (int i = 0; i < 12; ++i) {
        ++seed;
        const Index out = 1 + seed % 50;
        const Index in = i < 4 ? Index{31 + i} : Index{1 + seed * 37 % 300};
        SCOPED_TRACE(::testing::Message() << num_bits << " bits, group " << scheme.group_size()
                                          << ", " << out << " x " << in << ", seed " << seed);
        const QuantizedMatrix matrix = random_quantized(scheme, out, in, seed);
        const PackedWeights packed(matrix, pool);
        const bool is_group = scheme.granularity() == Granularity::kGroup;
        EXPECT_EQ(packed.format(),
                  num_bits == 4 ? (is_group ? PackedFormat::kGroup4 : PackedFormat::kChannel4)
                                : (is_group ? PackedFormat::kGroup8 : PackedFormat::kChannel8));
        ASSERT_TRUE(support::same_bits(dequantized_rows(packed), dequantize(matrix)));
      }
    }
  }
}

TEST(PackedQuantizedMatrix, DequantizesForEveryNumberOfInputs) {
  ThreadPool pool(1);
  for (Index in = 1; in <= 300; ++in) {
    for (const QuantizationScheme& scheme :
         {per_group(64), per_group(32, {.num_bits = 4}), per_channel({.num_bits = 4}),
          per_tensor({.full_range = true})}) {
      const QuantizedMatrix matrix = random_quantized(scheme, 3, in, static_cast<unsigned>(in));
      const PackedWeights packed(matrix, pool);
      ASSERT_TRUE(support::same_bits(dequantized_rows(packed), dequantize(matrix))) << in;
    }
  }
}

TEST(PackedQuantizedMatrix, HasEveryBitWhereItIsDescribed) {
  ThreadPool pool(1);
  for (const int num_bits : {3, 4, 8}) {
    for (const QuantizationScheme& scheme : schemes_of(num_bits)) {
      const Index out = 21, in = 150;
      const QuantizedMatrix matrix = random_quantized(scheme, out, in, 3);
      const PackedWeights packed(matrix, pool);
      const Layout layout = layout_of(packed.format());
      const PackedPanels panels = packed.panels(0, 2);
      for (Index p = 0; p < 2; ++p) {
        DescribedPanel panel(panels.panel_bytes);
        for (int j = 0; j < 16; ++j) {
          const Index o = 16 * p + j;
          for (Index k = 0; k < in; ++k) {
            if (o < out) panel.put_integer(layout, k, j, matrix.value(o, k));
          }
          for (Index g = 0; layout.scale_bytes != 0 && g < 5; ++g) {
            const float scale = o < out ? matrix.scale(o, 32 * g / scheme.group_size()) : 0.0f;
            panel.put_bytes(layout.unit(g) + 4 * j, &scale, 4);
          }
          if (layout.scale_bytes == 0) {
            ASSERT_EQ(panels.channel_scales[o], o < out ? matrix.scale(o, 0) : 0.0f);
          }
        }
        panel.expect(panels.data + p * panels.panel_bytes);
      }
    }
  }
}

TEST(PackedQuantizedMatrix, IsTheSameForAnyNumberOfThreads) {
  ThreadPool one(1);
  for (const int num_bits : {4, 8}) {
    for (const QuantizationScheme& scheme : schemes_of(num_bits)) {
      const QuantizedMatrix matrix = random_quantized(scheme, 16 * 7 + 3, 75, 4);
      const std::vector<std::byte> want = bytes_of(PackedWeights(matrix, one));
      for (const int num_threads : {2, 3}) {
        ThreadPool pool(num_threads);
        EXPECT_EQ(bytes_of(PackedWeights(matrix, pool)), want) << num_threads << " threads";
      }
    }
  }
}

// ---- From floats

TEST(PackedFloats, DequantizeToThemselves) {
  ThreadPool pool(2);
  for (Index out = 1; out <= 50; ++out) {
    const Index in = 1 + out * 7 % 40;
    Matrix wide = support::random_floats(out, in + 3, static_cast<unsigned>(out));
    wide(0, 0) = std::numeric_limits<float>::quiet_NaN();
    wide(out - 1, in - 1) = -std::numeric_limits<float>::infinity();
    const Matrix values = wide.leftCols(in);
    EXPECT_TRUE(same_weights(dequantized_rows(PackedWeights(values, pool)), values));
    // A row stride of more than a row, and columns that follow one another.
    EXPECT_TRUE(same_weights(dequantized_rows(PackedWeights(wide.leftCols(in), pool)), values));
    const Eigen::MatrixXf columns = values;
    EXPECT_TRUE(same_weights(dequantized_rows(PackedWeights(columns, pool)), values));
  }
}

TEST(PackedFloats, AreKeptAsF32) {
  ThreadPool pool(1);
  const PackedWeights packed(support::random_floats(17, 5, 1), pool);
  EXPECT_EQ(packed.format(), PackedFormat::kF32);
  EXPECT_EQ(packed.size_bytes(), 2 * 5 * 64u);
}

// ---- Panels, emptiness, modes, errors

TEST(PackedWeights, PanelsAreAlignedViewsOfAPart) {
  ThreadPool pool(1);
  const PackedWeights packed(random_quantized(per_channel(), 70, 40, 1), pool);
  const PackedPanels all = packed.panels(0, 5);
  const PackedPanels part = packed.panels(2, 3);
  EXPECT_EQ(all.panel_bytes, 1024);
  EXPECT_EQ(part.data, all.data + 2 * 1024);
  EXPECT_EQ(part.channel_scales, all.channel_scales + 32);
  EXPECT_EQ(part.num_panels, 3);
  EXPECT_EQ(part.in_features, 40);
  EXPECT_EQ(part.format, PackedFormat::kChannel8);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.data) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.channel_scales) % 64, 0u);
  const PackedWeights grouped(random_quantized(per_group(32), 70, 40, 1), pool);
  EXPECT_EQ(grouped.panels(2, 3).channel_scales, nullptr);
}

TEST(PackedWeights, AreEmptyUnlessGivenWeights) {
  const PackedWeights packed;
  EXPECT_TRUE(packed.empty());
  EXPECT_EQ(packed.out_features(), 0);
  EXPECT_EQ(packed.in_features(), 0);
  EXPECT_EQ(packed.num_panels(), 0);
  EXPECT_EQ(packed.size_bytes(), 0u);
}

TEST(PackedWeights, MoveWithTheirBytes) {
  ThreadPool pool(1);
  const QuantizedMatrix matrix = random_quantized(per_channel(), 20, 40, 2);
  PackedWeights source(matrix, pool);
  const PackedWeights target = std::move(source);
  EXPECT_TRUE(support::same_bits(dequantized_rows(target), dequantize(matrix)));
}

TEST(PackedWeights, DependOnNoFloatingPointModeOfTheCaller) {
  ThreadPool pool(1);
  for (const TensorTypeInfo& format : tensor_types()) {
    const Index in = 2 * static_cast<Index>(format.block_size);
    const StoredWeights weights = any_bytes(format.type, 5, in, 11, true);
    const PackedWeights packed(weights.view, pool);
    const Matrix want = weights.dequantized();
    for (const support::FpMode mode : support::foreign_fp_modes()) {
      const support::ScopedFpMode scoped(mode);
      const PackedWeights packed_here(weights.view, pool);
      EXPECT_TRUE(same_weights(dequantized_rows(packed), want)) << format.name << " " << mode;
      EXPECT_EQ(bytes_of(packed_here), bytes_of(packed)) << format.name << " " << mode;
      EXPECT_EQ(support::observed_fp_mode(), mode);
    }
  }
  // Subnormal scales, which flushing would lose.
  const QuantizedMatrix matrix(per_group(32), Int8Matrix::Constant(2, 40, 3),
                               Matrix::Constant(2, 2, 0x1p-130f));
  const Matrix want = Matrix::Constant(2, 40, 0x3p-130f);
  for (const support::FpMode mode : support::foreign_fp_modes()) {
    const support::ScopedFpMode scoped(mode);
    EXPECT_TRUE(support::same_bits(dequantized_rows(PackedWeights(matrix, pool)), want)) << mode;
  }
}

TEST(PackedWeights, RejectWhatHasNoWeights) {
  ThreadPool pool(1);
  const ErrorCode shape = ErrorCode::kShape;
  expect_error(shape, "at least one output and input, got 0 x 0",
               [&] { PackedWeights(WeightView(), pool); });
  expect_error(shape, "got 0 x 0", [&] { PackedWeights(QuantizedMatrix(), pool); });
  expect_error(shape, "got 0 x 7", [&] { PackedWeights(Matrix(0, 7), pool); });
  expect_error(shape, "got 7 x 0", [&] { PackedWeights(Matrix(7, 0), pool); });
  expect_error(shape, "got 3 x 0", [&] {
    PackedWeights(QuantizedMatrix(per_group(32), Int8Matrix(3, 0), Matrix(3, 0)), pool);
  });
}

TEST(PackedWeights, RejectMoreInputsThanAnIntegerSumHolds) {
  ThreadPool pool(1);
  const auto pack = [&](const QuantizationScheme& scheme, Index in) {
    return PackedWeights(
        QuantizedMatrix(scheme, Int8Matrix::Zero(1, in), Matrix::Zero(1, scheme.num_groups(in))),
        pool);
  };
  EXPECT_NO_THROW(pack(per_channel(), 131072));
  EXPECT_NO_THROW(pack(per_group(32), 131073));
  for (const auto& scheme : {per_channel(), per_tensor(), per_channel({.num_bits = 4})}) {
    expect_error(ErrorCode::kShape, "at most 131072 inputs, got 131073",
                 [&] { pack(scheme, 131073); });
  }
}

TEST(PackedWeights, ReportMemoryThatIsNotToBeHad) {
  ThreadPool pool(1);
  float value = 0.0f;  // never read
  const auto pack = [&](Index out, Index in) {
    PackedWeights(Eigen::Map<const Matrix>(&value, out, in), pool);
  };
  constexpr Index kHuge = Index{1} << 31;
  expect_error(ErrorCode::kCapacity, "PackedWeights", [&] { pack(kHuge, kHuge - 1); });
  expect_error(ErrorCode::kCapacity, "refusal", [&] { pack(kHuge, Index{1} << 20); });
}

}  // namespace
}  // namespace kvick
