// Reserving addresses, and creating, mapping and releasing pages.

#include "memory/pool/page_store.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace tern::pool {
namespace {

Failure no_host_memory(std::size_t bytes) noexcept {
  return Failure(
             ErrorCode::out_of_memory,
             "the host could not allocate {requested} for the records of pages. Free host memory.")
      .with_bytes("requested", bytes);
}

}  // namespace

PageStore::~PageStore() {
  for (Region& region : regions_) {
    for (std::uint64_t page = 0; page < region.used; ++page) {
      const NativePages handle = region.mapped[page];
      if (handle.value == 0) continue;
      closed_.unpoison(region.base + page * page_bytes, page_bytes);
      static_cast<void>(device_.try_unmap(region.base + page * page_bytes, page_bytes));
      static_cast<void>(device_.try_release_pages(handle));
    }
  }
  for (const NativePages handle : unmapped_) static_cast<void>(device_.try_release_pages(handle));
  for (Region& region : regions_) {
    static_cast<void>(device_.try_unreserve(region.base, region.pages * page_bytes));
  }
}

// --- Addresses

// Reserves a region for at least `pages`. Starts with the configured size and halves it if the
// driver has no room.
Result<void> PageStore::try_reserve(std::uint64_t pages) noexcept {
  std::uint64_t wanted = std::max<std::uint64_t>(address_bytes_ / page_bytes, pages);
  try {
    regions_.reserve(regions_.size() + 1);
    while (true) {
      ++driver_calls_;
      const Result<void*> base = device_.try_reserve(wanted * page_bytes);
      if (base && reinterpret_cast<std::uintptr_t>(*base) % page_bytes != 0) {
        static_cast<void>(device_.try_unreserve(*base, wanted * page_bytes));
        return Failure(ErrorCode::misaligned,
                       "addresses reserved on '{device}' begin at {value}, which is not a multiple "
                       "of the page size, {pages}.")
            .with("device", device_.spec())
            .with("value", reinterpret_cast<std::uintptr_t>(*base), Unit::hex)
            .with_bytes("pages", page_bytes);
      }
      if (base) {
        Region region;
        region.base = static_cast<std::byte*>(*base);
        region.pages = wanted;
        regions_.push_back(std::move(region));
        return {};
      }
      if (wanted == pages) return base.failure();
      wanted = std::max(wanted / 2, pages);
    }
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Region));
  }
}

std::uint64_t PageStore::room_pages() const noexcept {
  return regions_.empty() ? 0 : regions_.back().pages - regions_.back().used;
}

std::uint64_t PageStore::next_address() const noexcept {
  if (regions_.empty()) return 0;
  const Region& last = regions_.back();
  return reinterpret_cast<std::uintptr_t>(last.base) / granule_bytes + last.used * page_granules;
}

bool PageStore::begins_reservation(std::uint64_t offset) const noexcept {
  return std::ranges::any_of(
      regions_, [&](const Region& region) { return region.base == address_of(offset); });
}

// Uses the last region; if it is too small, reserves another region and tries once more.
Result<std::uint64_t> PageStore::try_new_addresses(std::uint64_t pages,
                                                   std::uint64_t alignment) noexcept {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (!regions_.empty()) {
      Region& last = regions_.back();
      const std::uint64_t base = reinterpret_cast<std::uintptr_t>(last.base) / page_bytes;
      const std::uint64_t begin = (base + last.used + alignment - 1) / alignment * alignment - base;
      if (begin <= last.pages && pages <= last.pages - begin) {
        try {
          last.mapped.resize(begin + pages);
        } catch (const std::bad_alloc&) {
          return no_host_memory((begin + pages) * sizeof(NativePages));
        }
        last.used = begin + pages;
        return (base + begin) * page_granules;
      }
    }
    if (attempt == 1) break;
    if (Result<void> reserved = try_reserve(pages + alignment - 1); !reserved) {
      return reserved.failure();
    }
  }
  return Failure(ErrorCode::out_of_memory);
}

void PageStore::give_back_addresses(std::uint64_t offset, std::uint64_t pages) noexcept {
  Region& last = regions_.back();
  if (offset + pages * page_granules != next_address()) return;
  last.used -= pages;
  last.mapped.resize(last.used);
}

PageStore::Region& PageStore::region_of(std::uint64_t offset) noexcept {
  const std::byte* address = address_of(offset);
  for (Region& region : regions_) {
    if (address >= region.base && address < region.base + region.pages * page_bytes) return region;
  }
  return regions_.back();
}

// --- Pages

Result<void> PageStore::try_have_unmapped(std::uint64_t pages) noexcept {
  const std::uint64_t before = unmapped_.size();
  if (before >= pages) return {};
  // Fail early: the device cannot have that many pages, and the bookkeeping would need host memory.
  if (const std::size_t total = device_.info().total_bytes;
      total != 0 && pages > total / page_bytes) {
    return Failure(ErrorCode::out_of_memory,
                   "'{device}' has {total} of memory, which is less than {pages} pages.")
        .with("device", device_.spec())
        .with_bytes("total", total)
        .with("pages", pages);
  }
  try {
    // Reserve room for all pages, so that unback() never allocates.
    const std::uint64_t most = held_pages_ + (pages - before);
    if (unmapped_.capacity() < most) unmapped_.reserve(std::max(most, 2 * unmapped_.capacity()));
  } catch (const std::bad_alloc&) {
    return no_host_memory(pages * sizeof(NativePages));
  }
  while (unmapped_.size() < pages) {
    ++driver_calls_;
    const Result<NativePages> made = device_.try_create_pages(page_bytes);
    if (!made) {
      release_unmapped(unmapped_.size() - before);
      return made.failure();
    }
    unmapped_.push_back(*made);
    ++held_pages_;
    ++created_pages_;
  }
  return {};
}

// Maps page by page, then enables access for the whole range.
Result<void> PageStore::try_back(std::uint64_t offset, std::uint64_t pages) noexcept {
  Region& region = region_of(offset);
  const auto first = static_cast<std::uint64_t>(address_of(offset) - region.base) / page_bytes;
  const auto undo = [&](std::uint64_t mapped, const Failure& failure) {
    // Pages that cannot be unmapped stay where they are; the caller retires the addresses.
    static_cast<void>(unback(offset, mapped));
    return Result<void>(failure);
  };
  for (std::uint64_t i = 0; i < pages; ++i) {
    ++driver_calls_;
    if (Result<void> mapped =
            device_.try_map(region.base + (first + i) * page_bytes, unmapped_.back());
        !mapped) {
      return undo(i, mapped.failure());
    }
    region.mapped[first + i] = unmapped_.back();
    unmapped_.pop_back();
  }
  ++driver_calls_;
  if (Result<void> opened =
          device_.try_set_access(address_of(offset), pages * page_bytes, PageAccess::read_write);
      !opened) {
    return undo(pages, opened.failure());
  }
  return {};
}

PageStore::Unbacked PageStore::unback(std::uint64_t offset, std::uint64_t pages) noexcept {
  Region& region = region_of(offset);
  const auto first = static_cast<std::uint64_t>(address_of(offset) - region.base) / page_bytes;
  for (std::uint64_t i = 0; i < pages; ++i) {
    ++driver_calls_;
    closed_.unpoison(region.base + (first + i) * page_bytes, page_bytes);
    if (Result<void> unmapped =
            device_.try_unmap(region.base + (first + i) * page_bytes, page_bytes);
        !unmapped) {
      return {i, unmapped};
    }
    unmapped_.push_back(std::exchange(region.mapped[first + i], {}));
  }
  return {pages, {}};
}

std::uint64_t PageStore::mapped_in(std::uint64_t offset, std::uint64_t pages) noexcept {
  Region& region = region_of(offset);
  const auto first = static_cast<std::uint64_t>(address_of(offset) - region.base) / page_bytes;
  const auto begin = region.mapped.begin() + static_cast<std::ptrdiff_t>(first);
  return static_cast<std::uint64_t>(std::count_if(begin, begin + static_cast<std::ptrdiff_t>(pages),
                                                  [](NativePages one) { return one.value != 0; }));
}

std::uint64_t PageStore::release_unmapped(std::uint64_t max_pages) noexcept {
  std::uint64_t released = 0;
  while (released < max_pages && !unmapped_.empty()) {
    ++driver_calls_;
    if (!device_.try_release_pages(unmapped_.back())) break;
    unmapped_.pop_back();
    --held_pages_;
    ++released_pages_;
    ++released;
  }
  return released;
}

}  // namespace tern::pool
