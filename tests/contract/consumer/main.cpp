// SPDX-License-Identifier: MIT
// A user's program: every header, Eigen through our target, and no flags of its own.
#include <kvick/kvick.hpp>
#include <string_view>
#include <thread>

static_assert(std::string_view(kvick::kVersion) == PACKAGE_VERSION,
              "package files and header must name one version");

int main() {
  float doubled = 0;
  std::thread worker([&doubled] {
    const kvick::Matrix ones = kvick::Matrix::Ones(2, 3);
    doubled = (ones + ones).sum();
  });
  worker.join();
  return doubled == 12 ? 0 : 1;
}
