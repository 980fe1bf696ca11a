// SPDX-License-Identifier: MIT
// Runs a program and captures what it says.
//
//   const auto result = support::run_program("kvick-tokenize", {"-m", model, "-p", "text"});
//   EXPECT_EQ(result.exit_code, 0) << result.err;
//
// Standard input and both outputs are temporary files, so no amount of text can block either side.
// Unix only.
#pragma once

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#ifndef KVICK_PROGRAM_DIR
#define KVICK_PROGRAM_DIR "."
#endif

extern char** environ;

namespace support {

struct ProgramResult {
  int exit_code = -1;  ///< -1 if a signal ended the program
  int signal = 0;
  std::string out;
  std::string err;
};

struct ProgramOptions {
  std::string_view input = {};                ///< standard input
  int output_fd = -1;                         ///< standard output goes here; -1: captured
  std::vector<std::string> environment = {};  ///< NAME=value, before those of this process
};

namespace detail {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using TemporaryFile = std::unique_ptr<std::FILE, CloseFile>;

inline TemporaryFile temporary_file(std::string_view content = {}) {
  TemporaryFile file(std::tmpfile());
  if (!file || std::fwrite(content.data(), 1, content.size(), file.get()) != content.size() ||
      std::fflush(file.get()) != 0) {
    throw std::runtime_error("cannot write a temporary file");
  }
  std::rewind(file.get());
  return file;
}

inline std::string read_all(std::FILE* file) {
  std::rewind(file);
  std::string text;
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, file)) {
    text.append(buffer, count);
  }
  return text;
}

/// As execve wants it; the strings must outlive it.
inline std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  return result;
}

}  // namespace detail

/// Runs one of the project's programs to its end.
inline ProgramResult run_program(const std::string& name, std::vector<std::string> arguments,
                                 ProgramOptions options = {}) {
  const std::string path = std::filesystem::path(KVICK_PROGRAM_DIR) / name;
  const auto in = detail::temporary_file(options.input);
  const auto out = detail::temporary_file();
  const auto err = detail::temporary_file();

  arguments.insert(arguments.begin(), path);
  std::vector<char*> argv = detail::pointers(arguments);
  argv.push_back(nullptr);
  std::vector<char*> environment = detail::pointers(options.environment);
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int output_fd = options.output_fd >= 0 ? options.output_fd : fileno(out.get());
  posix_spawn_file_actions_adddup2(&actions, fileno(in.get()), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(err.get()), STDERR_FILENO);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, path.c_str(), &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + path);

  int status = 0;
  if (waitpid(pid, &status, 0) != pid) throw std::runtime_error("cannot wait for " + path);
  ProgramResult result;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.out = detail::read_all(out.get());
  result.err = detail::read_all(err.get());
  return result;
}

}  // namespace support
