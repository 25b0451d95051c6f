// Addresses and pages of a simulated device: what is reserved, what was created, what is mapped
// where, and who may touch it.
//
// Reservations are addresses without memory, pages memory without an address. A mapping puts all of
// one handle's pages at an address, and gives no access; that is said apart. Pages live until their
// handle is given up and they are mapped nowhere. Refuses what a driver would, with the reason;
// what the checker has to say of it is the backend's business. Confined.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "backends/sim/alias_memory.hpp"
#include "backends/sim/range_allocator.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"

namespace tern::sim {

class PageTable {
 public:
  static constexpr std::size_t page_bytes = std::size_t{2} << 20;

  /// Takes the pages of the device from `allocator`; addresses lie in the window of `memory`.
  PageTable(AliasMemory& memory, RangeAllocator& allocator, Reuse reuse)
      : memory_(memory), allocator_(allocator), window_(memory.window_bytes(), reuse) {}

  /// Nothing if there are no such addresses left.
  [[nodiscard]] std::optional<void*> reserve(std::size_t bytes);
  [[nodiscard]] Result<void> try_unreserve(void* address, std::size_t bytes);

  /// Nothing if there is no such memory left. `handle` is a number that was never one.
  [[nodiscard]] bool create(std::size_t bytes, std::uint64_t handle);
  /// How many bytes the handle stands for; nothing once it was given up.
  [[nodiscard]] std::optional<std::size_t> bytes_of(std::uint64_t handle) const;
  void release(std::uint64_t handle);

  /// True if the pages were mapped before, and so bring their contents along.
  [[nodiscard]] Result<bool> try_map(void* address, std::uint64_t handle);
  /// Is this one whole mapping?
  [[nodiscard]] Result<void> check_mapping(const void* address, std::size_t bytes) const;
  [[nodiscard]] Result<void> try_unmap(void* address, std::size_t bytes);
  [[nodiscard]] Result<void> try_set_access(const void* address, std::size_t bytes,
                                            PageAccess access);

  /// The least that all of the range allows. What is not mapped is somebody else's to judge.
  [[nodiscard]] PageAccess access_to(std::uint64_t offset, std::size_t bytes) const;
  struct MappedRange {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    std::uint64_t handle = 0;
  };
  /// The mapping that holds the byte.
  [[nodiscard]] std::optional<MappedRange> mapping_at(std::uint64_t offset) const;
  /// Calls visit(handle, bytes) for every handle that was not given up.
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
    std::uint64_t offset = 0;  // in device memory
    std::size_t bytes = 0;
    std::size_t mappings = 0;
    bool is_released = false;
    bool was_mapped = false;
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
  std::map<std::uint64_t, std::size_t> reservations_;  // by offset, as all of these
  std::map<std::uint64_t, Mapping> mappings_;
  std::map<std::uint64_t, Pages> pages_;  // by handle
};

}  // namespace tern::sim
