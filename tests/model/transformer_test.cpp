// SPDX-License-Identifier: MIT
#include "kvick/model/transformer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "model/evaluate.hpp"
#include "support/allocation_counter.hpp"
#include "support/tiny_model.hpp"
#include "support/trained_models.hpp"

namespace {

using namespace kvick;
using support::evaluate;
using support::random_tokens;
using support::TinyModel;
using support::TinyModelOptions;

/// Models that together cover the architectures and formats.
struct ModelCase {
  std::string name;
  TinyModelOptions options;
  ActivationType activations = ActivationType::kF32;
};

std::vector<ModelCase> model_cases() {
  std::vector<ModelCase> cases;
  for (const TensorTypeInfo& type : tensor_types()) {
    const std::string name = "llama_" + std::string(type.name);
    cases.push_back({name, {.type = type.type}});
    if (type.block_size > 1) {
      cases.push_back({name + "_int8", {.type = type.type}, ActivationType::kInt8});
    }
  }
  cases.push_back(
      {"qwen2_tied",
       {.architecture = "qwen2", .num_heads = 7, .num_kv_heads = 1, .tied = true, .seed = 2}});
  cases.push_back({"qwen3_q8_0",
                   {.architecture = "qwen3",
                    .type = TensorType::kQ8_0,
                    .num_heads = 4,
                    .num_kv_heads = 4,
                    .head_dim = 40,
                    .seed = 3},
                   ActivationType::kInt8});
  return cases;
}

class TransformerOfEveryKind : public ::testing::TestWithParam<ModelCase> {
 protected:
  Transformer model(int threads = 2, Isa isa = default_isa()) const {
    return Transformer(TinyModel(GetParam().options).file(),
                       {.threads = threads, .isa = isa, .activations = GetParam().activations});
  }
};

INSTANTIATE_TEST_SUITE_P(Models, TransformerOfEveryKind, ::testing::ValuesIn(model_cases()),
                         [](const auto& param_info) { return param_info.param.name; });

TEST_P(TransformerOfEveryKind, GivesTheSameBitsForEveryChunking) {
  Transformer transformer = model();
  const auto tokens = random_tokens(71, transformer.vocab_size(), 11);
  for (const ElementType type : {ElementType::kF32, ElementType::kF16}) {
    const Matrix whole = evaluate(transformer, tokens, tokens.size(), type);
    ASSERT_TRUE(whole.allFinite());
    for (const std::size_t chunk : {1u, 3u, 7u, 64u}) {
      EXPECT_EQ(evaluate(transformer, tokens, chunk, type), whole)
          << "chunks of " << chunk << ", cache of " << name(type);
    }
  }
}

TEST_P(TransformerOfEveryKind, GivesTheSameBitsForEveryIsaAndNumberOfThreads) {
  Transformer portable = model(1, Isa::kPortable);
  const auto tokens = random_tokens(18, portable.vocab_size(), 12);
  const Matrix expected = evaluate(portable, tokens, tokens.size());
  for (const Isa isa : supported_isas()) {
    for (const int threads : {1, 2, 3}) {
      Transformer transformer = model(threads, isa);
      ASSERT_EQ(transformer.isa(), isa);
      ASSERT_EQ(transformer.num_threads(), threads);
      EXPECT_EQ(evaluate(transformer, tokens, tokens.size()), expected)
          << name(isa) << ", " << threads << " threads";
    }
  }
}

TEST_P(TransformerOfEveryKind, GivesTheSameBitsAloneAndAmongOthers) {
  Transformer transformer = model();
  const int lengths[] = {1, 5, 66, 130, 2};
  const int num_sequences = static_cast<int>(std::size(lengths));
  std::vector<std::vector<TokenId>> prompts;
  for (int s = 0; s < num_sequences; ++s) {
    prompts.push_back(
        random_tokens(lengths[s], transformer.vocab_size(), 20u + static_cast<unsigned>(s)));
  }
  auto cache = transformer.make_cache(
      {.num_sequences = num_sequences, .max_seq_len = 140, .element_type = ElementType::kF32});
  Batch batch;
  for (int s = 0; s < num_sequences; ++s) {
    const auto& prompt = prompts[static_cast<std::size_t>(s)];
    ASSERT_TRUE(cache.reserve(s, lengths[s]));
    batch.add({s, 0, prompt, std::min(2, lengths[s])});
  }
  Matrix logits(batch.num_logits(), transformer.vocab_size());
  transformer.forward(batch, cache, logits);
  Index row = 0;
  for (int s = 0; s < num_sequences; ++s) {
    const auto& prompt = prompts[static_cast<std::size_t>(s)];
    const Matrix alone = evaluate(transformer, prompt, 1);
    const Index wanted = std::min(2, lengths[s]);
    EXPECT_EQ(logits.middleRows(row, wanted), alone.bottomRows(wanted)) << "sequence " << s;
    row += wanted;
    cache.commit(s, prompt);
  }
  // A second step: every sequence decodes one token, together and alone.
  const auto next = random_tokens(num_sequences, transformer.vocab_size(), 99);
  batch.clear();
  for (int s = 0; s < num_sequences; ++s) {
    ASSERT_TRUE(cache.reserve(s, 1));
    batch.add({s, lengths[s], std::span(next).subspan(static_cast<std::size_t>(s), 1), 1});
  }
  Matrix decoded(batch.num_logits(), transformer.vocab_size());
  transformer.forward(batch, cache, decoded);
  for (int s = 0; s < num_sequences; ++s) {
    auto whole = prompts[static_cast<std::size_t>(s)];
    whole.push_back(next[static_cast<std::size_t>(s)]);
    EXPECT_EQ(decoded.row(s), evaluate(transformer, whole, whole.size()).bottomRows(1));
  }
}

TEST_P(TransformerOfEveryKind, GivesTheSameBitsAfterTruncation) {
  Transformer transformer = model();
  const auto tokens = random_tokens(70, transformer.vocab_size(), 13);
  const auto wrong = random_tokens(20, transformer.vocab_size(), 14);
  auto cache = transformer.make_cache({.max_seq_len = 128, .element_type = ElementType::kF32});
  const Matrix expected = evaluate(transformer, tokens, tokens.size());
  evaluate(transformer, cache, 0, std::span(tokens).first(60), 60);
  evaluate(transformer, cache, 0, wrong, 20);
  cache.truncate(0, 60);
  const Matrix after = evaluate(transformer, cache, 0, std::span(tokens).subspan(60), 10);
  EXPECT_EQ(after, expected.bottomRows(10));
}

// The same network in double on Eigen, from the file's dequantized tensors: an independent path for
// everything but the file format.
class DoubleModel {
 public:
  using M = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  DoubleModel(const GgufFile& file, const ModelConfig& config) : file_(file), config_(config) {}

  M logits(std::span<const TokenId> tokens) const {
    const Index count = static_cast<Index>(tokens.size());
    const M embedding = tensor("token_embd.weight");
    M x(count, config_.embedding_dim);
    for (Index t = 0; t < count; ++t) x.row(t) = embedding.row(tokens[static_cast<std::size_t>(t)]);
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      const M h = norm(x, prefix + "attn_norm.weight");
      M q = project(h, prefix + "attn_q");
      M k = project(h, prefix + "attn_k");
      const M v = project(h, prefix + "attn_v");
      if (config_.architecture == "qwen3") {
        q = norm_heads(q, prefix + "attn_q_norm.weight");
        k = norm_heads(k, prefix + "attn_k_norm.weight");
      }
      x += attend(rotate(q), rotate(k), v) * tensor(prefix + "attn_output.weight").transpose();
      const M f = norm(x, prefix + "ffn_norm.weight");
      const M gate = f * tensor(prefix + "ffn_gate.weight").transpose();
      const M up = f * tensor(prefix + "ffn_up.weight").transpose();
      const M activated = (gate.array() / (1.0 + (-gate.array()).exp()) * up.array()).matrix();
      x += activated * tensor(prefix + "ffn_down.weight").transpose();
    }
    const bool tied = file_.find_tensor("output.weight") == nullptr;
    return norm(x, "output_norm.weight") *
           tensor(tied ? "token_embd.weight" : "output.weight").transpose();
  }

 private:
  M tensor(const std::string& name) const {
    const GgufTensor& t = file_.tensor(name);
    std::vector<float> values(t.num_elements());
    dequantize(t.type, t.data, values);
    return Eigen::Map<const Matrix>(values.data(), static_cast<Index>(t.num_rows()),
                                    static_cast<Index>(t.dims[0]))
        .cast<double>();
  }
  M norm(const M& x, const std::string& name) const {
    const M weight = tensor(name);
    M y = x;
    for (Index r = 0; r < x.rows(); ++r) {
      const double mean = x.row(r).squaredNorm() / static_cast<double>(x.cols());
      y.row(r) = (x.row(r).array() / std::sqrt(mean + static_cast<double>(config_.rms_epsilon)) *
                  weight.row(0).array())
                     .matrix();
    }
    return y;
  }
  M norm_heads(const M& x, const std::string& name) const {
    M y = x;
    for (Index c = 0; c < x.cols(); c += config_.head_dim) {
      y.middleCols(c, config_.head_dim) = norm(x.middleCols(c, config_.head_dim), name);
    }
    return y;
  }
  M project(const M& x, const std::string& name) const {
    M y = x * tensor(name + ".weight").transpose();
    if (file_.find_tensor(name + ".bias") != nullptr) y.rowwise() += tensor(name + ".bias").row(0);
    return y;
  }
  M rotate(M x) const {
    const int dim = config_.head_dim;
    const bool adjacent = config_.architecture == "llama";
    for (Index p = 0; p < x.rows(); ++p) {
      for (Index c = 0; c < x.cols(); c += dim) {
        for (int i = 0; i < dim / 2; ++i) {
          const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * i / dim);
          double& a = x(p, c + (adjacent ? 2 * i : i));
          double& b = x(p, c + (adjacent ? 2 * i + 1 : i + dim / 2));
          const double rotated = a * std::cos(angle) - b * std::sin(angle);
          b = a * std::sin(angle) + b * std::cos(angle);
          a = rotated;
        }
      }
    }
    return x;
  }
  M attend(const M& q, const M& k, const M& v) const {
    const int dim = config_.head_dim;
    const int group = config_.num_heads / config_.num_kv_heads;
    M out(q.rows(), q.cols());
    for (int h = 0; h < config_.num_heads; ++h) {
      for (Index p = 0; p < q.rows(); ++p) {
        const auto keys = k.block(0, h / group * dim, p + 1, dim);
        Eigen::VectorXd s = keys * q.block(p, h * dim, 1, dim).transpose() / std::sqrt(dim);
        s = (s.array() - s.maxCoeff()).exp();
        out.block(p, h * dim, 1, dim) =
            (s / s.sum()).transpose() * v.block(0, h / group * dim, p + 1, dim);
      }
    }
    return out;
  }

  const GgufFile& file_;
  const ModelConfig& config_;
};

TEST_P(TransformerOfEveryKind, AgreesWithTheSameNetworkInDouble) {
  Transformer transformer = model();
  const auto tokens = random_tokens(70, transformer.vocab_size(), 15);
  const Matrix logits = evaluate(transformer, tokens, tokens.size());
  const auto expected = DoubleModel(transformer.file(), transformer.config()).logits(tokens);
  const double range = expected.maxCoeff() - expected.minCoeff();
  // Each value passes a few thousand roundings of 2^-24 relative size, whose errors add up like a
  // random walk: 1e-5 of the range has a wide margin, and a wrong formula is off by 1e-2 or more.
  // Activations of int8 err by up to 1/254 of each group's maximum, some 0.3 % as a random walk.
  const bool is_exact = GetParam().activations == ActivationType::kF32;
  const double error = (logits.cast<double>() - expected).cwiseAbs().maxCoeff();
  EXPECT_LT(error, (is_exact ? 1e-5 : 3e-2) * range);
  if (!is_exact) {
    EXPECT_GT(error, 1e-5 * range) << "int8 activations were not used";
  }
}

TEST(Transformer, WritesNothingAndComputesNothingForBadBatches) {
  Transformer model(TinyModel().file(), {.threads = 1});
  auto cache = model.make_cache({.num_sequences = 2, .max_seq_len = 8});
  const std::vector<TokenId> tokens = {1, 2, 3};
  Matrix logits(1, model.vocab_size());
  const auto code_of = [&](const Segment& segment, MatrixRef out) {
    try {
      model.forward(Batch(segment), cache, out);
    } catch (const Error& error) {
      return std::string(name(error.code()));
    }
    return std::string("none");
  };
  EXPECT_EQ(code_of({0, 0, tokens, 1}, logits), "capacity") << "nothing reserved";
  ASSERT_TRUE(cache.reserve(0, 3));
  EXPECT_EQ(code_of({0, 1, tokens, 1}, logits), "argument") << "a gap before the first position";
  EXPECT_EQ(code_of({2, 0, tokens, 1}, logits), "argument") << "no such sequence";
  EXPECT_EQ(code_of({0, 0, tokens, 2}, logits), "shape") << "two rows wanted, one given";
  Matrix narrow(1, model.vocab_size() - 1);
  EXPECT_EQ(code_of({0, 0, tokens, 1}, narrow), "shape");
  const std::vector<TokenId> bad = {1, model.vocab_size()};
  EXPECT_EQ(code_of({0, 0, bad, 1}, logits), "argument");
  const std::vector<TokenId> negative = {-1};
  EXPECT_EQ(code_of({0, 0, negative, 1}, logits), "argument");
  EXPECT_EQ(cache.length(0), 0);
  EXPECT_EQ(code_of({0, 0, tokens, 1}, logits), "none");
}

TEST(Transformer, RefusesACacheOfAnotherModel) {
  Transformer model(TinyModel().file(), {.threads = 1});
  Transformer deeper(TinyModel({.num_layers = 3}).file(), {.threads = 1});
  auto cache = deeper.make_cache({.max_seq_len = 8});
  ASSERT_TRUE(cache.reserve(0, 1));
  const std::vector<TokenId> token = {1};
  Matrix logits(1, model.vocab_size());
  EXPECT_THROW(model.forward(Batch({0, 0, token, 1}), cache, logits), Error);
}

TEST(Transformer, WritesNothingToACacheWhoseHeadsAreCutOtherwise) {
  Transformer model(TinyModel().file(), {.threads = 1});
  const ModelConfig& config = model.config();
  ContiguousKVCache cache(ElementType::kF32, {.num_layers = config.num_layers,
                                              .num_kv_heads = config.head_dim,
                                              .max_seq_len = 8,
                                              .head_dim = config.num_kv_heads});
  ASSERT_TRUE(cache.reserve(0, 1));
  const std::vector<TokenId> token = {1};
  Matrix logits(1, model.vocab_size());
  EXPECT_THROW(model.forward(Batch({0, 0, token, 1}), cache, logits), Error);
  const KVRun row = cache.run(0, 0, 0, 0);  // the memory of a new cache is zero
  const std::vector<std::byte> zeros(static_cast<std::size_t>(cache.head_dim()) * sizeof(float));
  EXPECT_EQ(std::memcmp(row.keys, zeros.data(), zeros.size()), 0);
}

TEST(Transformer, ASegmentWithoutLogitsFillsTheCacheAlone) {
  Transformer model(TinyModel().file(), {.threads = 2});
  const auto tokens = random_tokens(10, model.vocab_size(), 16);
  auto cache = model.make_cache({.max_seq_len = 16, .element_type = ElementType::kF32});
  ASSERT_TRUE(cache.reserve(0, 9));
  Matrix none(0, 0);
  model.forward(Batch({0, 0, std::span(tokens).first(9), 0}), cache, none);
  cache.commit(0, std::span(tokens).first(9));
  EXPECT_EQ(evaluate(model, cache, 0, std::span(tokens).subspan(9), 1),
            evaluate(model, tokens, 10).bottomRows(1));
}

TEST(Transformer, DecodingStepsDoNotAllocate) {
  Transformer model(TinyModel({.type = TensorType::kQ8_0}).file(), {.threads = 2});
  const auto tokens = random_tokens(40, model.vocab_size(), 18);
  auto cache = model.make_cache({.max_seq_len = 64});
  evaluate(model, cache, 0, std::span(tokens).first(20), 20);  // the largest step comes first
  Matrix logits(1, model.vocab_size());
  Batch batch;
  const auto step = [&](std::size_t i) {
    const auto token = std::span(tokens).subspan(i, 1);
    ASSERT_TRUE(cache.reserve(0, 1));
    batch.clear();
    batch.add({0, cache.length(0), token, 1});
    model.forward(batch, cache, logits);
    cache.commit(0, token);
  };
  step(20);  // the batch's own memory
  const std::size_t before = support::num_allocations();
  for (std::size_t i = 21; i < tokens.size(); ++i) step(i);
  EXPECT_EQ(support::num_allocations(), before);
}

TEST(Transformer, ReportsProgressWhileItPacks) {
  std::vector<std::size_t> steps;
  std::size_t last_total = 0;
  const TinyModel tiny;
  const Transformer model(tiny.file(),
                          {.threads = 1, .progress = [&](std::size_t done, std::size_t total) {
                             steps.push_back(done);
                             last_total = total;
                           }});
  std::size_t matrices = 0;
  for (const GgufTensor& tensor : model.file().tensors()) {
    if (tensor.num_dims == 2 && tensor.name != "token_embd.weight") matrices += tensor.data.size();
  }
  ASSERT_FALSE(steps.empty());
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(steps.back(), matrices);
  EXPECT_EQ(last_total, matrices);
}

// Converting at load and converting the file give one model.
TEST(Transformer, ConvertsWeightsAtLoad) {
  const auto tokens = random_tokens(20, TinyModelOptions{}.vocab_size, 31);
  Transformer floats(TinyModel().file(), {.threads = 2});
  const Matrix exact = evaluate(floats, tokens, tokens.size());
  for (const TensorType type : {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_0}) {
    Transformer model(TinyModel().file(),
                      {.threads = 2, .activations = ActivationType::kF32, .weights = type});
    const Matrix logits = evaluate(model, tokens, tokens.size());
    EXPECT_NE(logits, exact);
    // The embedding stays as stored, so it is the double model's too; every matrix is converted.
    const double range = static_cast<double>(exact.maxCoeff() - exact.minCoeff());
    const double error = static_cast<double>((logits - exact).cwiseAbs().maxCoeff());
    EXPECT_LT(error, (type == TensorType::kF16    ? 3e-3
                      : type == TensorType::kQ8_0 ? 3e-2
                                                  : 0.5) *
                         range);
  }
}

TEST(Transformer, TrainedModelGivesTheSameBitsOnEveryPath) {
  for (const std::string& path : support::trained_models()) {
    Transformer one(path, {.threads = 1, .isa = Isa::kPortable});
    const auto tokens = random_tokens(200, one.vocab_size(), 17);
    const Matrix expected = evaluate(one, tokens, tokens.size());
    Transformer other(path, {.threads = 3});
    for (const std::size_t chunk : {1u, 3u, 7u, 64u, 200u}) {
      EXPECT_EQ(evaluate(other, tokens, chunk), expected) << path << ", " << chunk;
    }
  }
}

}  // namespace
