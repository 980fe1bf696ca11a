// SPDX-License-Identifier: MIT
// What the parts of kvick-bench share: the model that is measured, the same model once more for
// checks, and the limits of the machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

#include "kvick/bench/benchmark.hpp"
#include "kvick/bench/engine_target.hpp"
#include "kvick/bench/machine.hpp"
#include "kvick/bench/report.hpp"
#include "kvick/bench/synthetic_model.hpp"
#include "kvick/core/cpu.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/serving/engine_core.hpp"
#include "support/limits.hpp"
#include "support/model.hpp"
#include "support/model_run.hpp"
#include "support/program.hpp"
#include "support/progress_bar.hpp"
#include "support/rounds.hpp"
#include "support/table.hpp"
#include "support/tensor_types.hpp"

namespace programs::bench {

using kvick::Measurement;
using kvick::ReportSection;
using kvick::Transformer;

/// Of every subcommand that measures.
struct CommonOptions {
  std::string model;      // file; empty: the demo model
  std::string synthetic;  // SHAPE or SHAPE:TYPE instead; may be empty
  std::string isa;        // empty: the CPU's best
  ModelOptions run;
  int num_rounds = 7;
  int check_tokens = -1;  // -1: as many as take some seconds
  std::uint64_t seed = 0;
  std::string json, csv, html;  // files to write; may be empty
};

/// A model file of random weights that lives as long as this does.
class TemporaryModel {
 public:
  explicit TemporaryModel(const std::string& name) {
    const std::size_t colon = name.find(':');
    type_ = parse_tensor_type("the type of --synthetic",
                              colon == std::string::npos ? "q8_0" : name.substr(colon + 1));
    const kvick::ModelShape& shape = kvick::find_model_shape(name.substr(0, colon));
#if defined(__unix__) || defined(__APPLE__)
    const auto process = static_cast<long>(getpid());
#else
    const long process = 0;
#endif
    path_ = std::filesystem::temp_directory_path() /
            kvick::detail::concat("kvick-bench-", process, "-", shape.name, "-",
                                  kvick::info(type_).name, ".gguf");
    kvick::synthetic_model(shape, {.type = type_}).write(path_);
  }
  TemporaryModel(const TemporaryModel&) = delete;
  TemporaryModel& operator=(const TemporaryModel&) = delete;
  ~TemporaryModel() {
    std::error_code error;
    std::filesystem::remove(path_, error);
  }

  const std::filesystem::path& path() const { return path_; }
  kvick::TensorType type() const { return type_; }

 private:
  std::filesystem::path path_;
  kvick::TensorType type_;
};

/// The file of a model, perhaps one that goes with it.
struct SessionModel {
  std::filesystem::path path;
  std::shared_ptr<const TemporaryModel> temporary = {};
};

/// The limits of this machine, found once.
class Limits {
 public:
  Limits(kvick::Isa isa, int num_threads) : pool_(num_threads), isa_(isa) {}

  /// Nothing where no loop is known that bounds the kernels.
  const std::optional<measure::Limit>& multiply() {
    if (!multiply_) multiply_ = measure::best_limit(measure::LimitKind::kInt8, isa_, pool_);
    return *multiply_;
  }
  const std::optional<measure::Limit>& floats() {
    if (!floats_) floats_ = measure::best_limit(measure::LimitKind::kF32, isa_, pool_);
    return *floats_;
  }
  const std::optional<measure::Limit>& read() {
    if (!read_) read_ = measure::best_limit(measure::LimitKind::kRead, isa_, pool_);
    return *read_;
  }

  /// The loops of those that were needed, for the report.
  std::vector<std::pair<std::string, std::string>> facts() const {
    std::vector<std::pair<std::string, std::string>> facts;
    for (const auto* limit : {&multiply_, &floats_, &read_}) {
      if (!*limit || !**limit) continue;
      facts.emplace_back("loop of the " + (**limit)->probe.name, (**limit)->variant);
    }
    return facts;
  }

 private:
  kvick::ThreadPool pool_;
  kvick::Isa isa_;
  std::optional<std::optional<measure::Limit>> multiply_, floats_, read_;
};

class Session {
 public:
  explicit Session(const CommonOptions& options)
      : options_(options),
        isa_(options.isa.empty() ? kvick::default_isa() : kvick::parse_isa(options.isa)) {
    file_ = options.synthetic.empty() ? SessionModel{options.model} : synthetic(options.synthetic);
    model_.emplace(load(file_, options.run, isa_));
    memory_after_loading_ = kvick::peak_memory_bytes();
    limits_.emplace(isa_, model_->num_threads());
  }

  const CommonOptions& options() const { return options_; }
  Transformer& model() { return *model_; }
  Limits& limits() { return *limits_; }
  bool is_synthetic() const { return file_.temporary != nullptr; }
  const std::filesystem::path& path() const { return file_.path; }
  std::optional<std::uint64_t> memory_after_loading() const { return memory_after_loading_; }

  /// What the model's weights become while loading.
  std::optional<kvick::TensorType> converted() const {
    if (options_.run.weights == "keep") return std::nullopt;
    return parse_tensor_type("--weights", options_.run.weights);
  }
  measure::MatrixSizes sizes() { return measure::matrix_sizes(model_->file(), converted()); }

  /// Whether no cache holds the weights, so that reading memory bounds a step. What the system says
  /// of the last level is the whole host's; half of what the limit itself goes through is enough.
  static bool is_beyond_caches(double bytes) {
    return bytes >= static_cast<double>(measure::kMemoryBytes) / 2;
  }

  /// The model in the same file, run in another way.
  Transformer load(const SessionModel& file, const ModelOptions& run, kvick::Isa isa) const {
    return load_model(kvick::GgufFile(file.path), run, isa);
  }

  /// The model with weights of `type`, and how to load it: converted while loading, or a synthetic
  /// one of that type, which is made in no time.
  SessionModel in_format(const std::string& type, ModelOptions& run) const {
    run.weights = is_synthetic() ? "keep" : type;
    if (!is_synthetic() || kvick::info(file_.temporary->type()).name == type) return file_;
    return synthetic(options_.synthetic.substr(0, options_.synthetic.find(':')) + ":" + type);
  }

  /// The same model on portable kernels: what results are checked against.
  Transformer& plain() {
    if (!plain_) plain_.emplace(load(file_, options_.run, kvick::Isa::kPortable));
    return *plain_;
  }

  /// Tokens that a check may compute: portable kernels do 8e9 weights of a 2-core CPU's a second.
  int check_tokens() {
    if (options_.check_tokens >= 0) return options_.check_tokens;
    return static_cast<int>(std::clamp(3e10 / sizes().weights(), 16.0, 100000.0));
  }

  measure::RoundOptions rounds(ProgressBar& progress) const {
    return {.num_rounds = options_.num_rounds,
            .progress = [&](std::size_t done, std::size_t total) { progress.update(done, total); }};
  }

  kvick::FactGroup model_facts() {
    const kvick::ModelConfig& config = model_->config();
    const measure::MatrixSizes sizes = this->sizes();
    char fingerprint[32];
    std::snprintf(fingerprint, sizeof fingerprint, "%016llx",
                  static_cast<unsigned long long>(model_->fingerprint()));
    const auto name = model_->file().try_get<std::string_view>("general.name");
    std::string shown = options_.synthetic.empty() ? file_.path.filename().string()
                                                   : "synthetic " + options_.synthetic;
    return {
        "model",
        {{"name", printable(shown)},
         {"general.name", name ? printable(*name) : "-"},
         {"fingerprint", fingerprint},
         {"parameters", grouped(static_cast<std::uint64_t>(sizes.weights()))},
         {"bytes of matrices", grouped(static_cast<std::uint64_t>(sizes.bytes))},
         {"layers", std::to_string(config.num_layers)},
         {"embedding", std::to_string(config.embedding_dim)},
         {"heads, KV heads", kvick::detail::concat(config.num_heads, ", ", config.num_kv_heads)},
         {"MLP", std::to_string(config.ffn_dim)},
         {"vocabulary", std::to_string(config.vocab_size)}}};
  }

 private:
  static SessionModel synthetic(const std::string& name) {
    const auto temporary = std::make_shared<const TemporaryModel>(name);
    return {temporary->path(), temporary};
  }

  CommonOptions options_;
  kvick::Isa isa_;
  SessionModel file_;
  std::optional<Transformer> model_;
  std::optional<Transformer> plain_;
  std::optional<Limits> limits_;
  std::optional<std::uint64_t> memory_after_loading_;
};

/// A probe's rates as a measurement.
inline Measurement to_measurement(const measure::ProbeResult& result, std::string unit) {
  return {.name = result.probe.name,
          .unit = std::move(unit),
          .samples = result.rates(result.probe.work.front())};
}

/// Adds the limit, round by round, as the rate of a measurement whose unit is worth `amount` of the
/// limit's: a token takes so many operations or bytes.
inline void add_limit(Measurement& measurement, const measure::RoundsResult& result,
                      const std::optional<measure::Limit>& limit, double amount,
                      const std::string& name) {
  if (!limit) return;
  const measure::ProbeResult& probe = result.probe(limit->probe.name);
  for (const double rate : probe.rates(probe.probe.work.front())) {
    measurement.limits.push_back(rate / amount);
  }
  measurement.limit_name = name;
}

inline double median_rate(const measure::RoundsResult& result, const std::string& name) {
  const measure::ProbeResult& probe = result.probe(name);
  return kvick::spread_of(probe.rates(probe.probe.work.front())).median;
}

/// Throws if two digests of what must be equal differ.
inline void require_equal(const std::string& fast, const std::string& plain,
                          const std::string& what) {
  if (fast == plain) return;
  throw BadInput(what + " must have digest " + plain + ", got " + fast +
                 "; there is no speed of a wrong result");
}

/// Seconds as milliseconds.
inline std::vector<double> milliseconds(const std::vector<double>& seconds) {
  std::vector<double> result;
  for (const double value : seconds) result.push_back(1e3 * value);
  return result;
}

}  // namespace programs::bench
