// Reserving addresses, and creating, mapping and releasing pages.

#include "memory/pool/page_store.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"

namespace tern::pool {

PageStore::~PageStore() {
  // A call may fail once and succeed when it is repeated.
  const auto repeat = [](auto call) {
    constexpr int max_attempts = 3;
    for (int attempt = 0; attempt < max_attempts && !call(); ++attempt) {
    }
  };
  repeat([&] { return static_cast<bool>(try_unmap_remnants()); });
  for (Region& region : regions_) {
    for (std::uint64_t page = 0; page < region.used; ++page) {
      const NativePages handle = region.mapped[page];
      if (handle.value == 0) continue;
      std::byte* const address = region.base + page * page_bytes;
      const std::size_t bytes = pages_of(region, page) * page_bytes;
      poisoning_.unpoison(address, bytes);
      repeat([&] { return static_cast<bool>(device_.try_unmap(address, bytes)); });
      repeat([&] { return static_cast<bool>(device_.try_release_pages(handle)); });
    }
  }
  for (const Unmapped& one : unmapped_) {
    repeat([&] { return static_cast<bool>(device_.try_release_pages(one.handle)); });
  }
  for (const Region& region : regions_) {
    repeat([&] {
      return static_cast<bool>(device_.try_unreserve(region.base, region.pages * page_bytes));
    });
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
      if (base &&
          !handles_->try_add_region(reinterpret_cast<std::uintptr_t>(*base) / page_bytes, wanted)) {
        static_cast<void>(device_.try_unreserve(*base, wanted * page_bytes));
        return no_host_memory(wanted * sizeof(std::uint64_t), "the records of pages");
      }
      if (base) {
        Region region;
        region.base = static_cast<std::byte*>(*base);
        region.pages = wanted;
        regions_.push_back(std::move(region));
        return {};
      }
      if (wanted == pages)
        return Failure(base.failure()).with_bytes("addresses", pages * page_bytes);
      wanted = std::max(wanted / 2, pages);
    }
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Region), "the records of pages");
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

bool PageStore::is_reservation(std::uint64_t offset, std::uint64_t granules) const noexcept {
  return std::ranges::any_of(regions_, [&](const Region& region) {
    return region.base == address_of(offset) && region.used * page_granules == granules;
  });
}

Result<void> PageStore::try_unreserve(std::uint64_t offset) noexcept {
  const Region& region = region_of(offset);
  ++driver_calls_;
  return device_.try_unreserve(region.base, region.pages * page_bytes);
}

void PageStore::forget_reservation(std::uint64_t offset) noexcept {
  std::erase_if(regions_, [&](const Region& region) { return region.base == address_of(offset); });
  handles_->remove_region(offset / page_granules);
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
          return no_host_memory((begin + pages) * sizeof(NativePages), "the records of pages");
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

bool PageStore::try_reserve_handle() noexcept try {
  if (unmapped_.capacity() <= handle_count_) {
    unmapped_.reserve(std::max<std::size_t>(2 * handle_count_, 64));
  }
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

Result<void> PageStore::try_have_unmapped(std::uint64_t pages,
                                          std::uint64_t max_handle_pages) noexcept {
  const std::uint64_t before = unmapped_pages_;
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
  const auto fail = [&](const Failure& failure) {
    if (unmapped_pages_ > before) release_unmapped(unmapped_pages_ - before);
    return Result<void>(failure);
  };
  while (unmapped_pages_ < pages) {
    const std::uint64_t count = std::min(pages - unmapped_pages_, max_handle_pages);
    if (!try_reserve_handle()) {
      return fail(no_host_memory(2 * handle_count_ * sizeof(Unmapped), "the records of pages"));
    }
    ++driver_calls_;
    const Result<NativePages> made = device_.try_create_pages(count * page_bytes);
    if (!made && made.failure().code() == ErrorCode::out_of_memory && count > 1) {
      // The free memory of the device may be in pieces that are smaller than the handle.
      max_handle_pages = count / 2;
      continue;
    }
    if (!made) return fail(made.failure());
    unmapped_.push_back({*made, count});
    unmapped_pages_ += count;
    ++handle_count_;
    held_pages_ += count;
    created_pages_ += count;
  }
  return {};
}

std::uint64_t PageStore::whole_pages(std::uint64_t pages) const noexcept {
  std::uint64_t sum = 0;
  for (auto one = unmapped_.rbegin(); one != unmapped_.rend() && sum < pages; ++one) {
    sum += one->pages;
  }
  return sum;
}

// Maps handle by handle, then enables access for the whole range.
Result<void> PageStore::try_back(std::uint64_t offset, std::uint64_t pages) noexcept {
  Region& region = region_of(offset);
  const auto first = static_cast<std::uint64_t>(address_of(offset) - region.base) / page_bytes;
  const auto undo = [&](std::uint64_t mapped, const Failure& failure) {
    // Handles that cannot be unmapped stay where they are; the caller retires the addresses.
    static_cast<void>(unback(offset, mapped));
    return Result<void>(failure);
  };
  for (std::uint64_t done = 0; done < pages;) {
    const Unmapped next = unmapped_.back();
    ++driver_calls_;
    if (Result<void> mapped =
            device_.try_map(region.base + (first + done) * page_bytes, next.handle);
        !mapped) {
      return undo(done, mapped.failure());
    }
    region.mapped[first + done] = next.handle;
    handles_->set(offset / page_granules + done, next.pages);
    unmapped_.pop_back();
    unmapped_pages_ -= next.pages;
    done += next.pages;
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
  for (std::uint64_t done = 0; done < pages;) {
    std::byte* const address = region.base + (first + done) * page_bytes;
    const std::uint64_t count = pages_of(region, first + done);
    ++driver_calls_;
    poisoning_.unpoison(address, count * page_bytes);
    if (Result<void> unmapped = device_.try_unmap(address, count * page_bytes); !unmapped) {
      return {done, unmapped};
    }
    unmapped_.push_back({std::exchange(region.mapped[first + done], {}), count});
    unmapped_pages_ += count;
    done += count;
  }
  return {pages, {}};
}

void PageStore::unback_mapped(std::uint64_t offset, std::uint64_t pages) noexcept {
  Region& region = region_of(offset);
  const auto first = static_cast<std::uint64_t>(address_of(offset) - region.base) / page_bytes;
  for (std::uint64_t page = 0; page < pages;) {
    if (region.mapped[first + page].value == 0) {
      ++page;
      continue;
    }
    const std::uint64_t count = pages_of(region, first + page);
    if (!unback(offset + page * page_granules, count).result) return;
    page += count;
  }
}

// --- Second mappings

std::uint64_t PageStore::count_pages(std::span<const Run> runs) noexcept {
  std::uint64_t pages = 0;
  for (const Run& run : runs) pages += run.pages;
  return pages;
}

Result<std::uint64_t> PageStore::try_map_again(std::span<const Run> runs) noexcept {
  const std::uint64_t pages = count_pages(runs);
  // Prepared here, because the undoing must not allocate.
  Remnant remnant{.pages = pages};
  try {
    for (std::uint64_t page = 0; page < pages; page += remnant.mapped.back()) {
      remnant.mapped.push_back(handle_at(runs, page).pages());
    }
    remnants_.reserve(remnants_.size() + 1);
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Remnant), "the records of pages");
  }
  ++driver_calls_;
  const Result<void*> base = device_.try_reserve(pages * page_bytes);
  if (!base) return base.failure();
  auto* const address = static_cast<std::byte*>(*base);
  const auto offset = reinterpret_cast<std::uintptr_t>(*base) / granule_bytes;
  std::uint64_t done = 0;
  std::size_t mapped_handles = 0;
  const auto undo = [&](const Failure& failure) {
    remnant.base = address;
    remnant.mapped.resize(mapped_handles);
    if (!try_unmap(remnant)) remnants_.push_back(std::move(remnant));
    return failure;
  };
  while (done < pages) {
    const HandleMap::Extent handle = handle_at(runs, done);
    Region& region = region_of(handle.first * page_granules);
    const std::uint64_t first =
        handle.first - reinterpret_cast<std::uintptr_t>(region.base) / page_bytes;
    ++driver_calls_;
    if (Result<void> mapped = device_.try_map(address + done * page_bytes, region.mapped[first]);
        !mapped) {
      return undo(mapped.failure());
    }
    done += handle.pages();
    ++mapped_handles;
  }
  ++driver_calls_;
  if (Result<void> opened =
          device_.try_set_access(*base, pages * page_bytes, PageAccess::read_write);
      !opened) {
    return undo(opened.failure());
  }
  return offset;
}

Result<void> PageStore::try_unmap(Remnant& remnant) noexcept {
  while (!remnant.mapped.empty()) {
    std::uint64_t before = 0;
    for (std::size_t i = 0; i + 1 < remnant.mapped.size(); ++i) before += remnant.mapped[i];
    ++driver_calls_;
    if (Result<void> unmapped = device_.try_unmap(remnant.base + before * page_bytes,
                                                  remnant.mapped.back() * page_bytes);
        !unmapped) {
      return unmapped;
    }
    remnant.mapped.pop_back();
  }
  ++driver_calls_;
  return device_.try_unreserve(remnant.base, remnant.pages * page_bytes);
}

Result<void> PageStore::try_unmap_remnants() noexcept {
  while (!remnants_.empty()) {
    if (Result<void> gone = try_unmap(remnants_.back()); !gone) return gone;
    remnants_.pop_back();
  }
  return {};
}

Result<void> PageStore::try_unmap_again(std::uint64_t offset, std::span<const Run> runs,
                                        std::uint64_t& unmapped_pages) noexcept {
  const std::uint64_t pages = count_pages(runs);
  while (unmapped_pages < pages) {
    const std::uint64_t count = handle_at(runs, unmapped_pages).pages();
    ++driver_calls_;
    if (Result<void> unmapped =
            device_.try_unmap(address_of(offset) + unmapped_pages * page_bytes, count * page_bytes);
        !unmapped) {
      return unmapped;
    }
    unmapped_pages += count;
  }
  ++driver_calls_;
  return device_.try_unreserve(address_of(offset), pages * page_bytes);
}

HandleMap::Extent PageStore::handle_at(std::span<const Run> runs,
                                       std::uint64_t page) const noexcept {
  std::size_t at = 0;
  while (page >= runs[at].pages) page -= runs[at++].pages;
  return handles_->of(runs[at].first + page);
}

std::uint64_t PageStore::mapped_in(std::uint64_t offset, std::uint64_t pages) noexcept {
  Region& region = region_of(offset);
  const auto first = static_cast<std::uint64_t>(address_of(offset) - region.base) / page_bytes;
  std::uint64_t mapped = 0;
  for (std::uint64_t page = first; page < first + pages; ++page) {
    if (region.mapped[page].value != 0) mapped += pages_of(region, page);
  }
  return mapped;
}

std::uint64_t PageStore::release_unmapped(std::uint64_t pages) noexcept {
  std::uint64_t released = 0;
  while (released < pages && !unmapped_.empty()) {
    ++driver_calls_;
    const std::uint64_t count = unmapped_.back().pages;
    if (!device_.try_release_pages(unmapped_.back().handle)) break;
    unmapped_.pop_back();
    unmapped_pages_ -= count;
    --handle_count_;
    held_pages_ -= count;
    released_pages_ += count;
    released += count;
  }
  return released;
}

}  // namespace tern::pool
