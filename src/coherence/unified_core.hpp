// A UnifiedCore is the shared state of one unified buffer. All handles, views and leases of the
// buffer refer to it.
//
// The state is in these parts, each of which can be read alone:
// - copies_: the places and memories of the buffer, and where each byte is up to date (CopySet).
// - leases_: the open leases, and the claims of calls that are in progress (LeaseTable).
// - checks_: checksums and protected pages, to detect accesses without a lease (HostAccessChecks).
// - log_: statistics and the last transfers (TransferLog).
// - spilled_: the host copy while it is in a spill file (SpilledCopy).
//
// An access runs in these steps:
// 1. It claims its byte range in a slot (try_claim_range). From then on, conflicting accesses fail
//    or wait.
// 2. It takes the transfer lock (TransferLock).
// 3. It allocates a copy in its place if there is none (try_ensure). This may evict other copies.
// 4. It queues copies of the bytes that are stale in its place (try_fetch). The directory lists
//    them as up to date from then on.
// 5. A device access begins its use on the stream, records a write in the directory, and releases
//    the transfer lock. A host access releases the transfer lock, waits for the copies
//    (try_settle_host), and then records a write.
//
// The fast path opens and closes a lease under mutex_ alone, without steps 2 to 4. It applies if no
// bytes have to move, nothing has to be waited for, and no call is moving bytes (transfer_locks_ is
// 0).
//
// There are two locks:
// - mutex_ is a spin lock that guards all members. It is held for a few instructions, and no device
//   is called under it.
// - transfer_mutex_ is held while memory is allocated or bytes are moved. Its holder takes mutex_
//   to read and to change members. Places and storages change only under both locks, so either
//   lock is enough to read them.
//
// The lock order is: transfer_mutex_, then the turn and the list of a place (residents.hpp), then
// mutex_. The lock of released_ comes before mutex_. A thread that evicts only tries the transfer
// lock of another buffer (TryTransferLock), and so cannot deadlock.
//
// The order of the work on each memory is in the UseRecord of its storage. The functions are
// defined in several files: unified_core.cpp (claims, closing), unified_fast_path.cpp and
// unified_slow_path.cpp (opening), unified_fetch.cpp and unified_moves.cpp (memory and copies),
// unified_bytes.cpp, unified_resize.cpp, unified_whole.cpp, unified_launch.cpp,
// unified_eviction.cpp (eviction), unified_spill.cpp, unified_memory_wait.cpp,
// unified_reconcile.cpp, unified_checks.cpp, raw_unified.cpp (queries).

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "coherence/copy_allocator.hpp"
#include "coherence/copy_set.hpp"
#include "coherence/host_access_checks.hpp"
#include "coherence/lease_table.hpp"
#include "coherence/residents.hpp"
#include "coherence/spilled_copy.hpp"
#include "coherence/transfer_log.hpp"
#include "core/thread_number.hpp"
#include "tern/coherence/spill_file.hpp"
#include "tern/coherence/unified_options.hpp"
#include "tern/detail/buffer/use_record.hpp"
#include "tern/detail/coherence/raw_unified.hpp"
#include "tern/detail/coherence/validity.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/detail/launch/launch_memory.hpp"

namespace tern {

class UnifiedCore final : public LaunchMemory {
 public:
  static constexpr unsigned host = CopySet::host;
  /// The range of a claim on the whole buffer, whatever its size. Such a claim prevents a resize.
  static constexpr ByteRange everything{0, ~std::size_t{0}};
  /// When the directory reaches this many intervals, try_reconcile() reduces them.
  static constexpr std::size_t max_intervals = 4096;
  /// The byte that checked buffers write over bytes nobody may read.
  static constexpr unsigned char poison = 0xCB;

  /// Allocates no memory for copies. Throws std::bad_alloc.
  UnifiedCore(Shape shape, DType dtype, std::size_t element_bytes, std::size_t bytes,
              const UnifiedOptions& options);
  UnifiedCore(const UnifiedCore&) = delete;
  UnifiedCore& operator=(const UnifiedCore&) = delete;
  ~UnifiedCore();

  /// Adds a reference, and drops one. The core is deleted when it has no references and no open
  /// leases.
  void retain() noexcept;
  void release() noexcept;

  // --- Leases

  using Kind = LeaseTable::Kind;
  /// An access that a caller wants to open.
  struct Wanted {
    ByteRange range = {};
    Access access = Access::read;
    Kind kind = Kind::lease;
    bool is_host = true;
    /// Opening returns without waiting for the copies; try_wait_host() waits.
    bool is_async = false;
    StreamRef stream = {};
    LeaseWait wait = LeaseWait::never();
    CallSite site = {};
  };
  /// Opens a lease: tries the fast path, then the slow path. Returns a closed lease for an empty
  /// range.
  [[nodiscard]] Result<RawLease> try_open(const Wanted& wanted) noexcept;
  /// The result of the fast path. Without an address, nothing has happened, and the caller has to
  /// use try_open(), which also determines the failure.
  struct Opened {
    std::byte* address = nullptr;
    std::uint32_t slot = 0;
    [[nodiscard]] explicit operator bool() const noexcept { return address != nullptr; }
  };
  /// The fastest path, for the most frequent case: the whole buffer is up to date in the same
  /// places, and no other lease is open. Inlined, and calls no function that is not.
  [[nodiscard]] Opened open_host_fast(ByteRange range, Access access,
                                      const CallSite& site) noexcept;
  [[nodiscard]] Opened open_device_fast(ByteRange range, Access access, StreamRef stream,
                                        const CallSite& site) noexcept;
  /// Closes a lease on the fast path. Returns false, and does nothing, if close() is needed.
  [[nodiscard]] bool close_fast(std::uint32_t slot) noexcept;
  /// The fast path for all cases in which no bytes move and nothing has to be waited for. Other
  /// leases may be open, and parts of the buffer may be in different states.
  [[nodiscard]] Opened open_host_no_wait(ByteRange range, Access access,
                                         const CallSite& site) noexcept;
  [[nodiscard]] Opened open_device_no_wait(ByteRange range, Access access, StreamRef stream,
                                           const CallSite& site) noexcept;
  /// Make the RawLease of a lease that a fast path has opened.
  [[nodiscard]] RawLease lease_of(const Opened& opened, ByteRange range, Access access) noexcept;
  [[nodiscard]] RawLease lease_of_simple(const Opened& opened, ByteRange range) noexcept;
  /// Closes a lease. Of a discard, the first `kept` bytes count as written, and the rest as never
  /// written.
  void close(std::uint32_t slot, std::size_t kept) noexcept;
  /// Turns a write lease into a read lease. See RawLease.
  [[nodiscard]] Result<void> try_downgrade(std::uint32_t slot, CallSite site) noexcept;
  /// Waits for the copies of a host lease that was opened with is_async.
  [[nodiscard]] Result<void> try_wait_host(std::uint32_t slot, CallSite site) noexcept;
  /// Records that bytes of an exported lease were written. See RawLease::try_commit_range.
  [[nodiscard]] Result<void> try_commit_range(std::uint32_t slot, std::size_t offset,
                                              std::size_t bytes, StreamRef stream,
                                              CallSite site) noexcept;

  // --- Operations on a range of bytes. See UnifiedView for their contracts.

  [[nodiscard]] Result<void> try_load(ByteRange range, void* to, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_store(ByteRange range, const void* from, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_fill(ByteRange range, const Pattern& pattern, StreamRef stream,
                                      CallSite site) noexcept;
  /// The part of try_fill() that runs on a device, for a range that the caller has claimed.
  [[nodiscard]] Result<void> try_fill_on(unsigned place, ByteRange range, const Pattern& pattern,
                                         StreamRef stream, CallSite site) noexcept;
  /// Copies stale bytes to the host (`device` is null) or to a device, which becomes a place if
  /// necessary. `stream` belongs to that device or is empty. Evicts copies up to the kind `most`.
  [[nodiscard]] Result<void> try_prefetch(ByteRange range, const Device* device, StreamRef stream,
                                          Eviction most, CallSite site) noexcept;
  /// Records a write that was made without a lease.
  [[nodiscard]] Result<void> try_mark_dirty(ByteRange range, Place place, StreamRef stream,
                                            CallSite site) noexcept;
  /// Waits until no stream uses any memory of the buffer.
  [[nodiscard]] Result<void> try_synchronize(CallSite site) noexcept;
  /// Copies every byte that was written to the host, and waits.
  [[nodiscard]] Result<void> try_flush_host(CallSite site) noexcept;

  // --- Operations on the whole buffer. See UnifiedBuffer for their contracts.

  [[nodiscard]] Result<void> try_drop(Place place, Drop what, CallSite site) noexcept;
  /// Marks all bytes as never written, and frees all copies unless `keep_memory` is set.
  [[nodiscard]] Result<void> try_free(bool keep_memory, CallSite site) noexcept;
  [[nodiscard]] Result<void> try_resize(std::size_t count, bool keep, StreamRef stream,
                                        CallSite site) noexcept;
  [[nodiscard]] Result<void> try_set_write_through(std::optional<Place> place,
                                                   CallSite site) noexcept;
  /// Returns a new buffer with the same bytes, in memory of the stream's device.
  [[nodiscard]] Result<RawUnified> try_clone(StreamRef stream, CallSite site) noexcept;
  /// Returns the host copy, and leaves this buffer without copies.
  [[nodiscard]] Result<Buffer> try_release_host(CallSite site) noexcept;
  /// Makes `storage` the host copy, all of it written. Used once, directly after construction.
  [[nodiscard]] Result<void> try_adopt(StorageHandle storage) noexcept;

  // --- For launches. See LaunchMemory for the contracts.

  [[nodiscard]] std::uint64_t number() const noexcept override { return number_; }
  [[nodiscard]] Result<void> try_claim(std::span<LaunchPart> parts, StreamRef stream,
                                       CallSite site) noexcept override;
  [[nodiscard]] Result<Missing> try_missing(StreamRef stream, CallSite site) noexcept override;
  [[nodiscard]] Result<void> try_make_room(std::size_t bytes, StreamRef stream,
                                           CallSite site) noexcept override;
  [[nodiscard]] Result<StorageHandle> try_make_ready(StreamRef stream, bool& is_new,
                                                     CallSite site) noexcept override;
  [[nodiscard]] Result<void> try_bring(std::span<const LaunchPart> parts, StreamRef stream,
                                       CallSite site) noexcept override;
  void finish(std::span<const LaunchPart> parts, StreamRef stream, bool is_submitted,
              bool was_new) noexcept override;

  // --- Eviction

  /// Whether a copy can be evicted, and at what cost. The caller has locked the list of the copy's
  /// place, or holds a reference to the core.
  struct Evictability {
    Eviction kind = Eviction::stale;
    std::size_t bytes = 0;  // as granted by the resource
    bool can_go = false;
    bool is_leased = false;  // by a lease, a claim, a transfer or another handle of the storage
    bool is_kept = false;    // with pin_residency(), or adopted
    /// Whether the copy can be evicted now, or could be once other threads have closed their
    /// leases. False if this thread itself uses the copy, because nobody else could end that use.
    bool could_go = false;
    const Resource* resource = nullptr;
    CallSite leased_at = {};  // of a lease that keeps the copy, if there is one
  };
  /// Returns the evictability of the copy in a memory.
  [[nodiscard]] Evictability evictability(unsigned memory) const noexcept;
  /// Resolves all deferred uses (see Memory::deferred_use): they now cover the work that their
  /// streams have so far, and no later work. The caller has locked the list of a place, or holds a
  /// reference.
  void settle_uses() noexcept;
  /// Adds a reference for a caller that found the buffer in a list of residents. Returns false if
  /// the core is about to be deleted.
  [[nodiscard]] bool try_share() noexcept;
  /// Evicts a copy, and frees its memory in the order of `stream`. Dirty bytes are written back
  /// first. Returns the freed bytes, or 0 if the copy is in use by now or of a kind above `most`.
  /// Fails if bytes cannot be written back. The caller holds a reference.
  [[nodiscard]] Result<std::size_t> try_evict(unsigned memory, Eviction most, StreamRef stream,
                                              CallSite site) noexcept;
  /// Excludes the copy of a place from eviction, or allows eviction again.
  [[nodiscard]] Result<void> try_pin_residency(Place place, bool keeps, CallSite site) noexcept;
  /// Makes all copies the first of their kind to be evicted, until their next use.
  void set_unwanted() noexcept;

  // --- Queries

  [[nodiscard]] std::size_t bytes() const noexcept {
    return bytes_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] Shape shape() const;
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::size_t element_bytes() const noexcept { return element_bytes_; }
  [[nodiscard]] const UnifiedOptions& options() const noexcept { return options_; }
  [[nodiscard]] bool is_pinned() const noexcept;
  [[nodiscard]] bool is_guarded() const noexcept;
  [[nodiscard]] bool has_copy(Place place) const noexcept;
  [[nodiscard]] StorageHandle storage_of(Place place) const noexcept;
  [[nodiscard]] bool is_checked() const noexcept { return is_checked_; }
  [[nodiscard]] BufferState state(ByteRange range) const noexcept;
  [[nodiscard]] std::vector<Place> valid_places(ByteRange range) const;
  [[nodiscard]] bool is_stale_on(ByteRange range, Place place) const noexcept;
  [[nodiscard]] std::vector<RawUnified::Interval> intervals(ByteRange range) const;
  [[nodiscard]] UnifiedStatistics statistics() const noexcept;
  [[nodiscard]] std::vector<Transfer> transfers() const;
  [[nodiscard]] Result<void> check() const noexcept;
  [[nodiscard]] Result<void> try_compare(ByteRange range, CallSite site) noexcept;
  /// Returns the failure (invalid_view) for a range outside of the buffer.
  [[nodiscard]] Failure outside(std::size_t offset, std::size_t bytes, std::size_t extent,
                                CallSite site) const noexcept;

 private:
  using Memory = CopySet::Memory;
  using Slot = LeaseTable::Slot;
  /// Blocks the fast path while it lives, and clears Memory::deferred_use, so that a UseRecord may
  /// be inspected.
  class FastPathBlocker;
  /// The transfer lock: a FastPathBlocker, and transfer_mutex_. While it lives, bytes may be moved
  /// and memory may be allocated and freed.
  class TransferLock;
  /// A TransferLock that does not wait for the lock.
  class TryTransferLock;
  /// Frees a copy that the current call has allocated, if the call fails.
  class NewCopy;
  /// A claim on a byte range for the duration of a call.
  class ScopedClaim;

  // --- The caller holds mutex_

  /// Returns whether the fastest path applies, apart from the state of the stream's uses.
  [[nodiscard]] bool is_simple(ByteRange range, Access access, const Memory& memory,
                               unsigned place) const noexcept;
  /// Deletes the core. Not inlined, to keep the fast path short.
  static void end(UnifiedCore* core) noexcept;
  /// Makes a granted write lease an exported one, and wakes threads that want to read. Releases
  /// mutex_ and takes it again.
  void begin_export(std::uint32_t slot) noexcept;
  /// Begins a use of the memory on the stream. Returns false, and begins nothing, if the stream
  /// would have to wait for another stream.
  [[nodiscard]] static bool begin_without_waits(Memory& memory, Access access, StreamRef stream,
                                                UseRecord::Ticket& ticket,
                                                const CallSite& site) noexcept;
  /// Returns whether a byte of the range is in the spill file and up to date in none of the places
  /// `has`.
  [[nodiscard]] bool needs_spilled(ByteRange range, PlaceSet has) const noexcept;
  /// Handles bytes that were in flight to the host and did not arrive. If another place still has
  /// them, they become stale on the host; otherwise they are lost and count as never written. Bytes
  /// from devices in `alive` may still arrive and are left as they are. Returns the failure for an
  /// access to `range`.
  [[nodiscard]] Failure not_arrived(ByteRange range, PlaceSet alive, const Failure& cause,
                                    CallSite site) noexcept;
  /// Ends the use of a device lease that closes. The use is deferred if no other use began
  /// meanwhile.
  void end_use(Slot& lease) noexcept;
  /// Ends a lease that was covered by a deferred use, if that use was resolved while the lease was
  /// open. Returns false if the use cannot be recorded. The caller then has to wait for the stream.
  [[nodiscard]] bool try_end_late(Slot& lease) noexcept;
  /// Completes a write: marks the part of a discard that was not written as never written, and
  /// calls spread(). Releases mutex_ and takes it again.
  void after_write(std::uint32_t slot, std::size_t kept) noexcept;
  /// Copies what a lease or launch has written to the write-through place, and in checked mode
  /// overwrites the stale copies with poison. The slot is a read lease from here on. Releases
  /// mutex_ and takes it again.
  void spread(std::uint32_t slot) noexcept;
  /// Returns whether the access needs no transfer, and the directory has room for its change.
  [[nodiscard]] bool is_ready_at(unsigned place, const Memory& memory, ByteRange range,
                                 Access access) noexcept;
  /// Like evictability(), for a caller that has itself increased transfer_locks_ by
  /// `own_transfer_locks`.
  [[nodiscard]] Evictability evictability_of(unsigned memory,
                                             std::uint32_t own_transfer_locks) const noexcept;

  // --- Slow path of opening a lease. The caller holds no lock.

  /// Claims the range and opens the lease.
  [[nodiscard]] Result<RawLease> try_open_once(const Wanted& wanted, unsigned place) noexcept;
  /// Repeats try_open_once() while memory is short, waiting may help, and `wanted` has time left.
  [[nodiscard]] Result<RawLease> try_open_with_time(Wanted wanted, unsigned place) noexcept;
  /// Claims the range of an access, and waits for conflicting leases as `wanted` allows. Returns
  /// the slot.
  [[nodiscard]] Result<std::uint32_t> try_claim_range(const Wanted& wanted,
                                                      unsigned place) noexcept;
  /// Returns the failure (access_conflict) that names both leases.
  [[nodiscard]] Failure refused(const Slot& other, const Wanted& wanted) const noexcept;
  /// Frees a slot without recording a use.
  void cancel(std::uint32_t slot) noexcept;
  /// Makes the RawLease of a slot. The caller holds mutex_.
  [[nodiscard]] RawLease make_lease(std::uint32_t slot) noexcept;
  /// A number that no other open lease of the process has, for recordings.
  [[nodiscard]] std::uint64_t lease_number(std::uint32_t slot) const noexcept {
    return reinterpret_cast<std::uintptr_t>(this) + slot;
  }
  [[nodiscard]] Result<RawLease> try_open_device(std::uint32_t slot, const Wanted& wanted) noexcept;
  [[nodiscard]] Result<RawLease> try_open_host(std::uint32_t slot, const Wanted& wanted) noexcept;
  /// Waits until the host may use its copy, then records the access in the directory.
  [[nodiscard]] Result<void> try_settle_host(std::uint32_t slot, ByteRange range, Access access,
                                             CallSite site) noexcept;
  /// Waits for the copies that the host is about to fetch from. Waiting here, without the transfer
  /// lock, lets other accesses continue, and the fetch then needs no stream of its own.
  [[nodiscard]] Result<void> try_wait_sources(ByteRange range, Access access,
                                              CallSite site) noexcept;
  /// Checks whether the access may use the bytes: bytes that were never written can be changed in
  /// place and not read; lost bytes can be neither. Fails with never_written, device_lost.
  [[nodiscard]] Result<void> check_written(ByteRange range, Access access,
                                           CallSite site) const noexcept;
  /// Waits until the host may use its copy in this way. Reads by a device that is lost count as
  /// done.
  [[nodiscard]] Result<void> try_wait_host_copy(Storage& own, Access access,
                                                CallSite site) noexcept;
  /// Like not_arrived(). Also determines which devices are alive, and forgets uses of the host copy
  /// by lost devices, so that nobody waits for them again.
  [[nodiscard]] Failure tell_not_arrived(Storage& storage, ByteRange range, const Failure& cause,
                                         CallSite site) noexcept;
  /// Handles a failed wait for the host copy. If only bytes outside of `range` are lost, waits for
  /// the rest and succeeds. Otherwise returns the failure of tell_not_arrived().
  [[nodiscard]] Result<void> try_wait_without_lost(Storage& storage, ByteRange range, Access access,
                                                   const Failure& cause, CallSite site) noexcept;

  /// For a caller that has claimed a range and reads the directory without the transfer lock. Waits
  /// until transfers that began before the claim have ended, and reads spilled bytes back into
  /// memory.
  [[nodiscard]] Result<void> try_let_others_end(CallSite site) noexcept;

  // --- The caller holds transfer_mutex_ (a TransferLock) and not mutex_

  /// Returns the number of the device's place, and adds the place if it is new. Fails with capacity
  /// if there are 64 places, with unsupported if the device lacks the dtype, and with
  /// out_of_memory.
  [[nodiscard]] Result<unsigned> try_place(const Device& device, CallSite site) noexcept;
  /// Gives the place a copy, if it has none: allocates memory, and evicts copies up to the kind
  /// `most` if necessary. Reads a spilled host copy back.
  [[nodiscard]] Result<void> try_ensure(unsigned place, StreamRef stream, CallSite site,
                                        Eviction most = Eviction::dirty) noexcept;
  /// Allocates the memory of a copy, and evicts if necessary.
  [[nodiscard]] Result<StorageHandle> try_make_memory(unsigned place, std::size_t bytes,
                                                      StreamRef stream, CallSite site,
                                                      Eviction most = Eviction::dirty) noexcept;
  /// Copies the bytes that only this memory has to the host.
  [[nodiscard]] Result<void> try_write_back(unsigned memory, CallSite site) noexcept;
  /// Records that these ranges are in flight to the host, and that their source is being freed.
  /// Throws std::bad_alloc.
  void note_sole_copy(std::span<const ByteRange> ranges, unsigned source);
  /// Writes the bytes that only the host has to the spill file, which then stands in for the host
  /// copy. Waits for the uses of the copy and for the disk. The caller frees the memory in `gone`.
  [[nodiscard]] Result<void> try_spill(StorageHandle& gone, CallSite site) noexcept;
  /// Reads a spilled host copy back into memory. Does nothing if nothing is spilled.
  [[nodiscard]] Result<void> try_unspill(CallSite site) noexcept;
  /// Releases the spilled bytes, which nobody needs any more.
  void forget_spilled() noexcept;
  /// Returns the bytes of the host copy that the host may read without waiting, also while streams
  /// write other bytes of it.
  [[nodiscard]] std::vector<ByteRange> settled_on_host(ByteRange range);
  /// Copies ranges between two storages in host memory with memcpy. The source bytes are settled.
  /// Returns false, and copies nothing, if the host would have to wait for the target.
  [[nodiscard]] Result<bool> try_copy_by_host(Storage& to, Storage& from,
                                              std::span<const ByteRange> ranges,
                                              CallSite site) noexcept;
  /// What a resize has made so far.
  struct Resized {
    std::vector<StorageHandle> made = {};  // for each memory, or null
    std::vector<Transfer> moved = {};
    std::vector<InFlightBytes::Entry> on_stream = {};  // bytes of the new host memory
  };
  /// Allocates a memory of another size, and copies its up-to-date bytes in `kept` to it. Throws
  /// std::bad_alloc.
  [[nodiscard]] Result<void> try_resize_memory(unsigned i, std::size_t bytes, ByteRange kept,
                                               StreamRef stream, Resized& resized, CallSite site);
  /// Queues the copies of some ranges of memory `i` to its replacement. Returns the device that
  /// copies. Throws std::bad_alloc.
  [[nodiscard]] Result<DeviceId> try_copy_by_stream(unsigned i, const StorageHandle& to,
                                                    std::span<const ByteRange> by_stream,
                                                    StreamRef stream, CallSite site);
  /// Updates the lists of residents: adds copies that have memory, and removes copies that have
  /// none. Ends all transits. Releases spilled bytes that nobody needs any more.
  void list_copies() noexcept;
  /// Announces that the memory of a copy is about to be allocated or freed, until list_copies().
  /// Returns false if it was announced before. See Residents::begin_transit.
  bool begin_transit(unsigned memory) noexcept;
  void end_transit(unsigned memory) noexcept;
  /// Announces all memories that have a storage.
  void begin_transits() noexcept;
  /// What try_fetch() has to copy. `stream` belongs to the place. Without a stream, the copies run
  /// on a stream of the library, after all work that uses the bytes.
  struct Fetch {
    ByteRange range = {};
    unsigned place = 0;
    StreamRef stream = {};
    TransferReason reason = TransferReason::prefetch;
    std::uint32_t own = 0;  // the slot that the copies are for; it does not conflict with them
    CallSite site = {};
    std::span<const ByteRange> parts = {};  // if not empty, only these parts of the range
  };
  /// Queues the copies that bring the range up to date in the place, and updates the directory.
  /// Waits only for a spill file, or if a copy route does. Fails with sync_failed, and with
  /// access_conflict if a copy would overwrite bytes that an open lease reads.
  [[nodiscard]] Result<void> try_fetch(const Fetch& fetch) noexcept;
  /// The copies of one try_fetch().
  struct FetchPlan {
    TransferReason reason = TransferReason::prefetch;
    std::vector<CopyRun> runs = {};
    std::vector<ByteRange> untracked = {};  // of untracked writers; copied at every fetch
    std::size_t gap_bytes = 0;              // up-to-date bytes in coalesced gaps
    std::vector<Transfer> moves = {};       // one for each source
  };
  /// The steps of try_fetch(). The first two throw std::bad_alloc.
  [[nodiscard]] Result<void> try_plan_fetch(const Fetch& fetch, FetchPlan& plan);
  [[nodiscard]] Result<void> try_queue_fetch(const Fetch& fetch, FetchPlan& plan);
  [[nodiscard]] Result<void> try_record_fetch(const Fetch& fetch, const FetchPlan& plan) noexcept;
  /// Counts copies that were queued before another one failed. Their bytes do move, but no place is
  /// listed as up to date because of them. The caller also holds mutex_.
  void log_queued(std::span<const Transfer> moves) noexcept;
  /// For an untracked writer on a device: records that its stream may have written up to now. The
  /// caller also holds mutex_.
  [[nodiscard]] Result<void> try_note_export(const Slot& lease) noexcept;
  /// Queues the copies of some runs between two storages, as one pitched copy if they are regular.
  [[nodiscard]] Result<void> try_issue(std::span<const CopyRun> runs, const StorageHandle& to,
                                       const StorageHandle& from, StreamRef stream,
                                       CallSite site) noexcept;
  /// Begins a use of the memory of a place. The stream waits on the device for earlier uses.
  [[nodiscard]] Result<void> try_begin_use(unsigned place, StreamRef stream, Access access,
                                           ByteRange range, UseRecord::Ticket& ticket,
                                           CallSite site) noexcept;
  /// Copies small stale ranges to every copy that lacks them, as far as possible, so that
  /// neighbouring intervals of the directory merge. Fails with violation. Throws std::bad_alloc.
  [[nodiscard]] Result<void> even_out(unsigned place, StreamRef stream, std::uint32_t own,
                                      CallSite site);
  /// Reduces the number of intervals if the directory has too many and no other lease is open.
  [[nodiscard]] Result<void> try_reconcile(unsigned place, StreamRef stream, std::uint32_t own,
                                           CallSite site) noexcept;
  /// Returns the costs of copying these ranges to the place. A lost device is used only for bytes
  /// that nobody else has. Queries a device only if there is a choice and it would be chosen.
  [[nodiscard]] CopyCosts costs_at(unsigned place,
                                   std::span<const ByteRange> wanted) const noexcept;
  /// Checked mode: overwrites the bytes of the range that are stale in this memory with poison.
  [[nodiscard]] Result<void> try_poison(unsigned place, ByteRange range, StreamRef stream,
                                        CallSite site) noexcept;
  /// Checked mode: overwrites the range with poison, for a lease that discards it and whose use of
  /// the memory has begun. If it fails, nothing was submitted.
  [[nodiscard]] Result<void> try_poison_discarded(unsigned place, ByteRange range, StreamRef stream,
                                                  CallSite site) noexcept;
  /// Checked mode: poisons the range in all places but the one that was written. Does nothing if
  /// another lease overlaps the range, because its holder may still read the previous bytes. The
  /// caller holds no lock.
  void poison_stale(ByteRange range, unsigned written, std::uint32_t own, CallSite site) noexcept;
  /// Checked mode: computes checksums when a lease of the host closes. The caller holds mutex_,
  /// which is released and taken again.
  void seal(std::uint32_t slot) noexcept;
  /// Guarded mode: protects the pages again after a transfer.
  void close_pages() noexcept;
  /// Guarded mode: protects the pages of a lease that has closed. The caller holds mutex_, which is
  /// released and taken again.
  void guard_again() noexcept;
  /// Fails with violation if the host has written bytes of the range without a lease. The caller
  /// does not hold mutex_.
  [[nodiscard]] Result<void> check_sealed(ByteRange range, CallSite site) noexcept;
  /// Calls check_sealed() for an access that is about to begin. The caller holds no lock.
  [[nodiscard]] Result<void> check_before_access(ByteRange range, CallSite site) noexcept;
  /// Frees the copy of a place that has no up-to-date bytes, unless a lease other than `own` uses
  /// it.
  void leave_unused(unsigned place, std::uint32_t own) noexcept;
  /// CopySet::leave(), which also forgets checksums. The caller also holds mutex_.
  [[nodiscard]] StorageHandle leave(unsigned place) noexcept;
  /// CopySet::ranges_where(), for a caller that does not hold mutex_. Throws std::bad_alloc.
  template <class Fits>
  [[nodiscard]] std::vector<ByteRange> ranges_where(ByteRange range, Fits fits) const;
  /// Writes a value to all of these places, which have the old value. If it fails, every place that
  /// still counts as up to date has the same value: the old one or the new one. The caller holds no
  /// lock.
  [[nodiscard]] Result<void> try_store_everywhere(ByteRange range, const void* from,
                                                  PlaceSet places, CallSite site) noexcept;
  /// Copies a few bytes between a memory and the caller, and waits. The caller holds no lock.
  [[nodiscard]] Result<void> try_exchange(unsigned place, ByteRange range, Access access,
                                          void* bytes, CallSite site,
                                          TransferReason reason = TransferReason::element) noexcept;

  /// Returns the failure of a copy. If the source device is lost, says that the bytes only it had
  /// are lost. Either lock is enough, to read copies_.
  [[nodiscard]] Failure sync_failed(unsigned from, unsigned to, ByteRange range,
                                    const Failure& cause, CallSite site) const noexcept;
  /// Returns the failure of a copy that was queued. Other places may still have the bytes.
  [[nodiscard]] Failure not_completed(unsigned from, unsigned to, ByteRange range,
                                      const Failure& cause, CallSite site) const noexcept;
  [[nodiscard]] Failure copy_failed(const char* sentence, unsigned from, unsigned to,
                                    ByteRange range, const Failure& cause,
                                    CallSite site) const noexcept;
  /// Wakes all accesses that wait for a conflicting lease. The caller holds mutex_, which is
  /// released and taken again.
  void notify() noexcept;

  // The members that the fast path reads come first.
  mutable SpinLock mutex_;
  // Whether any of checked, guard or compare is on. These buffers never use the fast path.
  const bool is_watched_;
  const bool is_checked_;
  std::atomic<std::size_t> bytes_;  // guarded by mutex_; may also be read without it
  // Guarded by mutex_, as are all members below unless their comment says otherwise. The core lives
  // while it has references (shares_) or open leases.
  std::uint32_t shares_ = 1;
  /// Calls that move bytes, wait to move bytes, or inspect a UseRecord.
  std::uint32_t transfer_locks_ = 0;
  LeaseTable leases_;
  std::optional<unsigned> write_through_ = {};
  CopySet copies_;
  Shape shape_;
  PlaceSet kept_ = {};  // places whose copies are excluded from eviction
  TransferLog log_;

  std::mutex transfer_mutex_;
  PlaceSet transits_ = {};  // announced transits (begin_transit); guarded by transfer_mutex_
  /// The thread that holds transfer_mutex_, or 0. May be read without a lock.
  std::atomic<std::uint64_t> moving_thread_ = 0;
  const std::uint64_t number_;
  const UnifiedOptions options_;
  const CopyAllocator allocator_;  // refers to options_
  const DType dtype_;
  const std::size_t element_bytes_;
  /// While it is not empty, the host copy has no memory. Changes under both locks.
  SpilledCopy spilled_;

  HostAccessChecks checks_;

  ReleaseSignal released_;
};

inline ByteRange RawUnified::range() const noexcept {
  return {offset_, offset_ + (bytes_ != whole ? bytes_ : core_->bytes())};
}

template <class Fits>
std::vector<ByteRange> UnifiedCore::ranges_where(ByteRange range, Fits fits) const {
  const std::lock_guard lock(mutex_);
  return copies_.ranges_where(range, fits);
}

class UnifiedCore::FastPathBlocker {
 public:
  explicit FastPathBlocker(UnifiedCore& core) noexcept : core_(core) {
    const std::lock_guard lock(core_.mutex_);
    ++core_.transfer_locks_;
    core_.copies_.clear_deferred_uses();
  }
  FastPathBlocker(const FastPathBlocker&) = delete;
  FastPathBlocker& operator=(const FastPathBlocker&) = delete;
  ~FastPathBlocker() {
    const std::lock_guard lock(core_.mutex_);
    --core_.transfer_locks_;
  }

 private:
  UnifiedCore& core_;
};

class UnifiedCore::TransferLock {
 public:
  explicit TransferLock(UnifiedCore& core) noexcept
      : core_(core), pause_(core), lock_(core.transfer_mutex_) {
    core_.moving_thread_.store(this_thread(), std::memory_order_relaxed);
    if (core_.options_.guard.value_or(false)) HostAccessChecks::open_pages(core_.copies_);
  }
  TransferLock(const TransferLock&) = delete;
  TransferLock& operator=(const TransferLock&) = delete;
  ~TransferLock() {
    core_.list_copies();
    if (core_.options_.guard.value_or(false)) core_.close_pages();
    core_.moving_thread_.store(0, std::memory_order_relaxed);
  }

 private:
  UnifiedCore& core_;
  FastPathBlocker pause_;
  std::lock_guard<std::mutex> lock_;
};

/// Must be constructed after the TransferLock, so that the copy is freed before the TransferLock
/// releases the lock.
class UnifiedCore::NewCopy {
 public:
  NewCopy(UnifiedCore& core, unsigned place, std::uint32_t own) noexcept
      : core_(core), place_(place), own_(own), is_new_(!core.copies_.has_copy(place)) {}
  NewCopy(const NewCopy&) = delete;
  NewCopy& operator=(const NewCopy&) = delete;
  ~NewCopy() {
    if (is_new_ && !is_kept_) core_.leave_unused(place_, own_);
  }
  /// Keeps the copy, because the call succeeds.
  void keep() noexcept { is_kept_ = true; }

 private:
  UnifiedCore& core_;
  const unsigned place_;
  const std::uint32_t own_;
  const bool is_new_;
  bool is_kept_ = false;
};

/// A TransferLock, unless another call moves bytes, waits to, or inspects a UseRecord. In that case
/// it is empty, and operator bool returns false.
class UnifiedCore::TryTransferLock {
 public:
  explicit TryTransferLock(UnifiedCore& core) noexcept;
  TryTransferLock(const TryTransferLock&) = delete;
  TryTransferLock& operator=(const TryTransferLock&) = delete;
  ~TryTransferLock();

  [[nodiscard]] explicit operator bool() const noexcept { return lock_.owns_lock(); }

 private:
  UnifiedCore& core_;
  std::unique_lock<std::mutex> lock_;
};

/// Claims a byte range as a lease does, and releases the claim at the end of the scope.
class UnifiedCore::ScopedClaim {
 public:
  [[nodiscard]] Result<void> try_claim(UnifiedCore& core, const Wanted& wanted) noexcept {
    const Result<std::uint32_t> slot = core.try_claim_range(wanted, LeaseTable::nowhere);
    if (!slot) return slot.failure();
    core_ = &core;
    slot_ = *slot;
    return {};
  }
  [[nodiscard]] std::uint32_t slot() const noexcept { return slot_; }
  ScopedClaim() noexcept = default;
  ScopedClaim(const ScopedClaim&) = delete;
  ScopedClaim& operator=(const ScopedClaim&) = delete;
  ~ScopedClaim() {
    if (core_ != nullptr) core_->cancel(slot_);
  }

 private:
  UnifiedCore* core_ = nullptr;
  std::uint32_t slot_ = 0;
};

}  // namespace tern
