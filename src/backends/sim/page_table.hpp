// Addresses and pages of a simulated device: reservations, pages, mappings and access rights.
//
// A reservation is addresses without memory; pages are memory without an address. A mapping puts
// all pages of one handle at an address, without access rights, which are set separately. Pages
// live until their handle is released and their last mapping ends. Shareable pages are a memory
// file of their own, which other processes can map. Errors of a driver are returned with the
// reason; the backend reports findings of the checker. Not thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "backends/sim/alias_memory.hpp"
#include "backends/sim/range_allocator.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/operations.hpp"

namespace tern::sim {

class PageTable {
 public:
  static constexpr std::size_t page_bytes = std::size_t{2} << 20;

  /// `allocator` provides the pages of the device. Addresses are in the window of `memory`.
  PageTable(AliasMemory& memory, RangeAllocator& allocator, Reuse reuse)
      : memory_(memory), allocator_(allocator), window_(memory.window_bytes(), reuse) {}
  ~PageTable();

  /// Returns nothing if there are no free addresses.
  [[nodiscard]] std::optional<void*> reserve(std::size_t bytes);
  [[nodiscard]] Result<void> try_unreserve(void* address, std::size_t bytes);

  /// Returns nothing if there is no free memory. `handle` must be a new number.
  [[nodiscard]] bool create(std::size_t bytes, std::uint64_t handle);
  /// Adds pages in a shareable file, and takes ownership of the file, even on failure. Pages that
  /// were not imported take as much memory of the device; returns false if it has too little.
  [[nodiscard]] bool add_file(int file, std::size_t bytes, std::uint64_t handle, bool is_imported);
  /// Returns the file of shareable pages, which the table keeps; -1 for other pages.
  [[nodiscard]] int file_of(std::uint64_t handle) const { return pages_.find(handle)->second.file; }
  /// Returns the size of the pages of the handle, or nothing after its release.
  [[nodiscard]] std::optional<std::size_t> bytes_of(std::uint64_t handle) const;
  void release(std::uint64_t handle);

  /// Returns true if the pages were mapped before and so keep their contents.
  [[nodiscard]] Result<bool> try_map(void* address, std::uint64_t handle);
  /// Returns whether the range is exactly one mapping.
  [[nodiscard]] Result<void> check_mapping(const void* address, std::size_t bytes) const;
  [[nodiscard]] Result<void> try_unmap(void* address, std::size_t bytes);
  [[nodiscard]] Result<void> try_set_access(const void* address, std::size_t bytes,
                                            PageAccess access);

  /// Returns the access right that the whole range has at least. Unmapped parts are ignored.
  [[nodiscard]] PageAccess access_to(std::uint64_t offset, std::size_t bytes) const;
  struct MappedRange {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    std::uint64_t handle = 0;
  };
  /// Returns the mapping that contains the byte.
  [[nodiscard]] TERN_EXPORT std::optional<MappedRange> mapping_at(std::uint64_t offset) const;
  /// Calls visit(handle, bytes) for every handle that was not released.
  template <class Visit>
  void for_each_handle(Visit visit) const {
    for (const auto& [handle, pages] : pages_) {
      if (!pages.is_released) visit(handle, pages.bytes);
    }
  }
  [[nodiscard]] const RangeAllocator& window() const noexcept { return window_; }
  [[nodiscard]] bool is_empty() const noexcept {
    return reservations_.empty() && mappings_.empty() && pages_.empty();
  }

 private:
  struct Pages {
    std::uint64_t offset = 0;  // offset in device memory
    std::size_t bytes = 0;
    std::size_t mappings = 0;
    bool is_released = false;
    bool was_mapped = false;
    int file = -1;             // of shareable pages
    bool is_imported = false;  // the pages take no memory of this device
  };
  struct Mapping {
    std::size_t bytes = 0;
    std::uint64_t handle = 0;
    PageAccess access = PageAccess::none;
  };

  [[nodiscard]] bool is_reserved(std::uint64_t offset, std::size_t bytes) const;
  [[nodiscard]] bool has_mapping(std::uint64_t offset, std::size_t bytes) const;
  void drop_if_unused(std::map<std::uint64_t, Pages>::iterator pages);

  AliasMemory& memory_;
  RangeAllocator& allocator_;
  RangeAllocator window_;
  std::map<std::uint64_t, std::size_t> reservations_;  // by offset, like all of these
  std::map<std::uint64_t, Mapping> mappings_;
  std::map<std::uint64_t, Pages> pages_;  // by handle
};

}  // namespace tern::sim
