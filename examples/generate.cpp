// SPDX-License-Identifier: MIT
// Generates text: a prompt in, its continuation out, token by token; or holds a conversation.
//
//   kvick-generate -m MODEL.gguf -p "Once upon a time" -n 64
//   kvick-generate -m MODEL.gguf --chat
//
//   kvick-generate -m MODEL.gguf --draft SMALL.gguf -p "Once upon a time"
//
// To see how the library is used, begin with run() at the end. SpeculativeDecoder runs the model
// and turns its logits into new tokens, with drafts or without; TextStream turns those into text,
// which Session::generate() shows as it comes. README.md has the decoding loop in plain steps.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/cache/sequence_state.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/sampling/sampler.hpp"
#include "kvick/speculative/draft_model.hpp"
#include "kvick/speculative/prompt_lookup.hpp"
#include "kvick/speculative/speculative.hpp"
#include "kvick/text/chat_template.hpp"
#include "kvick/text/stop_matcher.hpp"
#include "kvick/text/text_stream.hpp"
#include "kvick/text/tokenizer.hpp"
#include "support/generate_options.hpp"
#include "support/model.hpp"
#include "support/program.hpp"
#include "support/system.hpp"
#include "support/token_ids.hpp"

namespace {

using kvick::TokenId;
using kvick::Transformer;
using programs::BadInput;
using Options = programs::GenerateOptions;

// ---- Input: model and prompt ----

std::vector<TokenId> read_prompt(const Options& options, const kvick::Tokenizer& tokenizer) {
  if (options.prompt_ids) {
    return programs::parse_token_ids(*options.prompt_ids, tokenizer.vocab_size());
  }
  const std::string text = options.prompt ? *options.prompt : programs::read_standard_input();
  if (text.empty()) throw BadInput("the prompt must not be empty");
  std::optional<bool> add_bos;  // what the vocabulary asks for, at the beginning
  if (!options.load_cache.empty()) add_bos = false;
  return tokenizer.encode(
      text, {.add_bos = add_bos, .add_eos = false, .parse_special = options.parse_special});
}

/// How many tokens may be generated: what was asked for, or what the context has room for.
int num_tokens_to_generate(const Options& options, std::size_t num_prompt_tokens, int context) {
  const int wanted = std::min(options.max_new_tokens, 1);
  const auto room =
      static_cast<std::int64_t>(context) - static_cast<std::int64_t>(num_prompt_tokens);
  if (room < wanted) {
    throw BadInput(kvick::detail::concat("prompt and new tokens must fit the context of ", context,
                                         " tokens, got a prompt of ", num_prompt_tokens,
                                         " and at least ", wanted, " new"));
  }
  return static_cast<int>(std::min<std::int64_t>(options.max_new_tokens, room));
}

// ---- Drafts ----

/// What --lookup and --draft ask for, in this order; nothing without them.
class ChosenDraft {
 public:
  ChosenDraft(const Options& options, const Transformer& target, int context) {
    if (options.looks_up) lookup_.emplace();
    if (options.draft_model.empty()) return;
    model_.emplace(programs::load_draft_model(options.draft_model, options.run));
    draft_.emplace(
        *model_, target,
        kvick::CacheOptions{.max_seq_len = context, .element_type = options.run.cache_type()});
  }

  void propose(const kvick::DraftContext& context, kvick::Draft& draft) {
    if (lookup_) lookup_->propose(context, draft);
    if (draft_ && draft.tokens.empty()) draft_->propose(context, draft);
  }

 private:
  std::optional<kvick::PromptLookup> lookup_;
  std::optional<Transformer> model_;
  std::optional<kvick::DraftModel<Transformer>> draft_;
};

// ---- Output: tokens to text ----

/// As few digits as give each float back: 9 or less.
void write_logits(std::ofstream& file, const std::string& path, const kvick::Matrix& logits) {
  using FloatJson = nlohmann::basic_json<std::map, std::vector, std::string, bool, std::int64_t,
                                         std::uint64_t, float>;
  file << FloatJson(std::vector<float>(logits.data(), logits.data() + logits.size())) << std::endl;
  if (!file) throw BadInput("cannot write " + path);
}

/// What the end of a run tells; rates are in tokens per second.
struct Summary {
  std::size_t num_prompt_tokens = 0;
  std::size_t num_generated_tokens = 0;
  bool is_stopped = false;  // by the model or a stop string, not by length
  double load_seconds = 0;
  double prefill_rate = 0;
  double decode_rate = 0;  // 0 if no token was evaluated after the prompt
  kvick::SpeculativeStatistics speculation;
  double plain_rate = 0;  // what steps without drafts would give; 0 if unknown
};

std::string to_json(const Summary& summary, const Options& options, const Transformer& model,
                    const Transformer::Cache& cache) {
  nlohmann::ordered_json json = {
      {"model", options.model},
      {"prompt_tokens", summary.num_prompt_tokens},
      {"generated_tokens", summary.num_generated_tokens},
      {"finish_reason", summary.is_stopped ? "stop" : "length"},
      {"load_seconds", summary.load_seconds},
      {"prefill_tokens_per_second", summary.prefill_rate},
      {"decode_tokens_per_second", summary.decode_rate},
      {"peak_memory_bytes", programs::peak_memory_bytes()},
      {"cache_bytes", cache.memory_bytes()},
      {"kv", options.run.kv},
      {"context", cache.max_seq_len()},
      {"threads", model.num_threads()},
      {"isa", name(model.isa())},
      {"seed", options.sampling.seed},
  };
  if (options.is_speculative()) {
    json["drafted_tokens"] = summary.speculation.num_drafted;
    json["accepted_tokens"] = summary.speculation.num_accepted;
    json["mean_accepted_length"] = summary.speculation.mean_accepted_length;
    json["plain_tokens_per_second"] = summary.plain_rate;
  }
  using ErrorHandler = nlohmann::ordered_json::error_handler_t;
  return json.dump(-1, ' ', false, ErrorHandler::replace);  // file names need not be UTF-8
}

/// For people: one line on standard error.
void print_speed(const Summary& summary, const Options& options) {
  std::fprintf(stderr,
               "prompt %zu tokens, %.1f tokens/s; new %zu tokens, %.1f tokens/s; seed %llu\n",
               summary.num_prompt_tokens, summary.prefill_rate, summary.num_generated_tokens,
               summary.decode_rate, static_cast<unsigned long long>(options.sampling.seed));
  if (!options.is_speculative()) return;
  const kvick::SpeculativeStatistics& speculation = summary.speculation;
  std::fprintf(stderr, "drafted %lld tokens, accepted %.0f %%; %.2f tokens per draft",
               static_cast<long long>(speculation.num_drafted), 100 * speculation.acceptance_rate,
               speculation.mean_accepted_length);
  if (summary.plain_rate > 0) {
    std::fprintf(stderr, "; %.2f times the speed of steps without drafts",
                 summary.decode_rate / summary.plain_rate);
  }
  std::fprintf(stderr, "\n");
}

// ---- One sequence ----

double rate(std::size_t num_tokens, double seconds) {
  return static_cast<double>(num_tokens) / std::max(seconds, 1e-9);
}

/// A sequence of tokens that grows by prompts, which the model reads, and by what it writes. All
/// that was read or written stays in the cache.
class Session {
 public:
  Session(const Options& options, const kvick::Tokenizer& tokenizer, Transformer& model,
          Transformer::Cache& cache, ChosenDraft& draft)
      : options_(options),
        tokenizer_(tokenizer),
        model_(model),
        cache_(cache),
        decoder_(model, cache, draft, decoder_options()) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Starts with the tokens of the file that save() wrote, which are cached then.
  void load(const std::string& path) {
    const auto tokens = kvick::load_sequence(path, cache_, 0, model_.fingerprint());
    if (!tokens) {
      throw BadInput(kvick::detail::concat("the tokens of --load-cache must fit the context of ",
                                           cache_.max_seq_len()));
    }
    for (const TokenId token : *tokens) {
      if (token >= 0 && token < model_.vocab_size()) continue;
      throw BadInput(kvick::detail::concat("tokens of --load-cache must be in [0, ",
                                           model_.vocab_size(), "), got ", token));
    }
    if (!tokens->empty()) decoder_.append(*tokens);
  }

  /// Writes all tokens, with what is cached of them. The last may not be evaluated yet.
  void save(const std::string& path) {
    evaluate_new();
    kvick::save_sequence(path, cache_, 0, decoder_.tokens(), model_.fingerprint());
  }

  /// Appends `prompt` and evaluates all that is not cached yet.
  void read(std::span<const TokenId> prompt, int max_new_tokens) {
    decoder_.append(prompt, max_new_tokens);
    const programs::Stopwatch time;
    evaluate_new();
    prefill_seconds_ += time.seconds();
    summary_.num_prompt_tokens += prompt.size();
  }

  /// All tokens become `tokens`. What is cached of the same beginning stays; the rest is evaluated.
  void read_anew(std::span<const TokenId> tokens, int max_new_tokens) {
    const auto& old = decoder_.tokens();
    const auto differs = std::mismatch(old.begin(), old.end(), tokens.begin(), tokens.end());
    // The last token is evaluated again, if only for its logits.
    const auto num_equal =
        std::min(static_cast<std::size_t>(differs.first - old.begin()), tokens.size() - 1);
    decoder_.truncate(num_equal);
    read(tokens.subspan(num_equal), max_new_tokens);
  }

  /// The decoding loop: prints new tokens as they come, and returns their text.
  std::string generate() {
    kvick::TextStream continuation(tokenizer_, decoder_.tokens(), options_.stop_strings);
    std::string text;
    std::vector<TokenId> new_tokens;
    show_ = [&](TokenId token) {
      new_tokens.push_back(token);
      show(continuation.push(token), text);
      return !continuation.has_stopped();
    };
    const std::size_t num_tokens_before = num_tokens();
    const programs::Stopwatch time;
    while (decoder_.end() == kvick::SpeculativeEnd::kNone) {
      decoder_.step();
      if (options_.is_without_cache) cache_.truncate(0, 0);
    }
    decode_seconds_ += time.seconds();
    summary_.is_stopped = decoder_.end() == kvick::SpeculativeEnd::kEndToken ||
                          decoder_.end() == kvick::SpeculativeEnd::kCallback;
    // The last token is evaluated only if another was drawn behind it.
    num_decoded_ += num_tokens() - num_tokens_before;
    if (!new_tokens.empty() && decoder_.end() != kvick::SpeculativeEnd::kEndToken) --num_decoded_;
    summary_.num_generated_tokens += new_tokens.size();
    show(continuation.finish(), text);
    programs::print((options_.print_ids ? programs::format_token_ids(new_tokens) : "") + "\n");
    return text;
  }

  std::size_t num_tokens() const { return decoder_.tokens().size(); }
  const kvick::Matrix& logits() const { return decoder_.logits(); }

  Summary summary() const {
    Summary summary = summary_;
    summary.prefill_rate = rate(summary.num_prompt_tokens, prefill_seconds_);
    summary.decode_rate = rate(num_decoded_, decode_seconds_);
    summary.speculation = decoder_.statistics();
    const double plain_seconds = decoder_.adaptive().seconds(0);
    if (plain_seconds > 0) summary.plain_rate = 1 / plain_seconds;
    return summary;
  }

 private:
  kvick::SpeculativeOptions decoder_options() {
    kvick::SpeculativeOptions options{.draft_tokens = options_.draft_tokens,
                                      .sampling = options_.sampling,
                                      .ends_at_end_tokens = !options_.ignore_eos};
    const auto end_tokens = tokenizer_.end_of_generation_ids();
    options.sampling.end_tokens.assign(end_tokens.begin(), end_tokens.end());
    options.on_token = [this](const kvick::SpeculativeToken& drawn) { return show_(drawn.token); };
    return options;
  }

  void evaluate_new() {
    if (!decoder_.prefill()) throw BadInput("the cache is full");
  }

  void show(const std::string& part, std::string& text) const {
    if (!options_.print_ids) programs::print(part);
    text += part;
  }

  const Options& options_;
  const kvick::Tokenizer& tokenizer_;
  Transformer& model_;
  Transformer::Cache& cache_;
  std::function<bool(TokenId)> show_;  // false ends the text
  kvick::SpeculativeDecoder<Transformer, Transformer::Cache, ChosenDraft> decoder_;
  std::size_t num_decoded_ = 0;
  double prefill_seconds_ = 0;
  double decode_seconds_ = 0;
  Summary summary_;
};

// ---- Conversation ----

/// A conversation that is held with standard input and output, message by message. Each turn
/// evaluates only what is new, and what the template writes differently than before.
class Conversation {
 public:
  Conversation(const Options& options, const kvick::Tokenizer& tokenizer,
               const kvick::ChatTemplate& chat, int context, Session& session)
      : options_(options),
        tokenizer_(tokenizer),
        chat_(chat),
        context_(context),
        session_(session) {
    if (options_.system_message) messages_.push_back({"system", *options_.system_message});
  }

  /// Until standard input ends.
  void run() {
    for (bool is_first = true; auto message = next_message(is_first); is_first = false) {
      messages_.push_back({"user", std::move(*message)});
      if (!read_messages()) continue;
      messages_.push_back({"assistant", session_.generate()});
    }
  }

 private:
  std::optional<std::string> next_message(bool is_first) const {
    if (is_first && options_.prompt) return options_.prompt;
    for (;;) {
      if (programs::is_input_a_terminal()) std::fputs("> ", stderr);
      auto line = programs::read_line();
      if (!line || !line->empty()) return line;
    }
  }

  /// False if the newest message does not fit the context; it is forgotten then.
  bool read_messages() {
    const int answer = std::min(options_.max_new_tokens, context_ / 4);  // tokens left for it
    if (session_.num_tokens() > 0) {
      const auto more = chat_.encode_continuation(tokenizer_, messages_);
      if (more && has_room(session_.num_tokens() + more->size(), answer)) {
        session_.read(*more, num_tokens_to_generate(options_, session_.num_tokens() + more->size(),
                                                    context_));
        return true;
      }
    }
    if (const std::size_t size = size_of_last(); !has_room(size, 1)) {
      const std::string problem =
          kvick::detail::concat("a message must fit the context of ", context_,
                                " tokens with room for an answer, got ", size, " tokens");
      if (!programs::is_input_a_terminal()) throw BadInput(problem);
      std::fprintf(stderr, "(%s)\n", problem.c_str());
      messages_.pop_back();
      return false;
    }
    std::vector<TokenId> tokens = chat_.encode(tokenizer_, messages_);
    int num_forgotten = 0;
    // Who forgets makes room for several turns: half of the context.
    while (!has_room(tokens.size(), num_forgotten == 0 ? answer : context_ / 2) &&
           forget_oldest()) {
      ++num_forgotten;
      tokens = chat_.encode(tokenizer_, messages_);
    }
    if (num_forgotten > 0) {
      std::fprintf(stderr, "(the context is full: the oldest %d turn%s forgotten)\n", num_forgotten,
                   num_forgotten == 1 ? " is" : "s are");
    }
    if (tokens.empty()) throw BadInput("the prompt must not be empty");
    session_.read_anew(tokens, num_tokens_to_generate(options_, tokens.size(), context_));
    return true;
  }

  bool has_room(std::size_t num_tokens, int num_new) const {
    return num_tokens + static_cast<std::size_t>(num_new) <= static_cast<std::size_t>(context_);
  }

  /// Tokens of the newest message without those before it.
  std::size_t size_of_last() const {
    std::vector<kvick::ChatMessage> messages;
    if (options_.system_message) messages.push_back(messages_.front());
    messages.push_back(messages_.back());
    return chat_.encode(tokenizer_, messages).size();
  }

  /// The oldest message of the user with its answer; false if only the newest is left.
  bool forget_oldest() {
    const std::ptrdiff_t first = options_.system_message ? 1 : 0;
    if (std::ssize(messages_) - first < 3) return false;
    messages_.erase(messages_.begin() + first, messages_.begin() + first + 2);
    return true;
  }

  const Options& options_;
  const kvick::Tokenizer& tokenizer_;
  const kvick::ChatTemplate& chat_;
  int context_;
  Session& session_;
  std::vector<kvick::ChatMessage> messages_;
};

// ---- The program ----

std::ofstream open_logits_file(const std::string& path) {
  std::ofstream file;
  if (path.empty()) return file;
  file.open(path);
  if (!file) throw BadInput("cannot write --logits file " + kvick::detail::in_quotes(path));
  return file;
}

void run(int argc, char** argv) {
  const auto parsed = programs::parse_generate_options(argc, argv);
  if (!parsed) return;
  const Options& options = *parsed;
  check_sampling_options(options.sampling, "sampling");
  const kvick::StopMatcher checked(options.stop_strings);

  // Everything that can be wrong is found before the weights are read and anything is computed.
  const programs::Stopwatch open_time;
  kvick::GgufFile file(options.model);
  const kvick::ModelConfig config = kvick::read_model_config(file);
  const kvick::Tokenizer tokenizer(file, options.pre_tokenizer);
  double load_seconds = open_time.seconds();
  std::optional<kvick::ChatTemplate> chat;
  if (options.is_chat) chat.emplace(file, tokenizer, options.chat_family);
  const int context = programs::context_size(options.run.context, config.max_seq_len);
  std::vector<TokenId> prompt;
  if (!chat) {
    prompt = read_prompt(options, tokenizer);
    num_tokens_to_generate(options, prompt.size(), context);
  }
  std::ofstream logits_file = open_logits_file(options.logits_file);

  const programs::Stopwatch load_time;
  Transformer model = programs::load_model(std::move(file), options.run);
  auto cache = model.make_cache({.max_seq_len = context, .element_type = options.run.cache_type()});
  ChosenDraft draft(options, model, context);
  load_seconds += load_time.seconds();

  Session session(options, tokenizer, model, cache, draft);
  if (chat) {
    Conversation(options, tokenizer, *chat, context, session).run();
  } else {
    if (!options.load_cache.empty()) session.load(options.load_cache);
    const int max_new_tokens =
        num_tokens_to_generate(options, session.num_tokens() + prompt.size(), context);
    session.read(prompt, max_new_tokens);
    if (logits_file.is_open()) write_logits(logits_file, options.logits_file, session.logits());
    session.generate();
    if (!options.save_cache.empty()) session.save(options.save_cache);
  }
  Summary summary = session.summary();
  summary.load_seconds = load_seconds;
  if (options.print_json) {
    programs::print(to_json(summary, options, model, cache) + "\n");
  } else {
    print_speed(summary, options);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-generate", [&] { run(argc, argv); });
}
