// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "examples/programs.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/model_config.hpp"
#include "kvick/quant/block_formats.hpp"
#include "support/gguf_builder.hpp"
#include "support/subprocess.hpp"

namespace {

using support::expect_refusal;
using support::RandomModel;
using support::read_bytes;
using support::run_program;

constexpr char kProgram[] = "kvick-random-model";

std::vector<float> tensor_values(const kvick::GgufFile& file, const std::string& name) {
  const kvick::GgufTensor& tensor = file.tensor(name);
  std::vector<float> values(tensor.dims[0] * tensor.num_rows());
  kvick::dequantize(tensor.type, tensor.data, values);
  return values;
}

TEST(RandomModel, TheSameSeedGivesTheSameBytes) {
  const RandomModel first({"--seed", "7"});
  const RandomModel second({"--seed", "7"});
  const RandomModel other({"--seed", "8"});
  const auto bytes = read_bytes(first.path());
  EXPECT_GT(bytes.size(), std::size_t{1} << 20);
  EXPECT_EQ(bytes, read_bytes(second.path()));
  EXPECT_NE(bytes, read_bytes(other.path()));
}

TEST(RandomModel, HasTheShapeThatWasAskedFor) {
  const RandomModel model({"--layers", "3", "--embedding", "64", "--heads", "8", "--kv-heads", "4",
                           "--ffn", "96", "--context", "100"});
  const auto config = kvick::read_model_config(kvick::GgufFile(model.path()));
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.embedding_dim, 64);
  EXPECT_EQ(config.num_heads, 8);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.ffn_dim, 96);
  EXPECT_EQ(config.max_seq_len, 100);
  const auto result =
      run_program("kvick-generate", {"-m", model.path(), "-p", "a", "-n", "3", "--temp", "0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(RandomModel, WeightsAreNormalOfTheDocumentedVariance) {
  const RandomModel model;
  const kvick::GgufFile file(model.path());
  const double residual = 1.0 / 8;  // 1 / (2 layers)
  const std::pair<std::string, double> variances[] = {{"token_embd.weight", 1.0},
                                                      {"blk.0.attn_q.weight", 1.0 / 256},
                                                      {"blk.3.attn_output.weight", residual / 256},
                                                      {"blk.3.ffn_down.weight", residual / 768}};
  for (const auto& [name, variance] : variances) {
    SCOPED_TRACE(name);
    const auto values = tensor_values(file, name);
    double sum = 0, sum2 = 0, sum4 = 0;
    for (const float value : values) {
      const double x = value / std::sqrt(variance);
      sum += x;
      sum2 += x * x;
      sum4 += x * x * x * x;
    }
    const auto n = static_cast<double>(values.size());
    // Mean 0, variance 1 and fourth moment 3 within five standard errors, which are 1, sqrt(2) and
    // sqrt(96) over sqrt(n). Rounding to q8_0 adds (d^2) / 12 to the variance, d being about
    // 2.1 / 127 for the largest of 32 normals: less than 1e-4.
    const double tolerance = 5 / std::sqrt(n);
    EXPECT_NEAR(sum / n, 0, tolerance);
    EXPECT_NEAR(sum2 / n, 1, std::sqrt(2.0) * tolerance + 1e-4);
    EXPECT_NEAR(sum4 / n, 3, std::sqrt(96.0) * tolerance + 1e-3);
  }
  EXPECT_NE(tensor_values(file, "blk.0.ffn_gate.weight"),
            tensor_values(file, "blk.0.ffn_up.weight"));
}

TEST(RandomModel, RefusesBadInputInOneLine) {
  const support::TemporaryDirectory directory;
  const std::string path = directory / "x.gguf";
  expect_refusal(kProgram, {}, "OUT.gguf");
  expect_refusal(kProgram, {path, "--seed", "-1"}, "--seed");
  expect_refusal(kProgram, {path, "--layers", "0"}, "--layers");
  expect_refusal(kProgram, {path, "--embedding", "100"}, "--embedding");
  expect_refusal(kProgram, {path, "--embedding", "96", "--heads", "32", "--kv-heads", "32"},
                 "--embedding");
  expect_refusal(kProgram, {path, "--heads", "4", "--kv-heads", "3"}, "--kv-heads");
  expect_refusal(kProgram, {directory / "missing/x.gguf"}, "missing");
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
