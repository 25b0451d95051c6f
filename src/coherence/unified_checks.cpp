// The part of UnifiedCore that detects writes without a lease.

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"
#include "tern/core/bytes.hpp"

namespace tern {

// --- Checksums of the host copy (UnifiedOptions::checked)

void UnifiedCore::seal(std::uint32_t slot) noexcept {
  const std::optional<HostAccessChecks::Sealing> sealing =
      HostAccessChecks::plan_seal(copies_, leases_, slot);
  if (!sealing) return;
  // Computing the checksums takes long, so mutex_ is released. The slot becomes a read lease, which
  // keeps writers away.
  leases_[slot].access = Access::read;
  mutex_.unlock();
  checks_.seal(*sealing);
  mutex_.lock();
}

Result<void> UnifiedCore::check_sealed(ByteRange range, CallSite site) noexcept {
  HostAccessChecks::Sealed copy;
  {
    const std::lock_guard lock(mutex_);
    if (range.end > bytes()) return {};
    copy = HostAccessChecks::sealed(copies_);
  }
  const std::optional<HostSeal::Broken> broken = checks_.take_broken(copy, range);
  if (!broken) return {};
  return Failure(ErrorCode::violation,
                 "bytes {begin} to {end} of buffer '{tag}' were written on the host without a "
                 "lease, after the lease of {a_file}:{a_line} was closed. Open a write lease, or "
                 "report the write with mark_host_dirty().",
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
  if (!options_.guard.value_or(false)) return check_sealed(range, site);
  // Protected pages cannot be read, so the transfer lock makes them accessible. The check is still
  // needed: memory that cannot be guarded is never protected, and bytes that share a page with a
  // lease can be written.
  const TransferLock mover(*this);
  return check_sealed(range, site);
}

// --- Protected pages of the host copy (UnifiedOptions::guard)

bool UnifiedCore::is_guarded() const noexcept {
  if (!options_.guard.value_or(false)) return false;
  const std::lock_guard lock(mutex_);
  return HostAccessChecks::has_guarded_pages(copies_);
}

void UnifiedCore::close_pages() noexcept {
  if (!HostAccessChecks::has_guarded_pages(copies_)) return;
  // Copies of the driver must not fault. If it is unknown whether they are done, the pages stay
  // accessible.
  if (!copies_.memory(host).storage->uses().try_wait(Access::discard)) return;
  const std::lock_guard lock(mutex_);
  checks_.close_pages(copies_, leases_);
}

void UnifiedCore::guard_again() noexcept {
  if (!options_.guard.value_or(false)) return;
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
                     "'{place_b}', although both copies are up to date: one of them was written "
                     "without a lease. Open a write lease, or report the write with "
                     "mark_host_dirty() or mark_device_dirty().",
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
