// SPDX-License-Identifier: MIT
// kvick-bench batch: decoding many sequences at once.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/session.hpp"

namespace programs::bench {

struct BatchPartOptions {
  std::vector<int> sizes = {1, 2, 4, 8, 16};
  int depth = 64;        // tokens of each sequence before those decoded
  int check_output = 8;  // tokens
};

/// Sequences at one depth, decoded one step further and taken back.
class BatchRun {
 public:
  BatchRun(Transformer& model, const BatchPartOptions& options, kvick::ElementType cache_type)
      : model_(model),
        depth_(options.depth),
        num_sequences_(*std::max_element(options.sizes.begin(), options.sizes.end())),
        cache_(model.make_cache({.num_sequences = num_sequences_,
                                 .max_seq_len = options.depth + 1,
                                 .element_type = cache_type})),
        logits_(num_sequences_, model.vocab_size()) {
    for (int s = 0; s < num_sequences_; ++s) {
      tokens_.push_back(measure::arbitrary_tokens(static_cast<std::size_t>(depth_) + 1,
                                                  model.vocab_size(),
                                                  static_cast<unsigned>(s) * 1000));
      const auto known = std::span(tokens_.back()).first(static_cast<std::size_t>(depth_));
      if (known.empty()) continue;
      if (!cache_.reserve(s, depth_)) throw BadInput("the cache is full");
      model_.forward(kvick::Batch({.sequence = s, .tokens = known}), cache_, logits_.topRows(0));
      cache_.commit(s, known);
    }
  }

  void step(int size) {
    batch_.clear();
    for (int s = 0; s < size; ++s) {
      if (!cache_.reserve(s, 1)) throw BadInput("the cache is full");
      batch_.add({s, depth_, std::span(tokens_[static_cast<std::size_t>(s)]).last(1), 1});
    }
    model_.forward(batch_, cache_, logits_.topRows(size));  // not committed: the next repeats it
  }

 private:
  Transformer& model_;
  int depth_;
  int num_sequences_;
  Transformer::Cache cache_;
  kvick::Matrix logits_;
  kvick::Batch batch_;
  std::vector<std::vector<kvick::TokenId>> tokens_;
};

namespace detail {

/// Outputs of `size` requests together; each checked against its lone run, the first ones on
/// portable kernels.
inline void check_batch(Session& session, const BatchPartOptions& options, int size,
                        Measurement& measurement) {
  const kvick::Workload workload =
      kvick::make_workload({.num_requests = size,
                            .prompt_tokens = kvick::fixed_length(8),
                            .output_tokens = kvick::fixed_length(options.check_output),
                            .seed = session.options().seed,
                            .vocab_size = session.model().vocab_size()});
  const kvick::ElementType cache_type = session.options().run.cache_type();
  kvick::EngineCore engine(session.model(),
                           {.scheduler = {.max_batch_size = size,
                                          .max_seq_len = 8 + options.check_output,
                                          .max_num_batched_tokens = std::max(512, size)},
                            .cache = {.element_type = cache_type}});
  kvick::EngineTarget target(engine);
  const auto outputs = kvick::run_workload(target, workload).outputs;
  measurement.digest = kvick::digest_of(outputs);
  if (session.check_tokens() == 0) return;
  kvick::check_outputs(session.model(), workload, outputs, {.cache_type = cache_type});
  const auto max_tokens = static_cast<std::size_t>(std::max(session.check_tokens() / 4, 1));
  const std::size_t portable = kvick::check_outputs(
      session.plain(), workload, outputs, {.cache_type = cache_type, .max_tokens = max_tokens});
  measurement.check = kvick::detail::concat("alone, portable (", portable, " tokens)");
}

}  // namespace detail

inline ReportSection batch_part(Session& session, const BatchPartOptions& options) {
  const measure::MatrixSizes sizes = session.sizes();
  auto run =
      std::make_shared<BatchRun>(session.model(), options, session.options().run.cache_type());
  measure::Rounds rounds;
  const auto& multiply = session.limits().multiply();
  const auto& read = session.limits().read();
  if (multiply) rounds.add(multiply->probe);
  if (read) rounds.add(read->probe);
  const auto name_of = [](int size) { return "batch of " + std::to_string(size); };
  for (const int size : options.sizes) {
    rounds.add({name_of(size),
                [run, size](kvick::Index calls) {
                  for (kvick::Index i = 0; i < calls; ++i) run->step(size);
                },
                {{"tokens/s", static_cast<double>(size)}}});
  }
  ProgressBar progress("batch");
  const measure::RoundsResult result = rounds.run(session.rounds(progress));

  ReportSection section{"batch", "Batches"};
  kvick::Curve rate_curve{"measured", {}}, limit_curve{"limit", {}}, time_curve{"step", {}};
  for (const int size : options.sizes) {
    Measurement m = to_measurement(result.probe(name_of(size)), "tokens/s");
    // Whichever of the two limits is lower, round by round.
    Measurement by_reading, by_multiplying;
    add_limit(by_reading, result, read, sizes.bytes * 1e-9 / size, "memory");
    add_limit(by_multiplying, result, multiply, 2e-9 * sizes.weights(), "int8 multiplies");
    if (read && multiply && Session::is_beyond_caches(sizes.bytes)) {
      const bool is_read = kvick::spread_of(by_reading.limits).median <
                           kvick::spread_of(by_multiplying.limits).median;
      const Measurement& lower = is_read ? by_reading : by_multiplying;
      m.limits = lower.limits;
      m.limit_name = lower.limit_name;
      limit_curve.points.push_back(
          {static_cast<double>(size), kvick::spread_of(lower.limits).median});
    }
    const double rate = kvick::spread_of(m.samples).median;
    rate_curve.points.push_back({static_cast<double>(size), rate});
    time_curve.points.push_back({static_cast<double>(size), 1e3 * size / rate});
    detail::check_batch(session, options, size, m);
    section.measurements.push_back(std::move(m));
  }
  section.curves = {{"Throughput", "sequences", "tokens/s", {rate_curve}},
                    {"Time of a step", "sequences", "ms", {time_curve}}};
  section.headline = section.measurements.size() - 1;
  section.note = kvick::detail::concat("One token of each sequence per step, ", options.depth,
                                       " tokens cached. Weights are read once for all sequences, "
                                       "so a step takes little longer until "
                                       "multiplying is the limit. Digests are of greedy outputs.");
  return section;
}

}  // namespace programs::bench
