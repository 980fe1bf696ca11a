// SPDX-License-Identifier: MIT
// Models with their weights in another format: what becomes of each tensor, and writing the file.
//
// Matrices (tensors of two dimensions named *.weight, token embeddings among them) get the type
// that is wished for, or one with smaller blocks where their rows are no whole blocks of it.
// Vectors become f32. What has more dimensions, routes experts or cannot be decoded is kept.
//
// Tensors stream from the mapped file to the new one: memory holds a strip of rows.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/quant/block_formats.hpp"
#include "kvick/quant/quantization_error.hpp"
#include "kvick/quant/tensor_type.hpp"
#include "program.hpp"
#include "progress_bar.hpp"

namespace programs {

using kvick::TensorType;

// ---- What becomes of each tensor ----

/// Matrices whose name matches get another type; '*' stands for any text.
struct TypeRule {
  std::string pattern;
  TensorType type;
};

struct ConversionWishes {
  TensorType type = TensorType::kF32;
  std::vector<TypeRule> rules = {};  // the last that matches counts
};

struct Conversion {
  const kvick::GgufTensor* source;
  TensorType type;
  std::string note = {};                // why it is not as was asked for; may be empty
  bool is_fallback = false;             // another format than was asked for
  kvick::detail::ErrorSums error = {};  // known once it has been written

  bool is_copy() const { return type == source->type; }
  std::uint64_t num_bytes() const {
    if (is_copy()) return source->data.size();
    const auto& format = kvick::info(type);
    return source->num_elements() / format.block_size * format.block_bytes;
  }
  /// Blocks that become other blocks.
  bool is_requantized() const;
  std::string_view type_name() const {
    return is_copy() ? source->type_name() : kvick::info(type).name;
  }
};

inline bool is_float(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16;
}

inline bool Conversion::is_requantized() const {
  return !is_copy() && !is_float(source->type) && !is_float(type);
}

/// '*' stands for any text, also none.
inline bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  if (rest.empty()) return true;
  // The earliest place for the text up to the next star leaves the most for what follows.
  const std::string_view next = rest.substr(0, rest.find('*'));
  if (next.size() == rest.size()) {
    return name.size() >= star + next.size() && name.ends_with(next);
  }
  const std::size_t found = name.find(next, star);
  return found != std::string_view::npos &&
         matches(rest.substr(next.size()), name.substr(found + next.size()));
}

/// Matrices of linear layers and of embeddings. Of a mixture of experts, the choice of experts is a
/// matter of small differences, and its matrix is small.
inline bool is_quantizable(const kvick::GgufTensor& tensor) {
  return tensor.num_dims == 2 && tensor.name.ends_with(".weight") &&
         !tensor.name.ends_with("ffn_gate_inp.weight");
}

inline TensorType wanted_type(const kvick::GgufTensor& tensor, const ConversionWishes& wishes) {
  TensorType type = wishes.type;
  for (const TypeRule& rule : wishes.rules) {
    if (matches(rule.pattern, tensor.name)) type = rule.type;
  }
  return type;
}

/// A format with smaller blocks and about as many bits, for rows that are no whole blocks.
inline TensorType fallback(TensorType type) {
  switch (type) {
    case TensorType::kQ4_K: return TensorType::kQ4_0;
    case TensorType::kQ5_K: return TensorType::kQ5_0;
    case TensorType::kQ6_K: return TensorType::kQ8_0;
    default: return TensorType::kF16;
  }
}

inline Conversion plan_matrix(const kvick::GgufTensor& tensor, TensorType wanted) {
  Conversion plan{&tensor, wanted};
  while (tensor.dims[0] % kvick::info(plan.type).block_size != 0) plan.type = fallback(plan.type);
  if (plan.type != wanted) {
    plan.is_fallback = true;
    plan.note = kvick::detail::concat(kvick::info(wanted).name, " needs rows of a multiple of ",
                                      kvick::info(wanted).block_size);
  }
  return plan;
}

inline Conversion plan_tensor(const kvick::GgufTensor& tensor, const ConversionWishes& wishes) {
  Conversion kept{&tensor, tensor.type};
  if (!tensor.is_supported()) {
    kept.note = "cannot be decoded";
    return kept;
  }
  if (tensor.num_dims == 1) return {&tensor, TensorType::kF32};
  if (is_quantizable(tensor)) return plan_matrix(tensor, wanted_type(tensor, wishes));
  kept.note = "no matrix of weights";
  return kept;
}

inline void check_rules(const kvick::GgufFile& file, const ConversionWishes& wishes) {
  for (const TypeRule& rule : wishes.rules) {
    const bool is_used = std::any_of(
        file.tensors().begin(), file.tensors().end(), [&](const kvick::GgufTensor& tensor) {
          return is_quantizable(tensor) && matches(rule.pattern, tensor.name);
        });
    if (!is_used) {
      throw BadInput(kvick::detail::concat("--tensor-type must match a matrix of the model, got ",
                                           kvick::detail::in_quotes(rule.pattern)));
    }
  }
}

inline std::vector<Conversion> plan_conversions(const kvick::GgufFile& file,
                                                const ConversionWishes& wishes) {
  check_rules(file, wishes);
  std::vector<Conversion> plans;
  for (const kvick::GgufTensor& tensor : file.tensors())
    plans.push_back(plan_tensor(tensor, wishes));
  return plans;
}

// ---- Conversion ----

/// While it lives, an interrupt from the terminal or a request to end only sets a flag, so that
/// whoever looks at it can leave in order and remove what is unfinished.
class InterruptCatcher {
 public:
  InterruptCatcher() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      previous_[i] = std::signal(kSignals[i], [](int) { is_interrupted_ = 1; });
    }
  }
  InterruptCatcher(const InterruptCatcher&) = delete;
  InterruptCatcher& operator=(const InterruptCatcher&) = delete;
  ~InterruptCatcher() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) std::signal(kSignals[i], previous_[i]);
  }

  bool is_interrupted() const { return is_interrupted_ != 0; }

 private:
  static constexpr std::array<int, 2> kSignals = {SIGINT, SIGTERM};
  // All that a signal handler may touch.
  inline static volatile std::sig_atomic_t is_interrupted_ = 0;
  std::array<void (*)(int), 2> previous_ = {};
};

/// Runs the conversions when the file is written, and tells how far it is.
class Converter {
 public:
  Converter(const kvick::GgufFile& file, int threads) : file_(file), pool_(threads) {
    for (const kvick::GgufTensor& tensor : file.tensors()) num_bytes_ += tensor.data.size();
  }

  int num_threads() const { return pool_.num_threads(); }

  void convert(Conversion& conversion, const kvick::GgufSink& sink) {
    const kvick::GgufTensor& source = *conversion.source;
    if (conversion.is_copy()) {
      for (std::size_t i = 0; i < source.data.size(); i += kStripBytes) {
        const auto strip = source.data.subspan(i, std::min(kStripBytes, source.data.size() - i));
        sink(strip);
        count(strip.size());
      }
    } else {
      convert_rows(conversion, sink);
    }
    file_.release_pages(source);  // what is mapped counts as this process's memory
  }

 private:
  static constexpr std::size_t kStripBytes = std::size_t{4} << 20;

  /// In strips of rows. Errors are summed row by row, so they do not depend on the threads.
  void convert_rows(Conversion& conversion, const kvick::GgufSink& sink) {
    const kvick::GgufTensor& source = *conversion.source;
    const std::uint64_t num_rows = source.num_rows();
    const std::size_t row_bytes = conversion.num_bytes() / num_rows;
    const std::uint64_t strip_rows = std::max<std::uint64_t>(kStripBytes / row_bytes, 1);
    std::vector<std::byte> strip;
    std::vector<kvick::detail::ErrorSums> errors;
    for (std::uint64_t first = 0; first < num_rows; first += strip_rows) {
      const std::size_t count_rows = std::min(strip_rows, num_rows - first);
      strip.resize(count_rows * row_bytes);
      errors.resize(count_rows);
      const auto convert_some = [&](kvick::Index begin, kvick::Index end) {
        std::vector<float> original(source.dims[0]);
        std::vector<float> restored(source.dims[0]);
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
          errors[i] = convert_row(conversion, first + i, original, restored,
                                  std::span(strip).subspan(i * row_bytes, row_bytes));
        }
      };
      constexpr kvick::Index kGrainRows = 16;
      pool_.parallel_for(static_cast<kvick::Index>(count_rows), kGrainRows, convert_some);
      for (const kvick::detail::ErrorSums& error : errors) add(error, conversion.error);
      sink(strip);
      count(count_rows * source.row_bytes());
    }
  }

  static kvick::detail::ErrorSums convert_row(const Conversion& conversion, std::uint64_t row,
                                              std::vector<float>& original,
                                              std::vector<float>& restored,
                                              std::span<std::byte> out) {
    const kvick::GgufTensor& source = *conversion.source;
    const auto where = [&] {
      return kvick::detail::concat("tensor ", kvick::detail::in_quotes(source.name), ", row ", row,
                                   ": ");
    };
    const auto stored = source.data.subspan(row * source.row_bytes(), source.row_bytes());
    kvick::dequantize(source.type, stored, original);
    try {
      kvick::quantize(conversion.type, original, out);
    } catch (const kvick::Error& error) {
      throw BadInput(where() + std::string(error.message()));
    }
    kvick::dequantize(conversion.type, out, restored);
    const kvick::detail::ErrorSums sums =
        kvick::detail::error_sums(as_matrix(original), as_matrix(restored));
    if (!std::isfinite(sums.difference)) {
      throw BadInput(kvick::detail::concat(where(), "a value is not finite, or too large for ",
                                           kvick::info(conversion.type).name));
    }
    return sums;
  }

  static Eigen::Map<const kvick::Matrix> as_matrix(const std::vector<float>& row) {
    return {row.data(), 1, static_cast<kvick::Index>(row.size())};
  }

  static void add(const kvick::detail::ErrorSums& error, kvick::detail::ErrorSums& total) {
    total.original += error.original;
    total.difference += error.difference;
    total.max_abs = std::max(total.max_abs, error.max_abs);
  }

  void count(std::size_t num_bytes) {
    if (interrupts_.is_interrupted()) throw BadInput("interrupted; nothing was written");
    num_bytes_done_ += num_bytes;
    progress_.update(num_bytes_done_, num_bytes_);
  }

  const kvick::GgufFile& file_;
  kvick::ThreadPool pool_;
  std::uint64_t num_bytes_ = 0;
  std::uint64_t num_bytes_done_ = 0;
  InterruptCatcher interrupts_;
  ProgressBar progress_{"quantizing"};
};

/// llama.cpp's number of "mostly this type", for general.file_type.
inline std::uint32_t file_type(TensorType type) {
  switch (type) {
    case TensorType::kF32: return 0;
    case TensorType::kF16: return 1;
    case TensorType::kQ4_0: return 2;
    case TensorType::kQ4_1: return 3;
    case TensorType::kQ8_0: return 7;
    case TensorType::kQ5_0: return 8;
    case TensorType::kQ5_1: return 9;
    case TensorType::kQ4_K: return 14;  // the small mix, the one nearest to q4_k alone
    case TensorType::kQ5_K: return 16;
    case TensorType::kQ6_K: return 18;
    case TensorType::kBF16: return 32;
  }
  return 0;
}

inline void add_metadata(const kvick::GgufFile& file, TensorType type, bool has_blocks,
                         kvick::GgufWriter& writer) {
  constexpr std::string_view kFileType = "general.file_type";
  constexpr std::string_view kVersion = "general.quantization_version";
  for (const auto& value : file.metadata()) {
    const bool is_replaced = value.key() == kFileType || value.key() == kVersion;
    if (!is_replaced && !value.key().starts_with("split.")) writer.add(value);
  }
  writer.add(kFileType, file_type(type));
  if (has_blocks) writer.add(kVersion, std::uint32_t{2});  // of the block formats
}

/// The file appears at `path` complete or not at all. Afterwards the plans know their errors.
inline void write_model(const kvick::GgufFile& file, TensorType type,
                        std::vector<Conversion>& plans, Converter& converter,
                        const std::filesystem::path& path) {
  kvick::GgufWriter writer;
  const bool has_blocks = std::any_of(plans.begin(), plans.end(),
                                      [](const Conversion& plan) { return !is_float(plan.type); });
  add_metadata(file, type, has_blocks, writer);
  for (Conversion& plan : plans) {
    const auto num_dims = static_cast<std::size_t>(plan.source->num_dims);
    const auto dims = std::span(plan.source->dims).first(num_dims);
    writer.add_tensor(plan.source->name, plan.type, {dims.begin(), dims.end()},
                      [&](const kvick::GgufSink& sink) { converter.convert(plan, sink); });
  }
  writer.write(path);
}

}  // namespace programs
