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
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/sanitizers.hpp"

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
  /// Address space of the program; 0: no limit. Sanitizers need theirs, so in their builds too.
  std::uint64_t max_memory_bytes = 0;
  int max_cpu_seconds = 0;  ///< of all its threads, then a signal ends it; 0: no limit
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

/// `command` under the limits of `options`. A shell sets them: posix_spawn cannot, and what a fork
/// of a process with threads may do is little.
inline std::vector<std::string> with_limits(std::vector<std::string> command,
                                            const ProgramOptions& options) {
  std::string limits;
#if !defined(KVICK_TEST_SANITIZED)
  if (options.max_memory_bytes > 0) {
    limits += "ulimit -v " + std::to_string(options.max_memory_bytes / 1024) + " && ";
  }
#endif
  if (options.max_cpu_seconds > 0) {
    limits += "ulimit -t " + std::to_string(options.max_cpu_seconds) + " && ";
  }
  if (limits.empty()) return command;
  command.insert(command.begin(), {"/bin/sh", "-c", limits + "exec \"$@\"", "sh"});
  return command;
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
  arguments = detail::with_limits(std::move(arguments), options);
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
      posix_spawn(&pid, argv.front(), &actions, nullptr, argv.data(), environment.data());
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
