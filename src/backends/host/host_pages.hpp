// Virtual memory of a host device: reserved addresses, and pages that can be remapped.
//
// All pages are in one memory file, each at its own offset. Mapping pages maps that part of the
// file, so the same bytes can be unmapped at one address and mapped at another. Shareable pages
// have a memory file of their own, so another process gets only their bytes. Every reservation,
// handle and mapping is recorded. A call that does not match them exactly fails and changes
// nothing. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "tern/core/bytes.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/operations.hpp"

namespace tern::host {

class HostPages {
 public:
  /// The size of huge pages on both architectures, so that a mapping can be one huge page.
  static constexpr std::size_t page_bytes = 2 * mib;

  explicit HostPages(std::size_t total_bytes) noexcept : total_bytes_(total_bytes) {}
  ~HostPages();
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  [[nodiscard]] Result<void*> reserve(std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> unreserve(void* address, std::size_t bytes) noexcept;
  [[nodiscard]] Result<NativePages> create(std::size_t bytes) noexcept;
  [[nodiscard]] Result<NativePages> create_shareable(std::size_t bytes) noexcept;
  [[nodiscard]] Result<int> export_file(NativePages pages) noexcept;
  [[nodiscard]] Result<NativePages> import_file(int descriptor, std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> release(NativePages pages) noexcept;
  [[nodiscard]] Result<void> map(void* address, NativePages pages) noexcept;
  [[nodiscard]] Result<void> unmap(void* address, std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> set_access(void* address, std::size_t bytes,
                                        PageAccess access) noexcept;
  /// Returns true and the mapping that contains the address, if it is mapped.
  [[nodiscard]] bool find(const void* address, PointerInfo& info) const noexcept;

 private:
  struct Handle {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::size_t mappings = 0;
    bool is_released = false;
    int own_file = -1;         // of shareable pages
    bool is_imported = false;  // another handle, usually of another process, counts the memory
  };
  struct Mapping {
    std::size_t bytes;
    std::uint64_t handle;
  };
  using Extents = std::map<std::uintptr_t, std::size_t>;

  // Call with the mutex held.
  [[nodiscard]] Result<void> check_available(std::size_t bytes) const noexcept;
  /// Takes ownership of the file, even on failure.
  [[nodiscard]] Result<NativePages> add_file(int file, std::size_t bytes,
                                             bool is_imported) noexcept;
  [[nodiscard]] Result<void> open_file() noexcept;
  [[nodiscard]] Result<std::size_t> take_offset(std::size_t bytes);
  void give_offset(std::size_t offset, std::size_t bytes) noexcept;
  void drop_if_unused(std::map<std::uint64_t, Handle>::iterator handle) noexcept;
  [[nodiscard]] bool is_reserved(std::uintptr_t address, std::size_t bytes) const noexcept;
  [[nodiscard]] bool has_mapping(std::uintptr_t address, std::size_t bytes) const noexcept;

  const std::size_t total_bytes_;
  mutable std::mutex mutex_;
  int file_ = -1;  // everything below is guarded by mutex_
  std::size_t file_bytes_ = 0;
  std::size_t created_bytes_ = 0;
  std::uint64_t next_handle_ = 1;
  Extents free_offsets_;  // holes in the file
  Extents reservations_;
  std::map<std::uint64_t, Handle> handles_;
  std::map<std::uintptr_t, Mapping> mappings_;
};

}  // namespace tern::host
