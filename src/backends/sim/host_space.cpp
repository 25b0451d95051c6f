#include "backends/sim/host_space.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "backends/sim/alias_memory.hpp"
#include "backends/sim/profile.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

/// Reserves addresses only; pages appear at the first access. If addresses are scarce, the arena is
/// smaller, but it always fits a few blocks of the largest alignment.
std::size_t arena_size() { return std::max(default_profile().memory_bytes / 4, 1 * gib); }

constexpr std::uint64_t foreign_gap = 4096;

}  // namespace

HostSpace::HostSpace(Reuse reuse)
    : arena_bytes_(arena_size() / (2 * mib) * (2 * mib)), allocator_(arena_bytes_, reuse) {}

HostSpace::~HostSpace() {
  if (arena_ != nullptr) munmap(arena_, arena_bytes_);
}

Result<void*> HostSpace::allocate(std::size_t bytes, std::size_t alignment, MemoryKind kind,
                                  std::uint64_t generation) {
  const auto refuse = [&] {
    return Failure(ErrorCode::out_of_memory,
                   "the simulated host could not allocate {requested} of {kind} memory: {free} of "
                   "{total} are free. Free something, or ask for less.")
        .with_bytes("requested", bytes)
        .with("kind", name(kind))
        .with_bytes("free", allocator_.free_bytes())
        .with_bytes("total", allocator_.total_bytes());
  };
  if (arena_ == nullptr) {
    void* mapped = reserve_aligned(arena_bytes_);
    if (mapped == MAP_FAILED) return refuse();
    if (mprotect(mapped, arena_bytes_, PROT_READ | PROT_WRITE) != 0) {
      munmap(mapped, arena_bytes_);
      return refuse();
    }
    arena_ = static_cast<std::byte*>(mapped);
  }
  const std::optional<std::uint64_t> offset = allocator_.take(bytes, alignment);
  if (!offset) return refuse();
  std::byte* address = arena_ + *offset;
  blocks_.emplace(reinterpret_cast<std::uintptr_t>(address), Block{bytes, kind, generation});
  return address;
}

const HostSpace::Block* HostSpace::find(const void* address, void** base) const noexcept {
  auto next = blocks_.upper_bound(reinterpret_cast<std::uintptr_t>(address));
  if (next == blocks_.begin()) return nullptr;
  --next;
  if (reinterpret_cast<std::uintptr_t>(address) - next->first >= next->second.bytes) return nullptr;
  if (base != nullptr) *base = reinterpret_cast<void*>(next->first);
  return &next->second;
}

std::optional<std::uint64_t> HostSpace::managed_offset(const void* address) const noexcept {
  const Block* block = find(address, nullptr);
  if (block == nullptr || block->kind != MemoryKind::managed) return std::nullopt;
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - arena_);
}

void HostSpace::release(void* address) {
  const auto block = blocks_.find(reinterpret_cast<std::uintptr_t>(address));
  if (block == blocks_.end()) return;
  allocator_.give(static_cast<std::uint64_t>(static_cast<std::byte*>(address) - arena_),
                  block->second.bytes);
  blocks_.erase(block);
}

void HostSpace::translate(const void* address, std::size_t bytes, std::vector<SpaceRange>& ranges) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto arena = reinterpret_cast<std::uintptr_t>(arena_);
  if (arena_ != nullptr && begin >= arena && begin - arena < arena_bytes_) {
    ranges.push_back({0, begin - arena, bytes});
    return;
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> gaps;
  foreign_.visit(begin, begin + bytes,
                 [&](std::uint64_t from, std::uint64_t to, const std::uint64_t* known) {
                   if (known == nullptr) gaps.emplace_back(from, to);
                   return true;
                 });
  for (const auto& [from, to] : gaps) {
    foreign_.assign(from, to, next_foreign_);
    next_foreign_ += (to - from + 2 * foreign_gap - 1) / foreign_gap * foreign_gap;
  }
  for (auto it = foreign_.first_behind(begin); it != foreign_.end() && it->first < begin + bytes;
       ++it) {
    const std::uint64_t from = std::max<std::uint64_t>(begin, it->first);
    const std::uint64_t to = std::min<std::uint64_t>(begin + bytes, it->second.end);
    ranges.push_back({0, it->second.value + (from - it->first), to - from});
  }
}

}  // namespace tern::sim
