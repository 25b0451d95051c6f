// A HandleMap says which pages of a pool's addresses form one handle of the driver.
//
// The driver creates, maps and releases memory in handles, and charges per handle, not per byte. A
// handle is one page or many. Only a whole handle can be moved or released, so the code that looks
// for free memory to move asks here where handles begin and end.
//
// Regions of addresses are added with the pool's growth lock held; so are handles, to addresses
// that no free range covers. Regions are removed with the lock of the ranges held, too. Lookups
// need only one of the two locks: they never concern addresses that are being changed.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace tern::pool {

class HandleMap {
 public:
  /// Page numbers are addresses divided by the page size.
  struct Extent {
    std::uint64_t first = 0;
    std::uint64_t last = 0;  // exclusive
    [[nodiscard]] std::uint64_t pages() const noexcept { return last - first; }
  };
  /// More reservations than a pool needs: each has at least an eighth of the device's memory, if
  /// the driver has room.
  static constexpr std::size_t max_regions = 256;

  /// Adds a region of addresses. Returns false if the host has no memory or there are max_regions.
  [[nodiscard]] bool try_add_region(std::uint64_t first_page, std::uint64_t pages) noexcept {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    if (count == max_regions) return false;
    std::unique_ptr<Entry[]> entries(new (std::nothrow) Entry[pages]);
    if (!entries) return false;
    regions_[count] = {first_page, pages, std::move(entries)};
    count_.store(count + 1, std::memory_order_release);
    return true;
  }

  /// Removes a region without handles.
  void remove_region(std::uint64_t first_page) noexcept {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    const auto end = regions_.begin() + count;
    const auto found = std::find_if(
        regions_.begin(), end, [&](const Region& region) { return region.first == first_page; });
    std::move(found + 1, end, found);
    end[-1] = {};
    count_.store(count - 1, std::memory_order_relaxed);
  }

  /// Makes the pages one handle. They are in one region.
  void set(std::uint64_t first_page, std::uint64_t pages) noexcept {
    Region& region = region_of(first_page);
    const auto first = static_cast<std::uint32_t>(first_page - region.first);
    for (std::uint32_t i = 0; i < pages; ++i) {
      region.entries[first + i] = {first, static_cast<std::uint32_t>(pages)};
    }
  }

  /// Returns the handle that a mapped page belongs to.
  [[nodiscard]] Extent of(std::uint64_t page) const noexcept {
    const Region& region = region_of(page);
    const Entry entry = region.entries[page - region.first];
    return {region.first + entry.first, region.first + entry.first + entry.pages};
  }

 private:
  struct Entry {
    std::uint32_t first = 0;  // the first page of the handle, counted from the region's first
    std::uint32_t pages = 0;
  };
  struct Region {
    std::uint64_t first = 0;
    std::uint64_t pages = 0;
    std::unique_ptr<Entry[]> entries;
  };

  [[nodiscard]] const Region& region_of(std::uint64_t page) const noexcept {
    std::size_t at = count_.load(std::memory_order_acquire);
    while (at > 1 && page - regions_[at - 1].first >= regions_[at - 1].pages) --at;
    return regions_[at - 1];
  }
  [[nodiscard]] Region& region_of(std::uint64_t page) noexcept {
    return const_cast<Region&>(static_cast<const HandleMap&>(*this).region_of(page));
  }

  std::array<Region, max_regions> regions_ = {};
  std::atomic<std::size_t> count_ = 0;
};

}  // namespace tern::pool
