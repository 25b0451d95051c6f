#include "backends/host/host_pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <new>
#include <optional>

#include "backends/host/machine.hpp"
#include "backends/memory_file.hpp"
#include "backends/page_failures.hpp"
#include "core/no_host_memory.hpp"

namespace tern::host {
namespace {

std::uintptr_t number_of(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

Failure system_failure(const char* call, std::size_t bytes) noexcept {
  const auto error = static_cast<std::uint64_t>(errno);
  const bool is_memory = errno == ENOMEM || errno == ENOSPC;
  return Failure(is_memory ? ErrorCode::out_of_memory : ErrorCode::driver,
                 "{call} failed with error {code} on {requested}. Use less memory, or fewer "
                 "mappings.")
      .with("call", call)
      .with("name", "system error")
      .with("code", error)
      .with_bytes("requested", bytes)
      .with_bytes("free", available_bytes());
}

Failure refuse(const char* what, const void* address, std::size_t bytes) noexcept {
  return Failure(ErrorCode::invalid_argument, "the page range of {bytes} at {value} is {why}.")
      .with("name", "address")
      .with("value", number_of(address), Unit::hex)
      .with_bytes("bytes", bytes)
      .with("why", what);
}

Failure unknown_handle(NativePages pages) noexcept {
  return Failure(ErrorCode::use_after_free,
                 "pages {handle} were released before, or never created. Keep the handle until its "
                 "last mapping is made.")
      .with("handle", static_cast<std::uint64_t>(pages.value));
}

/// Turns a mapping back into reserved addresses without memory.
bool map_nothing(void* address, std::size_t bytes) noexcept {
  return mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
              -1, 0) != MAP_FAILED;
}

int protection_of(PageAccess access) noexcept {
  switch (access) {
    case PageAccess::none:
      return PROT_NONE;
    case PageAccess::read:
      return PROT_READ;
    case PageAccess::read_write:
      return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

}  // namespace

HostPages::~HostPages() {
  for (const auto& [address, bytes] : reservations_) {
    munmap(reinterpret_cast<void*>(address), bytes);
  }
  for (const auto& [number, handle] : handles_) {
    if (handle.own_file >= 0) close(handle.own_file);
  }
  if (file_ >= 0) close(file_);
}

Result<void> HostPages::open_file() noexcept {
  if (file_ >= 0) return {};
  const Result<int> file = try_make_memory_file("tern-host-pages");
  if (!file) return file.failure();
  file_ = *file;
  return {};
}

Result<void*> HostPages::reserve(std::size_t bytes) noexcept {
  // The system aligns to its own page size, so reserve one more page and release the ends.
  const std::optional<std::size_t> padded = checked_add(bytes, page_bytes);
  if (!padded) return system_failure("mmap", bytes);
  void* raw = mmap(nullptr, *padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return system_failure("mmap", bytes);
  const std::uintptr_t start = number_of(raw);
  const std::uintptr_t aligned = (start + page_bytes - 1) / page_bytes * page_bytes;
  if (aligned > start) munmap(raw, aligned - start);
  const std::size_t tail = start + *padded - (aligned + bytes);
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail);

  const std::lock_guard lock(mutex_);
  try {
    reservations_.emplace(aligned, bytes);
  } catch (const std::bad_alloc&) {
    munmap(reinterpret_cast<void*>(aligned), bytes);
    return no_host_memory("its page tables");
  }
  return reinterpret_cast<void*>(aligned);
}

Result<void> HostPages::unreserve(void* address, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(number_of(address));
  if (found == reservations_.end() || found->second != bytes) {
    return refuse("not a whole reservation. Release exactly the range that reserve returned",
                  address, bytes);
  }
  if (has_mapping(found->first, bytes)) {
    return refuse("still mapped in part. Unmap the whole range first", address, bytes);
  }
  if (munmap(address, bytes) != 0) return system_failure("munmap", bytes);
  reservations_.erase(found);
  return {};
}

Result<std::size_t> HostPages::take_offset(std::size_t bytes) {
  for (auto hole = free_offsets_.begin(); hole != free_offsets_.end(); ++hole) {
    if (hole->second < bytes) continue;
    const std::size_t offset = hole->first;
    const std::size_t rest = hole->second - bytes;
    if (rest > 0) free_offsets_.emplace(offset + bytes, rest);
    free_offsets_.erase(offset);
    return offset;
  }
  const std::size_t offset = file_bytes_;
  if (Result<void> grown = try_resize_memory_file(file_, offset + bytes); !grown) {
    return grown.failure();
  }
  file_bytes_ += bytes;
  return offset;
}

void HostPages::give_offset(std::size_t offset, std::size_t bytes) noexcept {
  // This frees the memory. The addresses in the sparse file cost nothing.
  static_cast<void>(fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              static_cast<off_t>(offset), static_cast<off_t>(bytes)));
  try {
    const auto hole = free_offsets_.emplace(offset, bytes).first;
    const auto next = std::next(hole);
    if (next != free_offsets_.end() && next->first == offset + bytes) {
      hole->second += next->second;
      free_offsets_.erase(next);
    }
    if (hole != free_offsets_.begin()) {
      const auto before = std::prev(hole);
      if (before->first + before->second == offset) {
        before->second += hole->second;
        free_offsets_.erase(hole);
      }
    }
  } catch (const std::bad_alloc&) {
    // Without memory for the record, the hole is forgotten. The file stays sparse there, so only
    // offsets are lost.
  }
}

Result<void> HostPages::check_available(std::size_t bytes) const noexcept {
  // The file is sparse, so the system would accept any size and kill the process at the first
  // access.
  if (bytes <= total_bytes_ - created_bytes_) return {};
  return Failure(ErrorCode::out_of_memory,
                 "the host could not create pages of {requested}: {created} of {total} are "
                 "already in use as pages. Release some of them.")
      .with_bytes("requested", bytes)
      .with_bytes("created", created_bytes_)
      .with_bytes("free", available_bytes())
      .with_bytes("total", total_bytes_);
}

Result<NativePages> HostPages::create(std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (Result<void> fits = check_available(bytes); !fits) return fits.failure();
  if (Result<void> opened = open_file(); !opened) return opened.failure();
  try {
    const auto handle = handles_.try_emplace(next_handle_).first;
    const Result<std::size_t> offset = take_offset(bytes);
    if (!offset) {
      handles_.erase(handle);
      return offset.failure();
    }
    handle->second.offset = *offset;
    handle->second.bytes = bytes;
  } catch (const std::bad_alloc&) {
    handles_.erase(next_handle_);
    return no_host_memory("its page tables");
  }
  created_bytes_ += bytes;
  return NativePages{next_handle_++};
}

Result<NativePages> HostPages::create_shareable(std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (Result<void> fits = check_available(bytes); !fits) return fits.failure();
  const Result<int> file = try_make_shareable_file("tern-shared", bytes);
  if (!file) return file.failure();
  return add_file(*file, bytes, false);
}

Result<NativePages> HostPages::import_file(int descriptor, std::size_t bytes) noexcept {
  if (Result<void> sealed = check_shareable_file(descriptor, bytes); !sealed) {
    return sealed.failure();
  }
  const Result<int> file = try_duplicate(descriptor);
  if (!file) return file.failure();
  const std::lock_guard lock(mutex_);
  return add_file(*file, bytes, true);
}

Result<NativePages> HostPages::add_file(int file, std::size_t bytes, bool is_imported) noexcept {
  try {
    handles_.emplace(next_handle_,
                     Handle{.bytes = bytes, .own_file = file, .is_imported = is_imported});
  } catch (const std::bad_alloc&) {
    close(file);
    return no_host_memory("its page tables");
  }
  if (!is_imported) created_bytes_ += bytes;
  return NativePages{next_handle_++};
}

Result<int> HostPages::export_file(NativePages pages) noexcept {
  const std::lock_guard lock(mutex_);
  const auto handle = handles_.find(pages.value);
  if (handle == handles_.end() || handle->second.is_released) return unknown_handle(pages);
  if (handle->second.own_file < 0) return not_shareable(pages.value);
  return try_duplicate(handle->second.own_file);
}

void HostPages::drop_if_unused(std::map<std::uint64_t, Handle>::iterator handle) noexcept {
  if (!handle->second.is_released || handle->second.mappings > 0) return;
  if (!handle->second.is_imported) created_bytes_ -= handle->second.bytes;
  if (handle->second.own_file >= 0) {
    close(handle->second.own_file);
  } else {
    give_offset(handle->second.offset, handle->second.bytes);
  }
  handles_.erase(handle);
}

Result<void> HostPages::release(NativePages pages) noexcept {
  const std::lock_guard lock(mutex_);
  const auto handle = handles_.find(pages.value);
  if (handle == handles_.end() || handle->second.is_released) return unknown_handle(pages);
  handle->second.is_released = true;
  drop_if_unused(handle);
  return {};
}

bool HostPages::is_reserved(std::uintptr_t address, std::size_t bytes) const noexcept {
  auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return false;
  --next;
  return is_within(address - next->first, bytes, next->second);
}

bool HostPages::has_mapping(std::uintptr_t address, std::size_t bytes) const noexcept {
  auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first - address < bytes) return true;
  if (next == mappings_.begin()) return false;
  --next;
  return address - next->first < next->second.bytes;
}

Result<void> HostPages::map(void* address, NativePages pages) noexcept {
  const std::lock_guard lock(mutex_);
  const auto handle = handles_.find(pages.value);
  if (handle == handles_.end() || handle->second.is_released) return unknown_handle(pages);
  const std::size_t bytes = handle->second.bytes;
  const std::uintptr_t start = number_of(address);
  if (!is_reserved(start, bytes)) {
    return refuse("not inside one reservation. Reserve addresses first", address, bytes);
  }
  if (has_mapping(start, bytes)) {
    return refuse("already mapped in part. Unmap the range first", address, bytes);
  }
  try {
    mappings_.emplace(start, Mapping{bytes, handle->first});
  } catch (const std::bad_alloc&) {
    return no_host_memory("its page tables");
  }
  const int file = handle->second.own_file >= 0 ? handle->second.own_file : file_;
  if (mmap(address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file,
           static_cast<off_t>(handle->second.offset)) == MAP_FAILED) {
    mappings_.erase(start);
    return system_failure("mmap", bytes);
  }
  ++handle->second.mappings;
  return {};
}

Result<void> HostPages::unmap(void* address, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(number_of(address));
  if (found == mappings_.end() || found->second.bytes != bytes) {
    return refuse("not one whole mapping. Unmap exactly the range that was mapped", address, bytes);
  }
  if (!map_nothing(address, bytes)) return system_failure("mmap", bytes);
  const auto handle = handles_.find(found->second.handle);
  mappings_.erase(found);
  --handle->second.mappings;
  drop_if_unused(handle);
  return {};
}

Result<void> HostPages::set_access(void* address, std::size_t bytes, PageAccess access) noexcept {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t start = number_of(address);
  std::uintptr_t covered = start;
  // The range must consist of whole, adjacent mappings.
  for (auto it = mappings_.find(start);
       it != mappings_.end() && it->first == covered && covered - start < bytes; ++it) {
    covered += it->second.bytes;
  }
  if (covered - start != bytes) {
    return refuse("not covered by whole mappings. Map the range first", address, bytes);
  }
  if (mprotect(address, bytes, protection_of(access)) != 0) {
    return system_failure("mprotect", bytes);
  }
  return {};
}

bool HostPages::find(const void* address, PointerInfo& info) const noexcept {
  const std::lock_guard lock(mutex_);
  auto next = mappings_.upper_bound(number_of(address));
  if (next == mappings_.begin()) return false;
  --next;
  if (number_of(address) - next->first >= next->second.bytes) return false;
  info = {MemoryKind::mapped, reinterpret_cast<void*>(next->first), next->second.bytes};
  return true;
}

}  // namespace tern::host
