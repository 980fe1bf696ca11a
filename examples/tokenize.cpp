// SPDX-License-Identifier: MIT
// Text to token ids and back, by the tokenizer of a model file. A file with a vocabulary and no
// weights will do.
//
//   kvick-tokenize -m MODEL.gguf -p "Once upon a time"     prints 1,403,407,261,378
//   kvick-tokenize -m MODEL.gguf --decode 1,403,407        prints Once upon
#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "kvick/gguf/gguf_file.hpp"
#include "kvick/text/streaming_decoder.hpp"
#include "kvick/text/tokenizer.hpp"
#include "support/default_model.hpp"
#include "support/program.hpp"
#include "support/token_ids.hpp"

namespace {

struct Options {
  std::string model;
  std::optional<std::string> text;
  std::optional<std::string> ids_to_decode;
  bool no_bos = false;
  bool parse_special = false;
};

/// Nothing if help was asked for.
std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Prints the token ids of a text, separated by commas, or the text of token ids.",
               "kvick-tokenize");
  programs::add_model_option(app, options.model, "GGUF file; weights are not needed");
  auto* const text = app.add_option("-p,--prompt", options.text,
                                    "the text; without it, standard input less the line break at "
                                    "its end");
  app.add_option("--decode", options.ids_to_decode,
                 "print the text of these ids, such as 1,403,407")
      ->type_name("IDS")
      ->excludes(text);
  app.add_flag("--no-bos", options.no_bos, "no begin of sequence token before the text");
  app.add_flag("--special", options.parse_special,
               "control tokens such as <|im_end|> may be written in the text");
  if (!programs::parse_command_line(app, argc, argv)) return std::nullopt;
  if (options.model.empty()) options.model = programs::default_model();
  return options;
}

/// Ill-formed UTF-8 is replaced, as in generated text.
std::string decode(const kvick::Tokenizer& tokenizer, const std::string& ids) {
  kvick::StreamingDecoder decoder(tokenizer);
  std::string text;
  for (const kvick::TokenId id : programs::parse_token_ids(ids, tokenizer.vocab_size())) {
    text += decoder.push(id);
  }
  return text + decoder.finish();
}

std::string encode(const kvick::Tokenizer& tokenizer, const Options& options) {
  kvick::EncodeOptions encode_options;
  encode_options.parse_special = options.parse_special;
  if (options.no_bos) encode_options.add_bos = false;
  const std::string text = options.text ? *options.text : programs::read_standard_input();
  return programs::format_token_ids(tokenizer.encode(text, encode_options));
}

void run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (!options) return;
  const kvick::Tokenizer tokenizer(kvick::GgufFile(options->model));
  const std::string result = options->ids_to_decode ? decode(tokenizer, *options->ids_to_decode)
                                                    : encode(tokenizer, *options);
  programs::print(result + "\n");
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-tokenize", [&] { run(argc, argv); });
}
