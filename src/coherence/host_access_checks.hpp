// HostAccessChecks detects accesses of the host to its copy without a lease. It has two tools:
// checksums of bytes at rest (UnifiedOptions::checked, HostSeal) and page protection
// (UnifiedOptions::guard, GuardedHeap).
//
// Both work only if no device shares the host's memory, because such a device may write at any
// time. For a shared copy, all functions do nothing.
//
// UnifiedCore decides when to call it, and guards it: each function says which lock its caller
// holds. The checksums have a lock of their own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "coherence/copy_set.hpp"
#include "coherence/host_seal.hpp"
#include "coherence/lease_table.hpp"

namespace tern {

class GuardedHeap;

class HostAccessChecks {
 public:
  // --- Checksums

  /// The bytes of a closing lease that get checksums.
  struct Sealing {
    StorageHandle storage;
    const std::byte* first = nullptr;
    std::size_t bytes = 0;  // of the whole memory
    ByteRange range = {};
    CallSite site = {};
  };
  /// Returns what to pass to seal() when a lease closes. Bytes that are in flight, or that another
  /// lease may write, are not stable and get no checksum. The caller holds UnifiedCore::mutex_.
  [[nodiscard]] static std::optional<Sealing> plan_seal(const CopySet& copies,
                                                        const LeaseTable& leases,
                                                        std::uint32_t slot) noexcept;
  /// Computes the checksums, which takes long. The caller holds no lock, and keeps writers away
  /// with a lease.
  void seal(const Sealing& sealing) noexcept;
  /// Forgets the checksums of bytes that are about to be written. Any lock will do.
  void forget(ByteRange range) noexcept { seal_.forget(range); }

  /// The host copy, if its bytes can be checked.
  struct Sealed {
    StorageHandle storage;
    const std::byte* first = nullptr;
  };
  /// The caller holds UnifiedCore::mutex_.
  [[nodiscard]] static Sealed sealed(const CopySet& copies) noexcept;
  /// Returns the first bytes of the range that were written without a lease, once. The caller holds
  /// no lock, or the transfer lock.
  [[nodiscard]] std::optional<HostSeal::Broken> take_broken(const Sealed& copy,
                                                            ByteRange range) noexcept;

  // --- Protected pages

  /// Returns whether the pages of the host copy can be protected. Either lock is enough.
  [[nodiscard]] static bool has_guarded_pages(const CopySet& copies) noexcept;
  /// Makes all pages accessible for a transfer, also if a device has begun to share the memory.
  /// Either lock is enough.
  static void open_pages(const CopySet& copies) noexcept;
  /// Protects the pages: the host may read up-to-date pages, and use pages as its open leases
  /// allow. The caller holds both locks, and no stream uses the host copy.
  void close_pages(const CopySet& copies, const LeaseTable& leases) noexcept;
  /// Names the last host lease in reports of page faults. The caller holds UnifiedCore::mutex_.
  void set_last_lease(const CallSite& site) noexcept { last_lease_ = site; }

 private:
  [[nodiscard]] static GuardedHeap* guarded(const CopySet& copies) noexcept;

  HostSeal seal_;
  CallSite last_lease_ = {};
};

}  // namespace tern
