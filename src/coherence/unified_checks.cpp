// The part of UnifiedCore that detects writes without a lease.

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "coherence/guarded_heap.hpp"
#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"
#include "tern/core/bytes.hpp"

namespace tern {

// --- Checksums of the host copy (UnifiedOptions::checked)

const UnifiedCore::Memory* UnifiedCore::sealed_memory() const noexcept {
  const Memory& memory = copies_.memory(host);
  return memory.storage && memory.parts == PlaceSet::of(host) ? &memory : nullptr;
}

void UnifiedCore::seal(std::uint32_t slot) noexcept {
  const Slot& lease = leases_[slot];
  const Memory* const memory = sealed_memory();
  const ByteRange range = lease.range;
  // Bytes that are in flight, or that another lease may write, are not stable and get no checksum.
  bool is_settled = memory != nullptr && lease.place == host && memory->is_read_clear;
  is_settled = is_settled && leases_.find_other(slot, [&](const Slot& other) {
    return is_write(other.access) && other.overlaps(range);
  }) == nullptr;
  if (!is_settled || !copies_.directory().is_valid(range.begin, range.end, host)) return;
  const StorageHandle storage = memory->storage;
  const std::byte* const first = memory->address;
  const CallSite site = lease.site;
  // Computing the hashes takes long, so mutex_ is released. The slot becomes a read lease, which
  // keeps writers away.
  leases_[slot].access = Access::read;
  const std::size_t bytes = this->bytes();
  mutex_.unlock();
  seal_.set(storage->id(), first, bytes, range, site);
  mutex_.lock();
}

Result<void> UnifiedCore::check_sealed(ByteRange range, CallSite site) noexcept {
  StorageHandle storage;
  const std::byte* first = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const Memory* const memory = sealed_memory();
    if (memory == nullptr || range.end > bytes()) return {};
    storage = memory->storage;
    first = memory->address;
  }
  const std::optional<HostSeal::Broken> broken = seal_.take_broken(storage->id(), first, range);
  if (!broken) return {};
  return Failure(ErrorCode::violation,
                 "bytes {begin} to {end} of buffer '{tag}' were written on the host without a "
                 "lease, since that of {a_file}:{a_line} was closed. Open one for writing, or say "
                 "so with mark_host_dirty().",
                 site)
      .with("finding", "written without a lease")
      .with("begin", broken->range.begin)
      .with("end", broken->range.end)
      .with("a_line", broken->sealed_at.line)
      .with("tag", options_.tag.name())
      .with("a_file", broken->sealed_at.file);
}

Result<void> UnifiedCore::check_before_access(ByteRange range, CallSite site) noexcept {
  if (!is_checked_) return {};
  if (!options_.guard) return check_sealed(range, site);
  // Protected pages cannot be read, so the transfer lock makes them accessible. The check is still
  // needed: memory that cannot be guarded is never protected, and bytes that share a page with a
  // lease can be written.
  const TransferLock mover(*this);
  return check_sealed(range, site);
}

// --- Protected pages of the host copy (UnifiedOptions::guard)

GuardedHeap* UnifiedCore::guarded() const noexcept {
  const Memory* const memory = sealed_memory();
  if (memory == nullptr || memory->storage->kind() != StorageKind::host) return nullptr;
  return dynamic_cast<GuardedHeap*>(memory->storage->origin());
}

bool UnifiedCore::is_guarded() const noexcept {
  if (!options_.guard) return false;
  const std::lock_guard lock(mutex_);
  return guarded() != nullptr;
}

void UnifiedCore::open_pages() noexcept {
  // Also if a device has begun to share the memory.
  const Memory& memory = copies_.memory(host);
  if (!memory.storage || memory.storage->resource()) return;
  if (auto* const pages = dynamic_cast<GuardedHeap*>(memory.storage->origin())) pages->open();
}

void UnifiedCore::close_pages() noexcept {
  GuardedHeap* const pages = guarded();
  if (pages == nullptr) return;
  // Copies of the driver must not fault. If it is unknown whether they are done, the pages stay
  // accessible.
  if (!copies_.memory(host).storage->uses().try_wait(Access::discard)) return;
  const std::lock_guard lock(mutex_);
  pages->begin_rules();
  copies_.directory().visit(0, bytes(), [&](std::size_t begin, std::size_t end, PlaceSet valid) {
    if (valid.has(host)) pages->allow({begin, end}, GuardedHeap::Allowed::reading);
  });
  for (const Slot& lease : leases_.all()) {
    if (lease.place != host) continue;
    pages->allow(lease.range, is_write(lease.access) ? GuardedHeap::Allowed::everything
                                                     : GuardedHeap::Allowed::reading);
  }
  pages->close(last_host_lease_);
}

void UnifiedCore::guard_again() noexcept {
  if (!options_.guard) return;
  ++shares_;  // keeps the core alive, because its last lease may be closed
  mutex_.unlock();
  { const TransferLock mover(*this); }
  mutex_.lock();
  --shares_;
}

// --- Comparison of all copies (UnifiedOptions::compare)

Result<void> UnifiedCore::try_compare(ByteRange range, CallSite site) noexcept try {
  constexpr std::size_t max_at_once = 1 * mib;
  ScopedClaim hold;
  if (Result<void> held = hold.try_claim(*this, {.range = range, .site = site}); !held) return held;
  // Waits for an eviction that began before the claim.
  { const TransferLock turn(*this); }
  struct Piece {
    ByteRange range = {};
    PlaceSet places = {};  // one place for each memory
  };
  std::vector<Piece> pieces;
  {
    const std::lock_guard lock(mutex_);
    leases_[hold.slot()].set_place(LeaseTable::all_memories);
    // An untracked writer may change its bytes at any time.
    if (leases_.has_untracked_writers()) return {};
    copies_.directory().visit(range.begin, range.end,
                              [&](std::size_t begin, std::size_t end, PlaceSet valid) {
                                PlaceSet memories, places;
                                for (; !valid.empty(); valid = valid.without(valid.first())) {
                                  const unsigned memory = copies_[valid.first()].memory;
                                  if (memories.has(memory)) continue;
                                  memories = memories.with(memory);
                                  places = places.with(valid.first());
                                }
                                if (places.size() < 2) return;
                                for (std::size_t at = begin; at < end; at += max_at_once) {
                                  pieces.push_back({{at, std::min(end, at + max_at_once)}, places});
                                }
                              });
  }
  std::vector<std::byte> expected, actual;
  for (const Piece& piece : pieces) {
    const std::size_t bytes = piece.range.end - piece.range.begin;
    expected.resize(bytes);
    actual.resize(bytes);
    const unsigned first = piece.places.first();
    if (Result<void> read = try_exchange(first, piece.range, Access::read, expected.data(), site,
                                         TransferReason::compare);
        !read) {
      return read;
    }
    PlaceSet others = piece.places.without(first);
    for (; !others.empty(); others = others.without(others.first())) {
      if (Result<void> read = try_exchange(others.first(), piece.range, Access::read, actual.data(),
                                           site, TransferReason::compare);
          !read) {
        return read;
      }
      const auto differ = std::ranges::mismatch(expected, actual);
      if (differ.in1 == expected.end()) continue;
      const auto at = static_cast<std::size_t>(differ.in1 - expected.begin());
      const std::lock_guard lock(mutex_);  // to read copies_
      return Failure(ErrorCode::violation,
                     "byte {offset} of buffer '{tag}' is {a} on '{place_a}' and {b} on "
                     "'{place_b}', and should be the same: somebody wrote one of them without a "
                     "lease.",
                     site)
          .with("finding", "copies that differ")
          .with("offset", piece.range.begin + at)
          .with("a", std::to_integer<std::uint64_t>(*differ.in1))
          .with("b", std::to_integer<std::uint64_t>(*differ.in2))
          .with("tag", options_.tag.name())
          .with("place_a", copies_.name_of(first))
          .with("place_b", copies_.name_of(others.first()));
    }
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("a comparison of copies", site);
}

}  // namespace tern
