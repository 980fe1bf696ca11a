// SPDX-License-Identifier: MIT
#include "kvick/sampling/evaluation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/model/transformer.hpp"
#include "support/gguf_builder.hpp"
#include "support/oracle.hpp"
#include "support/tiny_model.hpp"
#include "support/trained_models.hpp"

namespace kvick {
namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

/// Logits depend on the token before only, and each call is recorded.
class TableModel {
 public:
  struct Call {
    int position;
    std::vector<TokenId> tokens;
    bool operator==(const Call&) const = default;
  };
  class Cache {
   public:
    explicit Cache(int size) : size_(size) {}
    int length(int) const { return length_; }
    int max_seq_len() const { return size_; }
    bool reserve(int, int count) { return length_ + count <= size_; }
    void commit(int, std::span<const TokenId> tokens) {
      length_ += static_cast<int>(tokens.size());
    }
    void truncate(int, int length) { length_ = length; }
    void release(int) { length_ = 0; }

   private:
    int size_;
    int length_ = 0;
  };

  /// `table` [token before][vocab_size]
  explicit TableModel(Matrix table, int max_seq_len = 1000)
      : table_(std::move(table)), max_seq_len_(max_seq_len) {}

  int vocab_size() const { return static_cast<int>(table_.cols()); }
  int max_seq_len() const { return max_seq_len_; }
  Cache make_cache(const CacheOptions& options) const { return Cache(options.max_seq_len); }
  void forward(const Batch& batch, Cache&, MatrixRef logits) {
    const Segment& segment = batch.segments()[0];
    calls.push_back({segment.first_position, {segment.tokens.begin(), segment.tokens.end()}});
    for (std::size_t i = 0; i < segment.tokens.size(); ++i) {
      logits.row(static_cast<Index>(i)) = table_.row(segment.tokens[i]);
    }
  }

  std::vector<Call> calls;

 private:
  Matrix table_;
  int max_seq_len_;
};
static_assert(LanguageModel<TableModel>);

/// Next tokens have these odds, whatever came before.
TableModel model_with_odds(const std::vector<float>& odds) {
  const auto size = static_cast<Index>(odds.size());
  Matrix table(size, size);
  for (Index row = 0; row < size; ++row) {
    for (Index i = 0; i < size; ++i) table(row, i) = std::log(odds[static_cast<std::size_t>(i)]);
  }
  return TableModel(table);
}

Matrix random_table(Index size, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  return Matrix::NullaryExpr(size, size, [&] { return normal(rng); });
}

std::vector<TokenId> random_tokens(std::size_t count, int vocab_size, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(rng() % static_cast<unsigned>(vocab_size));
  }
  return tokens;
}

/// Odds pass through a float logarithm: an error of 2^-24 relative to logits below 2.
constexpr double kLogitTolerance = 4.0 * FLT_EPSILON;

// ---- Windows ----

TEST(NegativeLogLikelihoods, ScoresEachTokenByTheLogitsOfTheOneBefore) {
  // After token 0 come 0 and 1 with odds 1 : 3, after token 1 with odds 4 : 1.
  Matrix table(2, 2);
  table << std::log(1.0f), std::log(3.0f), std::log(4.0f), std::log(1.0f);
  TableModel model(table);
  const std::vector<TokenId> tokens = {0, 1, 1, 0, 0};
  const std::vector<double> expected = {std::log(4.0 / 3), std::log(5.0), std::log(5.0 / 4),
                                        std::log(4.0)};
  const auto nll = negative_log_likelihoods(model, tokens);
  ASSERT_EQ(nll.size(), expected.size());
  for (std::size_t i = 0; i < nll.size(); ++i) {
    EXPECT_NEAR(nll[i], expected[i], kLogitTolerance) << i;
  }
}

TEST(NegativeLogLikelihoods, CutsWindowsThatStartAfreshAndScoreFromTheirSecondToken) {
  TableModel model(random_table(10, 1));
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto nll = negative_log_likelihoods(model, tokens, {.context = 4});
  // [1 2 3 4] [5 6 7 8] [9]: the last token of a window is not computed, the window of one not
  // scored.
  const std::vector<TableModel::Call> expected = {{0, {1, 2, 3}}, {0, {5, 6, 7}}};
  EXPECT_EQ(model.calls, expected);
  const auto whole = negative_log_likelihoods(model, tokens);
  EXPECT_EQ(nll, (std::vector{whole[0], whole[1], whole[2], whole[4], whole[5], whole[6]}));
}

TEST(NegativeLogLikelihoods, ReadsLongWindowsInChunksThatFollowEachOther) {
  TableModel model(random_table(7, 2));
  const auto tokens = random_tokens(300, 7, 3);
  std::vector<std::pair<std::size_t, std::size_t>> progress;
  const auto nll = negative_log_likelihoods(model, tokens,
                                            {.progress = [&](std::size_t done, std::size_t total) {
                                              progress.emplace_back(done, total);
                                            }});
  ASSERT_EQ(model.calls.size(), 3u);
  EXPECT_EQ(model.calls[0].position, 0);
  EXPECT_EQ(model.calls[1].position, 128);
  EXPECT_EQ(model.calls[2].position, 256);
  std::vector<TokenId> read;
  for (const auto& call : model.calls)
    read.insert(read.end(), call.tokens.begin(), call.tokens.end());
  EXPECT_EQ(read, std::vector<TokenId>(tokens.begin(), tokens.end() - 1));
  EXPECT_EQ(nll.size(), 299u);
  EXPECT_EQ(progress,
            (std::vector<std::pair<std::size_t, std::size_t>>{{128, 299}, {256, 299}, {299, 299}}));
}

TEST(NegativeLogLikelihoods, AreTheSameForAnyNumberOfThreads) {
  TableModel model(random_table(50, 4));
  const auto tokens = random_tokens(400, 50, 5);
  const auto one = negative_log_likelihoods(model, tokens, {.context = 150, .threads = 1});
  EXPECT_EQ(negative_log_likelihoods(model, tokens, {.context = 150, .threads = 3}), one);
}

TEST(NegativeLogLikelihoods, AreInfiniteForATokenThatTheModelExcludes) {
  TableModel model = model_with_odds({0.0f, 1.0f});
  const std::vector<TokenId> tokens = {0, 0, 1};
  const auto nll = negative_log_likelihoods(model, tokens);
  EXPECT_EQ(nll[0], std::numeric_limits<double>::infinity());
  EXPECT_EQ(nll[1], 0.0);
}

TEST(NegativeLogLikelihoods, RefuseWhatCannotBeScored) {
  TableModel model(random_table(5, 6), /*max_seq_len=*/8);
  const auto refuses = [&](std::vector<TokenId> tokens, int context, std::string_view message) {
    support::expect_error(ErrorCode::kArgument, {message},
                          [&] { negative_log_likelihoods(model, tokens, {.context = context}); });
  };
  refuses({}, 0, "tokens must be at least 2");
  refuses({3}, 0, "got 1");
  refuses({1, 2}, 1, "context must be in [2, 8], got 1");
  refuses({1, 2}, 9, "context must be in [2, 8], got 9");
  refuses({1, 2}, -1, "got -1");
  refuses({1, 5}, 0,
          "token ids must be in [0, 5), got 5");  // the last one, which is never computed
  refuses({-1, 2}, 0, "got -1");
  EXPECT_TRUE(model.calls.empty());

  TableModel broken(Matrix::Constant(5, 5, std::numeric_limits<float>::quiet_NaN()));
  const std::vector<TokenId> tokens = {1, 2};
  support::expect_error(ErrorCode::kArgument, {"not NaN"},
                        [&] { negative_log_likelihoods(broken, tokens); });
}

// ---- Comparison ----

TEST(KlDivergence, IsThatOfTheModelFromTheReference) {
  const std::vector<float> reference = {std::log(3.0f), std::log(1.0f)};  // 3/4, 1/4
  const std::vector<float> model = {7.0f, 7.0f};                          // 1/2, 1/2
  EXPECT_NEAR(kl_divergence(reference, model), 0.75 * std::log(1.5) + 0.25 * std::log(0.5),
              kLogitTolerance);
  EXPECT_NEAR(kl_divergence(model, reference), 0.5 * std::log(2.0 / 3) + 0.5 * std::log(2.0),
              kLogitTolerance);
}

TEST(KlDivergence, IsExactlyZeroForEqualLogitsAndNeverNegative) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal(0.0f, 5.0f);
  for (int i = 0; i < 100; ++i) {
    std::vector<float> logits(200);
    for (float& logit : logits) logit = normal(rng);
    EXPECT_EQ(kl_divergence(logits, logits), 0.0);
    std::vector<float> close = logits;
    close[0] = std::nextafter(close[0], 100.0f);
    EXPECT_GE(kl_divergence(logits, close), 0.0);
    EXPECT_LT(kl_divergence(logits, close), 1e-12);
  }
}

TEST(KlDivergence, TreatsExcludedTokensAsTheLimitSays) {
  const std::vector<float> both = {0.0f, 0.0f};
  const std::vector<float> first = {0.0f, -kFloatInfinity};
  EXPECT_NEAR(kl_divergence(first, both), std::log(2.0), 4 * DBL_EPSILON);
  EXPECT_EQ(kl_divergence(both, first), std::numeric_limits<double>::infinity());
  EXPECT_EQ(kl_divergence(first, first), 0.0);
}

TEST(KlDivergence, RefusesLogitsOfOtherSize) {
  const std::vector<float> two(2), three(3);
  support::expect_error(ErrorCode::kShape, {"got 2 and 3"}, [&] { kl_divergence(two, three); });
}

TEST(CompareModels, GivesBothScoresTheDivergenceAndWhetherTheTopAgrees) {
  TableModel model = model_with_odds({1.0f, 2.0f, 1.0f});
  TableModel reference = model_with_odds({2.0f, 1.0f, 1.0f});
  const std::vector<TokenId> tokens = {0, 1, 2};
  const ModelComparison result = compare_models(model, reference, tokens);
  const auto near = [](const std::vector<double>& values, double first, double second) {
    ASSERT_EQ(values.size(), 2u);
    EXPECT_NEAR(values[0], first, kLogitTolerance);
    EXPECT_NEAR(values[1], second, kLogitTolerance);
  };
  near(result.nll, std::log(2.0), std::log(4.0));
  near(result.reference_nll, std::log(4.0), std::log(4.0));
  // 1/2 ln(1/2 / 1/4) + 1/4 ln(1/4 / 1/2) + 0
  near(result.divergence, 0.25 * std::log(2.0), 0.25 * std::log(2.0));
  EXPECT_EQ(result.same_top, (std::vector{0.0, 0.0}));
}

TEST(CompareModels, UsesTheReferenceAsTheWeightOfTheDivergence) {
  TableModel model = model_with_odds({1.0f, 1.0f});
  TableModel reference = model_with_odds({3.0f, 1.0f});
  const std::vector<TokenId> tokens = {0, 1};
  const ModelComparison result = compare_models(model, reference, tokens);
  EXPECT_NEAR(result.divergence[0], 0.75 * std::log(1.5) + 0.25 * std::log(0.5), kLogitTolerance);
  EXPECT_EQ(result.same_top[0], 1.0);  // equals go to the lower token
}

TEST(CompareModels, RefusesVocabulariesOfOtherSizeAndAContextBeyondEitherModel) {
  TableModel model(random_table(5, 8), 100);
  TableModel small(random_table(4, 8), 100);
  TableModel brief(random_table(5, 8), 50);
  const std::vector<TokenId> tokens = {1, 2};
  support::expect_error(ErrorCode::kShape, {"got 5 and 4"},
                        [&] { compare_models(model, small, tokens); });
  support::expect_error(ErrorCode::kArgument, {"[2, 50], got 60"},
                        [&] { compare_models(model, brief, tokens, {.context = 60}); });
  support::expect_error(ErrorCode::kArgument, {"[2, 50], got 60"},
                        [&] { compare_models(brief, model, tokens, {.context = 60}); });
}

TEST(CompareModels, FindsNothingBetweenATransformerAndItself) {
  Transformer model(support::TinyModel().file(), {.threads = 2});
  const auto tokens = random_tokens(200, model.vocab_size(), 9);
  const EvaluationOptions options = {.context = 150, .cache_type = ElementType::kF32};
  const ModelComparison result = compare_models(model, model, tokens, options);
  EXPECT_EQ(result.nll, result.reference_nll);
  EXPECT_EQ(result.nll, negative_log_likelihoods(model, tokens, options));
  EXPECT_EQ(result.divergence, std::vector<double>(198, 0.0));
  EXPECT_EQ(result.same_top, std::vector<double>(198, 1.0));
}

// ---- Statistics ----

TEST(MeanEstimate, IsTheMeanAndTheDeviationOfTheSampleOverTheRootOfItsSize) {
  // Deviations -3, -1, 0, 4: squares 26, variance 26 / 3.
  const std::vector<double> values = {1, 3, 4, 8};
  const MeanEstimate estimate = mean_estimate(values);
  EXPECT_EQ(estimate.mean, 4.0);
  EXPECT_DOUBLE_EQ(estimate.standard_error, std::sqrt(26.0 / 3 / 4));
}

TEST(MeanEstimate, KnowsNoErrorOfOneValueOrOfInfiniteOnes) {
  const std::vector<double> one = {5.0};
  EXPECT_EQ(mean_estimate(one).mean, 5.0);
  EXPECT_TRUE(std::isnan(mean_estimate(one).standard_error));
  const std::vector<double> infinite = {1.0, std::numeric_limits<double>::infinity()};
  EXPECT_EQ(mean_estimate(infinite).mean, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(mean_estimate(infinite).standard_error));
  support::expect_error(ErrorCode::kArgument, {"must not be empty"}, [] { mean_estimate({}); });
}

TEST(Perplexity, IsTheExponentialWithItsFirstOrderError) {
  const MeanEstimate result = perplexity({.mean = std::log(20.0), .standard_error = 0.1});
  EXPECT_NEAR(result.mean, 20.0, 20.0 * 8 * DBL_EPSILON);
  EXPECT_NEAR(result.standard_error, 2.0, 2.0 * 8 * DBL_EPSILON);
}

TEST(Quantile, InterpolatesBetweenNeighbours) {
  const std::vector<double> values = {40, 10, 30, 20};
  EXPECT_EQ(quantile(values, 0.0), 10.0);
  EXPECT_EQ(quantile(values, 0.5), 25.0);
  EXPECT_EQ(quantile(values, 0.75), 32.5);
  EXPECT_EQ(quantile(values, 1.0), 40.0);
  std::vector<double> hundred(101);
  std::iota(hundred.begin(), hundred.end(), 0.0);
  EXPECT_DOUBLE_EQ(quantile(hundred, 0.99), 99.0);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(quantile(std::vector{1.0, 2.0, infinity}, 0.5), 2.0);
  EXPECT_EQ(quantile(std::vector{1.0, infinity, infinity}, 0.75), infinity);
}

TEST(Quantile, RefusesNoValuesAndFractionsBeyondOne) {
  const std::vector<double> values = {1.0};
  support::expect_error(ErrorCode::kArgument, {"empty"}, [] { quantile({}, 0.5); });
  support::expect_error(ErrorCode::kArgument, {"got 1.5"}, [&] { quantile(values, 1.5); });
}

TEST(Summarize, ComparesTokenByToken) {
  // The models differ by 1 +- 0 everywhere, although their own scores scatter.
  const ModelComparison comparison = {.nll = {2, 4, 9},
                                      .reference_nll = {1, 3, 8},
                                      .divergence = {0.1, 0.5, 0.3},
                                      .same_top = {1, 0, 1}};
  const ComparisonSummary summary = summarize(comparison);
  EXPECT_EQ(summary.nll.mean, 5.0);
  EXPECT_EQ(summary.reference_nll.mean, 4.0);
  EXPECT_EQ(summary.nll_difference.mean, 1.0);
  EXPECT_EQ(summary.nll_difference.standard_error, 0.0);
  EXPECT_DOUBLE_EQ(summary.divergence.mean, 0.3);
  EXPECT_EQ(summary.median_divergence, 0.3);
  EXPECT_DOUBLE_EQ(summary.p99_divergence, 0.3 + 0.98 * 0.2);
  EXPECT_EQ(summary.max_divergence, 0.5);
  EXPECT_DOUBLE_EQ(summary.same_top.mean, 2.0 / 3);
  // Share p of n: sqrt(p (1 - p) / (n - 1)).
  EXPECT_DOUBLE_EQ(summary.same_top.standard_error, std::sqrt(2.0 / 3 * (1.0 / 3) / 2));
}

// ---- Against an independent implementation in double ----

std::string comma_separated(std::span<const TokenId> tokens) {
  std::string text;
  for (const TokenId token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
  return text;
}

/// Our mean against the oracle's, which computes each window of `context` tokens as a text.
void expect_mean_of_oracle(const std::filesystem::path& path, std::span<const TokenId> tokens,
                           std::size_t context) {
  double sum = 0.0;
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < tokens.size(); begin += context) {
    const auto window = tokens.subspan(begin, std::min(context, tokens.size() - begin));
    const double mean = std::stod(support::run_tool(
        "tools/reference.py", "nll '" + path.string() + "' --tokens " + comma_separated(window)));
    sum += mean * static_cast<double>(window.size() - 1);
    count += window.size() - 1;
  }
  Transformer model(path, {.activations = ActivationType::kF32});
  const auto nll = negative_log_likelihoods(
      model, tokens, {.context = static_cast<int>(context), .cache_type = ElementType::kF32});
  ASSERT_EQ(nll.size(), count);
  // Logits of float engines are within 1e-4 of exact ones, and a log-likelihood moves at most by
  // twice the largest error of the logits.
  EXPECT_NEAR(mean_estimate(nll).mean, sum / static_cast<double>(count), 2e-4);
}

TEST(NegativeLogLikelihoods, AgreeWithTheOracleOnATrainedModel) {
  if (const auto reason = support::oracle_missing()) GTEST_SKIP() << *reason;
  // "Once upon a time" and then noise: likely and unlikely tokens.
  std::vector<TokenId> tokens = {1, 403, 407, 261, 378};
  const auto noise = random_tokens(150, 512, 10);
  tokens.insert(tokens.end(), noise.begin(), noise.end());
  for (const std::string& path : support::trained_models()) {
    SCOPED_TRACE(path);
    expect_mean_of_oracle(path, tokens, /*context=*/128);
  }
}

TEST(NegativeLogLikelihoods, AgreeWithTheOracleOnARandomModel) {
  if (const auto reason = support::oracle_missing()) GTEST_SKIP() << *reason;
  const support::TemporaryDirectory directory;
  const auto path = directory / "tiny.gguf";
  support::TinyModel({.architecture = "qwen2", .tied = true}).writer().write(path);
  expect_mean_of_oracle(path, random_tokens(140, 100, 11), /*context=*/140);
}

}  // namespace
}  // namespace kvick
