// SPDX-License-Identifier: MIT
// kvick-bench quant: the same model with weights of several formats: speed, memory and quality.
//
// Quality is measured as kvick-eval does, against the model as it is stored, with f32 activations.
// Without a text, on tokens that this reference itself wrote at temperature 1.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/session.hpp"
#include "kvick/sampling/evaluation.hpp"
#include "kvick/sampling/sampler.hpp"
#include "support/default_model.hpp"
#include "support/evaluation_tokens.hpp"
#include "support/system.hpp"

namespace programs::bench {

struct QuantPartOptions {
  std::vector<std::string> types = {"f32", "f16", "q8_0", "q4_0"};
  int prefill = 128;
  int decode = 8;
  std::string quality_model;  // empty: the model itself, or the demo model for a synthetic one
  std::string text_file;      // empty: the reference's own tokens
  int quality_tokens = 512;
};

namespace detail {

struct Quality {
  kvick::ComparisonSummary summary;
  std::size_t num_scored = 0;
};

/// Tokens that the model writes at temperature 1.
inline std::vector<kvick::TokenId> own_tokens(Transformer& model, int count, std::uint64_t seed) {
  const int context = std::min(model.max_seq_len(), 512);
  kvick::Sampler sampler({.temperature = 1.0f, .seed = seed});
  auto cache = model.make_cache({.max_seq_len = context});
  kvick::Matrix logits(1, model.vocab_size());
  std::vector<kvick::TokenId> tokens;
  for (std::uint64_t index = 0; static_cast<int>(tokens.size()) < count; ++index) {
    if (tokens.size() % static_cast<std::size_t>(context) == 0) {
      cache.release(0);  // a window of its own, as they are scored
      tokens.push_back(std::min(1, model.vocab_size() - 1));
    }
    if (!cache.reserve(0, 1)) throw BadInput("the cache is full");
    const auto last = std::span<const kvick::TokenId>(tokens).last(1);
    model.forward(kvick::Batch({0, cache.length(0), last, 1}), cache, logits);
    cache.commit(0, last);
    if (tokens.size() % static_cast<std::size_t>(context) != 0) {
      tokens.push_back(
          sampler.sample({logits.data(), static_cast<std::size_t>(logits.size())}, index));
    }
  }
  return tokens;
}

class QualityMeter {
 public:
  QualityMeter(Session& session, const QuantPartOptions& options)
      : path_(options.quality_model), threads_(session.options().run.threads) {
    if (path_.empty()) {
      path_ = session.is_synthetic() ? default_model() : session.path().string();
    }
    reference_.emplace(
        kvick::GgufFile(path_),
        kvick::TransformerOptions{.threads = threads_, .activations = kvick::ActivationType::kF32});
    tokens_ = options.text_file.empty()
                  ? own_tokens(*reference_, options.quality_tokens, session.options().seed)
                  : read_evaluation_tokens("", options.text_file, reference_->file());
  }

  const std::string& path() const { return path_; }

  Quality measure(kvick::TensorType type) {
    Transformer model{kvick::GgufFile(path_),
                      kvick::TransformerOptions{.threads = threads_, .weights = type}};
    const auto comparison =
        kvick::compare_models(model, *reference_, tokens_,
                              {.context = std::min(model.max_seq_len(), 512), .threads = threads_});
    return {kvick::summarize(comparison), comparison.nll.size()};
  }

 private:
  std::string path_;
  int threads_;
  std::optional<Transformer> reference_;
  std::vector<kvick::TokenId> tokens_;
};

inline std::string with_error(const kvick::MeanEstimate& estimate, double scale, int decimals) {
  return with_decimals(scale * estimate.mean, decimals) + " +- " +
         with_decimals(scale * estimate.standard_error, decimals);
}

/// Prefill and decode of one model; limits in turn with them.
inline void measure_speed(Session& session, Transformer& model, const std::string& type,
                          const QuantPartOptions& options, ReportSection& section) {
  const measure::MatrixSizes sizes =
      measure::matrix_sizes(model.file(), parse_tensor_type("--types", type));
  const bool is_float = type == "f32" || type == "f16" || type == "bf16";
  const auto& multiply = is_float ? session.limits().floats() : session.limits().multiply();
  const auto& read = session.limits().read();
  measure::ModelRun run(model, {.prefill_tokens = options.prefill,
                                .decode_tokens = options.decode,
                                .cache_type = session.options().run.cache_type()});
  const std::string prefill = type + ", prefill of " + std::to_string(options.prefill);
  const std::string decode = type + ", decode";
  measure::Rounds rounds;
  if (multiply) rounds.add(multiply->probe);
  if (read) rounds.add(read->probe);
  rounds.add({prefill,
              [&](kvick::Index calls) {
                for (kvick::Index i = 0; i < calls; ++i) run.prefill();
              },
              {{"tokens/s", static_cast<double>(options.prefill)}}});
  rounds.add({decode,
              [&](kvick::Index calls) {
                for (kvick::Index i = 0; i < calls; ++i) run.decode();
              },
              {{"tokens/s", static_cast<double>(options.decode)}}});
  ProgressBar progress("quant " + type);
  const measure::RoundsResult result = rounds.run(session.rounds(progress));
  Measurement prefilled = to_measurement(result.probe(prefill), "tokens/s");
  add_limit(prefilled, result, multiply,
            2e-9 * (sizes.layer_weights + sizes.head_weights / options.prefill),
            is_float ? "f32 multiplies" : "int8 multiplies");
  prefilled.digest = run.prefill_digest();
  Measurement decoded = to_measurement(result.probe(decode), "tokens/s");
  if (Session::is_beyond_caches(sizes.bytes)) {
    add_limit(decoded, result, read, sizes.bytes * 1e-9, "memory");
  }
  decoded.digest = run.decode_digest();
  section.measurements.push_back(std::move(prefilled));
  section.measurements.push_back(std::move(decoded));
}

/// The first tokens on portable kernels.
inline std::string check_speed(Session& session, const SessionModel& source, Transformer& model,
                               const ModelOptions& options) {
  const int budget = std::min(session.check_tokens(), 64);
  if (budget == 0) return "";
  const measure::ModelRunOptions wanted{.prefill_tokens = std::max(budget / 2, 1),
                                        .decode_tokens = 0,
                                        .cache_type = options.cache_type()};
  Transformer plain = session.load(source, options, kvick::Isa::kPortable);
  require_equal(measure::ModelRun(model, wanted).prefill_digest(),
                measure::ModelRun(plain, wanted).prefill_digest(),
                "the model in " + options.weights);
  return kvick::detail::concat("portable (", wanted.prefill_tokens, " tokens)");
}

}  // namespace detail

inline ReportSection quant_part(Session& session, const QuantPartOptions& options) {
  ReportSection section{"quant", "Quantization"};
  detail::QualityMeter meter(session, options);
  kvick::ReportTable table{"Memory and quality",
                           {{"weights", "MB of weights", "bits per weight", "seconds to load",
                             "KL divergence, nats", "same top token, %", "perplexity"}}};
  kvick::CurvePlot plot{
      "Quality against speed", "decode, tokens/s", "KL divergence, millinats", {}};
  for (const std::string& type : options.types) {
    ModelOptions run = session.options().run;
    const SessionModel source = session.in_format(type, run);
    const Stopwatch time;
    Transformer model = session.load(source, run, session.model().isa());
    const double load_seconds = time.seconds();
    const std::size_t first = section.measurements.size();
    detail::measure_speed(session, model, type, options, section);
    const std::string check = detail::check_speed(session, source, model, run);
    for (std::size_t i = first; i < section.measurements.size(); ++i) {
      section.measurements[i].check = check;
    }
    const kvick::TensorType tensor_type = parse_tensor_type("--types", type);
    const measure::MatrixSizes sizes = measure::matrix_sizes(model.file(), tensor_type);
    const detail::Quality quality = meter.measure(tensor_type);
    const auto& s = quality.summary;
    table.rows.push_back({type, with_decimals(sizes.bytes * 1e-6, 0),
                          with_decimals(8 * sizes.bytes / sizes.weights(), 2),
                          with_decimals(load_seconds, 1), detail::with_error(s.divergence, 1, 5),
                          detail::with_error(s.same_top, 100, 1),
                          with_decimals(kvick::perplexity(s.nll).mean, 4)});
    plot.curves.push_back({type,
                           {{kvick::spread_of(section.measurements.back().samples).median,
                             1e3 * s.divergence.mean, type}}});
    section.note = kvick::detail::concat(
        "Quality on ", quality.num_scored, " tokens ",
        options.text_file.empty() ? "that the reference wrote itself" : "of a text", ", against ",
        std::filesystem::path(meter.path()).filename().string(),
        " as stored with f32 activations: perplexity ",
        with_decimals(kvick::perplexity(s.reference_nll).mean, 4), ".");
  }
  section.headline = section.measurements.size() - 1;
  section.curves.push_back(std::move(plot));
  section.tables.push_back(std::move(table));
  return section;
}

}  // namespace programs::bench
