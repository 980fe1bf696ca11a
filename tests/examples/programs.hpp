// SPDX-License-Identifier: MIT
// What the tests of the programs share: a model that is always there, and what a refusal looks
// like.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "support/gguf_builder.hpp"
#include "support/subprocess.hpp"

namespace support {

/// A model of random weights, written by kvick-random-model.
class RandomModel {
 public:
  explicit RandomModel(std::vector<std::string> options = {}) {
    options.insert(options.begin(), path());
    const ProgramResult result = run_program("kvick-random-model", options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }

  std::string path() const { return directory_ / "random.gguf"; }
  const TemporaryDirectory& directory() const { return directory_; }

 private:
  TemporaryDirectory directory_;
};

/// Exit code 2, nothing on standard output, one line "<program>: ...<part>..." on standard error.
inline void expect_refusal(const std::string& program, const std::vector<std::string>& arguments,
                           const std::string& part = "", const ProgramOptions& options = {}) {
  std::string command = program;
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  SCOPED_TRACE(command);
  const ProgramResult result = run_program(program, arguments, options);
  EXPECT_EQ(result.exit_code, 2) << "signal " << result.signal;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.ends_with('\n')) << result.err;
  EXPECT_TRUE(result.err.starts_with(program + ": ")) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos)
      << "'" << part << "' is not in: " << result.err;
}

}  // namespace support
