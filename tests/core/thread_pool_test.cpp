// SPDX-License-Identifier: MIT
#include "kvick/core/thread_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/fp_mode.hpp"
#include "support/sanitizers.hpp"

#if defined(__linux__)
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#endif

namespace kvick {
namespace {

constexpr int kThreadCounts[] = {1, 2, 3, 4, 7};
constexpr Index kCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 15, 64, 65, 1000};
constexpr Index kGrains[] = {1, 2, 3, 7, 64, 5000};

struct Part {
  Index begin;
  Index end;
  int thread;
  std::thread::id id;
};

bool operator<(const Part& a, const Part& b) { return a.begin < b.begin; }

// The parts that one loop was cut into, in ascending order. A grain of 0 stands for static parts.
std::vector<Part> parts_of(ThreadPool& pool, Index count, Index grain) {
  std::mutex mutex;
  std::vector<Part> parts;
  const auto body = [&](Index begin, Index end, int thread) {
    const std::lock_guard lock(mutex);
    parts.push_back({begin, end, thread, std::this_thread::get_id()});
  };
  if (grain == 0) {
    pool.parallel_for(count, body);
  } else {
    pool.parallel_for(count, grain, body);
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

// Every index exactly once.
void expect_partition(const std::vector<Part>& parts, Index count, int num_threads) {
  Index next = 0;
  for (const Part& part : parts) {
    EXPECT_EQ(part.begin, next);
    EXPECT_LT(part.begin, part.end);
    EXPECT_GE(part.thread, 0);
    EXPECT_LT(part.thread, num_threads);
    next = part.end;
  }
  EXPECT_EQ(next, count);
}

void expect_chunks(const std::vector<Part>& parts, Index count, Index grain) {
  for (const Part& part : parts) {
    EXPECT_EQ(part.begin % grain, 0);
    EXPECT_EQ(part.end, std::min(part.begin + grain, count));
  }
}

Index sum_below(Index n) { return n * (n - 1) / 2; }

Index parallel_sum(ThreadPool& pool, Index count, Index grain) {
  std::atomic<Index> sum{0};
  pool.parallel_for(count, grain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) sum.fetch_add(i, std::memory_order_relaxed);
  });
  return sum.load();
}

TEST(ThreadPool, HasTheThreadsAskedFor) {
  for (const int threads : kThreadCounts) EXPECT_EQ(ThreadPool(threads).num_threads(), threads);
  EXPECT_EQ(ThreadPool().num_threads(), default_num_threads());
  EXPECT_EQ(ThreadPool(-5).num_threads(), default_num_threads());
}

TEST(ThreadPool, RefusesAnAbsurdNumberOfThreads) {
  try {
    ThreadPool pool(ThreadPool::kMaxThreads + 1);
    FAIL() << "expected Error(kArgument)";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kArgument);
    EXPECT_EQ(error.message(), "[ThreadPool] num_threads must be at most 1024, got 1025");
  }
}

TEST(ThreadPool, StaticPartsCoverEveryIndexOnceAndDifferByAtMostOne) {
  for (const int threads : kThreadCounts) {
    ThreadPool pool(threads);
    for (const Index count : kCounts) {
      SCOPED_TRACE(::testing::Message() << threads << " threads, count " << count);
      const std::vector<Part> parts = parts_of(pool, count, 0);
      expect_partition(parts, count, threads);
      EXPECT_EQ(static_cast<Index>(parts.size()), std::min<Index>(threads, count));
      for (const Part& part : parts) {
        EXPECT_GE(part.end - part.begin, count / threads);
        EXPECT_LE(part.end - part.begin, (count + threads - 1) / threads);
      }
    }
  }
}

TEST(ThreadPool, ChunksCoverEveryIndexOnceAndKeepTheGrain) {
  for (const int threads : kThreadCounts) {
    ThreadPool pool(threads);
    for (const Index count : kCounts) {
      for (const Index grain : kGrains) {
        SCOPED_TRACE(::testing::Message()
                     << threads << " threads, count " << count << ", grain " << grain);
        const std::vector<Part> parts = parts_of(pool, count, grain);
        expect_partition(parts, count, threads);
        expect_chunks(parts, count, grain);
      }
    }
  }
}

TEST(ThreadPool, ChunksKeepTheGrainWhenThePoolIsBusy) {
  ThreadPool pool(2);
  std::vector<Part> inner;
  pool.parallel_for(2, [&](Index begin, Index) {
    if (begin == 0) inner = parts_of(pool, 100, 7);
  });
  EXPECT_EQ(inner.size(), 15u);
  expect_partition(inner, 100, 2);
  expect_chunks(inner, 100, 7);
}

TEST(ThreadPool, AGrainBelowOneCountsAsOne) {
  ThreadPool pool(2);
  for (const Index grain : {Index{-1}, std::numeric_limits<Index>::min()}) {
    std::vector<Part> parts;
    std::mutex mutex;
    pool.parallel_for(5, grain, [&](Index begin, Index end) {
      const std::lock_guard lock(mutex);
      parts.push_back({begin, end, 0, {}});
    });
    std::sort(parts.begin(), parts.end());
    EXPECT_EQ(parts.size(), 5u);
    expect_partition(parts, 5, 2);
  }
}

TEST(ThreadPool, AnEmptyRangeCallsNothing) {
  ThreadPool pool(3);
  for (const Index count : {Index{0}, Index{-1}, std::numeric_limits<Index>::min()}) {
    EXPECT_TRUE(parts_of(pool, count, 0).empty());
    EXPECT_TRUE(parts_of(pool, count, 4).empty());
  }
}

TEST(ThreadPool, TheLargestRangeDoesNotOverflow) {
  constexpr Index kMax = std::numeric_limits<Index>::max();
  ThreadPool pool(4);
  expect_partition(parts_of(pool, kMax, 0), kMax, 4);
  for (const Index grain : {kMax, kMax - 1, kMax / 2, kMax / 3}) {
    const std::vector<Part> parts = parts_of(pool, kMax, grain);
    expect_partition(parts, kMax, 4);
    EXPECT_EQ(static_cast<Index>(parts.size()), (kMax - 1) / grain + 1);
  }
}

TEST(ThreadPool, StaticPartsStayOnTheirThread) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  const std::vector<Part> first = parts_of(pool, 103, 0);
  ASSERT_EQ(first.size(), static_cast<std::size_t>(kThreads));
  EXPECT_EQ(first[0].id, std::this_thread::get_id());
  for (int call = 0; call < 100; ++call) {
    const std::vector<Part> parts = parts_of(pool, 103, 0);
    ASSERT_EQ(parts.size(), first.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].begin, first[i].begin);
      EXPECT_EQ(parts[i].thread, static_cast<int>(i));
      EXPECT_EQ(parts[i].id, first[i].id);
    }
  }
}

TEST(ThreadPool, ThreadIndexIsUniqueAmongThePartsThatRunAtTheSameTime) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  for (const Index grain : {Index{1}, Index{3}}) {
    std::atomic<bool> is_taken[kThreads] = {};
    std::atomic<int> clashes{0};
    pool.parallel_for(2000, grain, [&](Index, Index, int thread) {
      if (is_taken[thread].exchange(true)) ++clashes;
      std::this_thread::yield();
      is_taken[thread].store(false);
    });
    EXPECT_EQ(clashes.load(), 0);
  }
}

TEST(ThreadPool, AllThreadsWorkAtTheSameTime) {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  std::atomic<int> arrived{0};
  pool.parallel_for(kThreads, [&](Index, Index) {
    ++arrived;
    while (arrived.load() < kThreads) std::this_thread::yield();  // hangs if they take turns
  });
  EXPECT_EQ(arrived.load(), kThreads);
}

void free_function(Index, Index end) {
  static std::atomic<Index> ends{0};
  ends += end;
}

struct CountingBody {
  std::atomic<int>* calls;
  void operator()(Index, Index) const { ++*calls; }
};

TEST(ThreadPool, TakesAnyCallable) {
  ThreadPool pool(2);
  pool.parallel_for(2, free_function);
  pool.parallel_for(2, &free_function);
  pool.parallel_for(2, 1, free_function);
  std::atomic<int> calls{0};
  const CountingBody constant{&calls};
  pool.parallel_for(2, constant);
  CountingBody lvalue{&calls};
  pool.parallel_for(2, lvalue);
  pool.parallel_for(2, CountingBody{&calls});
  EXPECT_EQ(calls.load(), 6);
  int last = 0;
  pool.parallel_for(1, [last](Index, Index) mutable { ++last; });
  EXPECT_EQ(last, 0);
}

TEST(ThreadPool, RethrowsAnExceptionAfterAllThreadsHaveLeft) {
  constexpr int kThreads = 4;
  for (const Index grain : {Index{0}, Index{1}}) {
    ThreadPool pool(kThreads);
    for (int thrower = 0; thrower < kThreads; ++thrower) {
      std::atomic<int> active{0};
      const auto body = [&](Index begin, Index) {
        ++active;
        std::this_thread::yield();
        --active;
        if (begin == thrower) throw std::runtime_error("part " + std::to_string(begin));
      };
      try {
        if (grain == 0) {
          pool.parallel_for(kThreads, body);
        } else {
          pool.parallel_for(kThreads, grain, body);
        }
        ADD_FAILURE() << "no exception";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(error.what(), "part " + std::to_string(thrower));
      }
      EXPECT_EQ(active.load(), 0);
      EXPECT_EQ(parallel_sum(pool, 100, 3), sum_below(100));
    }
  }
}

TEST(ThreadPool, RethrowsOneOfSeveralExceptionsAndStaysUsable) {
  for (const int threads : kThreadCounts) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; ++round) {
      EXPECT_THROW(pool.parallel_for(64, [](Index, Index) { throw std::logic_error("all"); }),
                   std::logic_error);
      EXPECT_THROW(pool.parallel_for(64, 1, [](Index, Index) { throw 7; }), int);
      EXPECT_EQ(parallel_sum(pool, 64, 5), sum_below(64));
    }
  }
}

TEST(ThreadPool, NestedLoopsRunInTheCallingThread) {
  ThreadPool pool(3);
  std::atomic<Index> sum{0};
  std::atomic<int> strangers{0};
  pool.parallel_for(30, 1, [&](Index, Index) {
    const std::thread::id outer = std::this_thread::get_id();
    pool.parallel_for(10, [&](Index begin, Index end, int thread) {
      if (std::this_thread::get_id() != outer || thread != 0) ++strangers;
      pool.parallel_for(end - begin, 1, [&](Index i, Index) { sum += i + begin; });
    });
  });
  EXPECT_EQ(strangers.load(), 0);
  EXPECT_EQ(sum.load(), 30 * sum_below(10));
}

TEST(ThreadPool, AnExceptionOfANestedLoopReachesTheOuterCaller) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.parallel_for(3,
                                 [&](Index, Index) {
                                   pool.parallel_for(5, 1, [](Index begin, Index) {
                                     if (begin == 4) throw std::out_of_range("inner");
                                   });
                                 }),
               std::out_of_range);
  EXPECT_EQ(parallel_sum(pool, 64, 5), sum_below(64));
}

TEST(ThreadPool, ServesSeveralCallersAtOnce) {
  ThreadPool pool(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int call = 0; call < 300; ++call) {
        const Index count = 1 + (caller * 37 + call) % 90;
        if (parallel_sum(pool, count, 1 + call % 5) != sum_below(count)) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadPool, PoolsThatCallEachOtherDoNotDeadlock) {
  ThreadPool a(3), b(2);
  std::atomic<Index> sum{0};
  const auto cross = [&sum](ThreadPool& outer, ThreadPool& inner) {
    for (int call = 0; call < 100; ++call) {
      outer.parallel_for(6, 1, [&](Index, Index) {
        inner.parallel_for(6, 1, [&](Index, Index) {
          outer.parallel_for(6, 1, [&](Index begin, Index) { sum += begin; });
        });
      });
    }
  };
  std::thread other([&] { cross(b, a); });
  cross(a, b);
  other.join();
  EXPECT_EQ(sum.load(), 2 * 100 * 36 * sum_below(6));
}

TEST(ThreadPool, ThousandsAreMadeAndDestroyed) {
  for (int i = 0; i < 2000; ++i) {
    ThreadPool pool(1 + i % 4);
    if (i % 2 == 0) {
      ASSERT_EQ(parallel_sum(pool, 10, 1), sum_below(10));
    }
  }
}

// More threads than CPUs and exactly as many: workers that only sleep, and workers that spin first.
TEST(ThreadPool, NoWakeUpIsLostOverManyShortLoops) {
  for (const int threads : {default_num_threads(), default_num_threads() + 3}) {
    ThreadPool pool(threads);
    Index done = 0;
    for (int call = 0; call < 5000; ++call) {
      std::atomic<Index> seen{0};
      pool.parallel_for(threads, [&](Index begin, Index end) { seen += end - begin; });
      done += seen.load();
    }
    EXPECT_EQ(done, Index{5000} * threads);
  }
}

TEST(ThreadPool, WakesWorkersThatFellAsleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 3));
    EXPECT_EQ(parts_of(pool, 3, 0).size(), 3u);
  }
}

// The caller's writes reach the bodies, and theirs reach the caller, without atomics.
TEST(ThreadPool, OrdersMemoryBeforeAndAfterTheLoop) {
  ThreadPool pool(4);
  std::vector<int> values(400);
  for (int call = 0; call < 500; ++call) {
    std::fill(values.begin(), values.end(), call);
    pool.parallel_for(400, 1 + call % 50, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i) values[static_cast<std::size_t>(i)] += 1;
    });
    ASSERT_EQ(std::count(values.begin(), values.end(), call + 1), 400);
  }
}

TEST(ThreadPool, LoopsAllocateNothing) {
  ThreadPool pool(3);
  std::atomic<Index> sum{0};
  const auto body = [&](Index begin, Index end) { sum += end - begin; };
  const auto loops = [&] {
    pool.parallel_for(100, body);
    pool.parallel_for(100, 3, body);
    pool.parallel_for(2, [&](Index, Index) { pool.parallel_for(10, 1, body); });
  };
  loops();
  const std::size_t before = support::num_allocations();
  for (int call = 0; call < 200; ++call) loops();
  EXPECT_EQ(support::num_allocations(), before);
  EXPECT_EQ(sum.load(), 201 * 220);
}

TEST(ThreadPool, BodiesRunInTheDefaultFpModeWhateverTheCallersMode) {
  using support::FpMode;
  for (const FpMode mode : support::foreign_fp_modes()) {
    SCOPED_TRACE(::testing::Message() << mode);
    FpMode after{};
    std::atomic<int> default_modes{0};
    const auto body = [&](Index begin, Index end) {
      if (support::observed_fp_mode() == FpMode::kDefault) {
        default_modes += static_cast<int>(end - begin);
      }
    };
    {
      const support::ScopedFpMode foreign(mode);
      ThreadPool pool(3);  // workers inherit the mode of the thread that makes them
      pool.parallel_for(3, body);
      pool.parallel_for(30, 1, body);
      pool.parallel_for(1, body);  // alone
      ThreadPool(1).parallel_for(7, body);
      after = support::observed_fp_mode();
    }
    EXPECT_EQ(default_modes.load(), 3 + 30 + 1 + 7);
    EXPECT_EQ(after, mode);
  }
}

TEST(ThreadPool, AModeThatABodyLeavesBehindReachesNoOtherLoop) {
  ThreadPool pool(3);
  std::atomic<int> default_modes{0};
  // Gives this thread, which takes part, the rest of its mode back: that of long double.
  const support::ScopedFpMode restore(support::FpMode::kDefault);
  pool.parallel_for(3, [](Index, Index) { std::fesetround(FE_UPWARD); });
  EXPECT_EQ(support::observed_fp_mode(), support::FpMode::kDefault);
  pool.parallel_for(3, [&](Index, Index) {
    if (support::observed_fp_mode() == support::FpMode::kDefault) ++default_modes;
  });
  EXPECT_EQ(default_modes.load(), 3);
}

#if defined(__linux__) && !defined(KVICK_TEST_SANITIZED)

// With little address space left, the system refuses stacks after the first few threads.
TEST(ThreadPool, ReportsThreadsThatTheSystemRefuses) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  ASSERT_GT(pages, 0u);
  rlimit saved{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &saved), 0);
  rlimit tight = saved;
  tight.rlim_cur =
      pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + (std::size_t{32} << 20);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  std::unique_ptr<Error> caught;
  try {
    ThreadPool pool(ThreadPool::kMaxThreads);
  } catch (const Error& error) {
    caught = std::make_unique<Error>(error);
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &saved), 0);
  ASSERT_NE(caught, nullptr);
  EXPECT_EQ(caught->code(), ErrorCode::kCapacity);
  EXPECT_NE(caught->message().find("must allow 1024 threads"), std::string_view::npos)
      << caught->message();
}

#endif

}  // namespace
}  // namespace kvick
