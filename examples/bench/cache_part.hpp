// SPDX-License-Identifier: MIT
// kvick-bench cache: generating with the KV cache and without, and what its element type costs.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/session.hpp"
#include "support/system.hpp"

namespace programs::bench {

struct CachePartOptions {
  int prompt = 16;
  int tokens = 48;
  int depth = 512;  // where element types are compared
};

/// Greedy generation; without a cache all tokens are computed again for each new one.
class CacheRun {
 public:
  CacheRun(Transformer& model, const CachePartOptions& options, kvick::ElementType cache_type)
      : model_(model),
        options_(options),
        cache_(model.make_cache(
            {.max_seq_len = options.prompt + options.tokens, .element_type = cache_type})),
        logits_(1, model.vocab_size()) {}

  /// Seconds of every output token.
  std::vector<double> generate(bool has_cache) {
    cache_.release(0);
    tokens_ =
        measure::arbitrary_tokens(static_cast<std::size_t>(options_.prompt), model_.vocab_size());
    std::vector<double> seconds;
    for (int i = 0; i < options_.tokens; ++i) {
      const Stopwatch time;
      if (!has_cache) cache_.release(0);
      const int length = cache_.length(0);
      const auto next =
          std::span<const kvick::TokenId>(tokens_).subspan(static_cast<std::size_t>(length));
      if (!cache_.reserve(0, static_cast<int>(next.size()))) throw BadInput("the cache is full");
      model_.forward(kvick::Batch({0, length, next, 1}), cache_, logits_);
      cache_.commit(0, next);
      tokens_.push_back(kvick::argmax({logits_.data(), static_cast<std::size_t>(logits_.size())}));
      seconds.push_back(time.seconds());
    }
    return seconds;
  }

  std::span<const kvick::TokenId> output() const {
    return std::span(tokens_).subspan(static_cast<std::size_t>(options_.prompt));
  }

 private:
  Transformer& model_;
  CachePartOptions options_;
  Transformer::Cache cache_;
  kvick::Matrix logits_;
  std::vector<kvick::TokenId> tokens_;
};

namespace detail {

inline void compare_cache_types(Session& session, int depth, ReportSection& section) {
  measure::Rounds rounds;
  const auto types = {kvick::ElementType::kF32, kvick::ElementType::kF16, kvick::ElementType::kBF16,
                      kvick::ElementType::kInt8};
  const auto name_of = [&](kvick::ElementType type) {
    return kvick::detail::concat("decode after ", depth, ", ", name(type), " cache");
  };
  std::vector<std::shared_ptr<measure::ModelRun>> runs;
  for (const kvick::ElementType type : types) {
    auto& run = runs.emplace_back(std::make_shared<measure::ModelRun>(
        session.model(),
        measure::ModelRunOptions{
            .prefill_tokens = 0, .decode_tokens = 8, .depth = depth, .cache_type = type}));
    rounds.add({name_of(type),
                [run](kvick::Index calls) {
                  for (kvick::Index i = 0; i < calls; ++i) run->decode();
                },
                {{"tokens/s", 8.0}}});
  }
  ProgressBar progress("cache types");
  const measure::RoundsResult result = rounds.run(session.rounds(progress));
  kvick::ReportTable table{"Bytes per token", {{"cache", "bytes"}}};
  auto run = runs.begin();
  for (const kvick::ElementType type : types) {
    section.measurements.push_back(to_measurement(result.probe(name_of(type)), "tokens/s"));
    section.measurements.back().digest = (*run++)->decode_digest();
    const auto cache = session.model().make_cache({.max_seq_len = 64, .element_type = type});
    table.rows.push_back(
        {std::string(name(type)), grouped(static_cast<std::uint64_t>(cache.memory_bytes()) / 64)});
  }
  section.tables.push_back(std::move(table));
}

}  // namespace detail

inline ReportSection cache_part(Session& session, const CachePartOptions& options) {
  CacheRun run(session.model(), options, session.options().run.cache_type());
  ReportSection section{"cache", "KV cache"};
  ProgressBar progress("cache");
  std::vector<kvick::Curve> curves;
  std::string digest;
  run.generate(true);  // warm
  const int num_repetitions = std::min(5, session.options().num_rounds);
  for (const bool has_cache : {true, false}) {
    Measurement m{.name = has_cache ? "with cache" : "without cache", .unit = "tokens/s"};
    std::vector<std::vector<double>> of_token(static_cast<std::size_t>(options.tokens));
    for (int repetition = 0; repetition < num_repetitions; ++repetition) {
      const std::vector<double> seconds = run.generate(has_cache);
      double total = 0;
      for (std::size_t i = 0; i < seconds.size(); ++i) {
        total += seconds[i];
        of_token[i].push_back(1e3 * seconds[i]);
      }
      m.samples.push_back(options.tokens / total);
      progress.update(static_cast<std::size_t>(repetition + (has_cache ? 1 : 1 + num_repetitions)),
                      static_cast<std::size_t>(2 * num_repetitions));
      kvick::OutputDigest outputs;
      outputs.add(run.output());
      m.digest = outputs.text();
      if (digest.empty()) digest = m.digest;
      require_equal(m.digest, digest, "generation " + m.name);
    }
    kvick::Curve curve{m.name, {}};
    for (std::size_t i = 1; i < of_token.size(); ++i) {  // the first is the prompt's
      curve.points.push_back({static_cast<double>(options.prompt) + static_cast<double>(i),
                              kvick::spread_of(of_token[i]).median});
    }
    m.check = has_cache ? "without cache" : "with cache";
    curves.push_back(std::move(curve));
    section.measurements.push_back(std::move(m));
  }
  section.curves.push_back({"Time of a token", "tokens before it", "ms", std::move(curves)});
  const double ratio = kvick::spread_of(section.measurements[0].samples).median /
                       kvick::spread_of(section.measurements[1].samples).median;
  section.note =
      kvick::detail::concat(options.tokens, " tokens after a prompt of ", options.prompt,
                            ", the same outputs: ", kvick::short_number(ratio),
                            " times as fast with the cache, and more the longer it gets.");
  detail::compare_cache_types(session, options.depth, section);
  return section;
}

}  // namespace programs::bench
