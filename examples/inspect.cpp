// SPDX-License-Identifier: MIT
// What is in a GGUF file: metadata, tensors, totals, and the memory that running the model takes.
//
//   kvick-inspect MODEL.gguf -c 4096
//
// Any readable file will do: a vocabulary without weights, an architecture or tensor type that this
// library does not compute. Output is printable ASCII whatever the file holds, so that a name or a
// chat template cannot command the terminal.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvick/core/checked.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/model/model_config.hpp"
#include "kvick/model/weights.hpp"
#include "support/default_model.hpp"
#include "support/program.hpp"
#include "support/table.hpp"

namespace {

using Json = nlohmann::ordered_json;
using kvick::ElementType;
using kvick::GgufFile;
using kvick::GgufTensor;
using kvick::GgufValue;
using kvick::detail::concat;

constexpr std::size_t kMaxShownElements = 8;  // of an array

struct Options {
  std::string model;
  int context = 0;  // 0: the model's
  bool print_json = false;
};

/// Nothing if help was asked for.
std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Shows what is in a GGUF file and how much memory the model needs.",
               "kvick-inspect");
  app.add_option("model", options.model,
                 "GGUF file; of a split model, the first; default: the demo model")
      ->option_text("MODEL.gguf");
  app.add_option("-c,--context", options.context,
                 "tokens that the cache is to hold; default: the model's context")
      ->check(CLI::PositiveNumber);
  app.add_flag("--json", options.print_json, "print one line of JSON");
  if (!programs::parse_command_line(app, argc, argv)) return std::nullopt;
  if (options.model.empty()) options.model = programs::default_model();
  return options;
}

// ---- Facts ----

struct Total {
  std::size_t num_tensors = 0;
  std::uint64_t num_parameters = 0;
  std::uint64_t bytes = 0;

  void add(const GgufTensor& tensor) {
    ++num_tensors;
    num_parameters += tensor.num_elements();
    bytes += tensor.data.size();
  }
  double bits_per_weight() const {
    const auto count = static_cast<double>(std::max<std::uint64_t>(num_parameters, 1));
    return 8.0 * static_cast<double>(bytes) / count;
  }
};

/// Bytes of weights and of a cache of `context` tokens for one sequence.
struct Memory {
  int context = 0;
  std::uint64_t weights = 0;
  std::uint64_t cache_f32 = 0;
  std::uint64_t cache_f16 = 0;
};

/// Keys and values of every layer, in whole blocks.
std::uint64_t cache_bytes(const kvick::ModelConfig& config, int context, ElementType type) {
  const auto factor = [](int size) { return static_cast<std::uint64_t>(size); };
  const std::uint64_t block_tokens = factor(kvick::CacheOptions{}.block_tokens);
  const std::uint64_t num_blocks = (factor(context) + block_tokens - 1) / block_tokens;
  return kvick::checked_product(
      {2, factor(config.num_layers), factor(config.num_kv_heads), num_blocks, block_tokens,
       factor(config.head_dim), kvick::size_bytes(type)},
      "kvick-inspect");
}

/// Throws kvick::Error for a file that is no model this library can run.
Memory memory_needed(const GgufFile& file, std::uint64_t weights, const Options& options) {
  const kvick::ModelConfig config = kvick::read_model_config(file);
  kvick::read_model_weights(file, config);  // all tensors are there and usable
  if (options.context > config.max_seq_len) {
    throw programs::BadInput(concat("--context must be at most the model's ", config.max_seq_len,
                                    ", got ", options.context));
  }
  const int context = options.context == 0 ? config.max_seq_len : options.context;
  return {.context = context,
          .weights = weights,
          .cache_f32 = cache_bytes(config, context, ElementType::kF32),
          .cache_f16 = cache_bytes(config, context, ElementType::kF16)};
}

struct Facts {
  std::map<std::string_view, Total> total_by_type;  // of "q4_k"
  Total total;
  std::optional<Memory> memory;
  std::string why_no_memory;
};

Facts gather(const GgufFile& file, const Options& options) {
  Facts facts;
  for (const GgufTensor& tensor : file.tensors()) {
    facts.total_by_type[tensor.type_name()].add(tensor);
    facts.total.add(tensor);
  }
  try {
    facts.memory = memory_needed(file, facts.total.bytes, options);
  } catch (const kvick::Error& error) {
    facts.why_no_memory = error.message();
  }
  return facts;
}

// ---- Metadata values ----

/// Floats with as few digits as give them back.
template <class T>
Json number_json(T value) {
  if constexpr (std::is_same_v<T, float>) {
    char digits[32];
    *std::to_chars(digits, digits + sizeof digits - 1, value).ptr = '\0';
    return std::strtod(digits, nullptr);
  } else {
    return value;
  }
}

/// The value, or the first elements of an array, which may be far longer than anyone reads.
std::vector<Json> first_elements(const GgufValue& value) {
  const std::size_t count = std::min(value.num_elements(), kMaxShownElements);
  std::vector<Json> elements;
  if (value.element_type() == kvick::GgufType::kString) {
    if (!value.is_array()) return {value.get<std::string>()};
    for (const auto text : value.get<std::span<const std::string_view>>().first(count)) {
      elements.emplace_back(text);
    }
  } else if (value.element_type() == kvick::GgufType::kBool) {
    for (const std::byte byte : value.encoded().first(count)) {
      elements.emplace_back(byte != std::byte{0});
    }
  } else {
    kvick::detail::visit_number_type(value.element_type(), [&]<class Stored>(Stored) {
      for (std::size_t i = 0; i < count; ++i) {
        const std::byte* const stored = value.encoded().data() + i * sizeof(Stored);
        elements.push_back(number_json(kvick::detail::load_unaligned<Stored>(stored)));
      }
    });
  }
  return elements;
}

// ---- JSON ----

Json metadata_json(const GgufFile& file) {
  Json list = Json::array();  // an object would look every new key up among all before it
  for (const GgufValue& value : file.metadata()) {
    Json entry = {{"key", value.key()}, {"type", name(value.type())}};
    if (value.is_array()) {
      entry["element_type"] = name(value.element_type());
      entry["count"] = value.num_elements();
      entry["first"] = first_elements(value);
    } else {
      entry["value"] = first_elements(value).front();
    }
    list.push_back(std::move(entry));
  }
  return list;
}

std::vector<std::uint64_t> shape(const GgufTensor& tensor) {
  return {tensor.dims.begin(), tensor.dims.begin() + tensor.num_dims};
}

Json tensors_json(const GgufFile& file) {
  Json list = Json::array();
  for (const GgufTensor& tensor : file.tensors()) {
    list.push_back({{"name", tensor.name},
                    {"type", tensor.type_name()},
                    {"shape", shape(tensor)},
                    {"parameters", tensor.num_elements()},
                    {"bytes", tensor.data.size()}});
  }
  return list;
}

Json to_json(const Total& total) {
  return {{"tensors", total.num_tensors},
          {"parameters", total.num_parameters},
          {"bytes", total.bytes},
          {"bits_per_weight", total.bits_per_weight()}};
}

Json memory_json(const Facts& facts) {
  if (!facts.memory) return {{"unknown_because", facts.why_no_memory}};
  const auto& [context, weights, f32, f16] = *facts.memory;
  return {{"context", context},
          {"weights_bytes", weights},
          {"cache_f32_bytes", f32},
          {"cache_f16_bytes", f16},
          {"total_f32_bytes", weights + f32},
          {"total_f16_bytes", weights + f16}};
}

std::string json_text(const GgufFile& file, const Facts& facts) {
  Json by_type = Json::object();
  for (const auto& [type, total] : facts.total_by_type) by_type[std::string(type)] = to_json(total);
  const Json json = {{"file", file.name()},
                     {"version", file.version()},
                     {"alignment", file.alignment()},
                     {"parts", file.num_parts()},
                     {"metadata", metadata_json(file)},
                     {"tensors", tensors_json(file)},
                     {"totals_by_type", by_type},
                     {"total", to_json(facts.total)},
                     {"memory", memory_json(facts)}};
  // ASCII only, and bytes that are no UTF-8 become U+FFFD.
  return json.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

// ---- Text ----

/// The beginning of it, so that one long name does not make a column too wide.
std::string shortened(std::string_view text) {
  return programs::printable(text.substr(0, programs::kMaxShownBytes)) +
         (text.size() > programs::kMaxShownBytes ? "..." : "");
}

std::string element_text(const Json& element) {
  if (element.is_number_float() && !std::isfinite(element.get<double>())) {
    return std::to_string(element.get<double>());  // null in JSON
  }
  if (!element.is_string()) return element.dump();
  const auto& text = element.get_ref<const std::string&>();
  const std::string shown = "'" + shortened(text) + "'";
  return text.size() > programs::kMaxShownBytes ? concat(shown, " (", text.size(), " bytes)")
                                                : shown;
}

std::string value_text(const GgufValue& value) {
  const std::vector<Json> elements = first_elements(value);
  if (!value.is_array()) return element_text(elements.front());
  std::string text = "[";
  for (const Json& element : elements) {
    text += (text.size() == 1 ? "" : ", ") + element_text(element);
  }
  return text + (elements.size() < value.num_elements() ? ", ...]" : "]");
}

std::string type_text(const GgufValue& value) {
  const auto element = name(value.element_type());
  return value.is_array() ? concat(element, "[", value.num_elements(), "]") : std::string(element);
}

std::string shape_text(const GgufTensor& tensor) {
  std::string text;
  for (const std::uint64_t dim : shape(tensor)) {
    text += (text.empty() ? "" : " x ") + std::to_string(dim);
  }
  return text;
}

std::string metadata_text(const GgufFile& file) {
  programs::Rows rows;
  for (const GgufValue& value : file.metadata()) {
    rows.push_back({shortened(value.key()), type_text(value), value_text(value)});
  }
  return "metadata\n" + programs::table(rows);
}

std::string tensors_text(const GgufFile& file) {
  programs::Rows rows = {{"name", "type", "shape", "parameters", "bytes"}};
  for (const GgufTensor& tensor : file.tensors()) {
    rows.push_back({shortened(tensor.name), std::string(tensor.type_name()), shape_text(tensor),
                    programs::grouped(tensor.num_elements()),
                    programs::grouped(tensor.data.size())});
  }
  return "tensors (the fastest dimension of a shape comes first)\n" + programs::table(rows);
}

std::string totals_text(const Facts& facts) {
  programs::Rows rows = {{"type", "tensors", "parameters", "bits per weight", "bytes"}};
  const auto add_row = [&](std::string_view type, const Total& total) {
    rows.push_back({std::string(type), std::to_string(total.num_tensors),
                    programs::grouped(total.num_parameters),
                    programs::with_decimals(total.bits_per_weight(), 3),
                    programs::bytes_text(total.bytes)});
  };
  for (const auto& [type, total] : facts.total_by_type) add_row(type, total);
  add_row("all", facts.total);
  return "totals\n" + programs::table(rows);
}

std::string memory_text(const Facts& facts) {
  if (!facts.memory) {
    return "memory is unknown: " + programs::printable(facts.why_no_memory) + "\n";
  }
  const auto& [context, weights, f32, f16] = *facts.memory;
  return concat("memory for a context of ", context, " tokens\n") +
         programs::table({{"weights", programs::bytes_text(weights)},
                          {"cache f32", programs::bytes_text(f32)},
                          {"cache f16", programs::bytes_text(f16)},
                          {"weights + cache f32", programs::bytes_text(weights + f32)},
                          {"weights + cache f16", programs::bytes_text(weights + f16)}});
}

std::string text(const GgufFile& file, const Facts& facts) {
  const std::string head =
      concat(programs::printable(file.name()), "\nGGUF version ", file.version(), ", alignment ",
             file.alignment(), ", ", file.num_parts(), file.num_parts() == 1 ? " part" : " parts");
  const std::string weights =
      file.tensors().empty() ? "no tensors\n" : tensors_text(file) + "\n" + totals_text(facts);
  return head + "\n\n" + metadata_text(file) + "\n" + weights + "\n" + memory_text(facts);
}

void run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (!options) return;
  const GgufFile file(options->model);
  const Facts facts = gather(file, *options);
  programs::print(options->print_json ? json_text(file, facts) : text(file, facts));
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-inspect", [&] { run(argc, argv); });
}
