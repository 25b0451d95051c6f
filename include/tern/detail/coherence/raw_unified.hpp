// Not part of the interface.
//
// A RawUnified is a unified buffer without an element type: a range of bytes that can have a copy
// in several places. UnifiedBuffer<T> and UnifiedView<T> are typed wrappers around it.
//
// unified_buffer.hpp states the rules for leases, order and failure; this header adds the
// untyped handle and lease. All offsets and sizes here are in bytes. A
// RawUnified is a handle that shares ownership of the buffer, and so does a RawLease. Any function
// may be called from several threads, but one handle or lease object belongs to one thread at a
// time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/storage_options.hpp"
#include "tern/coherence/unified_options.hpp"
#include "tern/coherence/unified_statistics.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/coherence/validity.hpp"
#include "tern/detail/core/any_function.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/launch/launch_memory.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class UnifiedCore;

/// An open access: a range of memory that the holder may use until the lease is closed. The lease
/// closes when it is destroyed, on any thread. Otherwise a lease belongs to one thread at a time.
class TERN_EXPORT RawLease {
 public:
  RawLease() noexcept = default;
  RawLease(RawLease&& other) noexcept
      : core_(std::exchange(other.core_, nullptr)),
        address_(std::exchange(other.address_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        slot_(other.slot_),
        kept_exceptions_(other.kept_exceptions_) {}
  /// Swaps the two leases. The former lease of this object closes when `other` is destroyed.
  RawLease& operator=(RawLease&& other) noexcept {
    std::swap(core_, other.core_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    std::swap(slot_, other.slot_);
    std::swap(kept_exceptions_, other.kept_exceptions_);
    return *this;
  }
  ~RawLease() {
    if (core_ != nullptr) end();
  }

  /// Returns the first byte, or null if the lease is closed or has no bytes.
  [[nodiscard]] void* address() const noexcept { return address_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool is_open() const noexcept { return core_ != nullptr; }

  /// Closes the lease. Does nothing if the lease is closed.
  void close() noexcept;
  /// Closes the lease. Of a discard lease, the first `bytes` bytes count as written and the others
  /// as never written.
  void commit(std::size_t bytes) noexcept;
  /// Turns a write lease into a read lease. Other readers may open leases from now on.
  [[nodiscard]] Result<void> try_downgrade(CallSite site) noexcept;
  /// Waits until the host may use the memory of a lease that was opened by try_host_async(). Fails
  /// with sync_failed.
  [[nodiscard]] Result<void> try_wait(CallSite site) noexcept;
  /// Says that these bytes of an escaped pointer were written, by work submitted to `stream` so
  /// far. After the first call, only such ranges count as written. Fails with invalid_view and
  /// read_only.
  [[nodiscard]] Result<void> try_commit_range(std::size_t offset, std::size_t bytes,
                                              StreamRef stream, CallSite site) noexcept;

 private:
  friend class UnifiedCore;
  static constexpr int no_discard = -1;
  RawLease(UnifiedCore* core, void* address, std::size_t bytes, std::uint32_t slot,
           int kept_exceptions) noexcept
      : core_(core),
        address_(address),
        bytes_(bytes),
        slot_(slot),
        kept_exceptions_(kept_exceptions) {}
  /// Closes the lease on the fast path, or calls end_fully().
  void end() noexcept;
  static void end_fully(UnifiedCore* core, std::uint32_t slot, std::size_t bytes,
                        int kept_exceptions) noexcept;

  UnifiedCore* core_ = nullptr;
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint32_t slot_ = 0;
  /// std::uncaught_exceptions() when a discard lease was opened. If the number is higher when the
  /// lease closes, an exception has left the scope, and the range counts as never written.
  int kept_exceptions_ = no_discard;
};

/// Returns the failure for a PendingRead that has no lease to return.
[[nodiscard]] TERN_EXPORT Failure no_pending_read(CallSite site) noexcept;

/// A handle of a unified buffer, or of a byte range (view) of one. An empty handle fails every
/// access with not_allocated.
class TERN_EXPORT RawUnified {
 public:
  RawUnified() noexcept = default;
  RawUnified(const RawUnified& other) noexcept;
  RawUnified(RawUnified&& other) noexcept
      : core_(std::exchange(other.core_, nullptr)), offset_(other.offset_), bytes_(other.bytes_) {}
  RawUnified& operator=(RawUnified other) noexcept {
    std::swap(core_, other.core_);
    std::swap(offset_, other.offset_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~RawUnified();

  /// Creates a buffer without memory. Fails with invalid_device if the device is not open, with
  /// size_overflow, with out_of_memory, and with unsupported or invalid_argument if options exclude
  /// each other.
  [[nodiscard]] static Result<RawUnified> try_make(Shape shape, DType dtype,
                                                   std::size_t element_bytes,
                                                   const UnifiedOptions& options) noexcept;
  /// Creates a buffer whose host copy is memory of the caller, all of it written. Tern calls
  /// `release` once, when Tern no longer uses the memory; if this function fails, Tern does not
  /// call `release`. Fails as try_make() does, and with invalid_argument for a null address.
  [[nodiscard]] static Result<RawUnified> try_adopt_host(void* address, Shape shape, DType dtype,
                                                         std::size_t element_bytes,
                                                         AnyFunction<void()> release,
                                                         const UnifiedOptions& options) noexcept;

  // --- Queries. None of them waits for a device, except try_compare().

  [[nodiscard]] explicit operator bool() const noexcept { return core_ != nullptr; }
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }
  /// Returns the size of a view as it was made, or the current size of a whole buffer.
  [[nodiscard]] std::size_t size_bytes() const noexcept;
  [[nodiscard]] Shape shape() const;
  [[nodiscard]] DType dtype() const noexcept;
  [[nodiscard]] Tag tag() const noexcept;
  [[nodiscard]] const Device& device() const noexcept;
  [[nodiscard]] bool is_pinned() const noexcept;
  [[nodiscard]] bool is_guarded() const noexcept;
  [[nodiscard]] bool has_copy(Place place) const noexcept;
  /// Returns the storage of the copy in a place, or an empty handle if the place has no copy. While
  /// the handle lives, the memory stays valid: an eviction skips the copy, and a drop, a resize or
  /// the end of the buffer leaves the memory to the handle. For code that keeps an address after
  /// its lease, such as arrays of Python. Call it while a lease on the place is open. The holder
  /// must not begin uses of the storage.
  [[nodiscard]] StorageHandle storage_of(Place place) const noexcept;
  /// Whether writes of the host without a lease are detected. See UnifiedOptions::checked.
  [[nodiscard]] bool is_checked() const noexcept;
  /// Returns the state of a range of this view, or `uninitialized` if the range is outside of the
  /// view.
  [[nodiscard]] BufferState state(std::size_t offset, std::size_t bytes) const noexcept;
  [[nodiscard]] std::vector<Place> valid_places(std::size_t offset, std::size_t bytes) const;
  [[nodiscard]] bool is_stale_on(Place place) const noexcept;
  /// A run of bytes of this view that are up to date in the same places.
  struct Interval {
    std::size_t begin = 0, end = 0;
    std::vector<Place> places;
  };
  /// Returns all runs in ascending order, as of one moment.
  [[nodiscard]] std::vector<Interval> intervals() const;
  [[nodiscard]] UnifiedStatistics statistics() const noexcept;
  /// Returns the latest transfers, oldest first.
  [[nodiscard]] std::vector<Transfer> transfers() const;
  /// Checks the invariants of the buffer. Fails with violation.
  [[nodiscard]] Result<void> check() const noexcept;
  /// Compares the copies that should be equal, and waits for them. Fails with violation, naming the
  /// first byte that differs and both places.
  [[nodiscard]] Result<void> try_compare(CallSite site) const noexcept;
  [[nodiscard]] bool overlaps(const RawUnified& other) const noexcept;

  /// Returns the interface that a launch uses, or null for an empty handle.
  [[nodiscard]] LaunchMemory* launch_memory() const noexcept;

  /// Returns bytes [offset, offset + bytes) of this view. Fails with invalid_view.
  [[nodiscard]] Result<RawUnified> try_slice(std::size_t offset, std::size_t bytes,
                                             CallSite site) const noexcept;

  /// Returns a handle of the whole buffer that this is a view of.
  [[nodiscard]] RawUnified whole_buffer() const noexcept;

  // --- Leases. See UnifiedView for what each of them waits for and fails with.

  [[nodiscard]] Result<RawLease> try_host(Access access, LeaseWait wait,
                                          CallSite site) const noexcept;
  /// Opens a read lease whose copies are queued. Call RawLease::try_wait() before using the memory.
  [[nodiscard]] Result<RawLease> try_host_async(CallSite site) const noexcept;
  [[nodiscard]] Result<RawLease> try_device(Access access, StreamRef stream, LeaseWait wait,
                                            CallSite site) const noexcept;
  /// Like try_host() and try_device(), but these try the fast path first and throw on failure.
  [[nodiscard]] RawLease open_host(Access access, LeaseWait wait, const CallSite& site) const;
  [[nodiscard]] RawLease open_device(Access access, StreamRef stream, LeaseWait wait,
                                     const CallSite& site) const;
  /// Opens a lease for code that Tern cannot observe; see UntrackedLease.
  [[nodiscard]] Result<RawLease> try_export_host(Access access, CallSite site) const noexcept;
  [[nodiscard]] Result<RawLease> try_export_device(Access access, StreamRef stream,
                                                   CallSite site) const noexcept;

  // --- Bytes of this view. See the functions of UnifiedView with the same names.

  [[nodiscard]] Result<void> try_load(std::size_t offset, void* to, std::size_t bytes,
                                      CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_store(std::size_t offset, const void* from, std::size_t bytes,
                                       CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_fill(const Pattern& pattern, StreamRef stream,
                                      CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_copy_from(const void* source, std::size_t bytes,
                                           CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_copy_to(void* destination, std::size_t bytes,
                                         CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_prefetch(StreamRef stream, CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_prefetch_host(CallSite site) const noexcept;
  /// Prefetches to the host or a device, in the order of `stream` if the stream belongs to that
  /// device. Fails with invalid_device if the device is not open.
  [[nodiscard]] Result<void> try_prefetch_to(Place place, StreamRef stream,
                                             CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_sync_to_device(CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_mark_dirty(Place place, StreamRef stream,
                                            CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_synchronize(CallSite site) const noexcept;

  // --- The whole buffer, also if this handle is a view. See UnifiedBuffer.

  [[nodiscard]] Result<void> try_drop(Place place, Drop what, CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_free(CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_invalidate(CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_resize(std::size_t count, bool keep, StreamRef stream,
                                        CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_set_write_through(std::optional<Place> place,
                                                   CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_pin_residency(Place place, bool keeps,
                                               CallSite site) const noexcept;
  /// Makes all copies the first of their kind to be evicted, until the next access.
  void set_unwanted() const noexcept;
  [[nodiscard]] Result<void> try_flush_host(CallSite site) const noexcept;
  [[nodiscard]] Result<RawUnified> try_clone(StreamRef stream, CallSite site) const noexcept;
  /// Returns the host copy as a Buffer of its own, with every written byte up to date. This buffer
  /// keeps no copies.
  [[nodiscard]] Result<Buffer> try_release_host(CallSite site) const noexcept;

 private:
  friend class UnifiedCore;
  static constexpr std::size_t whole = ~std::size_t{0};
  explicit RawUnified(UnifiedCore* core) noexcept : core_(core) {}
  /// Returns the byte range in the whole buffer. Fails with not_allocated for an empty handle, and
  /// with invalid_view.
  [[nodiscard]] Result<ByteRange> try_range(std::size_t offset, std::size_t bytes,
                                            CallSite site) const noexcept;
  /// Requires a handle that is not empty.
  [[nodiscard]] ByteRange range() const noexcept;
  /// The slow paths of open_host() and open_device().
  [[nodiscard]] RawLease open_host_fully(Access access, LeaseWait wait, const CallSite& site) const;
  [[nodiscard]] RawLease open_device_fully(Access access, StreamRef stream, LeaseWait wait,
                                           const CallSite& site) const;

  UnifiedCore* core_ = nullptr;
  std::size_t offset_ = 0;
  std::size_t bytes_ = whole;
};

}  // namespace tern
