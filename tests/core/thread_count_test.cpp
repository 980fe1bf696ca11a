// SPDX-License-Identifier: MIT
#include "kvick/core/thread_count.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

namespace kvick {
namespace {

constexpr int kNoLimit = std::numeric_limits<int>::max();

TEST(CpusOfQuota, RoundsUp) {
  EXPECT_EQ(detail::cpus_of_quota(100000, 100000), 1);
  EXPECT_EQ(detail::cpus_of_quota(100001, 100000), 2);
  EXPECT_EQ(detail::cpus_of_quota(150000, 100000), 2);
  EXPECT_EQ(detail::cpus_of_quota(1000, 100000), 1);
  EXPECT_EQ(detail::cpus_of_quota(800000, 100000), 8);
  EXPECT_EQ(detail::cpus_of_quota(std::numeric_limits<long long>::max(), 1), kNoLimit);
}

TEST(CpusOfQuota, IsNoLimitUnlessBothArePositive) {
  EXPECT_EQ(detail::cpus_of_quota(-1, 100000), std::nullopt);
  EXPECT_EQ(detail::cpus_of_quota(0, 100000), std::nullopt);
  EXPECT_EQ(detail::cpus_of_quota(100000, 0), std::nullopt);
  EXPECT_EQ(detail::cpus_of_quota(100000, -1), std::nullopt);
}

TEST(ParseCpuMax, ReadsQuotaAndPeriod) {
  EXPECT_EQ(detail::parse_cpu_max("150000 100000\n"), 2);
  EXPECT_EQ(detail::parse_cpu_max("50000 100000"), 1);
}

TEST(ParseCpuMax, IsNoLimitForOtherTexts) {
  for (const char* const text :
       {"max 100000\n", "", "\n", " ", "100000", "100000 ", " 100000", "1e5 100000",
        "99999999999999999999 100000", "100000 100000 100000", "-1 100000"}) {
    EXPECT_EQ(detail::parse_cpu_max(text), std::nullopt) << text;
  }
}

TEST(CgroupPath, FindsTheUnifiedAndTheCpuHierarchy) {
  const std::string text =
      "12:cpuset:/set\n"
      "4:cpu,cpuacct:/docker/abc\n"
      "3:memory:/m\n"
      "1:name=systemd:/user:1.slice\n"
      "0::/system.slice/x.service\n";
  EXPECT_EQ(detail::cgroup_path(text, ""), "/system.slice/x.service");
  EXPECT_EQ(detail::cgroup_path(text, "cpu"), "/docker/abc");
  EXPECT_EQ(detail::cgroup_path(text, "cpuacct"), "/docker/abc");
  EXPECT_EQ(detail::cgroup_path(text, "name=systemd"), "/user:1.slice");
  EXPECT_EQ(detail::cgroup_path(text, "pids"), std::nullopt);
}

TEST(CgroupPath, SkipsLinesOfAnotherForm) {
  EXPECT_EQ(detail::cgroup_path("", ""), std::nullopt);
  EXPECT_EQ(detail::cgroup_path("\n\nnonsense\n0:\n0::/a", ""), "/a");
  EXPECT_EQ(detail::cgroup_path("0::", ""), "");
}

class CgroupTree : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "kvick_cgroup_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::string root_;
};

TEST_F(CgroupTree, TakesTheLeastQuotaFromTheFolderUpToTheRoot) {
  write("/cpu.max", "max 100000\n");
  write("/a/cpu.max", "300000 100000\n");
  write("/a/b/cpu.max", "500000 100000\n");
  EXPECT_EQ(detail::cpus_of_tree(root_, "/a/b"), 3);
  EXPECT_EQ(detail::cpus_of_tree(root_, "/a"), 3);
  EXPECT_EQ(detail::cpus_of_tree(root_, "/"), kNoLimit);
  write("/cpu.max", "100000 100000\n");
  EXPECT_EQ(detail::cpus_of_tree(root_, "/a/b"), 1);
  EXPECT_EQ(detail::cpus_of_tree(root_, "/"), 1);
  EXPECT_EQ(detail::cpus_of_tree(root_, ""), 1);
}

// A container sees its own group as the root, but may be told the path on the host.
TEST_F(CgroupTree, FallsBackToTheRootWhereThePathDoesNotExist) {
  write("/cpu.cfs_quota_us", "200000\n");
  write("/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(detail::cpus_of_tree(root_, "/docker/abc"), 2);
}

TEST_F(CgroupTree, ReadsVersion1AndItsMinusOneAsNoLimit) {
  write("/g/cpu.cfs_quota_us", "-1\n");
  write("/g/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(detail::cpus_of_tree(root_, "/g"), kNoLimit);
  write("/g/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(detail::cpus_of_tree(root_, "/g"), 3);
}

TEST(DefaultNumThreads, IsAtLeastOneAndAtMostTheCpus) {
  EXPECT_GE(default_num_threads(), 1);
  EXPECT_LE(default_num_threads(),
            static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

#if defined(__linux__)

TEST(DefaultNumThreads, FollowsTheAffinityMask) {
  cpu_set_t saved;
  ASSERT_EQ(sched_getaffinity(0, sizeof(saved), &saved), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &saved)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const auto cpus = detail::cpus_of_affinity();
  const int threads = default_num_threads();
  ASSERT_EQ(sched_setaffinity(0, sizeof(saved), &saved), 0);
  EXPECT_EQ(cpus, 1);
  EXPECT_EQ(threads, 1);
  EXPECT_EQ(detail::cpus_of_affinity(), CPU_COUNT(&saved));
}

#endif

}  // namespace
}  // namespace kvick
