// SPDX-License-Identifier: MIT
// The error of a file that cannot be used.
//
// Layer     core.
#pragma once

#include <filesystem>
#include <string_view>
#include <system_error>

#include "kvick/core/error.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1::detail {

/// "cannot open 'path': No such file or directory", for an `error` of the system (errno).
[[noreturn]] inline void throw_io_error(std::string_view operation, std::string_view action,
                                        const std::filesystem::path& path, int error) {
  throw Error(ErrorCode::kIo, operation,
              concat("cannot ", action, " '", path.string(),
                     "': ", std::generic_category().message(error)));
}

}  // namespace kvick::inline v0_1::detail
