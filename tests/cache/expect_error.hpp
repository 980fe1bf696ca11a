// SPDX-License-Identifier: MIT
// Checks that a call throws kvick::Error of one kind, with a message that says what it should.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "kvick/core/error.hpp"

namespace support {

/// Fails unless `call` throws Error(code) whose message contains `part`.
template <class Call>
void expect_error(kvick::ErrorCode code, const std::string& part, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "expected an error with \"" << part << "\"";
  } catch (const kvick::Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(error.message().find(part), std::string_view::npos) << error.what();
  }
}

}  // namespace support
