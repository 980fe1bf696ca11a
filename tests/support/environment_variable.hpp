// SPDX-License-Identifier: MIT
// Sets an environment variable, or unsets it, for the length of a scope. Not for several threads.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace support {

class ScopedEnvironmentVariable {
 public:
  /// A null value unsets the variable.
  ScopedEnvironmentVariable(const char* name, const char* value) : name_(name) {
    if (const char* const old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~ScopedEnvironmentVariable() { set(old_ ? old_->c_str() : nullptr); }
  ScopedEnvironmentVariable(const ScopedEnvironmentVariable&) = delete;
  ScopedEnvironmentVariable& operator=(const ScopedEnvironmentVariable&) = delete;

 private:
  void set(const char* value) {
    if (value != nullptr) {
      ::setenv(name_.c_str(), value, 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }

  std::string name_;
  std::optional<std::string> old_;
};

}  // namespace support
