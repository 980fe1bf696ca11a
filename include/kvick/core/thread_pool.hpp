// SPDX-License-Identifier: MIT
// A persistent pool of threads for loops over ranges.
//
// The caller works too, so a pool of n threads has n - 1 workers. Workers spin for a moment after a
// call, because layers follow each other within microseconds, and then sleep.
//
// A pool runs one loop at a time. A call that finds it busy - nested in a body, or from another
// thread - does all its work in the calling thread; it never waits, so no nesting of pools can
// deadlock. Results must therefore not depend on how a range is cut; kvick's never do.
//
// Errors    Error(kArgument) for an absurd number of threads, Error(kCapacity) if the system does
//           not give them. The first exception of a body is rethrown to the caller once every
//           thread has left the loop; the pool stays usable.
// Threads   Any thread may call parallel_for at any time. Bodies run in ScopedFpEnvironment, on
//           workers and on the caller. parallel_for itself allocates nothing.
// Layer     core.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_count.hpp"

namespace kvick::inline v0_1 {

class ThreadPool {
 public:
  static constexpr int kMaxThreads = 1024;

  /// `num_threads` counts the caller; 0 or less means default_num_threads().
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(begin, end) for near-equal contiguous parts of [0, count), the same part on the
  /// same thread each time (the whole range on the caller if the pool is busy). If body takes a
  /// third argument, it gets an index in [0, num_threads()) that no other part of this call has at
  /// the same time; scratch indexed by it must belong to the call.
  template <class Body>
  void parallel_for(Index count, Body&& body);

  /// The same in chunks [i grain, (i + 1) grain), the last one shorter, which threads take as they
  /// become free. A grain below 1 counts as 1.
  template <class Body>
  void parallel_for(Index count, Index grain, Body&& body);

 private:
  struct Loop {
    void (*run)(void* body, Index begin, Index end, int thread) = nullptr;
    void* body = nullptr;
    Index count = 0;
    Index grain = 0;  // 0: static parts

    Index num_chunks() const noexcept { return (count - 1) / grain + 1; }
    void run_chunk(Index chunk, int thread) const {
      const Index begin = chunk * grain;
      run(body, begin, begin + std::min(grain, count - begin), thread);
    }
  };

  template <class Body>
  void run_loop(Index count, Index grain, Body& body);
  void dispatch(const Loop& loop);
  static void run_alone(const Loop& loop);
  void run_share(const Loop& loop, int thread) noexcept;
  void work(int thread) noexcept;
  std::uint64_t wait_for_loop(std::uint64_t seen) noexcept;
  void stop() noexcept;

  std::vector<std::thread> workers_;
  bool may_spin_ = false;

  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};
  Loop loop_;                 // written before generation_ moves on
  std::exception_ptr error_;  // guarded by mutex_ while workers are in the loop
  std::mutex mutex_;
  std::condition_variable wake_;  // generation_ or stopping_ changed
  std::condition_variable done_;  // pending_ reached 0
  alignas(64) std::atomic<std::uint64_t> generation_{0};
  alignas(64) std::atomic<int> pending_{0};  // workers still in the loop
  alignas(64) std::atomic<Index> next_{0};   // first chunk not yet taken, if grain > 0
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// Tells the core that this is a spin loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/// About 30 microseconds of pauses at 10 to 40 ns each.
inline constexpr int kSpins = 1500;

/// Spins until `ready()` or the patience is over; whether it was ready.
template <class Ready>
bool spin_until(bool may_spin, const Ready& ready) noexcept {
  for (int i = 0; may_spin && i < kSpins; ++i) {
    if (ready()) return true;
    cpu_relax();
  }
  return ready();
}

}  // namespace detail

inline ThreadPool::ThreadPool(int num_threads) {
  const int num_available = default_num_threads();
  if (num_threads <= 0) num_threads = std::min(num_available, kMaxThreads);
  detail::require(num_threads <= kMaxThreads, ErrorCode::kArgument, "ThreadPool",
                  "num_threads must be at most ", kMaxThreads, ", got ", num_threads);
  // With more threads than CPUs, a spinning thread only keeps the one it waits for from running.
  may_spin_ = num_threads <= num_available;
  try {
    workers_.reserve(static_cast<std::size_t>(num_threads - 1));
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    stop();
    throw Error(
        ErrorCode::kCapacity, "ThreadPool",
        detail::concat("the system must allow ", num_threads, " threads, got ", error.what()));
  } catch (...) {
    stop();
    throw;
  }
}

inline ThreadPool::~ThreadPool() { stop(); }

inline void ThreadPool::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

template <class Body>
void ThreadPool::parallel_for(Index count, Body&& body) {
  run_loop(count, 0, body);
}

template <class Body>
void ThreadPool::parallel_for(Index count, Index grain, Body&& body) {
  run_loop(count, std::max<Index>(grain, 1), body);
}

template <class Body>
void ThreadPool::run_loop(Index count, Index grain, Body& body) {
  auto call = [&body](Index begin, Index end, [[maybe_unused]] int thread) {
    if constexpr (std::is_invocable_v<Body&, Index, Index, int>) {
      body(begin, end, thread);
    } else {
      body(begin, end);
    }
  };
  const auto run = [](void* erased, Index begin, Index end, int thread) {
    (*static_cast<decltype(call)*>(erased))(begin, end, thread);
  };
  dispatch({run, &call, count, grain});
}

// Not inlined, so that the compiler moves no arithmetic of the caller into the guard or out of it.
[[gnu::noinline]] inline void ThreadPool::dispatch(const Loop& loop) {
  if (loop.count <= 0) return;
  const ScopedFpEnvironment fp_environment;
  const bool fits_one_thread = workers_.empty() || loop.count <= std::max<Index>(loop.grain, 1);
  if (fits_one_thread || busy_.exchange(true, std::memory_order_acquire)) {
    run_alone(loop);
    return;
  }
  loop_ = loop;
  next_.store(0, std::memory_order_relaxed);
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    // Under the mutex, so that a worker about to sleep either sees it or is woken.
    const std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  run_share(loop, 0);
  const auto finished = [this] { return pending_.load(std::memory_order_acquire) == 0; };
  if (!detail::spin_until(may_spin_, finished)) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, finished);
  }
  const std::exception_ptr error = std::exchange(error_, nullptr);
  busy_.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

inline void ThreadPool::run_alone(const Loop& loop) {
  if (loop.grain == 0) {
    loop.run(loop.body, 0, loop.count, 0);
    return;
  }
  const Index num_chunks = loop.num_chunks();
  for (Index chunk = 0; chunk < num_chunks; ++chunk) loop.run_chunk(chunk, 0);
}

inline void ThreadPool::run_share(const Loop& loop, int thread) noexcept {
  try {
    if (loop.grain == 0) {
      const Index threads = num_threads();
      const Index share = loop.count / threads;
      const Index extra = loop.count % threads;  // the first `extra` parts are one longer
      const Index begin = thread * share + std::min<Index>(thread, extra);
      const Index end = begin + share + (thread < extra ? 1 : 0);
      if (begin < end) loop.run(loop.body, begin, end, thread);
      return;
    }
    const Index num_chunks = loop.num_chunks();
    for (;;) {
      const Index chunk = next_.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= num_chunks) return;
      loop.run_chunk(chunk, thread);
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

inline std::uint64_t ThreadPool::wait_for_loop(std::uint64_t seen) noexcept {
  const auto changed = [&] {
    return generation_.load(std::memory_order_acquire) != seen ||
           stopping_.load(std::memory_order_relaxed);
  };
  if (!detail::spin_until(may_spin_, changed)) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, changed);
  }
  return generation_.load(std::memory_order_acquire);
}

inline void ThreadPool::work(int thread) noexcept {
  std::uint64_t seen = 0;
  for (;;) {
    const std::uint64_t current = wait_for_loop(seen);
    if (current == seen) return;  // stopping
    seen = current;
    {
      const ScopedFpEnvironment fp_environment;  // anew: an earlier body may have left another mode
      run_share(loop_, thread);
    }
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      const std::lock_guard lock(mutex_);
      done_.notify_one();
    }
  }
}

}  // namespace kvick::inline v0_1
