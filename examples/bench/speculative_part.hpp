// SPDX-License-Identifier: MIT
// kvick-bench speculative: what drafts gain over plain decoding, in turns, with equal outputs.
//
// Random weights write no text. So instead of a synthetic model the demo model tells its stories,
// with drafts of the small demo model; and the synthetic one shows what a pass over several tokens
// costs, and decodes given texts that repeat what came before.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/session.hpp"
#include "kvick/speculative/draft_model.hpp"
#include "kvick/speculative/prompt_lookup.hpp"
#include "kvick/speculative/speculative.hpp"
#include "kvick/text/tokenizer.hpp"
#include "support/default_model.hpp"
#include "support/repeating_texts.hpp"
#include "support/speculation_run.hpp"
#include "support/system.hpp"

namespace programs::bench {

struct SpeculativePartOptions {
  std::string draft;  // file; empty: the demo draft for the demo model
  std::vector<int> num_drafted = {2, 4, 8};
  int tokens = 96;                      // decoded per prompt
  std::vector<std::string> prompts = {  // as stories of the demo model begin
      "Once upon a time, there was a kind boy named Leo. Leo lived in a village on a hill.",
      "Once upon a time, there was a brave duck called Coco. She lived beside an old mill.",
      "Once upon a time, an eager girl named Ella had a great idea. Ella lived by the sea."};
};

namespace detail {

using Tokens = std::vector<kvick::TokenId>;

/// One way of decoding, and what came of it over all rounds.
struct Decoding {
  std::string source;  // empty: plain
  int num_drafted = 0;
  bool adapts = false;
  /// The decoded text behind a prompt.
  std::function<measure::Decoded(const Tokens& prompt, const kvick::SpeculativeOptions&)> run;

  std::vector<double> rates = {};  // tokens/s, one per round
  std::string digest = {};
  kvick::SpeculativeStatistics statistics = {};  // counts of a round, of all prompts

  std::string name() const {
    if (source.empty()) return "plain";
    return kvick::detail::concat(source, adapts ? ", at most " : ", k = ", num_drafted);
  }
};

inline void add_counts(kvick::SpeculativeStatistics& sum,
                       const kvick::SpeculativeStatistics& more) {
  sum.num_rounds += more.num_rounds;
  sum.num_generated += more.num_generated;
  sum.num_drafted += more.num_drafted;
  sum.num_accepted += more.num_accepted;
  for (std::size_t i = 0; i < sum.drafted_at.size(); ++i) {
    sum.drafted_at[i] += more.drafted_at[i];
    sum.accepted_at[i] += more.accepted_at[i];
  }
}

/// A round of each in turns; all outputs must be those of the first, which is plain. Returns them.
inline std::vector<Tokens> decode_in_turns(std::vector<Decoding>& ways,
                                           const std::vector<Tokens>& prompts, int num_tokens,
                                           int num_rounds, kvick::ElementType cache_type,
                                           const std::string& label) {
  constexpr double kEnoughSeconds = 10;
  ProgressBar progress(label);
  const Stopwatch time;
  for (const Decoding& way : ways) {  // a warm-up
    way.run(prompts.front(), {.max_new_tokens = std::min(num_tokens, 8),
                              .draft_tokens = way.num_drafted,
                              .adapts = false,
                              .cache_type = cache_type});
  }
  std::vector<Tokens> plain;
  for (int round = 0; round < num_rounds; ++round) {
    if (round > 0 && time.seconds() > kEnoughSeconds) break;
    for (std::size_t i = 0; i < ways.size(); ++i) {
      Decoding& way = ways[i];
      const kvick::SpeculativeOptions options{.max_new_tokens = num_tokens,
                                              .draft_tokens = way.num_drafted,
                                              .adapts = way.adapts,
                                              .cache_type = cache_type};
      double seconds = 0;
      std::vector<Tokens> outputs;
      way.statistics = {};
      for (const Tokens& prompt : prompts) {
        const measure::Decoded decoded = way.run(prompt, options);
        seconds += decoded.seconds;
        outputs.emplace_back(decoded.tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()),
                             decoded.tokens.end());
        add_counts(way.statistics, decoded.statistics);
      }
      way.rates.push_back(static_cast<double>(way.statistics.num_generated) / seconds);
      way.digest = kvick::digest_of(outputs);
      if (plain.empty()) plain = outputs;
      require_equal(way.digest, kvick::digest_of(plain), "decoding with " + way.name());
      progress.update(static_cast<std::size_t>(round) * ways.size() + i + 1,
                      static_cast<std::size_t>(num_rounds) * ways.size());
    }
  }
  return plain;
}

/// How often each was as fast as plain decoding in the same round.
inline std::vector<double> speedups(const Decoding& way, const Decoding& plain) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < way.rates.size(); ++i) {
    ratios.push_back(way.rates[i] / plain.rates[i]);
  }
  return ratios;
}

inline constexpr const char* kSpeedupUnit = "times plain";

inline std::string quotient(std::int64_t a, std::int64_t b, double scale, int decimals) {
  if (b == 0) return "-";
  return with_decimals(scale * static_cast<double>(a) / static_cast<double>(b), decimals);
}

/// A row of the table of drafts for each way.
inline void add_rows(const std::vector<Decoding>& ways, const std::string& prefix,
                     kvick::ReportTable& table) {
  for (const Decoding& way : ways) {
    const auto& s = way.statistics;
    table.rows.push_back({prefix + way.name(), std::to_string(s.num_drafted),
                          quotient(s.num_accepted, s.num_drafted, 100, 1),
                          quotient(s.num_generated, s.num_rounds, 1, 2),
                          kvick::short_number(kvick::spread_of(way.rates).median)});
  }
}

/// What each that drafts gains over the first, which is plain.
inline void add_speedups(const std::vector<Decoding>& ways, const std::string& prefix,
                         const std::string& check, ReportSection& section) {
  for (const Decoding& way : ways) {
    if (way.source.empty()) continue;
    section.measurements.push_back({.name = prefix + way.name(),
                                    .unit = kSpeedupUnit,
                                    .samples = speedups(way, ways.front()),
                                    .digest = way.digest,
                                    .check = check});
  }
}

/// The model whose text is measured, and who drafts it.
struct SpeculativePair {
  std::string target_path;
  std::string draft_path;  // empty: nobody
  bool is_session_model = false;
};

inline SpeculativePair speculative_pair(const Session& session,
                                        const SpeculativePartOptions& options) {
  SpeculativePair pair{session.path().string(), options.draft, !session.is_synthetic()};
  if (session.is_synthetic()) pair.target_path = default_model();
  const std::filesystem::path target(pair.target_path);
  if (pair.draft_path.empty() && target.filename() == kDefaultModelName) {
    const auto draft = target.parent_path() / kDefaultDraftName;
    if (std::filesystem::exists(draft)) pair.draft_path = draft.string();
  }
  return pair;
}

inline int decoding_context(const Transformer& model, const std::vector<Tokens>& prompts,
                            int num_tokens) {
  std::size_t longest = 0;
  for (const Tokens& prompt : prompts) longest = std::max(longest, prompt.size());
  const int wanted = static_cast<int>(longest) + num_tokens;
  if (wanted > model.max_seq_len()) {
    throw BadInput(
        kvick::detail::concat("prompt and --speculative-tokens must be at most the "
                              "model's ",
                              model.max_seq_len(), " tokens, got ", wanted));
  }
  return wanted;
}

/// The tokens of plain decoding again, in one pass and on portable kernels.
inline std::string check_plain(Session& session, const SpeculativePair& pair,
                               const ModelOptions& run, Transformer& target,
                               const std::vector<Tokens>& prompts,
                               const std::vector<Tokens>& outputs) {
  const auto budget = static_cast<std::size_t>(session.check_tokens());
  if (budget == 0) return "";
  kvick::Workload workload;
  for (const Tokens& prompt : prompts) workload.requests.push_back({.prompt = prompt});
  const kvick::ElementType cache_type = run.cache_type();
  kvick::check_outputs(target, workload, outputs,
                       {.cache_type = cache_type, .max_tokens = 40 * budget});
  if (pair.is_session_model) {
    kvick::check_outputs(session.plain(), workload, outputs,
                         {.cache_type = cache_type, .max_tokens = budget});
  } else {  // the demo model takes no time
    Transformer plain = session.load({pair.target_path}, run, kvick::Isa::kPortable);
    kvick::check_outputs(plain, workload, outputs, {.cache_type = cache_type});
  }
  return "one pass, portable";
}

/// A curve of speed-ups over k, and one of acceptance by place.
inline void add_curves(const std::vector<Decoding>& ways, ReportSection& section) {
  kvick::CurvePlot speed{"Speed-up against tokens drafted", "k", "times plain", {}};
  kvick::CurvePlot places{"Acceptance by place in the draft", "place", "accepted, %", {}};
  for (const Decoding& way : ways) {
    if (way.source.empty() || way.adapts) continue;
    if (speed.curves.empty() || speed.curves.back().name != way.source) {
      speed.curves.push_back({way.source, {}});
      places.curves.push_back({way.source, {}});
    }
    speed.curves.back().points.push_back({static_cast<double>(way.num_drafted),
                                          kvick::spread_of(speedups(way, ways.front())).median});
    // The longest drafts, which come last, say most.
    places.curves.back().points.clear();
    for (int i = 0; i < way.num_drafted; ++i) {
      if (way.statistics.drafted_at[static_cast<std::size_t>(i)] == 0) continue;
      places.curves.back().points.push_back(
          {static_cast<double>(i + 1), 100 * way.statistics.acceptance_at(i)});
    }
  }
  if (!speed.curves.empty() && speed.curves.front().points.size() > 1) {
    section.curves.push_back(std::move(speed));
  }
  section.curves.push_back(std::move(places));
}

/// The text of a model, with drafts of a small one and of the text itself.
inline void measure_texts(Session& session, const SpeculativePartOptions& options,
                          ReportSection& section, kvick::ReportTable& table) {
  const SpeculativePair pair = speculative_pair(session, options);
  ModelOptions run = session.options().run;
  std::optional<Transformer> own;
  if (!pair.is_session_model) {
    run.weights = "keep";
    own.emplace(session.load({pair.target_path}, run, session.model().isa()));
  }
  Transformer& target = own ? *own : session.model();
  const kvick::Tokenizer tokenizer(target.file());
  std::vector<Tokens> prompts;
  for (const std::string& prompt : options.prompts) prompts.push_back(tokenizer.encode(prompt));
  const int context = decoding_context(target, prompts, options.tokens);
  auto cache = target.make_cache({.max_seq_len = context, .element_type = run.cache_type()});

  kvick::NoDraft none;
  kvick::PromptLookup lookup;
  std::optional<Transformer> small;
  std::optional<kvick::DraftModel<Transformer>> draft;
  std::vector<Decoding> ways;
  const auto add = [&](const std::string& source, int num_drafted, bool adapts, auto& drafts) {
    ways.push_back({source, num_drafted, adapts,
                    [&](const Tokens& prompt, const kvick::SpeculativeOptions& wanted) {
                      return measure::decode(target, cache, drafts, prompt, wanted);
                    }});
  };
  const auto add_source = [&](const std::string& source, auto& drafts) {
    for (const int k : options.num_drafted) add(source, k, false, drafts);
    add(source, *std::max_element(options.num_drafted.begin(), options.num_drafted.end()), true,
        drafts);
  };
  add("", 0, false, none);
  if (!pair.draft_path.empty()) {
    ModelOptions one = run;
    one.threads = 1;  // threads of two pools would wait for each other
    one.weights = "keep";
    small.emplace(session.load({pair.draft_path}, one, session.model().isa()));
    draft.emplace(*small, target, kvick::CacheOptions{.max_seq_len = context});
    add_source("draft model", *draft);
  }
  add_source("lookup", lookup);
  const auto outputs = decode_in_turns(ways, prompts, options.tokens, session.options().num_rounds,
                                       run.cache_type(), "speculative");
  const std::string check = check_plain(session, pair, run, target, prompts, outputs);
  for (const Decoding& way : ways) {
    section.measurements.push_back({.name = way.name(),
                                    .unit = "tokens/s",
                                    .samples = way.rates,
                                    .digest = way.digest,
                                    .check = way.source.empty() ? check : "plain decoding"});
  }
  add_speedups(ways, "", "plain decoding", section);
  add_rows(ways, "", table);
  add_curves(ways, section);
  // The speed-up of the best source when it drafts as it likes.
  for (std::size_t i = 0; i < section.measurements.size(); ++i) {
    const Measurement& m = section.measurements[i];
    if (m.unit != kSpeedupUnit || m.name.find("at most") == std::string::npos) continue;
    const Measurement* best = section.headline < section.measurements.size()
                                  ? &section.measurements[section.headline]
                                  : nullptr;
    if (best == nullptr ||
        kvick::spread_of(m.samples).median > kvick::spread_of(best->samples).median) {
      section.headline = i;
    }
  }
  const auto file_name = [](const std::string& path) {
    return std::filesystem::path(path).filename().string();
  };
  section.note = kvick::detail::concat(
      prompts.size(), " texts of ", options.tokens, " tokens by ", file_name(pair.target_path),
      pair.draft_path.empty() ? "" : ", drafts by " + file_name(pair.draft_path) + " on one thread",
      " and by looking up the text itself; k tokens in every round, or at most that many, as it "
      "pays. Times are of decoding; every output is that of plain decoding.");
}

/// What a pass over several tokens costs on the session's model.
inline void measure_passes(Session& session, ReportSection& section) {
  constexpr int kNumTokens[] = {1, 2, 3, 5, 9, 17};
  const int depth = std::min(256, session.model().max_seq_len() - 17);
  if (depth < 1) return;
  auto cache = session.model().make_cache(
      {.max_seq_len = depth + 17, .element_type = session.options().run.cache_type()});
  const auto seconds = measure::seconds_of_passes(session.model(), cache, kNumTokens, depth,
                                                  std::max(5, session.options().num_rounds));
  kvick::Curve curve{"pass", {}};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < seconds[i].size(); ++round) {
      ratios.push_back(seconds[i][round] / seconds[0][round]);
    }
    curve.points.push_back({static_cast<double>(kNumTokens[i]), kvick::spread_of(ratios).median});
  }
  section.curves.push_back(
      {"What verifying costs", "tokens of a pass", "times one token's time", {std::move(curve)}});
}

/// Given texts on the session's model, with drafts from the text itself.
inline void measure_given_texts(Session& session, const SpeculativePartOptions& options,
                                ReportSection& section, kvick::ReportTable& table) {
  Transformer& model = session.model();
  const kvick::Tokenizer tokenizer(model.file());
  const int most = *std::max_element(options.num_drafted.begin(), options.num_drafted.end());
  const kvick::ElementType cache_type = session.options().run.cache_type();
  for (const measure::RepeatingText& text : measure::repeating_texts()) {
    if (text.name == "summary") continue;  // between the others
    const Tokens prompt = tokenizer.encode(text.prompt);
    Tokens whole = prompt;
    for (const kvick::TokenId token : tokenizer.encode(text.answer, {.add_bos = false})) {
      whole.push_back(token);
    }
    if (static_cast<int>(whole.size()) > model.max_seq_len()) continue;
    const int num_new = std::min(options.tokens, static_cast<int>(whole.size() - prompt.size()));
    measure::ForcedModel forced(model, whole);
    auto cache = forced.make_cache(
        {.max_seq_len = static_cast<int>(whole.size()), .element_type = cache_type});
    kvick::NoDraft none;
    kvick::PromptLookup lookup;
    std::vector<Decoding> ways(2);
    ways[0].run = [&](const Tokens& tokens, const kvick::SpeculativeOptions& wanted) {
      return measure::decode(forced, cache, none, tokens, wanted);
    };
    ways[1] = {"lookup", most, true,
               [&](const Tokens& tokens, const kvick::SpeculativeOptions& wanted) {
                 return measure::decode(forced, cache, lookup, tokens, wanted);
               }};
    const Tokens given(whole.begin() + static_cast<std::ptrdiff_t>(prompt.size()),
                       whole.begin() + static_cast<std::ptrdiff_t>(prompt.size()) + num_new);
    const auto outputs =
        decode_in_turns(ways, {prompt}, num_new, std::min(3, session.options().num_rounds),
                        cache_type, "speculative " + std::string(text.name));
    require_equal(kvick::digest_of(outputs), kvick::digest_of(std::vector<Tokens>{given}),
                  "the " + std::string(text.name));
    // Speed-ups alone: tokens/s of another model have no place beside those above.
    const std::string prefix = "given " + std::string(text.name) + ": ";
    add_speedups(ways, prefix, "the given text", section);
    add_rows(ways, prefix, table);
  }
}

}  // namespace detail

inline ReportSection speculative_part(Session& session, const SpeculativePartOptions& options) {
  ReportSection section{"speculative", "Speculative decoding"};
  section.headline = static_cast<std::size_t>(-1);
  kvick::ReportTable table{"Drafts",
                           {{"source", "drafted", "accepted, %", "tokens per round", "tokens/s"}}};
  detail::measure_texts(session, options, section, table);
  detail::measure_passes(session, section);
  if (session.is_synthetic()) {
    detail::measure_given_texts(session, options, section, table);
    section.note +=
        " The given texts are decoded by the synthetic model: passes are real, choices are those "
        "of the text (an edit of a function; an article's next lines).";
  }
  section.tables.push_back(std::move(table));
  return section;
}

}  // namespace programs::bench
