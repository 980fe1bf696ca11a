// SPDX-License-Identifier: MIT
// The network of the demo models, its optimizer, its trainer, and the file that comes out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "demo_model/adam_w.hpp"
#include "demo_model/demo_vocabulary.hpp"
#include "demo_model/model_file.hpp"
#include "demo_model/network.hpp"
#include "demo_model/trainer.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/random.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/text/tokenizer.hpp"
#include "support/temporary_directory.hpp"

namespace {

using demo_model::Network;
using demo_model::NetworkConfig;
using demo_model::TokenBatch;
using kvick::TokenId;

/// Grouped heads, several layers, stories of different lengths.
NetworkConfig tiny_config(int vocab_size) {
  return {.vocab_size = vocab_size,
          .embedding_dim = 16,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 8,
          .ffn_dim = 24};
}

template <class T>
std::vector<T> random_parameters(const NetworkConfig& config) {
  std::vector<T> values(num_parameters(parameter_blocks(config)));
  kvick::PhiloxStream random(1);
  for (T& value : values) value = static_cast<T>(random.next_uniform() - 0.4);
  return values;
}

TEST(Network, HasTheDerivativesOfFiniteDifferences) {
  const NetworkConfig config = tiny_config(11);
  std::vector<double> parameters = random_parameters<double>(config);
  TokenBatch batch;
  batch.add(std::vector<TokenId>{1, 4, 5, 4, 9, 2});
  batch.add(std::vector<TokenId>{1, 7, 3, 2});
  Network<double> network(config);
  std::vector<double> gradients(parameters.size(), 0.0);
  network.forward(parameters, batch);
  constexpr double kWeight = 0.5;
  network.backward(parameters, batch, kWeight, gradients);

  const auto loss_with = [&](std::size_t i, double change) {
    const double kept = parameters[i];
    parameters[i] += change;
    network.forward(parameters, batch);
    parameters[i] = kept;
    return network.loss(batch);
  };
  // Central differences are off by step^2 of a third derivative, and by the rounding of the loss
  // over the step: 1e-10 and 1e-10, times factors of the model.
  constexpr double kStep = 1e-5;
  for (const auto& block : parameter_blocks(config)) {
    for (std::size_t i = block.offset; i < block.offset + block.size(); i += 3) {
      const double slope = (loss_with(i, kStep) - loss_with(i, -kStep)) / (2 * kStep);
      ASSERT_NEAR(gradients[i], kWeight * slope, 1e-7 * (1 + std::abs(slope))) << block.name;
    }
  }
}

TEST(Network, ComputesAStoryAsIfItWereAlone) {
  const NetworkConfig config = tiny_config(11);
  const std::vector<double> parameters = random_parameters<double>(config);
  const std::vector<TokenId> story = {1, 7, 3, 2, 5};
  TokenBatch alone;
  alone.add(story);
  TokenBatch second;
  second.add(std::vector<TokenId>{1, 4, 5});
  second.add(story);
  Network<double> network(config);
  const Eigen::MatrixXd expected = network.forward(parameters, alone);
  const Eigen::MatrixXd found = network.forward(parameters, second);
  EXPECT_LT((found.bottomRows(4) - expected).cwiseAbs().maxCoeff(), 1e-12);
}

TEST(AdamW, TakesTheStepsWorkedByHand) {
  // One norm of two values, so no decay. Step 1: the corrected moments are g and g^2, so the change
  // is rate * sign(g). Step 2 with g = 0: m = 0.9 * 0.1 g / (1 - 0.81), v = 0.95 * 0.05 g^2 /
  // (1 - 0.9025), a change of rate * 0.473684 / sqrt(0.487179).
  const std::vector<demo_model::ParameterBlock> norm{{"norm", 1, 2, 0, 0.0}};
  demo_model::AdamW<double> optimizer(norm, {.epsilon = 0});
  std::vector<double> values = {1.0, 2.0};
  optimizer.update(1, 0.1, std::vector<double>{4.0, -0.5}, values);
  EXPECT_NEAR(values[0], 0.9, 1e-12);
  EXPECT_NEAR(values[1], 2.1, 1e-12);
  optimizer.update(2, 0.1, std::vector<double>{0.0, 0.0}, values);
  const double change = 0.1 * (0.09 / 0.19) / std::sqrt(0.0475 / 0.0975);
  EXPECT_NEAR(values[0], 0.9 - change, 1e-12);
  EXPECT_NEAR(values[1], 2.1 + change, 1e-12);
}

TEST(AdamW, DecaysMatricesOnly) {
  const std::vector<demo_model::ParameterBlock> blocks{{"matrix", 1, 1, 0, 1.0},
                                                       {"norm", 1, 1, 1, 0.0}};
  demo_model::AdamW<double> optimizer(blocks, {.decay = 0.1});
  std::vector<double> values = {3.0, 3.0};
  optimizer.update(1, 0.5, std::vector<double>{0.0, 0.0}, values);
  EXPECT_NEAR(values[0], 3.0 - 0.5 * 0.1 * 3.0, 1e-12);
  EXPECT_EQ(values[1], 3.0);
}

TEST(Schedule, WarmsUpAndFallsAlongACosine) {
  const demo_model::Schedule schedule{
      .peak = 2.0, .num_warmup_steps = 10, .num_steps = 110, .final_share = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 10), 2.0);
  EXPECT_NEAR(learning_rate(schedule, 60), 2.0 * (0.1 + 0.9 * 0.5), 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 110), 0.2, 1e-12);
}

TEST(ClipNorm, ScalesOnlyWhatIsTooLong) {
  std::vector<double> values = {3.0, 4.0};
  EXPECT_DOUBLE_EQ(demo_model::clip_norm(std::span(values), 10.0), 5.0);
  EXPECT_EQ(values, (std::vector<double>{3.0, 4.0}));
  EXPECT_DOUBLE_EQ(demo_model::clip_norm(std::span(values), 1.0), 5.0);
  EXPECT_NEAR(values[0], 0.6, 1e-12);
  EXPECT_NEAR(values[1], 0.8, 1e-12);
}

class DemoTrainer : public ::testing::Test {
 protected:
  static demo_model::TrainingOptions options() {
    demo_model::TrainingOptions options{.network = tiny_config(1024)};
    options.schedule.num_steps = 6;
    options.schedule.num_warmup_steps = 2;
    options.batch_stories = 5;  // two passes, for two threads
    return options;
  }
  static std::vector<float> copy(std::span<const float> values) {
    return {values.begin(), values.end()};
  }

  const kvick::Tokenizer tokenizer_{demo_model::make_vocabulary(1024)};
  const support::TemporaryDirectory directory_;
};

TEST_F(DemoTrainer, GoesOnFromACheckpointAsIfUninterrupted) {
  demo_model::Trainer whole(options(), tokenizer_);
  for (int i = 0; i < 6; ++i) whole.step();
  const std::string path = directory_ / "checkpoint";
  {
    demo_model::Trainer first(options(), tokenizer_);
    for (int i = 0; i < 3; ++i) first.step();
    first.save_checkpoint(path);
  }
  demo_model::Trainer second(options(), tokenizer_);
  second.load_checkpoint(path);
  EXPECT_EQ(second.num_steps_done(), 3);
  for (int i = 0; i < 3; ++i) second.step();
  EXPECT_EQ(copy(second.parameters()), copy(whole.parameters()));

  auto other = options();
  other.schedule.num_steps = 7;
  EXPECT_THROW(demo_model::Trainer(other, tokenizer_).load_checkpoint(path), kvick::Error);
  other = options();
  other.network.ffn_dim = 32;
  EXPECT_THROW(demo_model::Trainer(other, tokenizer_).load_checkpoint(path), kvick::Error);
}

TEST_F(DemoTrainer, BeginsAtTheLossOfAGuessAndLearns) {
  demo_model::Trainer trainer(options(), tokenizer_);
  const double first = trainer.step().loss;
  EXPECT_NEAR(first, std::log(1024), 0.1);
  for (int i = 0; i < 5; ++i) trainer.step();
  EXPECT_LT(trainer.evaluate(2, 5).loss, first - 0.01);
  EXPECT_THROW(trainer.evaluate(options().seed, 5), kvick::Error);
}

TEST(ModelFile, GivesTheLogitsOfTheNetwork) {
  NetworkConfig config = tiny_config(1024);
  config.max_seq_len = 64;
  const std::vector<float> parameters = random_parameters<float>(config);
  const std::vector<double> exact(parameters.begin(), parameters.end());
  const kvick::Vocabulary vocabulary = demo_model::make_vocabulary(1024);
  const auto writer = demo_model::model_writer("test", config, vocabulary, parameters);
  kvick::Transformer model(kvick::GgufFile::from_bytes(writer.to_bytes(), "test"), {.threads = 1});
  EXPECT_EQ(kvick::Tokenizer(model.file()).vocabulary().pieces, vocabulary.pieces);

  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < 40; ++i) tokens.push_back((i * 377 + 1) % 1024);
  auto cache = model.make_cache({.element_type = kvick::ElementType::kF32});
  ASSERT_TRUE(cache.reserve(0, 40));
  kvick::Matrix logits(40, 1024);
  model.forward(kvick::Batch({.first_position = 0, .tokens = tokens, .num_logits = 40}), cache,
                logits);

  tokens.push_back(0);  // the network takes the last token for a target
  TokenBatch batch;
  batch.add(tokens);
  Network<double> network(config);
  const auto& expected = network.forward(exact, batch);
  // Some ten roundings a layer of values near 10: 20 * 2^-24 * 10, times 10 for sums.
  EXPECT_LT((logits.cast<double>() - expected).cwiseAbs().maxCoeff(), 2e-4);
  EXPECT_GT(expected.cwiseAbs().maxCoeff(), 1.0);
}

}  // namespace
