// SPDX-License-Identifier: MIT
#include "support/allocation_counter.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "support/sanitizers.hpp"

namespace support {
namespace {

// Constant-initialized: allocations happen before main and before other static objects.
constinit std::atomic<std::size_t> allocations{0};
constinit std::atomic<std::size_t> largest{0};

void record(std::size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  std::size_t seen = largest.load(std::memory_order_relaxed);
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) {
  }
}

}  // namespace

std::size_t num_allocations() noexcept { return allocations.load(std::memory_order_relaxed); }
std::size_t largest_allocation() noexcept { return largest.load(std::memory_order_relaxed); }
void reset_largest_allocation() noexcept { largest.store(0, std::memory_order_relaxed); }

}  // namespace support

#if defined(__GLIBC__) && !defined(KVICK_TEST_SANITIZED)

// glibc lets a program put its own malloc in front and exports its own under these names. What they
// return goes to the ordinary free. The library's operator new ends here too.
extern "C" {

void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) {
  support::record(bytes);
  return __libc_malloc(bytes);
}

void* calloc(std::size_t count, std::size_t bytes) {
  std::size_t total = 0;
  support::record(__builtin_mul_overflow(count, bytes, &total) ? SIZE_MAX : total);
  return __libc_calloc(count, bytes);
}

void* realloc(void* memory, std::size_t bytes) {
  support::record(bytes);
  return __libc_realloc(memory, bytes);
}

void* memalign(std::size_t alignment, std::size_t bytes) {
  support::record(bytes);
  return __libc_memalign(alignment, bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  void* const aligned = memalign(alignment, bytes);
  if (aligned == nullptr) return ENOMEM;
  *memory = aligned;
  return 0;
}

}  // extern "C"

#elif defined(KVICK_TEST_CLANG_THREAD_SANITIZER)

// Its operators cannot be replaced, but it tells this function of every allocation it made.
extern "C" void __sanitizer_malloc_hook(const volatile void*, std::size_t bytes) {
  support::record(bytes);
}

#else

namespace {

void* allocate_or_null(std::size_t bytes) noexcept {
  support::record(bytes);
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* allocate_or_null(std::size_t bytes, std::align_val_t alignment) noexcept {
  support::record(bytes);
  void* memory = nullptr;
  const std::size_t at_least_pointer = static_cast<std::size_t>(alignment) < sizeof(void*)
                                           ? sizeof(void*)
                                           : static_cast<std::size_t>(alignment);
  return ::posix_memalign(&memory, at_least_pointer, bytes == 0 ? 1 : bytes) == 0 ? memory
                                                                                  : nullptr;
}

template <class... Alignment>
void* allocate(std::size_t bytes, Alignment... alignment) {
  if (void* const memory = allocate_or_null(bytes, alignment...)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t n) { return allocate(n); }
void* operator new[](std::size_t n) { return allocate(n); }
void* operator new(std::size_t n, std::align_val_t a) { return allocate(n, a); }
void* operator new[](std::size_t n, std::align_val_t a) { return allocate(n, a); }

void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return allocate_or_null(n); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return allocate_or_null(n); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate_or_null(n, a);
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate_or_null(n, a);
}

void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
#endif
