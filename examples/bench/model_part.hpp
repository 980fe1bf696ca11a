// SPDX-License-Identifier: MIT
// kvick-bench model: prefill and decoding beside the limits of the machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/session.hpp"

namespace programs::bench {

struct ModelPartOptions {
  std::vector<int> prefill = {512};
  std::vector<int> decode = {64};
  std::vector<int> depths = {0};
};

namespace detail {

/// Compares the measured path with portable kernels, on all that was measured if that is short, on
/// the first tokens otherwise. Returns what was compared with.
inline std::string check_run(Session& session, measure::ModelRunOptions wanted, bool is_prefill) {
  const int budget = session.check_tokens();
  if (budget == 0) return "";
  const int num_tokens = is_prefill ? wanted.prefill_tokens : wanted.depth + wanted.decode_tokens;
  const bool is_whole = num_tokens <= budget;
  if (!is_whole && is_prefill) wanted.prefill_tokens = budget;
  if (!is_whole && !is_prefill) {
    wanted.decode_tokens = std::min(wanted.decode_tokens, std::max(budget / 4, 1));
    wanted.depth = std::min(wanted.depth, budget - wanted.decode_tokens);
  }
  const auto digest = [&](Transformer& model) {
    measure::ModelRun run(model, wanted);
    return is_prefill ? run.prefill_digest() : run.decode_digest();
  };
  require_equal(digest(session.model()), digest(session.plain()),
                is_prefill ? "prefill" : "decoding");
  return is_whole ? "portable" : kvick::detail::concat("portable (", budget, " tokens)");
}

}  // namespace detail

inline ReportSection model_part(Session& session, const ModelPartOptions& options) {
  const measure::MatrixSizes sizes = session.sizes();
  const kvick::ElementType cache_type = session.options().run.cache_type();
  struct Case {
    std::shared_ptr<measure::ModelRun> run;
    std::string name;
    bool is_prefill;
    std::string digest = {};
  };
  std::vector<Case> cases;
  const auto add = [&](const measure::ModelRunOptions& run, std::string name, bool is_prefill) {
    cases.push_back(
        {std::make_shared<measure::ModelRun>(session.model(), run), std::move(name), is_prefill});
  };
  for (const int tokens : options.prefill) {
    add({.prefill_tokens = tokens, .decode_tokens = 0, .cache_type = cache_type},
        kvick::detail::concat("prefill of ", tokens, " tokens"), true);
  }
  for (const int tokens : options.decode) {
    for (const int depth : options.depths) {
      add({.prefill_tokens = 0, .decode_tokens = tokens, .depth = depth, .cache_type = cache_type},
          kvick::detail::concat("decode of ", tokens, " tokens after ", depth), false);
    }
  }

  // Before the limits, whose buffers would count.
  for (Case& c : cases) {
    c.digest = c.is_prefill ? c.run->prefill_digest() : c.run->decode_digest();
  }
  const std::optional<std::uint64_t> peak_memory = kvick::peak_memory_bytes();

  measure::Rounds rounds;
  const auto& multiply = session.limits().multiply();
  const auto& read = session.limits().read();
  if (multiply) rounds.add(multiply->probe);
  if (read) rounds.add(read->probe);
  for (const Case& c : cases) {
    const auto body = [run = c.run, is_prefill = c.is_prefill](kvick::Index calls) {
      for (kvick::Index i = 0; i < calls; ++i) is_prefill ? run->prefill() : run->decode();
    };
    const auto& o = c.run->options();
    rounds.add(
        {c.name,
         body,
         {{"tokens/s", static_cast<double>(c.is_prefill ? o.prefill_tokens : o.decode_tokens)}}});
  }
  ProgressBar progress("model");
  const measure::RoundsResult result = rounds.run(session.rounds(progress));

  ReportSection section{"model", "Model"};
  kvick::Roofline roofline{"Against the limits of this machine"};
  if (multiply) roofline.compute_limit = median_rate(result, multiply->probe.name);
  if (read) roofline.read_limit = median_rate(result, read->probe.name);
  for (Case& c : cases) {
    Measurement m = to_measurement(result.probe(c.name), "tokens/s");
    const double rows = c.is_prefill ? c.run->options().prefill_tokens : 1;
    const double operations = 2 * (sizes.layer_weights + sizes.head_weights / rows);  // per token
    if (c.is_prefill) {
      add_limit(m, result, multiply, operations * 1e-9, "int8 multiplies");
    } else if (Session::is_beyond_caches(sizes.bytes)) {
      add_limit(m, result, read, sizes.bytes * 1e-9, "memory");
    }
    m.digest = c.digest;
    const std::string again = c.is_prefill ? c.run->prefill_digest() : c.run->decode_digest();
    require_equal(again, c.digest, "a repetition of " + c.name);
    const double rate = kvick::spread_of(m.samples).median;
    roofline.points.push_back({c.name, operations * rows / sizes.bytes, rate * operations * 1e-9});
    section.measurements.push_back(std::move(m));
  }
  for (const auto& [name, bytes] :
       {std::pair("peak memory", peak_memory),
        {"peak memory while loading", session.memory_after_loading()}}) {
    if (!bytes) continue;
    section.measurements.push_back({.name = name,
                                    .unit = "MB",
                                    .more_is_better = false,
                                    .samples = {1e-6 * static_cast<double>(*bytes)}});
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    section.measurements[i].check =
        detail::check_run(session, cases[i].run->options(), cases[i].is_prefill);
  }
  section.note = "Medians of interleaved rounds. Digests are of the bits of the logits.";
  if (Session::is_beyond_caches(sizes.bytes)) {
    section.rooflines.push_back(std::move(roofline));
    section.note +=
        " Prefill is bounded by multiplying, decoding by reading the weights; the roof is the "
        "lower of both.";
  } else {
    section.note += " The weights fit a cache, so memory is no limit of decoding.";
  }
  return section;
}

}  // namespace programs::bench
