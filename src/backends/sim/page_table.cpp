#include "backends/sim/page_table.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

Failure bad_range(const char* why, const void* address, std::size_t bytes) noexcept {
  return Failure(ErrorCode::invalid_argument, "the page range of {bytes} at {value} is {why}.")
      .with("name", "address")
      .with("value", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
      .with_bytes("bytes", bytes)
      .with("why", why);
}

}  // namespace

PageTable::~PageTable() {
  for (const auto& [handle, pages] : pages_) {
    if (pages.file >= 0) close(pages.file);
  }
}

std::optional<void*> PageTable::reserve(std::size_t bytes) {
  const std::optional<std::uint64_t> offset = window_.take(bytes, page_bytes);
  if (!offset) return std::nullopt;
  const std::uint64_t at = memory_.bytes() + *offset;
  reservations_.emplace(at, bytes);
  return memory_.address_of(at);
}

Result<void> PageTable::try_unreserve(void* address, std::size_t bytes) {
  const std::optional<std::uint64_t> offset = memory_.offset_of(address);
  const auto found = offset ? reservations_.find(*offset) : reservations_.end();
  if (found == reservations_.end() || found->second != bytes) {
    return bad_range("not a whole reservation. Release exactly the range that reserve returned",
                     address, bytes);
  }
  if (has_mapping(*offset, bytes)) {
    return bad_range("still mapped in part. Unmap the whole range first", address, bytes);
  }
  window_.give(*offset - memory_.bytes(), bytes);
  reservations_.erase(found);
  return {};
}

bool PageTable::create(std::size_t bytes, std::uint64_t handle) {
  const std::optional<std::uint64_t> offset = allocator_.take(bytes, page_bytes);
  if (!offset) return false;
  memory_.set_fresh(*offset, bytes, handle);
  pages_.emplace(handle, Pages{*offset, bytes});
  return true;
}

bool PageTable::add_file(int file, std::size_t bytes, std::uint64_t handle, bool is_imported) {
  const std::optional<std::uint64_t> offset =
      is_imported ? std::uint64_t{0} : allocator_.take(bytes, page_bytes);
  if (!offset) {
    close(file);
    return false;
  }
  try {
    // Other processes write the pages too, so they always count as written.
    pages_.emplace(handle, Pages{.offset = *offset,
                                 .bytes = bytes,
                                 .was_mapped = true,
                                 .file = file,
                                 .is_imported = is_imported});
  } catch (...) {
    if (!is_imported) allocator_.give(*offset, bytes);
    close(file);
    throw;
  }
  return true;
}

std::optional<std::size_t> PageTable::bytes_of(std::uint64_t handle) const {
  const auto found = pages_.find(handle);
  if (found == pages_.end() || found->second.is_released) return std::nullopt;
  return found->second.bytes;
}

void PageTable::release(std::uint64_t handle) {
  const auto found = pages_.find(handle);
  found->second.is_released = true;
  drop_if_unused(found);
}

Result<bool> PageTable::try_map(void* address, std::uint64_t handle) {
  Pages& pages = pages_.find(handle)->second;
  const std::optional<std::uint64_t> offset = memory_.offset_of(address);
  if (!offset || !is_reserved(*offset, pages.bytes)) {
    return bad_range("not inside one reservation. Reserve addresses first", address, pages.bytes);
  }
  if (has_mapping(*offset, pages.bytes)) {
    return bad_range("already mapped in part. Unmap the range first", address, pages.bytes);
  }
  Result<void> mapped = pages.file >= 0 ? memory_.map_file(*offset, pages.file, pages.bytes)
                                        : memory_.map(*offset, pages.offset, pages.bytes);
  if (!mapped) return mapped.failure();
  mappings_.emplace(*offset, Mapping{pages.bytes, handle});
  ++pages.mappings;
  return std::exchange(pages.was_mapped, true);
}

Result<void> PageTable::check_mapping(const void* address, std::size_t bytes) const {
  const std::optional<std::uint64_t> offset = memory_.offset_of(address);
  const auto found = offset ? mappings_.find(*offset) : mappings_.end();
  if (found == mappings_.end() || found->second.bytes != bytes) {
    return bad_range("not one whole mapping. Unmap exactly the range that was mapped", address,
                     bytes);
  }
  return {};
}

Result<void> PageTable::try_unmap(void* address, std::size_t bytes) {
  if (Result<void> whole = check_mapping(address, bytes); !whole) return whole;
  const auto found = mappings_.find(*memory_.offset_of(address));
  if (Result<void> unmapped = memory_.unmap(found->first, bytes); !unmapped) return unmapped;
  const auto pages = pages_.find(found->second.handle);
  mappings_.erase(found);
  --pages->second.mappings;
  drop_if_unused(pages);
  return {};
}

Result<void> PageTable::try_set_access(const void* address, std::size_t bytes, PageAccess access) {
  const std::optional<std::uint64_t> offset = memory_.offset_of(address);
  const auto first = offset ? mappings_.find(*offset) : mappings_.end();
  std::uint64_t covered = offset.value_or(0);
  auto last = first;
  while (last != mappings_.end() && last->first == covered && covered - *offset < bytes) {
    covered += last->second.bytes;
    ++last;
  }
  if (!offset || covered - *offset != bytes) {
    return bad_range("not covered by whole mappings. Map the range first", address, bytes);
  }
  for (auto it = first; it != last; ++it) it->second.access = access;
  return {};
}

PageAccess PageTable::access_to(std::uint64_t offset, std::size_t bytes) const {
  PageAccess least = PageAccess::read_write;
  auto it = mappings_.upper_bound(offset);
  if (it != mappings_.begin()) --it;
  for (; it != mappings_.end() && it->first < offset + bytes; ++it) {
    if (it->first + it->second.bytes > offset) least = std::min(least, it->second.access);
  }
  return least;
}

std::optional<PageTable::MappedRange> PageTable::mapping_at(std::uint64_t offset) const {
  auto next = mappings_.upper_bound(offset);
  if (next == mappings_.begin()) return std::nullopt;
  --next;
  if (offset - next->first >= next->second.bytes) return std::nullopt;
  return MappedRange{next->first, next->second.bytes, next->second.handle};
}

bool PageTable::is_reserved(std::uint64_t offset, std::size_t bytes) const {
  auto next = reservations_.upper_bound(offset);
  if (next == reservations_.begin()) return false;
  --next;
  return is_within(offset - next->first, bytes, next->second);
}

bool PageTable::has_mapping(std::uint64_t offset, std::size_t bytes) const {
  const auto next = mappings_.lower_bound(offset);
  if (next != mappings_.end() && next->first - offset < bytes) return true;
  if (next == mappings_.begin()) return false;
  const auto before = std::prev(next);
  return offset - before->first < before->second.bytes;
}

void PageTable::drop_if_unused(std::map<std::uint64_t, Pages>::iterator pages) {
  if (!pages->second.is_released || pages->second.mappings > 0) return;
  const Pages& last = pages->second;
  if (last.file >= 0) {
    close(last.file);
  } else {
    memory_.set_freed(last.offset, last.bytes, pages->first);
  }
  if (!last.is_imported) allocator_.give(last.offset, last.bytes);
  pages_.erase(pages);
}

}  // namespace tern::sim
