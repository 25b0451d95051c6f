// A PageStore owns the memory of a pool, in handles of one or more pages, and the address ranges
// they are mapped to.
//
// A handle is either mapped to one address or unmapped, that is, held without an address. Growing
// creates unmapped handles and maps them; moving unmaps and maps again; trimming releases unmapped
// handles. If an operation fails midway, its handles become unmapped and are never lost; the next
// call uses them first. Address ranges are reserved far larger than the memory, and more are
// reserved when they run out. All functions except the getters call the driver. Not thread-safe:
// the pool holds its growth lock.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory/pool/block_poisoning.hpp"
#include "memory/pool/handle_map.hpp"
#include "memory/pool/size_class.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"

namespace tern::pool {

class PageStore {
 public:
  static constexpr std::uint64_t page_granules = page_bytes / granule_bytes;
  [[nodiscard]] static constexpr std::uint64_t pages_for(std::uint64_t granules) noexcept {
    return (granules + page_granules - 1) / page_granules;
  }

  /// Throws std::bad_alloc.
  PageStore(Device device, std::size_t address_bytes, BlockPoisoning poisoning = {})
      : device_(std::move(device)),
        address_bytes_(address_bytes),
        poisoning_(poisoning),
        handles_(std::make_unique<HandleMap>()) {}
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
  /// Returns whether the range is all that was used of a reservation.
  [[nodiscard]] bool is_reservation(std::uint64_t offset, std::uint64_t granules) const noexcept;
  /// Returns a reservation without memory to the driver. If it succeeds, the caller takes the lock
  /// of the ranges, too, and calls forget_reservation().
  [[nodiscard]] Result<void> try_unreserve(std::uint64_t offset) noexcept;
  void forget_reservation(std::uint64_t offset) noexcept;
  /// Makes the last `pages` of the newest addresses available again. They were never used.
  void give_back_addresses(std::uint64_t offset, std::uint64_t pages) noexcept;

  /// Creates handles of at most `max_handle_pages` until at least `pages` are unmapped. If the
  /// device has no memory for a handle, tries smaller ones. On failure, releases the handles it has
  /// created.
  [[nodiscard]] Result<void> try_have_unmapped(std::uint64_t pages,
                                               std::uint64_t max_handle_pages = 1) noexcept;
  /// Returns how many pages try_back() maps if at least `pages` are wanted: those of whole handles.
  /// At least `pages` are unmapped.
  [[nodiscard]] std::uint64_t whole_pages(std::uint64_t pages) const noexcept;
  /// Maps unmapped handles to the addresses. `pages` is a result of whole_pages(). On failure the
  /// handles are unmapped again; if the driver cannot even unmap them, they stay mapped and the
  /// addresses must not be used (mapped_in()).
  [[nodiscard]] Result<void> try_back(std::uint64_t offset, std::uint64_t pages) noexcept;
  /// Unmaps whole handles, first to last, until the driver fails. Returns how many pages became
  /// unmapped, and the failure.
  struct Unbacked {
    std::uint64_t pages = 0;
    Result<void> result = {};
  };
  [[nodiscard]] Unbacked unback(std::uint64_t offset, std::uint64_t pages) noexcept;
  /// Unmaps the handles that are mapped in the range, until the driver fails.
  void unback_mapped(std::uint64_t offset, std::uint64_t pages) noexcept;
  /// Releases unmapped handles to the driver, the newest first, until at least `pages` are
  /// released. Returns the number of pages released.
  std::uint64_t release_unmapped(std::uint64_t pages) noexcept;

  /// Contiguous whole handles, by page number.
  struct Run {
    std::uint64_t first = 0;
    std::uint64_t pages = 0;
  };
  [[nodiscard]] static std::uint64_t count_pages(std::span<const Run> runs) noexcept;
  /// Maps the handles of the runs a second time, side by side, to addresses reserved for this.
  /// Returns the granule offset. On failure nothing is mapped or reserved, unless the driver cannot
  /// even unmap; then try_unmap_remnants() tries it again.
  [[nodiscard]] Result<std::uint64_t> try_map_again(std::span<const Run> runs) noexcept;
  [[nodiscard]] Result<void> try_unmap_remnants() noexcept;
  /// Ends such a mapping, from page `unmapped_pages` on, and counts that number up. If it fails, it
  /// can be called again.
  [[nodiscard]] Result<void> try_unmap_again(std::uint64_t offset, std::span<const Run> runs,
                                             std::uint64_t& unmapped_pages) noexcept;

  /// Returns the number of pages that are mapped in the range.
  [[nodiscard]] std::uint64_t mapped_in(std::uint64_t offset, std::uint64_t pages) noexcept;

  [[nodiscard]] std::uint64_t held_pages() const noexcept { return held_pages_; }
  [[nodiscard]] std::uint64_t unmapped_pages() const noexcept { return unmapped_pages_; }
  [[nodiscard]] const HandleMap& handles() const noexcept { return *handles_; }
  [[nodiscard]] std::uint64_t driver_calls() const noexcept { return driver_calls_; }
  [[nodiscard]] std::uint64_t created_pages() const noexcept { return created_pages_; }
  [[nodiscard]] std::uint64_t released_pages() const noexcept { return released_pages_; }

 private:
  struct Region {
    std::byte* base = nullptr;
    std::uint64_t pages = 0;
    std::uint64_t used = 0;
    std::vector<NativePages> mapped;  // by the first page of a handle; zero elsewhere
  };
  struct Unmapped {
    NativePages handle = {};
    std::uint64_t pages = 0;
  };
  /// A second mapping that failed and could not be undone.
  struct Remnant {
    std::byte* base = nullptr;
    std::uint64_t pages = 0;
    std::vector<std::uint64_t> mapped = {};  // pages of the handles that are still mapped, in order
  };
  [[nodiscard]] Result<void> try_unmap(Remnant& remnant) noexcept;
  [[nodiscard]] Result<void> try_reserve(std::uint64_t pages) noexcept;
  /// Reserves a record for one more handle, so that unback() never allocates. Returns false if the
  /// host has no memory.
  [[nodiscard]] bool try_reserve_handle() noexcept;
  [[nodiscard]] Region& region_of(std::uint64_t offset) noexcept;
  [[nodiscard]] std::uint64_t pages_of(const Region& region, std::uint64_t page) const noexcept {
    return handles_->of(reinterpret_cast<std::uintptr_t>(region.base) / page_bytes + page).pages();
  }
  [[nodiscard]] static std::byte* address_of(std::uint64_t offset) noexcept {
    return reinterpret_cast<std::byte*>(offset * granule_bytes);
  }

  /// Returns the handle at a page, counted over all runs.
  [[nodiscard]] HandleMap::Extent handle_at(std::span<const Run> runs,
                                            std::uint64_t page) const noexcept;

  const Device device_;
  const std::size_t address_bytes_;
  const BlockPoisoning poisoning_;
  std::vector<Region> regions_;
  const std::unique_ptr<HandleMap> handles_;
  std::vector<Unmapped> unmapped_;  // has capacity for every handle
  std::vector<Remnant> remnants_;
  std::uint64_t unmapped_pages_ = 0;
  std::uint64_t handle_count_ = 0;
  std::uint64_t held_pages_ = 0;
  std::uint64_t created_pages_ = 0;
  std::uint64_t released_pages_ = 0;
  std::uint64_t driver_calls_ = 0;
};

}  // namespace tern::pool
