// SPDX-License-Identifier: MIT
#include "kvick/model/weights.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "kvick/model/transformer.hpp"
#include "support/tiny_model.hpp"

namespace {

using namespace kvick;
using support::TinyModel;

TEST(ReadModelWeights, ViewsMatricesInTheFile) {
  const GgufFile file = TinyModel({.type = TensorType::kQ8_0}).file();
  const ModelWeights weights = read_model_weights(file, read_model_config(file));
  ASSERT_EQ(weights.layers.size(), 2u);
  const WeightView& query = weights.layers[1].query.matrix;
  EXPECT_EQ(query.type(), TensorType::kQ8_0);
  EXPECT_EQ(query.out_features(), 144);
  EXPECT_EQ(query.in_features(), 256);
  EXPECT_EQ(query.data().data(), file.tensor("blk.1.attn_q.weight").data.data());
  EXPECT_TRUE(weights.layers[1].query.bias.empty());
}

TEST(ReadModelWeights, TiedModelsUseTheEmbeddingAsOutput) {
  const GgufFile file = TinyModel({.tied = true}).file();
  const ModelWeights weights = read_model_weights(file, read_model_config(file));
  EXPECT_TRUE(weights.output.empty()) << "the embedding serves as output";
}

TEST(ReadModelWeights, RefusesATensorThatWouldBeIgnored) {
  TinyModel model;
  const std::vector<float> extra(4);
  model.writer().add_tensor("blk.0.ffn_gate_inp.weight", TensorType::kF32, {4},
                            std::as_bytes(std::span(extra)));
  const GgufFile file = model.file();
  try {
    read_model_weights(file, read_model_config(file));
    FAIL() << "expected Error(kUnsupported)";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("blk.0.ffn_gate_inp.weight"), std::string::npos);
  }
}

TEST(ReadModelWeights, RefusesOtherShapesWithBothInTheMessage) {
  const GgufFile file = TinyModel().file();
  ModelConfig config = read_model_config(file);
  config.ffn_dim = 255;
  try {
    read_model_weights(file, config);
    FAIL() << "expected Error(kFormat)";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFormat);
    EXPECT_NE(std::string(error.what()).find("must have 255 rows of 256, got 256 rows of 256"),
              std::string::npos)
        << error.what();
  }
}

TEST(ReadModelWeights, RefusesMoreLayersThanTensorsBeforeItAllocates) {
  const GgufFile file = TinyModel().file();
  ModelConfig config = read_model_config(file);
  config.num_layers = 1 << 24;
  EXPECT_THROW(read_model_weights(file, config), Error);
}

TEST(ReadModelWeights, NamesAMissingTensor) {
  const GgufFile file = TinyModel({.num_layers = 1}).file();
  ModelConfig config = read_model_config(file);
  config.num_layers = 2;
  try {
    read_model_weights(file, config);
    FAIL() << "expected Error(kFormat)";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("blk.1.attn_norm.weight"), std::string::npos)
        << error.what();
  }
}

}  // namespace
