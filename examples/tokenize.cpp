// SPDX-License-Identifier: MIT
// Text to token ids and back, by the tokenizer of a model file. A file with a vocabulary and no
// weights will do.
//
//   kvick-tokenize -m MODEL.gguf -p "Once upon a time"     prints 1,403,407,261,378
//   kvick-tokenize -m MODEL.gguf -p "Once" --pieces        prints each token on a line of its own
//   kvick-tokenize -m MODEL.gguf --decode 1,403,407        prints Once upon
//   kvick-tokenize -m MODEL.gguf --file BOOK.txt --speed   prints the ids, and tokens/s to stderr
//   kvick-tokenize -m MODEL.gguf --chat --text <CHAT.json  prints what a chat model reads
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/gguf/gguf_file.hpp"
#include "kvick/text/chat_template.hpp"
#include "kvick/text/streaming_decoder.hpp"
#include "kvick/text/tokenizer.hpp"
#include "support/default_model.hpp"
#include "support/program.hpp"
#include "support/system.hpp"
#include "support/token_ids.hpp"

namespace {

using kvick::TokenId;

struct Options {
  std::string model;
  std::string pre_tokenizer;
  std::optional<std::string> text;
  std::vector<std::string> files;
  std::optional<std::string> ids_to_decode;
  bool takes_json = false;
  bool takes_messages = false;
  std::string chat_family;
  bool print_text = false;
  bool no_bos = false;
  bool parse_special = false;
  bool print_pieces = false;
  bool print_speed = false;
};

/// Nothing if help was asked for.
std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Prints the token ids of a text, separated by commas, or the text of token ids.",
               "kvick-tokenize");
  app.option_defaults()->group("Model");
  programs::add_model_option(app, options.model, "GGUF file; weights are not needed");
  app.add_option(
         "--pre", options.pre_tokenizer,
         "split text as this pre-tokenizer does, for files that name none or an unknown one")
      ->type_name("NAME");

  app.option_defaults()->group("Input");
  auto* const text = app.add_option("-p,--prompt", options.text,
                                    "the text; without it, standard input less the line break at "
                                    "its end");
  auto* const files = app.add_option("--file", options.files,
                                     "the text is this file; may be repeated: a line of ids each")
                          ->type_name("FILE")
                          ->allow_extra_args(false)
                          ->excludes(text);
  auto* const decode = app.add_option("--decode", options.ids_to_decode,
                                      "print the text of these ids, such as 1,403,407")
                           ->type_name("IDS")
                           ->excludes(text)
                           ->excludes(files);
  app.add_flag("--json", options.takes_json,
               "the input is a JSON list of texts, the output a JSON list of lists of ids")
      ->excludes(decode);
  auto* const chat =
      app.add_flag(
             "--chat", options.takes_messages,
             "the input is a conversation, a JSON list of {\"role\", \"content\"}; the output is "
             "what the chat template makes of it")
          ->excludes(decode);
  app.add_option("--chat-template", options.chat_family,
                 "how messages are written, such as chatml; default: the template of the file")
      ->type_name("NAME")
      ->needs(chat);
  app.add_flag("--no-bos", options.no_bos, "no begin of sequence token before the text");
  app.add_flag("--special", options.parse_special,
               "control tokens such as <|im_end|> may be written in the text");

  app.option_defaults()->group("Output");
  app.add_flag("--pieces", options.print_pieces,
               "a line per token: its id and its text, escaped as in JSON")
      ->excludes(decode);
  app.add_flag("--text", options.print_text, "of a conversation, its text instead of ids")
      ->needs(chat);
  app.add_flag("--speed", options.print_speed, "tokens/s and MB/s on standard error")
      ->excludes(decode);
  if (!programs::parse_command_line(app, argc, argv)) return std::nullopt;
  if (options.takes_json && options.print_pieces) {
    throw programs::BadInput("--pieces cannot be combined with --json");
  }
  const bool has_text_options = options.takes_json || options.no_bos || options.parse_special ||
                                options.print_speed || (options.print_text && options.print_pieces);
  if (options.takes_messages && has_text_options) {
    throw programs::BadInput(
        "--chat can be combined with one of --text and --pieces, and no other option of input or "
        "output");
  }
  if (options.model.empty()) options.model = programs::default_model();
  return options;
}

/// Ill-formed UTF-8 is replaced, as in generated text.
std::string decode(const kvick::Tokenizer& tokenizer, const std::string& ids) {
  kvick::StreamingDecoder decoder(tokenizer);
  std::string text;
  for (const TokenId id : programs::parse_token_ids(ids, tokenizer.vocab_size())) {
    text += decoder.push(id);
  }
  return text + decoder.finish();
}

std::vector<std::string> read_inputs(const Options& options) {
  if (options.text) return {*options.text};
  if (options.files.empty()) return {programs::read_standard_input()};
  std::vector<std::string> texts;
  for (const std::string& file : options.files) texts.push_back(programs::read_file(file));
  return texts;
}

std::vector<std::string> parse_json_texts(const std::string& input) {
  try {
    return nlohmann::json::parse(input).get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception& error) {
    throw programs::BadInput(std::string("--json needs a list of texts: ") + error.what());
  }
}

/// The text of a token in double quotes; bytes that are no character of their own as \xNN.
std::string quoted_piece(const kvick::Tokenizer& tokenizer, TokenId id) {
  std::string_view text = tokenizer.token_bytes(id);
  if (text.empty()) text = tokenizer.piece(id);  // a mark: what it is called
  std::string quoted = "\"";
  while (!text.empty()) {
    const auto step = kvick::first_utf8_step(text);
    if (step.kind == kvick::Utf8Step::Kind::kCharacter) {
      const std::string character(text.substr(0, step.num_bytes));
      const std::string escaped = nlohmann::json(character).dump();
      quoted += escaped.substr(1, escaped.size() - 2);
      text.remove_prefix(step.num_bytes);
    } else {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02x",
                    static_cast<unsigned>(static_cast<unsigned char>(text.front())));
      quoted += hex;
      text.remove_prefix(1);
    }
  }
  return quoted + '"';
}

std::string pieces(const kvick::Tokenizer& tokenizer, std::span<const TokenId> ids) {
  std::string lines;
  for (const TokenId id : ids) {
    lines += std::to_string(id) + '\t' + quoted_piece(tokenizer, id) + '\n';
  }
  return lines;
}

void encode(const kvick::Tokenizer& tokenizer, const Options& options) {
  kvick::EncodeOptions encode_options;
  encode_options.parse_special = options.parse_special;
  if (options.no_bos) encode_options.add_bos = false;
  std::size_t num_bytes = 0;
  std::size_t num_tokens = 0;
  double seconds = 0;
  const auto encode_one = [&](const std::string& text) {
    const programs::Stopwatch time;
    std::vector<TokenId> ids = tokenizer.encode(text, encode_options);
    seconds += time.seconds();
    num_bytes += text.size();
    num_tokens += ids.size();
    return ids;
  };
  for (const std::string& input : read_inputs(options)) {
    if (options.takes_json) {
      nlohmann::json lists = nlohmann::json::array();
      for (const std::string& text : parse_json_texts(input)) lists.push_back(encode_one(text));
      programs::print(lists.dump() + "\n");
    } else if (options.print_pieces) {
      programs::print(pieces(tokenizer, encode_one(input)));
    } else {
      programs::print(programs::format_token_ids(encode_one(input)) + "\n");
    }
  }
  if (options.print_speed) {
    seconds = std::max(seconds, 1e-9);
    std::fprintf(stderr, "%zu tokens of %zu bytes in %.3f s: %.0f tokens/s, %.2f MB/s\n",
                 num_tokens, num_bytes, seconds, static_cast<double>(num_tokens) / seconds,
                 static_cast<double>(num_bytes) / seconds * 1e-6);
  }
}

std::vector<kvick::ChatMessage> parse_messages(const std::string& input) {
  try {
    const nlohmann::json conversation = nlohmann::json::parse(input);
    if (!conversation.is_array()) {
      throw programs::BadInput(std::string("--chat needs a list of messages, got ") +
                               conversation.type_name());
    }
    std::vector<kvick::ChatMessage> messages;
    for (const nlohmann::json& message : conversation) {
      messages.push_back({message.at("role"), message.at("content")});
    }
    return messages;
  } catch (const nlohmann::json::exception& error) {
    throw programs::BadInput(std::string("--chat needs a list of messages: ") + error.what());
  }
}

/// What the model reads of conversations.
void print_chats(const kvick::GgufFile& file, const kvick::Tokenizer& tokenizer,
                 const Options& options) {
  const kvick::ChatTemplate chat(file, tokenizer, options.chat_family);
  for (const std::string& input : read_inputs(options)) {
    const auto messages = parse_messages(input);
    if (options.print_text) {
      programs::print(chat.render(messages) + "\n");
    } else if (const auto ids = chat.encode(tokenizer, messages); options.print_pieces) {
      programs::print(pieces(tokenizer, ids));
    } else {
      programs::print(programs::format_token_ids(ids) + "\n");
    }
  }
}

void run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (!options) return;
  const kvick::GgufFile file(options->model);
  const kvick::Tokenizer tokenizer(file, options->pre_tokenizer);
  if (options->takes_messages) {
    print_chats(file, tokenizer, *options);
  } else if (options->ids_to_decode) {
    programs::print(decode(tokenizer, *options->ids_to_decode) + "\n");
  } else {
    encode(tokenizer, *options);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-tokenize", [&] { run(argc, argv); });
}
