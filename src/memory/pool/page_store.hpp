// A PageStore owns the pages of a pool and the address ranges they are mapped to.
//
// A page is either mapped to one address or loose, that is, held without an address. Growing
// creates loose pages and maps them; moving unmaps and maps again; trimming releases loose pages.
// If an operation fails midway, its pages become loose and are never lost; the next call uses them
// first. Address ranges are reserved far larger than the memory, and more are reserved when they
// run out. All functions except the getters call the driver. Not thread-safe: the pool holds its
// growth lock.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/pool/closed_blocks.hpp"
#include "memory/pool/size_class.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"

namespace tern::pool {

class PageStore {
 public:
  static constexpr std::uint64_t page_granules = page_bytes / granule_bytes;

  PageStore(Device device, std::size_t address_bytes, ClosedBlocks closed = {}) noexcept
      : device_(std::move(device)), address_bytes_(address_bytes), closed_(closed) {}
  /// Unmaps and releases everything; errors of the driver are ignored.
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  /// Returns unused contiguous addresses at a multiple of `alignment` pages, as a granule offset.
  /// They follow the previous ones if possible. Reserves more addresses if needed.
  [[nodiscard]] Result<std::uint64_t> try_new_addresses(std::uint64_t pages,
                                                        std::uint64_t alignment) noexcept;
  /// Number of pages of new addresses that are left in the current reservation.
  [[nodiscard]] std::uint64_t room_pages() const noexcept;
  /// Granule offset where the next new addresses begin; 0 if nothing is reserved.
  [[nodiscard]] std::uint64_t next_address() const noexcept;
  /// Returns whether a reservation begins at `offset`. Two reservations may be adjacent, but one
  /// mapping must not span both.
  [[nodiscard]] bool begins_reservation(std::uint64_t offset) const noexcept;
  /// Makes the last `pages` of the newest addresses available again. They were never used.
  void give_back_addresses(std::uint64_t offset, std::uint64_t pages) noexcept;

  /// Creates pages until `pages` are loose. On failure, releases the pages it has created.
  [[nodiscard]] Result<void> try_have_unmapped(std::uint64_t pages) noexcept;
  /// Maps loose pages to the addresses. On failure the pages are loose again; if the driver cannot
  /// even unmap them, they stay mapped and the addresses must not be used (mapped_in()).
  [[nodiscard]] Result<void> try_back(std::uint64_t offset, std::uint64_t pages) noexcept;
  /// Unmaps pages, first to last, until the driver fails. Returns how many became loose, and the
  /// failure.
  struct Unbacked {
    std::uint64_t pages = 0;
    Result<void> result = {};
  };
  [[nodiscard]] Unbacked unback(std::uint64_t offset, std::uint64_t pages) noexcept;
  /// Releases up to `max_pages` loose pages to the driver. Returns the number released.
  std::uint64_t release_unmapped(std::uint64_t max_pages) noexcept;

  /// Returns the number of pages that are mapped in the range.
  [[nodiscard]] std::uint64_t mapped_in(std::uint64_t offset, std::uint64_t pages) noexcept;

  [[nodiscard]] std::uint64_t held_pages() const noexcept { return held_pages_; }
  [[nodiscard]] std::uint64_t unmapped_pages() const noexcept { return unmapped_.size(); }
  [[nodiscard]] std::uint64_t driver_calls() const noexcept { return driver_calls_; }
  [[nodiscard]] std::uint64_t created_pages() const noexcept { return created_pages_; }
  [[nodiscard]] std::uint64_t released_pages() const noexcept { return released_pages_; }

 private:
  struct Region {
    std::byte* base = nullptr;
    std::uint64_t pages = 0;
    std::uint64_t used = 0;
    std::vector<NativePages> mapped;  // by page; zero if the page is not mapped
  };
  [[nodiscard]] Result<void> try_reserve(std::uint64_t pages) noexcept;
  [[nodiscard]] Region& region_of(std::uint64_t offset) noexcept;
  [[nodiscard]] static std::byte* address_of(std::uint64_t offset) noexcept {
    return reinterpret_cast<std::byte*>(offset * granule_bytes);
  }

  const Device device_;
  const std::size_t address_bytes_;
  const ClosedBlocks closed_;
  std::vector<Region> regions_;
  std::vector<NativePages> unmapped_;  // has capacity for every held page
  std::uint64_t held_pages_ = 0;
  std::uint64_t created_pages_ = 0;
  std::uint64_t released_pages_ = 0;
  std::uint64_t driver_calls_ = 0;
};

}  // namespace tern::pool
