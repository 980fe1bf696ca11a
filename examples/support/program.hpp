// SPDX-License-Identifier: MIT
// What every program does alike: options, errors, input and output.
//
// Exit codes  0 success, also if the reader of standard output has gone; 2 for anything wrong, with
//             one line on standard error: "<program>: <what is wrong>".
#pragma once

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "kvick/core/error.hpp"

namespace programs {

inline constexpr int kExitBadInput = 2;

/// What a user gave and a program cannot use; `what()` is shown as it is.
class BadInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Nobody reads standard output any more.
class OutputClosed : public std::exception {};

/// Prints at once, not when a buffer is full: text appears token by token, in pipes too.
inline void print(std::string_view text) {
  const bool is_printed =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (is_printed) return;
  if (errno == EPIPE) throw OutputClosed();
  throw BadInput(std::string("cannot write to standard output: ") + std::strerror(errno));
}

inline constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;  // a long novel has 3 MiB

/// All that is left in `file`, which messages call `what`.
inline std::string read_all(std::FILE* file, const std::string& what) {
  std::string text;
  char buffer[1 << 16];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, file)) {
    text.append(buffer, count);
    if (text.size() > kMaxTextBytes) throw BadInput(what + " must have at most 64 MiB");
  }
  if (std::ferror(file)) throw BadInput("cannot read " + what + ": " + std::strerror(errno));
  return text;
}

/// All of standard input, without the line break at its end.
inline std::string read_standard_input() {
  std::string text = read_all(stdin, "standard input");
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

/// The next line of standard input without its line break (\n or \r\n), or nothing at the end.
inline std::optional<std::string> read_line() {
  std::string line;
  int c = 0;
  while ((c = std::fgetc(stdin)) != EOF && c != '\n') {
    line += static_cast<char>(c);
    if (line.size() > kMaxTextBytes) throw BadInput("a line must have at most 64 MiB");
  }
  if (std::ferror(stdin)) {
    throw BadInput(std::string("cannot read standard input: ") + std::strerror(errno));
  }
  if (c == EOF && line.empty()) return std::nullopt;
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

inline std::string read_file(const std::string& path) {
  const std::string what = kvick::detail::in_quotes(path);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) throw BadInput("cannot read " + what + ": " + std::strerror(errno));
  return read_all(file.get(), what);
}

/// Reads the command line into what `app` binds; errors are thrown. False if help was asked for
/// and printed.
inline bool parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return false;
  }
}

/// Adds --seed. CLI11's own reading of unsigned integers takes -1 for 2^64 - 1.
inline CLI::Option* add_seed_option(CLI::App& app, std::uint64_t& seed,
                                    const std::string& description) {
  const auto read = [&seed](const std::string& text) {
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, seed);
    if (error != std::errc() || rest != end) {
      throw CLI::ValidationError("--seed", "must be an integer in [0, 2^64), got '" + text + "'");
    }
  };
  return app.add_option_function<std::string>("--seed", read, description)->type_name("INT");
}

namespace detail {

/// Control characters become spaces: file names and options may hold anything.
inline std::string one_line(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return line;
}

inline int report(const char* program, std::string_view problem) {
  std::fprintf(stderr, "%s: %s\n", program, one_line(problem).c_str());
  return kExitBadInput;
}

}  // namespace detail

/// Runs body() and returns the exit code of the program.
template <class Body>
int run(const char* program, Body&& body) {
#if defined(SIGPIPE)
  std::signal(SIGPIPE, SIG_IGN);  // print() sees the error instead
#endif
  try {
    body();
    return 0;
  } catch (const OutputClosed&) {
    return 0;
  } catch (const kvick::Error& error) {
    return detail::report(program, error.message());
  } catch (const std::bad_alloc&) {
    return detail::report(program, "not enough memory");
  } catch (const std::exception& error) {
    return detail::report(program, error.what());
  }
}

}  // namespace programs
