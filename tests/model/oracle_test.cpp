// SPDX-License-Identifier: MIT
// The whole path from a GGUF file to logits against an independent float64 implementation, on
// models of real shapes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "kvick/model/transformer.hpp"
#include "support/oracle.hpp"
#include "support/temporary_directory.hpp"
#include "support/tiny_model.hpp"

namespace {

using namespace kvick;

struct OracleCase {
  std::string shape;
  std::string type;
  std::string extra;  // further arguments of the model maker
};

class Oracle : public ::testing::TestWithParam<OracleCase> {
 protected:
  void SetUp() override {
    if (const auto reason = support::oracle_missing()) GTEST_SKIP() << *reason;
    const OracleCase& c = GetParam();
    support::run_tool("tools/make_gguf.py", "--shape " + c.shape + " --type " + c.type + " " +
                                                c.extra + " '" + path_.string() + "'");
  }

  support::TemporaryDirectory folder_;
  std::filesystem::path path_ = folder_ / "model.gguf";
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, Oracle,
    ::testing::Values(OracleCase{"tiny-test", "f32", ""}, OracleCase{"tiny-test", "f16", ""},
                      OracleCase{"tiny-test", "bf16", ""}, OracleCase{"tiny-test", "q4_0", ""},
                      OracleCase{"tiny-test", "q8_0", ""}, OracleCase{"tiny-test", "q4_k", ""},
                      OracleCase{"tiny-test", "q6_k", ""},
                      OracleCase{"qwen2.5-0.5b", "q8_0", "--layers 2"},
                      OracleCase{"qwen3-0.6b", "q4_0", "--layers 2"}),
    [](const auto& param_info) {
      std::string name = param_info.param.shape + "_" + param_info.param.type;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

std::vector<double> oracle_logits(const std::filesystem::path& path) {
  return nlohmann::json::parse(
             support::run_tool("tools/reference.py",
                               "logits '" + path.string() + "' --tokens 1,300,17,45,261,9,300,402"))
      .get<std::vector<double>>();
}

/// The largest difference from `expected`, as a share of its range.
double worst_share(const std::filesystem::path& path, ActivationType activations,
                   const std::vector<double>& expected) {
  Transformer model(path, {.activations = activations});
  const std::vector<TokenId> tokens = {1, 300, 17, 45, 261, 9, 300, 402};
  const auto count = static_cast<int>(tokens.size());
  auto cache = model.make_cache({.max_seq_len = count, .element_type = ElementType::kF32});
  EXPECT_TRUE(cache.reserve(0, count));
  Matrix logits(1, model.vocab_size());
  model.forward(Batch({0, 0, tokens, 1}), cache, logits);
  EXPECT_EQ(expected.size(), static_cast<std::size_t>(model.vocab_size()));
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  double worst = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = logits(0, static_cast<Index>(i)) - expected[i];
    worst = std::max(worst, std::isfinite(difference) ? std::abs(difference) : INFINITY);
  }
  return worst / (*high - *low);
}

// Rounding activations to 8 bits costs some 0.3 % of each product's size, as a random walk.
TEST_P(Oracle, LogitsAgreeWithinRounding) {
  const std::vector<double> expected = oracle_logits(path_);
  const double with_floats = worst_share(path_, ActivationType::kF32, expected);
  const double with_int8 = worst_share(path_, ActivationType::kInt8, expected);
  std::ostringstream shares;
  shares << with_floats << " with f32 activations, " << with_int8 << " with int8";
  RecordProperty("worst_share_of_range", shares.str());
  EXPECT_LT(with_floats, 1e-3);
  EXPECT_LT(with_int8, 2e-2);
}

TEST(OracleOfEveryFormat, DequantizedTensorsAreEqual) {
  if (const auto reason = support::oracle_missing()) GTEST_SKIP() << *reason;
  const support::TemporaryDirectory folder;
  for (const TensorTypeInfo& type : tensor_types()) {
    SCOPED_TRACE(type.name);
    const auto path = folder / (std::string(type.name) + ".gguf");
    support::TinyModel({.type = type.type, .num_layers = 1}).writer().write(path);
    const GgufFile file(path);
    const std::string name = "blk.0.ffn_down.weight";
    const GgufTensor& tensor = file.tensor(name);
    std::vector<float> values(tensor.num_elements());
    dequantize(tensor.type, tensor.data, values);
    const std::string bytes =
        support::run_tool("tools/reference.py", "dequant '" + path.string() + "' " + name);
    ASSERT_EQ(bytes.size(), values.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(bytes.data(), values.data(), bytes.size()), 0);
  }
}

}  // namespace
