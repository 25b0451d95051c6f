#include "backends/host/host_memory.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <new>

#include "backends/host/aligned_mapping.hpp"
#include "backends/host/machine.hpp"
#include "tern/core/bytes.hpp"

namespace tern::host {
namespace {

/// Blocks of this size and larger get their own pages. For smaller blocks this wastes more than it
/// speeds up.
constexpr std::size_t own_pages_bytes = 2 * huge_page_bytes;

/// Held across fork by the forking thread, so that the child never finds it locked by a thread that
/// it does not have.
std::mutex& shared_mutex() {
  static constinit std::mutex mutex;
  return mutex;
}

void hold_lock_across_fork() {
  static const int registered =
      pthread_atfork([] { shared_mutex().lock(); }, [] { shared_mutex().unlock(); },
                     [] { shared_mutex().unlock(); });
  static_cast<void>(registered);
}

/// Calls mbind without libnuma: a mask of one node and the strict policy.
long bind_to_node(void* address, std::size_t bytes, std::uint32_t node) noexcept {
  constexpr int bind_policy = 2;
  std::array<unsigned long, 16> mask = {};
  constexpr std::size_t bits = 8 * sizeof(unsigned long);
  mask[node / bits] = 1ul << (node % bits);
  return syscall(SYS_mbind, address, bytes, bind_policy, mask.data(), mask.size() * bits, 0u);
}

Failure cannot_lock(std::size_t bytes) noexcept {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return Failure(ErrorCode::out_of_memory,
                 "the host could not page-lock {requested}: mlock failed with error {os_code} and "
                 "the limit on locked memory is {limit}. Raise it (ulimit -l), or use less pinned "
                 "memory.")
      .with_bytes("requested", bytes)
      .with("os_code", static_cast<std::uint64_t>(errno))
      .with_bytes("limit", limit.rlim_cur);
}

}  // namespace

HostMemory::HostMemory(HostMemoryOptions options, std::size_t total_bytes)
    : options_(options), total_bytes_(total_bytes) {
  hold_lock_across_fork();
}

HostMemory::~HostMemory() {
  for (const auto& [address, block] : blocks_) give(reinterpret_cast<void*>(address), block);
}

Failure HostMemory::out_of_memory(std::size_t bytes) const noexcept {
  return Failure(ErrorCode::out_of_memory,
                 "the host could not allocate {requested}: {free} of {total} are free. Free "
                 "something, or ask for less.")
      .with_bytes("requested", bytes)
      .with_bytes("free", available_bytes())
      .with_bytes("total", total_bytes_);
}

Failure HostMemory::not_live(const void* address) const noexcept {
  return Failure(ErrorCode::use_after_free,
                 "{address} is not the address of a live allocation of the host device. The block "
                 "was freed before, or has another owner. Free each block once, by the address "
                 "that allocate returned.")
      .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex);
}

Result<void*> HostMemory::take(MemoryKind kind, std::size_t bytes, std::size_t alignment,
                               std::size_t& mapped_bytes) noexcept {
  mapped_bytes = 0;
  // Without this check, an allocation larger than the machine would fail later, at the first
  // access, with a signal.
  if (bytes > total_bytes_) return out_of_memory(bytes);

  const bool has_own_pages =
      bytes >= own_pages_bytes || kind == MemoryKind::pinned || options_.numa_node.has_value();
  if (!has_own_pages) {
    void* address = nullptr;
    if (posix_memalign(&address, alignment, bytes) != 0) return out_of_memory(bytes);
    return address;
  }

  const bool wants_huge = options_.pages == Pages::huge && bytes >= own_pages_bytes;
  const std::optional<std::size_t> rounded = checked_round_up(bytes, system_page_bytes());
  if (!rounded) return out_of_memory(bytes);
  void* address = map_aligned(
      *rounded, std::max({alignment, system_page_bytes(), wants_huge ? huge_page_bytes : 0}));
  if (address == nullptr) return out_of_memory(bytes);
  // Only a hint: without huge pages the block is slower but correct.
  if (wants_huge) madvise(address, *rounded, MADV_HUGEPAGE);

  if (options_.numa_node && bind_to_node(address, *rounded, *options_.numa_node) != 0) {
    const int error = errno;
    munmap(address, *rounded);
    return Failure(ErrorCode::driver,
                   "memory could not be bound to NUMA node {node}: {call} returned {code}. Open "
                   "'host' without numa.")
        .with("call", "mbind")
        .with("name", "system error")
        .with("code", static_cast<std::uint64_t>(error))
        .with("node", *options_.numa_node);
  }
  if (kind == MemoryKind::pinned && mlock(address, *rounded) != 0) {
    const Failure failure = cannot_lock(bytes);
    munmap(address, *rounded);
    return failure;
  }
  mapped_bytes = *rounded;
  return address;
}

void HostMemory::give(void* address, const Block& block) noexcept {
  if (block.mapped_bytes > 0) {
    munmap(address, block.mapped_bytes);  // also unlocks the pages
  } else {
    std::free(address);
  }
}

Result<void*> HostMemory::allocate(MemoryKind kind, std::size_t bytes,
                                   std::size_t alignment) noexcept {
  std::size_t mapped_bytes = 0;
  const Result<void*> address = take(kind, bytes, alignment, mapped_bytes);
  if (!address) return address;
  const Block block{bytes, mapped_bytes, kind, false};
  try {
    const std::lock_guard lock(shared_mutex());
    blocks_.emplace(reinterpret_cast<std::uintptr_t>(*address), block);
  } catch (const std::bad_alloc&) {
    give(*address, block);
    return out_of_memory(bytes);
  }
  return address;
}

Result<void> HostMemory::begin_release(void* address) noexcept {
  const std::lock_guard lock(shared_mutex());
  const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == blocks_.end() || found->second.is_releasing) return not_live(address);
  found->second.is_releasing = true;
  return {};
}

void HostMemory::finish_release(void* address) noexcept {
  std::map<std::uintptr_t, Block>::node_type node;
  {
    const std::lock_guard lock(shared_mutex());
    node = blocks_.extract(reinterpret_cast<std::uintptr_t>(address));
  }
  // Outside the lock, because unmapping a large block takes long.
  if (!node.empty()) give(address, node.mapped());
}

void HostMemory::cancel_release(void* address) noexcept {
  const std::lock_guard lock(shared_mutex());
  const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found != blocks_.end()) found->second.is_releasing = false;
}

Result<void> HostMemory::release(void* address) noexcept {
  if (Result<void> begun = begin_release(address); !begun) return begun;
  finish_release(address);
  return {};
}

std::optional<PointerInfo> HostMemory::find(const void* address) const noexcept {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(shared_mutex());
  auto next = blocks_.upper_bound(number);
  if (next == blocks_.begin()) return std::nullopt;
  const auto& [base, block] = *--next;
  if (number - base >= block.bytes || block.is_releasing) return std::nullopt;
  return PointerInfo{block.kind, reinterpret_cast<void*>(base), block.bytes};
}

std::size_t HostMemory::live_blocks() const noexcept {
  const std::lock_guard lock(shared_mutex());
  return blocks_.size();
}

}  // namespace tern::host
