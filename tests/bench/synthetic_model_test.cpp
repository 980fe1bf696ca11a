// SPDX-License-Identifier: MIT
#include "kvick/bench/synthetic_model.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/bench/statistics.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/quant/block_formats.hpp"
#include "kvick/text/tokenizer.hpp"

namespace kvick {
namespace {

/// Of a size for tests.
ModelShape small() {
  return {.name = "small",
          .num_layers = 2,
          .embedding_dim = 256,
          .num_heads = 8,
          .num_kv_heads = 2,
          .head_dim = 32,
          .ffn_dim = 512,
          .vocab_size = 1000,
          .max_seq_len = 128};
}

GgufFile file_of(const ModelShape& shape, const SyntheticModelOptions& options = {}) {
  return GgufFile::from_bytes(synthetic_model(shape, options).to_bytes());
}

TEST(SyntheticModel, RunsInEveryFormat) {
  for (const TensorTypeInfo& type : tensor_types()) {
    SCOPED_TRACE(type.name);
    Transformer model(file_of(small(), {.type = type.type}), {.threads = 1});
    EXPECT_EQ(model.vocab_size(), 1000);
    EXPECT_EQ(model.max_seq_len(), 128);
    auto cache = model.make_cache({.max_seq_len = 16});
    const Tokenizer tokenizer(model.file());
    const std::vector<TokenId> prompt = tokenizer.encode("kala mano 7");
    EXPECT_EQ(tokenizer.decode(prompt), "kala mano 7");
    ASSERT_TRUE(cache.reserve(0, static_cast<int>(prompt.size())));
    Matrix logits(1, 1000);
    model.forward(Batch({.tokens = prompt, .num_logits = 1}), cache, logits);
    EXPECT_TRUE(logits.allFinite());
    // Text has logits, other tokens have none: unknown, control, bytes, unused.
    EXPECT_TRUE((logits.leftCols(259).array() == 0).all());
    EXPECT_TRUE((logits.rightCols(1000 - kMinSyntheticVocabulary).array() == 0).all());
    EXPECT_GT(logits.maxCoeff(), 0);
  }
}

TEST(SyntheticModel, HasTheDocumentedVariance) {
  for (const TensorType type : {TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kF32}) {
    SCOPED_TRACE(info(type).name);
    const GgufFile file = file_of(small(), {.type = type});
    for (const auto& [name, variance] : {std::pair("blk.0.attn_q.weight", 1.0 / 256),
                                         {"blk.1.attn_output.weight", 0.25 / 256},
                                         {"blk.1.ffn_down.weight", 0.25 / 512},
                                         {"token_embd.weight", 1.0}}) {
      const GgufTensor& tensor = file.tensor(name);
      std::vector<float> values(tensor.num_elements());
      dequantize(type, tensor.data, values);
      RunningMoments moments;
      for (const float value : values) moments.add(value);
      // Five standard errors of the mean; a code of 8 bits has a mean of half a step, 1/148.
      const double tolerance = 5 / std::sqrt(static_cast<double>(values.size()));
      EXPECT_NEAR(moments.mean() / std::sqrt(variance), 0, tolerance + 1.0 / 140);
      EXPECT_NEAR(*moments.standard_deviation() / std::sqrt(variance), 1, tolerance + 2e-3);
    }
  }
}

TEST(SyntheticModel, TheSameSeedGivesTheSameBytes) {
  const auto bytes = [](std::uint64_t seed) {
    return synthetic_model(small(), {.seed = seed}).to_bytes();
  };
  EXPECT_EQ(bytes(7), bytes(7));
  EXPECT_NE(bytes(7), bytes(8));
}

TEST(SyntheticModel, TiedShapesHaveNoHeadOfTheirOwn) {
  ModelShape shape = small();
  shape.is_tied = true;
  const GgufFile file = file_of(shape);
  EXPECT_EQ(file.find_tensor("output.weight"), nullptr);
  EXPECT_EQ(Transformer(file_of(shape)).vocab_size(), 1000);
}

TEST(SyntheticModel, RefusesSizesThatCannotBe) {
  const auto refused = [](auto change, const std::string& part) {
    ModelShape shape = small();
    change(shape);
    support::expect_error(ErrorCode::kArgument, part, [&] { synthetic_model(shape); });
  };
  refused([](auto& s) { s.num_layers = 0; }, "num_layers");
  refused([](auto& s) { s.num_kv_heads = 3; }, "num_kv_heads");
  refused([](auto& s) { s.ffn_dim = 100; }, "multiples of 32");
  refused([](auto& s) { s.vocab_size = 100; }, "vocab_size");
  refused([](auto& s) { s.head_dim = 5; }, "head_dim");
}

TEST(FindModelShape, KnowsTheSizesOfRealModels) {
  // Parameters as the models' cards state them, within 1.5 %.
  const auto parameters = [](std::string_view name) {
    const ModelShape& s = find_model_shape(name);
    const double width = s.embedding_dim;
    const double attention = width * s.head_dim * (2.0 * s.num_heads + 2.0 * s.num_kv_heads);
    const double layers = s.num_layers * (attention + 3 * width * s.ffn_dim);
    return layers + (s.is_tied ? 1 : 2) * width * s.vocab_size;
  };
  EXPECT_NEAR(parameters("tinyllama-1.1b") / 1.10e9, 1, 0.015);
  EXPECT_NEAR(parameters("llama-3.2-1b") / 1.236e9, 1, 0.015);
  EXPECT_NEAR(parameters("llama-3.2-3b") / 3.21e9, 1, 0.015);
  EXPECT_NEAR(parameters("qwen2.5-0.5b") / 0.494e9, 1, 0.015);
  EXPECT_NEAR(parameters("qwen2.5-1.5b") / 1.54e9, 1, 0.015);
  EXPECT_NEAR(parameters("llama-2-7b") / 6.74e9, 1, 0.015);
  EXPECT_NEAR(parameters("llama-3.1-8b") / 8.03e9, 1, 0.015);
  EXPECT_NEAR(parameters("smollm2-135m") / 134.5e6, 1, 0.015);
  support::expect_error(ErrorCode::kArgument, "tinyllama-1.1b", [] { find_model_shape("gpt"); });
}

}  // namespace
}  // namespace kvick
