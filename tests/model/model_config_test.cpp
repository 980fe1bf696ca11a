// SPDX-License-Identifier: MIT
#include "kvick/model/model_config.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/tiny_model.hpp"

namespace {

using namespace kvick;
using support::TinyModel;

struct Refusal {
  ErrorCode code;
  std::string message;
};

/// The error of reading a tiny model to which `change` was done.
template <class Change>
Refusal refusal_of(const Change& change, const support::TinyModelOptions& options = {}) {
  TinyModel model(options);
  change(model.writer());
  const GgufFile file = model.file();
  try {
    read_model_config(file);
  } catch (const Error& error) {
    return {error.code(), std::string(error.message())};
  }
  ADD_FAILURE() << "expected an Error";
  return {};
}

TEST(ReadModelConfig, ReadsSizesAndDefaults) {
  const GgufFile file = TinyModel().file();
  const ModelConfig config = read_model_config(file);
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.embedding_dim, 256);
  EXPECT_EQ(config.num_heads, 6);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 24);
  EXPECT_EQ(config.ffn_dim, 256);
  EXPECT_EQ(config.vocab_size, 100);
  EXPECT_EQ(config.max_seq_len, 4096);
  EXPECT_EQ(config.rms_epsilon, 1e-5f);
  EXPECT_EQ(config.rope.form, RopeForm::kAdjacentPairs);
  EXPECT_EQ(config.rope.rotary_dim, 24);
  EXPECT_EQ(config.rope.freq_base, 10000.0);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
}

TEST(ReadModelConfig, QwenTurnsHalves) {
  const GgufFile file = TinyModel({.architecture = "qwen2"}).file();
  EXPECT_EQ(read_model_config(file).rope.form, RopeForm::kHalfSplit);
}

TEST(ReadModelConfig, ReadsRopeScaling) {
  TinyModel model;
  model.writer().add("llama.rope.freq_base", 5e5f);
  model.writer().add("llama.rope.dimension_count", std::uint32_t{16});
  model.writer().add("llama.rope.scaling.type", "yarn");
  model.writer().add("llama.rope.scaling.factor", 4.0f);
  model.writer().add("llama.rope.scaling.original_context_length", std::uint32_t{1024});
  const GgufFile file = model.file();
  const RopeOptions rope = read_model_config(file).rope;
  EXPECT_EQ(rope.freq_base, 5e5);
  EXPECT_EQ(rope.rotary_dim, 16);
  EXPECT_EQ(rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_EQ(rope.original_context_length, 1024);
}

TEST(ReadModelConfig, ScalingWithoutATypeIsLinear) {
  TinyModel model;
  model.writer().add("llama.rope.scaling.factor", 2.0f);
  const GgufFile file = model.file();
  EXPECT_EQ(read_model_config(file).rope.scaling, RopeScaling::kLinear);
}

TEST(ReadModelConfig, ReadsRopeFrequencyFactors) {
  TinyModel model;
  std::vector<float> factors(12, 1.0f);
  factors[11] = 8.0f;
  model.writer().add_tensor("rope_freqs.weight", TensorType::kF32, {12},
                            std::as_bytes(std::span(factors)));
  const GgufFile file = model.file();
  EXPECT_EQ(read_model_config(file).rope.freq_factors, factors);
}

TEST(ReadModelConfig, RefusesFrequencyFactorsOfAnotherSize) {
  const std::vector<float> factors(11, 1.0f);
  const Refusal refusal = refusal_of([&](GgufWriter& writer) {
    writer.add_tensor("rope_freqs.weight", TensorType::kF32, {11},
                      std::as_bytes(std::span(factors)));
  });
  EXPECT_EQ(refusal.code, ErrorCode::kFormat);
  EXPECT_NE(refusal.message.find("must have 12 values, got 11"), std::string::npos);
}

TEST(ReadModelConfig, RefusesOtherArchitecturesByName) {
  const Refusal refusal = refusal_of([](GgufWriter&) {}, {.architecture = "gemma2"});
  EXPECT_EQ(refusal.code, ErrorCode::kUnsupported);
  EXPECT_NE(refusal.message.find("'gemma2'"), std::string::npos);
}

TEST(ReadModelConfig, RefusesMixturesOfExperts) {
  const Refusal refusal =
      refusal_of([](GgufWriter& writer) { writer.add("llama.expert_count", std::uint32_t{8}); });
  EXPECT_EQ(refusal.code, ErrorCode::kUnsupported);
  EXPECT_NE(refusal.message.find("mixture of experts"), std::string::npos);
}

TEST(ReadModelConfig, RefusesUnknownRopeScaling) {
  const Refusal refusal =
      refusal_of([](GgufWriter& writer) { writer.add("llama.rope.scaling.type", "longrope"); });
  EXPECT_EQ(refusal.code, ErrorCode::kUnsupported);
  EXPECT_NE(refusal.message.find("'longrope'"), std::string::npos) << refusal.message;
}

TEST(ReadModelConfig, RefusesHeadsThatDoNotDivide) {
  const Refusal refusal = refusal_of([](GgufWriter&) {}, {.num_heads = 5});
  EXPECT_EQ(refusal.code, ErrorCode::kFormat);
  EXPECT_NE(refusal.message.find("got 5 and 2"), std::string::npos);
}

TEST(ReadModelConfig, RefusesATokenizerOfAnotherSize) {
  const Refusal refusal = refusal_of([](GgufWriter& writer) {
    writer.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
  });
  EXPECT_EQ(refusal.code, ErrorCode::kFormat);
  EXPECT_NE(refusal.message.find("2 tokens, got 100"), std::string::npos);
}

TEST(ReadModelConfig, RefusesSizesOfZero) {
  const Refusal refusal = refusal_of(
      [](GgufWriter& writer) { writer.add("llama.rope.dimension_count", std::uint32_t{0}); });
  EXPECT_EQ(refusal.code, ErrorCode::kFormat);
  EXPECT_NE(refusal.message.find("llama.rope.dimension_count"), std::string::npos);
}

TEST(ReadModelConfig, AcceptsPerLayerArraysOfOneValueOnly) {
  // The writer refuses duplicate keys, so these files are for another architecture's defaults.
  GgufWriter equal;
  equal.add("general.architecture", "llama");
  for (const char* const key : {"block_count", "context_length", "embedding_length"}) {
    equal.add("llama." + std::string(key), std::uint32_t{32});
  }
  equal.add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  equal.add("llama.feed_forward_length", {std::uint32_t{64}, std::uint32_t{64}});
  GgufWriter different = equal;
  equal.add("llama.attention.head_count", {std::uint32_t{4}, std::uint32_t{4}});
  different.add("llama.attention.head_count", {std::uint32_t{4}, std::uint32_t{8}});
  const std::vector<float> embedding(32 * 3);
  for (GgufWriter* const writer : {&equal, &different}) {
    writer->add_tensor("token_embd.weight", TensorType::kF32, {32, 3},
                       std::as_bytes(std::span(embedding)));
  }
  const GgufFile file = GgufFile::from_bytes(equal.to_bytes());
  EXPECT_EQ(read_model_config(file).num_heads, 4);
  const GgufFile other = GgufFile::from_bytes(different.to_bytes());
  EXPECT_THROW(read_model_config(other), Error);
}

}  // namespace
