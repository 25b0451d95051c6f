// The SIGBUS handler and the list of mappings that it reads without a lock.

#include "buffer/file_mapping.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <new>

#include "core/fault_handler.hpp"

namespace tern {

/// One mapping, as the handler sees it. `version` is odd while the other fields change. If a reader
/// finds it odd or changed, the mapping was being made or removed, so it is not the one that
/// faulted.
struct WatchedRange {
  std::atomic<std::uint32_t> version = 0;
  std::atomic<std::uintptr_t> begin = 0;  // 0 if the entry is unused
  std::atomic<std::uintptr_t> end = 0;    // both are page-aligned
  std::atomic<bool> is_cut = false;
  std::atomic<bool> is_writable = false;
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

namespace {

/// Chunks are never freed, so that the handler can read them at any time.
struct Chunk {
  std::array<WatchedRange, 64> ranges;
  std::atomic<Chunk*> next = nullptr;
};
Chunk first_chunk;

void on_fault(int signal, siginfo_t* info, void* context);
constinit FaultHandler handler(SIGBUS, on_fault);

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
/// The page mask for the handler, which must not run initializers of static variables.
std::atomic<std::uintptr_t> page_mask = 0;

/// Returns the end of the range if the range contains the address, else 0.
std::uintptr_t end_if_inside(const WatchedRange& range, std::uintptr_t address) noexcept {
  const std::uint32_t before = range.version.load(std::memory_order_acquire);
  const std::uintptr_t begin = range.begin.load(std::memory_order_acquire);
  const std::uintptr_t end = range.end.load(std::memory_order_acquire);
  if (before % 2 != 0 || range.version.load(std::memory_order_relaxed) != before) return 0;
  return begin != 0 && address >= begin && address < end ? end : 0;
}

bool put_zeros(std::uintptr_t address) noexcept {
  for (Chunk* chunk = &first_chunk; chunk != nullptr; chunk = chunk->next.load()) {
    for (WatchedRange& range : chunk->ranges) {
      const std::uintptr_t end = end_if_inside(range, address);
      if (end == 0) continue;
      // Up to the end of the mapping: pages behind a missing page are missing as well.
      const std::uintptr_t page = address & page_mask.load(std::memory_order_relaxed);
      range.is_cut.store(true, std::memory_order_release);
      const int protection = PROT_READ | (range.is_writable.load() ? PROT_WRITE : 0);
      return mmap(reinterpret_cast<void*>(page), end - page, protection,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
  }
  return false;
}

void on_fault(int, siginfo_t* info, void* context) {
  // Only BUS_ADRERR means a missing page; a hardware memory error is passed on.
  if (info->si_code == BUS_ADRERR) {
    const int error = errno;
    const bool is_ours = put_zeros(reinterpret_cast<std::uintptr_t>(info->si_addr));
    errno = error;
    if (is_ours) return;
  }
  handler.pass_on(info, context);
}

/// Returns a free entry, or null if the host has no memory. Call with the lock held.
WatchedRange* find_free_entry() noexcept {
  Chunk* last = nullptr;
  for (Chunk* chunk = &first_chunk; chunk != nullptr; chunk = chunk->next.load()) {
    for (WatchedRange& range : chunk->ranges) {
      if (range.begin.load() == 0) return &range;
    }
    last = chunk;
  }
  auto* const added = new (std::nothrow) Chunk;
  if (added == nullptr) return nullptr;
  last->next.store(added);
  return &added->ranges.front();
}

void set(WatchedRange& range, std::uintptr_t begin, std::uintptr_t end,
         bool is_writable = false) noexcept {
  range.version.fetch_add(1, std::memory_order_acq_rel);
  range.begin.store(begin, std::memory_order_release);
  range.end.store(end, std::memory_order_release);
  range.is_cut.store(false, std::memory_order_release);
  range.is_writable.store(is_writable, std::memory_order_release);
  range.version.fetch_add(1, std::memory_order_release);
}

}  // namespace

FileMapping::Refusal FileMapping::try_map(int file, std::size_t offset, std::size_t bytes,
                                          Writes writes) noexcept {
  const bool is_writable = writes == Writes::to_file;
  const std::size_t page = page_bytes();
  const std::size_t lead = offset % page;
  // Cannot wrap, because the file is at least that long.
  const std::size_t mapped = (lead + bytes + page - 1) / page * page;
  const std::lock_guard lock(handler);
  page_mask.store(~(static_cast<std::uintptr_t>(page) - 1));
  if (!handler.install()) return {"sigaction", errno};
  WatchedRange* const room = find_free_entry();
  if (room == nullptr) return {"mmap", 0};
  void* const base =
      mmap(nullptr, lead + bytes, PROT_READ | (is_writable ? PROT_WRITE : 0),
           is_writable ? MAP_SHARED : MAP_PRIVATE, file, static_cast<off_t>(offset - lead));
  if (base == MAP_FAILED) return {"mmap", errno};
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  set(*room, begin, begin + mapped, is_writable);
  range_ = room;
  address_ = static_cast<std::byte*>(base) + lead;
  return {};
}

FileMapping::~FileMapping() {
  if (range_ == nullptr) return;
  const std::lock_guard lock(handler);
  const std::uintptr_t begin = range_->begin.load();
  const std::size_t bytes = range_->end.load() - begin;
  set(*range_, 0, 0);
  munmap(reinterpret_cast<void*>(begin), bytes);
}

int FileMapping::sync() const noexcept {
  if (range_ == nullptr) return 0;
  const std::uintptr_t begin = range_->begin.load();
  return msync(reinterpret_cast<void*>(begin), range_->end.load() - begin, MS_SYNC) == 0 ? 0
                                                                                         : errno;
}

bool FileMapping::is_cut() const noexcept {
  return range_ != nullptr && range_->is_cut.load(std::memory_order_acquire);
}

}  // namespace tern
