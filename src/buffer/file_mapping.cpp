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

/// One mapping, as the handler sees it. `version` is odd while the rest changes: a reader that
/// found it odd, or another one behind than before, has read a mapping that nobody uses yet or any
/// more, which is not the one that faulted.
struct WatchedRange {
  std::atomic<std::uint32_t> version = 0;
  std::atomic<std::uintptr_t> begin = 0;  // 0: nothing is watched here
  std::atomic<std::uintptr_t> end = 0;    // both are at pages
  std::atomic<bool> is_cut = false;
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

namespace {

/// Chunks are added and never freed, so that the handler can read them at any moment.
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
/// The same for the handler, which may not run initialisers.
std::atomic<std::uintptr_t> page_mask = 0;

/// Would the fault be in this range, and if so, where does the range end?
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
      // To the end: what lies behind a page that the file no longer has is gone as well.
      const std::uintptr_t page = address & page_mask.load(std::memory_order_relaxed);
      range.is_cut.store(true, std::memory_order_release);
      return mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
  }
  return false;
}

void on_fault(int, siginfo_t* info, void* context) {
  // A damaged page of memory is no short file.
  if (info->si_code == BUS_ADRERR) {
    const int error = errno;
    const bool is_ours = put_zeros(reinterpret_cast<std::uintptr_t>(info->si_addr));
    errno = error;
    if (is_ours) return;
  }
  handler.pass_on(info, context);
}

/// With the lock held; null if the host has no memory.
WatchedRange* find_room() noexcept {
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

void set(WatchedRange& range, std::uintptr_t begin, std::uintptr_t end) noexcept {
  range.version.fetch_add(1, std::memory_order_acq_rel);
  range.begin.store(begin, std::memory_order_release);
  range.end.store(end, std::memory_order_release);
  range.is_cut.store(false, std::memory_order_release);
  range.version.fetch_add(1, std::memory_order_release);
}

}  // namespace

FileMapping::Refusal FileMapping::try_map(int file, std::size_t offset,
                                          std::size_t bytes) noexcept {
  const std::size_t page = page_bytes();
  const std::size_t lead = offset % page;
  // The file is at least as long, so this cannot wrap.
  const std::size_t mapped = (lead + bytes + page - 1) / page * page;
  const std::lock_guard lock(handler);
  page_mask.store(~(static_cast<std::uintptr_t>(page) - 1));
  if (!handler.install()) return {"sigaction", errno};
  WatchedRange* const room = find_room();
  if (room == nullptr) return {"mmap", 0};
  void* const base =
      mmap(nullptr, lead + bytes, PROT_READ, MAP_PRIVATE, file, static_cast<off_t>(offset - lead));
  if (base == MAP_FAILED) return {"mmap", errno};
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  set(*room, begin, begin + mapped);
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

bool FileMapping::is_cut() const noexcept {
  return range_ != nullptr && range_->is_cut.load(std::memory_order_acquire);
}

}  // namespace tern
