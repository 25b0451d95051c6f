// The pages of a pool and the addresses they are mapped at.
//
// A page is created once and then is mapped at one address or loose: held, without an address.
// Growing makes loose pages and maps them, moving unmaps and maps again, trimming releases loose
// ones. What fails midway leaves pages loose, never lost; the next call uses those first. Addresses
// are reserved far beyond what memory there is, and more of them when they run out. Every function
// but the facts calls the driver. Confined: the pool holds its growth lock.

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
  /// Gives everything back that the driver takes.
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  /// Addresses that were never used, in one piece, at a multiple of `alignment` pages; in granules.
  /// They follow the last ones given where possible.
  [[nodiscard]] Result<std::uint64_t> try_new_addresses(std::uint64_t pages,
                                                        std::uint64_t alignment) noexcept;
  /// How many pages of new addresses there are without a further reservation.
  [[nodiscard]] std::uint64_t room_pages() const noexcept;
  /// Where the next new addresses begin if there is room; 0 if nothing is reserved.
  [[nodiscard]] std::uint64_t next_address() const noexcept;
  /// Reservations may lie side by side, but ranges across two of them are nobody's to map.
  [[nodiscard]] bool begins_reservation(std::uint64_t offset) const noexcept;
  /// The last `pages` of the newest addresses were not used after all.
  void give_back_addresses(std::uint64_t offset, std::uint64_t pages) noexcept;

  /// So many pages are loose after this. Those made on the way to a failure are given back.
  [[nodiscard]] Result<void> try_have_loose(std::uint64_t pages) noexcept;
  /// Maps loose pages behind the addresses. On failure they are loose again, or, if the driver
  /// refuses even that, stay mapped: then the addresses are out of use (mapped_in).
  [[nodiscard]] Result<void> try_back(std::uint64_t offset, std::uint64_t pages) noexcept;
  /// The pages behind these addresses become loose, from the first on, until the driver refuses.
  struct Unbacked {
    std::uint64_t pages = 0;
    Result<void> result = {};
  };
  [[nodiscard]] Unbacked unback(std::uint64_t offset, std::uint64_t pages) noexcept;
  /// Up to so many loose pages go back to the driver. Gives how many did.
  std::uint64_t release_loose(std::uint64_t most_pages) noexcept;

  /// How many pages are mapped in the range.
  [[nodiscard]] std::uint64_t mapped_in(std::uint64_t offset, std::uint64_t pages) noexcept;

  [[nodiscard]] std::uint64_t held_pages() const noexcept { return held_pages_; }
  [[nodiscard]] std::uint64_t loose_pages() const noexcept { return loose_.size(); }
  [[nodiscard]] std::uint64_t driver_calls() const noexcept { return driver_calls_; }
  [[nodiscard]] std::uint64_t created_pages() const noexcept { return created_pages_; }
  [[nodiscard]] std::uint64_t released_pages() const noexcept { return released_pages_; }

 private:
  struct Region {
    std::byte* base = nullptr;
    std::uint64_t pages = 0;
    std::uint64_t used = 0;
    std::vector<NativePages> mapped;  // by page; zero where nothing is
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
  std::vector<NativePages> loose_;  // has room for every page that is held
  std::uint64_t held_pages_ = 0;
  std::uint64_t created_pages_ = 0;
  std::uint64_t released_pages_ = 0;
  std::uint64_t driver_calls_ = 0;
};

}  // namespace tern::pool
