// SPDX-License-Identifier: MIT
// The multiplications by packed panels: every ISA against the portable kernels, bit by bit, and the
// portable ones against the formula in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/kernel_test_support.hpp"
#include "kernels/packed_support.hpp"
#include "kvick/kernels/impl/portable/packed_panel.hpp"

namespace kvick {
namespace {

using namespace kernel_test;

std::vector<float> normal_rows(Random& random, Index count) {
  const AlignedBuffer<float> values = random.normals(count);
  return {values.begin(), values.end()};
}

class QuantizeKernels : public OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Cpu, QuantizeKernels, ::testing::ValuesIn(supported_isas()), isa_name);

void expect_same_group(const QuantizedGroup& got, const QuantizedGroup& want) {
  EXPECT_EQ(std::memcmp(got.values, want.values, sizeof want.values), 0);
  EXPECT_TRUE(same_bits(got.scale, want.scale)) << got.scale << " " << want.scale;
  EXPECT_EQ(got.minus_sum, want.minus_sum);
  EXPECT_TRUE(same_bits(got.scaled_sum, want.scaled_sum));
  EXPECT_EQ(got.minus_low_sum, want.minus_low_sum);
}

// Checks both kernels of the table on one row.
void expect_portable_groups(const KernelTable& table, const std::vector<float>& row) {
  const auto count = static_cast<Index>(row.size());
  const AlignedBuffer<float> x = copy(row);
  AlignedBuffer<QuantizedGroup> got(static_cast<std::size_t>(num_groups(count)));
  AlignedBuffer<QuantizedGroup> want(got.size());
  table.quantize_groups(x.data(), count, got.data());
  portable().quantize_groups(x.data(), count, want.data());
  for (std::size_t g = 0; g < got.size(); ++g) expect_same_group(got[g], want[g]);
  const QuantizedRowTotal got_total = table.quantize_row(x.data(), count, got.data());
  const QuantizedRowTotal want_total = portable().quantize_row(x.data(), count, want.data());
  for (std::size_t g = 0; g < got.size(); ++g) expect_same_group(got[g], want[g]);
  EXPECT_TRUE(same_bits(got_total.scale, want_total.scale));
  EXPECT_EQ(got_total.minus_sum, want_total.minus_sum);
}

TEST_P(QuantizeKernels, GiveThePortableGroups) {
  Random random(1);
  for (Index count = 1; count <= 130; ++count) {
    SCOPED_TRACE(count);
    const AlignedBuffer<float> wide = random.spreads(count, -140, 127);
    const AlignedBuffer<float> usual = random.normals(count);
    expect_portable_groups(table(), {wide.begin(), wide.end()});
    expect_portable_groups(table(), {usual.begin(), usual.end()});
  }
}

TEST_P(QuantizeKernels, GiveThePortableGroupsOfSpecialValues) {
  for (const float special : {kNaN, -kNaN, kInfinity, -kInfinity, 0.0f, -0.0f, 0x1p-100f, 0x1p-101f,
                              0x1p-149f, 3.4028235e38f, -3.4028235e38f}) {
    for (std::size_t at : {0u, 1u, 15u, 16u, 31u, 32u, 39u}) {
      SCOPED_TRACE(std::to_string(special) + " at " + std::to_string(at));
      std::vector<float> row(40, 0.0f);
      row[at] = special;
      expect_portable_groups(table(), row);
      std::fill(row.begin(), row.end(), 1.0f);
      row[at] = special;
      expect_portable_groups(table(), row);
    }
  }
}

TEST_P(QuantizeKernels, RoundTiesToEven) {
  // 127 makes the scale 1: integers are the rounded values.
  std::vector<float> row(32, 0.0f);
  row[0] = 127.0f;
  row[1] = 0.5f;
  row[2] = 1.5f;
  row[3] = -0.5f;
  row[4] = -2.5f;
  row[5] = 126.5f;
  row[20] = -127.0f;
  QuantizedGroup group;
  table().quantize_groups(row.data(), 32, &group);
  EXPECT_EQ(group.scale, 1.0f);
  const std::vector<int> want = {127, 0, 2, 0, -2, 126};
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(group.values[i], want[i]) << i;
  EXPECT_EQ(group.values[20], -127);
  EXPECT_EQ(group.minus_sum, -126);
  EXPECT_EQ(group.minus_low_sum, -253);
  EXPECT_EQ(group.scaled_sum, 126.0f);
}

TEST_P(QuantizeKernels, MakeAGroupWithoutFiniteValuesNaN) {
  std::vector<float> row(64, 1.0f);
  row[40] = kInfinity;
  QuantizedGroup groups[2];
  table().quantize_groups(row.data(), 64, groups);
  EXPECT_EQ(groups[0].scale, 1.0f / 127.0f);
  EXPECT_TRUE(std::isnan(groups[1].scale));
  EXPECT_TRUE(std::isnan(groups[1].scaled_sum));
  EXPECT_EQ(groups[1].minus_sum, 0);
}

// ---- Products: every ISA and format

using Case = std::tuple<Isa, PackedFormat>;

class PackedProducts : public ::testing::TestWithParam<Case> {
 protected:
  const KernelTable& table() const { return kernel_table(std::get<0>(GetParam())); }
  PackedFormat format() const { return std::get<1>(GetParam()); }
};

std::string format_label(PackedFormat format) {
  constexpr const char* kNames[] = {"f32",  "f16",    "bf16",   "q8_0",     "q4_0",
                                    "q4_1", "q5_0",   "q5_1",   "q4_K",     "q5_K",
                                    "q6_K", "group8", "group4", "channel8", "channel4"};
  return kNames[static_cast<int>(format)];
}

INSTANTIATE_TEST_SUITE_P(Cpu, PackedProducts,
                         ::testing::Combine(::testing::ValuesIn(supported_isas()),
                                            ::testing::ValuesIn(kPackedFormats)),
                         [](const ::testing::TestParamInfo<Case>& tested) {
                           return std::string(name(std::get<0>(tested.param))) + "_" +
                                  format_label(std::get<1>(tested.param));
                         });

TEST_P(PackedProducts, OfInt8ActivationsHaveThePortableBits) {
  if (is_float(format())) GTEST_SKIP() << "float formats have no integers";
  Random random(7);
  for (Index rows = 1; rows <= 40; ++rows) {
    const Index in_features = fitting_inputs(format(), random.integer(1, 1200));
    const Index num_panels = random.integer(1, 7);
    SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(in_features) + " inputs, " +
                 std::to_string(num_panels) + " panels");
    const RandomPanels weights(format(), in_features, num_panels, random);
    const std::vector<float> x = normal_rows(random, rows * in_features);
    const QuantizedTestRows quantized(x.data(), rows, in_features, is_per_channel(format()));
    expect_same_bits(multiply_int8(table(), weights.panels(), quantized, rows),
                     multiply_int8(portable(), weights.panels(), quantized, rows));
  }
}

// The largest sums that integers can make: saturating arithmetic would show.
TEST_P(PackedProducts, OfExtremeIntegersAreExact) {
  if (is_float(format())) GTEST_SKIP() << "float formats have no integers";
  Random random(11);
  const Index in_features = fitting_inputs(format(), 1000);
  const PackedLayout layout = packed_layout(format());
  for (const int byte : {0x00, 0xff, 0x0f, 0xf0, 0x80, 0x7f}) {
    RandomPanels weights(format(), in_features, 3, random);
    // Overwrite the integers of every unit, not the scales.
    auto* const bytes = const_cast<std::byte*>(weights.panels().data);
    for (Index unit = 0; unit < 3 * weights.panels().panel_bytes; unit += layout.unit_bytes()) {
      std::fill(bytes + unit + layout.scale_bytes, bytes + unit + layout.unit_bytes(),
                static_cast<std::byte>(byte));
    }
    for (const Index rows : {Index{1}, Index{2}, Index{5}, Index{8}, Index{13}}) {
      SCOPED_TRACE(std::to_string(byte) + ", " + std::to_string(rows) + " rows");
      std::vector<float> x(static_cast<std::size_t>(rows * in_features));
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<Index>(i) / in_features % 2 == 0 ? 3.0f : -3.0f;
      }
      const QuantizedTestRows quantized(x.data(), rows, in_features, is_per_channel(format()));
      expect_same_bits(multiply_int8(table(), weights.panels(), quantized, rows),
                       multiply_int8(portable(), weights.panels(), quantized, rows));
    }
  }
}

TEST_P(PackedProducts, OfFloatActivationsHaveThePortableBits) {
  Random random(8);
  for (Index rows = 1; rows <= 40; ++rows) {
    const Index in_features = fitting_inputs(format(), random.integer(1, 700));
    const Index num_panels = random.integer(1, 7);
    SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(in_features) + " inputs, " +
                 std::to_string(num_panels) + " panels");
    const RandomPanels weights(format(), in_features, num_panels, random);
    const std::vector<float> x = normal_rows(random, rows * in_features);
    expect_same_bits(multiply_float(table(), weights.panels(), x, rows),
                     multiply_float(portable(), weights.panels(), x, rows));
  }
}

TEST_P(PackedProducts, CarryNaNsToTheirRowsOnly) {
  Random random(9);
  const Index in_features = fitting_inputs(format(), 300);
  const RandomPanels weights(format(), in_features, 2, random);
  for (const Index rows : {Index{3}, Index{17}}) {
    std::vector<float> x = normal_rows(random, rows * in_features);
    x[static_cast<std::size_t>(in_features + 5)] = kNaN;  // row 1
    const std::vector<float> by_float = multiply_float(table(), weights.panels(), x, rows);
    std::vector<std::vector<float>> products = {by_float};
    if (!is_float(format())) {
      const QuantizedTestRows quantized(x.data(), rows, in_features, is_per_channel(format()));
      products.push_back(multiply_int8(table(), weights.panels(), quantized, rows));
    }
    for (const std::vector<float>& out : products) {
      for (Index i = 0; i < rows * 32; ++i) {
        EXPECT_EQ(std::isnan(out[static_cast<std::size_t>(i)]), i / 32 == 1) << "element " << i;
      }
    }
  }
}

// ---- The portable kernels against the formula in double

// The sum over groups differs from the exact one by at most the roundings of one product, one
// conversion (exact) and one fma per scale, relative to the sum of magnitudes so far.
TEST(PortableProducts, EqualTheFormulaInDouble) {
  Random random(10);
  for (const PackedFormat format : kPackedFormats) {
    if (is_float(format)) continue;
    SCOPED_TRACE(format_label(format));
    const PackedLayout layout = packed_layout(format);
    const Index in_features = fitting_inputs(format, 500);
    const RandomPanels weights(format, in_features, 1, random);
    const std::vector<float> x = normal_rows(random, in_features);
    const QuantizedTestRows quantized(x.data(), 1, in_features, is_per_channel(format));
    const std::vector<float> got = multiply_int8(portable(), weights.panels(), quantized, 1);
    const QuantizedRowsView view = quantized.view();
    for (int j = 0; j < kPanelWidth; ++j) {
      double exact = 0.0;
      double magnitude = 0.0;
      for (Index g = 0; g < view.num_groups; ++g) {
        detail::portable::PanelGroup group;
        detail::portable::read_group(layout, weights.panels().data, g, group);
        for (int k = 0; k < kGroupSize; ++k) {
          const double scale =
              is_per_channel(format) ? weights.panels().channel_scales[j] : group.scale[k / 16][j];
          const double weight = scale * group.values[k][j] + group.minimum[j];
          const double activation =
              static_cast<double>(view.groups[g].scale) * view.groups[g].values[k];
          exact += weight * activation;
          magnitude += (std::abs(scale * group.values[k][j]) + std::abs(group.minimum[j])) *
                       std::abs(activation);
        }
      }
      const double steps = 2.0 * static_cast<double>(view.num_groups) + 3.0;
      EXPECT_NEAR(got[static_cast<std::size_t>(j)], exact,
                  kSlack * steps * kUnitRoundoff * magnitude);
    }
  }
}

}  // namespace
}  // namespace kvick
