// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "examples/programs.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/quant/block_formats.hpp"
#include "support/gguf_builder.hpp"
#include "support/oracle.hpp"
#include "support/shared_data.hpp"
#include "support/subprocess.hpp"
#include "support/tiny_model.hpp"
#include "support/trained_models.hpp"

namespace {

using kvick::GgufFile;
using kvick::GgufTensor;
using kvick::TensorType;
using nlohmann::json;
using support::expect_refusal;
using support::read_bytes;

constexpr char kProgram[] = "kvick-quantize";
constexpr char kStories[] = "models/stories260K.gguf";

std::vector<float> values_of(const GgufTensor& tensor) {
  std::vector<float> values(tensor.num_elements());
  kvick::dequantize(tensor.type, tensor.data, values);
  return values;
}

std::vector<std::byte> encoded(TensorType type, const std::vector<float>& values) {
  const auto& format = kvick::info(type);
  std::vector<std::byte> blocks(values.size() / format.block_size * format.block_bytes);
  kvick::quantize(type, values, blocks);
  return blocks;
}

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

/// The entry of a tensor among the results.
json entry(const json& results, std::string_view name) {
  for (const json& tensor : results["tensors"]) {
    if (tensor["name"] == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return json();
}

class QuantizeProgram : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_ / name; }
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  std::string write_model(const std::string& name, const support::TinyModelOptions& options) const {
    support::TinyModel(options).writer().write(path(name));
    return path(name);
  }

  static std::string text(const std::vector<std::string>& arguments) {
    const auto result = support::run_program(kProgram, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");  // no progress bar where there is no terminal
    return result.out;
  }
  static json results(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const std::string output = text(arguments);
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1);
    return json::parse(output, nullptr, false);
  }

  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  support::TemporaryDirectory directory_;
};

// ---- Files of every type ----

class QuantizeTo : public QuantizeProgram, public ::testing::WithParamInterface<TensorType> {
 protected:
  const TensorType type_ = GetParam();
  const std::string type_name_ = std::string(kvick::info(GetParam()).name);

  /// `tensor` has the bytes that the library gives for those of `source`.
  void expect_encoding(const GgufTensor& source, const GgufTensor& tensor) {
    SCOPED_TRACE(std::string(source.name));
    ASSERT_EQ(tensor.dims, source.dims);
    if (tensor.type == source.type) {
      EXPECT_TRUE(equal(tensor.data, source.data));
    } else {
      EXPECT_TRUE(equal(tensor.data, encoded(tensor.type, values_of(source))));
    }
  }

  /// The errors of an entry are those of the values in both files.
  static void expect_errors(const GgufTensor& source, const GgufTensor& tensor, const json& found) {
    SCOPED_TRACE(std::string(source.name));
    const std::vector<float> x = values_of(source);
    const std::vector<float> y = values_of(tensor);
    double sum = 0, error = 0, max_abs = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double difference = static_cast<double>(x[i]) - static_cast<double>(y[i]);
      sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      error += difference * difference;
      max_abs = std::max(max_abs, std::fabs(difference));
    }
    const double relative = std::sqrt(error / sum);
    // Sums in another order: a few units of 2^-53 for each of fewer than 2^17 values.
    EXPECT_NEAR(found["relative_rmse"], relative, 1e-10 * relative);
    EXPECT_EQ(found["max_abs_error"], max_abs);
    if (error == 0) {
      EXPECT_TRUE(found["snr_db"].is_null()) << "infinite";
    } else {
      EXPECT_NEAR(found["snr_db"], 10 * std::log10(sum / error), 1e-9);
    }
  }

  void expect_oracle_agrees(const std::string& model, const GgufTensor& tensor) {
    const std::string output = support::run_tool(
        "tools/reference.py", "dequant '" + model + "' " + std::string(tensor.name));
    const std::vector<float> values = values_of(tensor);
    ASSERT_EQ(output.size(), values.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(output.data(), values.data(), output.size()), 0) << tensor.name;
  }
};

TEST_P(QuantizeTo, StoriesKeepMetadataAndBecomeWhatTheLibraryEncodes) {
  const auto source_path = support::shared_path(kStories);
  if (!source_path) GTEST_SKIP() << support::missing(kStories);
  const std::string output = path("out.gguf");
  const json found = results({*source_path, output, "--type", type_name_});
  const GgufFile source(*source_path), file(output);

  for (const auto& value : source.metadata()) {
    if (value.key() == "general.file_type") continue;
    const auto* const kept = file.find(value.key());
    ASSERT_NE(kept, nullptr) << value.key();
    EXPECT_EQ(kept->type(), value.type());
    EXPECT_TRUE(equal(kept->encoded(), value.encoded())) << value.key();
  }
  ASSERT_EQ(file.tensors().size(), source.tensors().size());
  for (const GgufTensor& tensor : source.tensors()) {
    const GgufTensor& converted = file.tensor(tensor.name);
    expect_encoding(tensor, converted);
    expect_errors(tensor, converted, entry(found, tensor.name));
    if (tensor.num_dims == 1) {
      EXPECT_EQ(converted.type, TensorType::kF32) << tensor.name;
    }
    // ffn_down has 172 inputs; all others have 64, which is no whole block of 256.
    const bool has_172_inputs = tensor.name.ends_with("ffn_down.weight");
    const auto block_size = kvick::info(type_).block_size;
    if (tensor.num_dims == 2 && (block_size == 1 || (block_size == 32 && !has_172_inputs))) {
      EXPECT_EQ(converted.type, type_) << tensor.name;
      EXPECT_FALSE(entry(found, tensor.name).contains("note"));
    } else if (has_172_inputs) {
      EXPECT_EQ(converted.type, TensorType::kF16) << tensor.name;
    }
  }
  if (support::oracle_missing()) return;
  for (const char* const name : {"token_embd.weight", "blk.0.ffn_down.weight"}) {
    expect_oracle_agrees(output, file.tensor(name));
  }
}

TEST_P(QuantizeTo, RowsOfWholeBlocksBecomeTheType) {
  const std::string source_path = write_model("in.gguf", {.vocab_size = 33, .seed = 3});
  const std::string output = path("out.gguf");
  const json found = results({source_path, output, "--type", type_name_});
  const GgufFile source(source_path), file(output);
  for (const char* const name :
       {"token_embd.weight", "blk.1.attn_q.weight", "blk.0.ffn_down.weight", "output.weight"}) {
    EXPECT_EQ(file.tensor(name).type, type_);
    expect_encoding(source.tensor(name), file.tensor(name));
    EXPECT_EQ(entry(found, name)["to"], type_name_);
  }
  EXPECT_EQ(file.tensor("output_norm.weight").type, TensorType::kF32);

  // The numbers of llama.cpp's enumeration of file types.
  const json file_types = {{"f32", 0},   {"f16", 1},   {"q4_0", 2}, {"q4_1", 3},
                           {"q8_0", 7},  {"q5_0", 8},  {"q5_1", 9}, {"q4_k", 14},
                           {"q5_k", 16}, {"q6_k", 18}, {"bf16", 32}};
  EXPECT_EQ(file.get<std::uint32_t>("general.file_type"), file_types[type_name_]);
  const bool has_blocks = kvick::info(type_).block_size > 1;
  EXPECT_EQ(file.try_get<std::uint32_t>("general.quantization_version"),
            has_blocks ? std::optional<std::uint32_t>(2) : std::nullopt);

  std::uint64_t num_bytes = 0, num_parameters = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    num_bytes += tensor.data.size();
    num_parameters += tensor.num_elements();
  }
  EXPECT_EQ(found["total"]["bytes"], num_bytes);
  EXPECT_EQ(found["total"]["parameters"], num_parameters);
  EXPECT_EQ(found["total"]["bits_per_weight"],
            8.0 * static_cast<double>(num_bytes) / static_cast<double>(num_parameters));

  if (const auto reason = support::oracle_missing()) GTEST_SKIP() << *reason;
  expect_oracle_agrees(output, file.tensor("blk.0.ffn_down.weight"));
}

TEST_P(QuantizeTo, TheSameTypeIsCopied) {
  const support::TinyModelOptions options = {.type = type_, .vocab_size = 33};
  const std::string source_path = write_model("in.gguf", options);
  const json found = results({source_path, path("out.gguf"), "--type", type_name_, "--tensor-type",
                              "blk.*.attn_output.weight=f32"});  // which the model has in f32
  EXPECT_EQ(found["requantized"], 0);
  EXPECT_EQ(found["relative_rmse"], 0.0);
  const GgufFile source(source_path), file(path("out.gguf"));
  for (const GgufTensor& tensor : source.tensors()) {
    EXPECT_EQ(file.tensor(tensor.name).type, tensor.type);
    EXPECT_TRUE(equal(file.tensor(tensor.name).data, tensor.data)) << tensor.name;
  }
}

std::vector<TensorType> all_types() {
  std::vector<TensorType> types;
  for (const auto& type : kvick::tensor_types()) types.push_back(type.type);
  return types;
}
INSTANTIATE_TEST_SUITE_P(Type, QuantizeTo, ::testing::ValuesIn(all_types()), [](const auto& test) {
  return std::string(kvick::info(test.param).name);
});

// ---- What becomes of each tensor ----

TEST_F(QuantizeProgram, FallsBackWhereRowsAreNoWholeBlocksAndSaysSo) {
  // Rows of 256, of 96 (ffn_down) and of 6 * 24 = 144 (attn_output).
  const std::string source = write_model("in.gguf", {.num_layers = 1, .ffn_dim = 96});
  const auto check = [&](const std::string& type, const std::string& of_96) {
    SCOPED_TRACE(type);
    const json found = results({source, path("out.gguf"), "--type", type, "--force"});
    EXPECT_EQ(entry(found, "blk.0.ffn_up.weight")["to"], type);
    EXPECT_FALSE(entry(found, "blk.0.ffn_up.weight").contains("note"));
    const json down = entry(found, "blk.0.ffn_down.weight");
    EXPECT_EQ(down["to"], of_96);
    EXPECT_EQ(down["note"], type + " needs rows of a multiple of 256");
    EXPECT_EQ(entry(found, "blk.0.attn_output.weight")["to"], "f16");
    EXPECT_EQ(found["fallbacks"], 2);
    const GgufFile file(path("out.gguf"));
    EXPECT_EQ(kvick::info(file.tensor("blk.0.ffn_down.weight").type).name, of_96);
  };
  check("q4_k", "q4_0");
  check("q5_k", "q5_0");
  check("q6_k", "q8_0");
  const std::string output = text({source, path("out.gguf"), "--type", "q4_k", "--force"});
  for (const std::string part : {"blk.0.ffn_down.weight", "q4_k needs rows of a multiple of 256",
                                 "2 matrices have another type than asked for"}) {
    EXPECT_NE(output.find(part), std::string::npos) << output;
  }
}

TEST_F(QuantizeProgram, TypesByNameTheLastMatchCounts) {
  const std::string source = write_model("in.gguf", {.num_layers = 2, .vocab_size = 33});
  const json found =
      results({source, path("out.gguf"), "--type", "q4_k", "--tensor-type", "*=q5_k",
               "--tensor-type", "blk.*.attn_v.weight=q6_k", "--tensor-type=output.weight=q8_0",
               "--tensor-type", "blk.1.*up*=f16"});
  EXPECT_EQ(entry(found, "token_embd.weight")["to"], "q5_k");
  EXPECT_EQ(entry(found, "blk.0.attn_v.weight")["to"], "q6_k");
  EXPECT_EQ(entry(found, "blk.1.attn_v.weight")["to"], "q6_k");
  EXPECT_EQ(entry(found, "blk.0.ffn_up.weight")["to"], "q5_k");
  EXPECT_EQ(entry(found, "blk.1.ffn_up.weight")["to"], "f16");
  EXPECT_EQ(entry(found, "output.weight")["to"], "q8_0");
  EXPECT_EQ(entry(found, "output_norm.weight")["to"], "f32") << "no matrix";
}

TEST_F(QuantizeProgram, KeepsWhatIsNoMatrixOrCannotBeDecoded) {
  const std::vector<float> floats(32 * 32, 0.25f);
  const auto bytes = std::as_bytes(std::span(floats));
  kvick::GgufWriter writer;
  writer.add("general.architecture", "test");
  writer.add("general.file_type", std::uint32_t{1});
  writer.add("general.quantization_version", std::uint32_t{1});
  writer.add("split.no", std::uint16_t{0});
  writer.add("split.count", std::uint16_t{1});
  writer.add_tensor("a.weight", TensorType::kF32, {32, 32}, bytes);
  writer.add_tensor("experts.weight", TensorType::kF32, {32, 4, 8}, bytes);
  writer.add_tensor("a.table", TensorType::kF32, {32, 32}, bytes);
  writer.add_tensor("blk.0.ffn_gate_inp.weight", TensorType::kF32, {32, 32}, bytes);
  const auto half = encoded(TensorType::kF16, std::vector<float>(40, 0.5f));
  writer.add_tensor("a.bias", TensorType::kF16, {40}, half);
  const std::vector<std::byte> blocks(18 * 3, std::byte{0x31});
  writer.add_tensor("strange.weight", static_cast<TensorType>(20), {32, 3}, blocks);  // iq4_nl
  writer.write(path("in.gguf"));

  const json found = results({path("in.gguf"), path("out.gguf"), "--type", "q4_1"});
  const GgufFile file(path("out.gguf"));
  EXPECT_EQ(entry(found, "a.weight")["to"], "q4_1");
  EXPECT_EQ(entry(found, "experts.weight")["to"], "f32");
  EXPECT_EQ(entry(found, "a.table")["to"], "f32");
  EXPECT_EQ(entry(found, "blk.0.ffn_gate_inp.weight")["to"], "f32");
  EXPECT_EQ(entry(found, "a.bias")["to"], "f32");
  EXPECT_EQ(values_of(file.tensor("a.bias")), std::vector<float>(40, 0.5f));
  EXPECT_EQ(entry(found, "strange.weight")["to"], "iq4_nl");
  EXPECT_EQ(entry(found, "strange.weight")["note"], "cannot be decoded");
  EXPECT_TRUE(equal(file.tensors().back().data, blocks));
  EXPECT_EQ(file.tensors()[1].num_dims, 3);
  EXPECT_EQ(file.get<std::uint32_t>("general.file_type"), 3u);
  EXPECT_EQ(file.get<std::uint32_t>("general.quantization_version"), 2u);
  EXPECT_EQ(file.find("split.no"), nullptr);
  EXPECT_EQ(file.find("split.count"), nullptr);
}

TEST_F(QuantizeProgram, SaysThatRequantizingLosesMore) {
  const support::RandomModel model({"--layers", "1"});  // q8_0
  const std::string output = text({model.path(), path("out.gguf"), "--type", "q4_k"});
  EXPECT_NE(output.find("9 tensors were quantized before"), std::string::npos) << output;
  const json found = results({model.path(), path("out.gguf"), "--type", "q4_k", "--force"});
  EXPECT_EQ(found["requantized"], 9);  // seven of the layer, embedding and output
  EXPECT_EQ(results({model.path(), path("f16.gguf"), "--type", "f16"})["requantized"], 0);
}

TEST_F(QuantizeProgram, BytesDoNotDependOnTheThreads) {
  const std::string source = write_model("in.gguf", {.seed = 5});
  const json one = results({source, path("1.gguf"), "--type", "q5_k", "-t", "1"});
  const json three = results({source, path("3.gguf"), "--type", "q5_k", "--threads", "3"});
  EXPECT_EQ(read_bytes(path("1.gguf")), read_bytes(path("3.gguf")));
  EXPECT_EQ(one["tensors"], three["tensors"]) << "errors included";
  EXPECT_EQ(one["threads"], 1);
  EXPECT_EQ(three["threads"], 3);
}

// ---- Judging ----

constexpr char kIds[] = "1,5,17 99\n3,42,42,8,60,2,11\n";  // of a vocabulary of 100

TEST_F(QuantizeProgram, JudgesAsTheEvaluationDoes) {
  const std::string source = write_model("in.gguf", {.num_layers = 1});
  const std::string ids = write("ids", kIds);
  const json found =
      results({source, path("out.gguf"), "--type", "q4_0", "--judge-ids", ids, "-t", "1"});
  const auto evaluation =
      support::run_program("kvick-eval", {"-m", path("out.gguf"), "--against", source, "--ids", ids,
                                          "--activations", "f32", "-t", "1", "--json"});
  ASSERT_EQ(evaluation.exit_code, 0) << evaluation.err;
  const json expected = json::parse(evaluation.out)["against"];
  const json& judgement = found["judgement"];
  EXPECT_EQ(judgement["kl_divergence"]["mean"], expected["kl_divergence"]["mean"]);
  EXPECT_EQ(judgement["kl_divergence"]["max"], expected["kl_divergence"]["max"]);
  EXPECT_EQ(judgement["same_top"], expected["same_top"]["mean"]);
  EXPECT_GT(judgement["kl_divergence"]["mean"], 1e-6) << "four bits do cost something";
}

TEST_F(QuantizeProgram, ACopyPredictsTheSame) {
  const std::string source = write_model("in.gguf", {.num_layers = 1});
  const std::string ids = write("ids", kIds);
  const std::vector<std::string> arguments = {source, path("out.gguf"), "--type",
                                              "f32",  "--judge-ids",    ids};
  const json judgement = results(arguments)["judgement"];
  EXPECT_EQ(judgement["kl_divergence"],
            json::parse(R"({"mean": 0.0, "standard_error": 0.0, "max": 0.0})"));
  EXPECT_EQ(judgement["same_top"], 1.0);
  EXPECT_EQ(judgement["nll"], judgement["nll_before"]);
}

TEST_F(QuantizeProgram, JudgesStoriesOnText) {
  const std::string story = write("story",
                                  "Once upon a time, there was a little girl named Lily. She loved "
                                  "to play outside in the park. One day, she saw a big tree.");
  for (const std::string& source : support::trained_models()) {
    SCOPED_TRACE(source);
    const auto divergence = [&](const std::string& type) -> double {
      return results({source, path("out.gguf"), "--type", type, "--force", "--judge",
                      story})["judgement"]["kl_divergence"]["mean"];
    };
    const double q4_0 = divergence("q4_0");
    const double q5_0 = divergence("q5_0");
    const double q8_0 = divergence("q8_0");
    EXPECT_GT(q4_0, q5_0);
    EXPECT_GT(q5_0, q8_0);
    if (source == support::demo_model()) {
      EXPECT_EQ(q8_0, 0.0) << "it is stored so";
    } else {
      EXPECT_GT(q8_0, 0.0);
    }
    EXPECT_LT(q4_0, 0.5) << "it still tells stories: the entropy of a token is above 1 nat";
    const std::string output =
        text({source, path("out.gguf"), "--type", "q4_0", "--force", "--judge", story});
    for (const std::string part : {"\nkl divergence   mean ", "\nsame top token  ", "\nweights "}) {
      EXPECT_NE(output.find(part), std::string::npos) << output;
    }
  }
}

// ---- Refusals, which leave nothing behind ----

TEST_F(QuantizeProgram, RefusesBadArgumentsInOneLine) {
  const std::string in = write_model("in.gguf", {.num_layers = 1});
  const std::string out = path("out.gguf");
  const std::string ids = write("ids", kIds);
  const auto before = files();
  expect_refusal(kProgram, {}, "IN.gguf");
  expect_refusal(kProgram, {in, out}, "--type");
  expect_refusal(kProgram, {in, "--type", "q4_k"}, "OUT.gguf");
  expect_refusal(kProgram, {in, out, "--type", "q4_k_m"}, "must be one of f32, f16, q4_0");
  expect_refusal(kProgram, {in, out, "--type", "Q4_K"}, "'Q4_K'");
  for (const std::string rule : {"q4_0", "=q4_0", "*=", "*=q3_k"}) {
    expect_refusal(kProgram, {in, out, "--type", "q4_0", "--tensor-type", rule}, "--tensor-type");
  }
  for (const std::string pattern : {"blk.9.*", "*norm.weight", "output", "*x*", ""}) {
    expect_refusal(kProgram, {in, out, "--type", "q4_0", "--tensor-type", pattern + "=q8_0"},
                   "--tensor-type");
  }
  expect_refusal(kProgram, {in, out, "--type", "q4_0", "-t", "0"}, "--threads");
  expect_refusal(kProgram, {in, out, "--type", "q4_0", "-c", "1"}, "--context");
  expect_refusal(kProgram, {in, out, "--type", "q4_0", "--judge-ids", ids, "--judge", ids},
                 "--judge");
  expect_refusal(kProgram, {in, out, "--type", "q4_0", "--judge-ids", path("absent")}, "absent");
  expect_refusal(kProgram, {in, out, "--type", "q4_0", "--judge", ids}, "tokenizer.ggml");
  expect_refusal(kProgram, {in, out, "--type", "q4_0", "--judge-ids", ids, "-c", "5000"},
                 "at most the model's 4096");
  expect_refusal(kProgram, {path("absent.gguf"), out, "--type", "q4_0"}, "absent.gguf");
  expect_refusal(kProgram, {in, path("absent/out.gguf"), "--type", "q4_0"}, "absent/out.gguf");
  expect_refusal(kProgram, {in, directory_.path().string(), "--type", "q4_0", "--force"},
                 "no regular file");
  EXPECT_EQ(files(), before);
}

TEST_F(QuantizeProgram, ReplacesAFileOnlyByForce) {
  const std::string in = write_model("in.gguf", {.num_layers = 1});
  const std::string out = write("out.gguf", "precious");
  expect_refusal(kProgram, {in, out, "--type", "q4_0"}, "--force");
  EXPECT_EQ(read_bytes(out).size(), 8u);
  text({in, out, "--type", "q4_0", "--force"});
  EXPECT_NO_THROW(GgufFile{out});
}

TEST_F(QuantizeProgram, NeverReplacesItsInput) {
  const std::string in = write_model("in.gguf", {.num_layers = 1});
  std::filesystem::create_symlink(in, path("link.gguf"));
  const auto before = read_bytes(in);
  for (const std::string& out : {in, path("link.gguf"), path("./in.gguf")}) {
    expect_refusal(kProgram, {in, out, "--type", "q4_0", "--force"}, "another file");
  }
  EXPECT_EQ(read_bytes(in), before);
}

TEST_F(QuantizeProgram, FailuresLeaveNothingBehind) {
  const std::string in = write_model("in.gguf", {.num_layers = 1});
  const auto bytes = read_bytes(in);
  support::write_bytes(path("short.gguf"), std::span(bytes).first(bytes.size() / 2));
  const std::string out = write("out.gguf", "precious");
  const auto before = files();
  expect_refusal(kProgram, {path("short.gguf"), out, "--type", "q4_0", "--force"}, "short.gguf");
  EXPECT_EQ(files(), before);
  EXPECT_EQ(read_bytes(out).size(), 8u);
}

TEST_F(QuantizeProgram, ValuesThatCannotBeHeldAreNamedAndLeaveNothingBehind) {
  const auto check = [&](float value, const std::string& type, const std::string& problem) {
    SCOPED_TRACE(::testing::Message() << value << " to " << type);
    std::vector<float> last(256 * 4, 1.0f);
    last[256 * 2 + 7] = value;
    support::TinyModel model({.num_layers = 1});
    model.writer().add_tensor("last.weight", TensorType::kF32, {256, 4},
                              std::as_bytes(std::span(last)));
    model.writer().write(path("in.gguf"));
    const std::string out = write("out.gguf", "precious");
    const auto before = files();
    expect_refusal(kProgram, {path("in.gguf"), out, "--type", type, "--force"},
                   "tensor 'last.weight', row 2: " + problem);
    EXPECT_EQ(files(), before);
    EXPECT_EQ(read_bytes(out).size(), 8u);
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  check(kNan, "q4_0", "[quantize] q4_0 holds finite values");
  check(-kInfinity, "q6_k", "[quantize] q6_k holds finite values");
  check(1e6f, "q4_0",
        "[quantize] q4_0 holds finite values of at most 524032 in magnitude, got 1e+06 "
        "at index 7");
  check(1e6f, "f16", "a value is not finite, or too large for f16");
  check(kNan, "bf16", "a value is not finite");
}

}  // namespace
