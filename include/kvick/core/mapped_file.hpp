// SPDX-License-Identifier: MIT
// A whole file as read-only memory.
//
// Pages are read from disk when first touched, so opening costs the same for 1 KB and 100 GB.
//
// Errors    Error(kIo) with the path and the system's reason if the file is missing, unreadable or
//           no regular file (a directory, FIFO or device).
// Threads   Any number of readers. Another process that truncates the file while it is mapped
//           makes the operating system end this one with SIGBUS when a lost page is touched; no
//           library can turn that into an exception. Replace files by renaming over them, as
//           ReplacementFile does: the mapping then keeps the old file.
// Layer     core.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "kvick/core/error.hpp"
#include "kvick/core/io_error.hpp"

#if defined(__unix__) || defined(__APPLE__)
#define KVICK_HAS_MMAP 1
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#else
#define KVICK_HAS_MMAP 0
#include <fstream>
#include <vector>
#endif

namespace kvick::inline v0_1 {

/// Owns one mapping. Move-only; `bytes()` stays at the same address when the owner moves. Where the
/// system has no mmap, the file is read into memory instead.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    MappedFile(std::move(other)).swap(*this);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

  /// Tells the system that the pages entirely inside `range` (a part of `bytes()`; anything else is
  /// ignored) are not needed for now. Touching them reads them from the file again.
  void release_pages(std::span<const std::byte> range) const noexcept;

 private:
  void swap(MappedFile& other) noexcept;

  std::span<const std::byte> bytes_;
#if !KVICK_HAS_MMAP
  std::vector<std::byte> storage_;
#endif
};

// ---- Implementation: nothing below is API ----

inline void MappedFile::swap(MappedFile& other) noexcept {
  std::swap(bytes_, other.bytes_);
#if !KVICK_HAS_MMAP
  std::swap(storage_, other.storage_);
#endif
}

#if KVICK_HAS_MMAP

namespace detail {

/// Closes a file descriptor at the end of a scope.
class ScopedDescriptor {
 public:
  explicit ScopedDescriptor(int descriptor) noexcept : descriptor_(descriptor) {}
  ScopedDescriptor(const ScopedDescriptor&) = delete;
  ScopedDescriptor& operator=(const ScopedDescriptor&) = delete;
  ~ScopedDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace detail

inline MappedFile::MappedFile(const std::filesystem::path& path) {
  constexpr std::string_view kOperation = "MappedFile";
  // O_NONBLOCK: opening a FIFO without a writer would wait for ever; for regular files it is void.
  const detail::ScopedDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) detail::throw_io_error(kOperation, "open", path, errno);

  struct ::stat status = {};
  if (::fstat(file.get(), &status) != 0) detail::throw_io_error(kOperation, "stat", path, errno);
  if (S_ISDIR(status.st_mode)) detail::throw_io_error(kOperation, "map", path, EISDIR);
  detail::require(S_ISREG(status.st_mode), ErrorCode::kIo, kOperation, "cannot map '",
                  path.string(), "': only regular files can be mapped");
  detail::require(
      static_cast<std::uint64_t>(status.st_size) <= static_cast<std::uint64_t>(PTRDIFF_MAX),
      ErrorCode::kIo, kOperation, "cannot map '", path.string(), "': ", status.st_size,
      " bytes exceed the address space");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // mmap refuses a length of 0

  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) detail::throw_io_error(kOperation, "map", path, errno);
  bytes_ = {static_cast<const std::byte*>(address), size};
}

inline MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

inline void MappedFile::release_pages(std::span<const std::byte> range) const noexcept {
  const std::less_equal<const std::byte*> not_after;  // `<=` on foreign pointers is unspecified
  const bool inside = not_after(bytes_.data(), range.data()) &&
                      not_after(range.data() + range.size(), bytes_.data() + bytes_.size());
  if (range.empty() || !inside) return;
  // Whole pages only, counted from the start of the map, which is one.
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::size_t>(range.data() - bytes_.data());
  const std::size_t first = (begin + page - 1) / page * page;
  const std::size_t last = (begin + range.size()) / page * page;
  // Advice only: a refusal costs memory, not correctness.
  auto* const map = const_cast<std::byte*>(bytes_.data());
  if (first < last) ::madvise(map + first, last - first, MADV_DONTNEED);
}

#else

inline MappedFile::MappedFile(const std::filesystem::path& path) {
  constexpr std::string_view kOperation = "MappedFile";
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) detail::throw_io_error(kOperation, "open", path, ENOENT);
  detail::require(std::filesystem::is_regular_file(status), ErrorCode::kIo, kOperation,
                  "cannot read '", path.string(), "': only regular files can be read");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) detail::throw_io_error(kOperation, "open", path, errno);
  storage_.resize(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(storage_.data()),
            static_cast<std::streamsize>(storage_.size()));
  if (!file) detail::throw_io_error(kOperation, "read", path, errno);
  bytes_ = storage_;
}

inline MappedFile::~MappedFile() = default;

inline void MappedFile::release_pages(std::span<const std::byte>) const noexcept {}

#endif

}  // namespace kvick::inline v0_1
