// A RawUnified is a range of bytes with copies in several places: a unified buffer without a type.
//
// UnifiedBuffer<T> and its views are thin names for this; what they promise is said there. Offsets
// and sizes are in bytes here. It is a handle that shares the buffer, and a RawLease keeps it too.
// Everything may be called from several threads at once; one object belongs to one thread.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/storage.hpp"
#include "tern/coherence/buffer_state.hpp"
#include "tern/coherence/transfer.hpp"
#include "tern/coherence/validity.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/export.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/launch_memory.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class SpillFile;
class UnifiedCore;

/// What an access does that finds the bytes in use, or no room for them because of what others
/// have.
class LeaseWait {
 public:
  /// It is refused with access_conflict, or as memory is, at once.
  [[nodiscard]] static constexpr LeaseWait never() noexcept { return LeaseWait(0); }
  /// It waits so long, and is refused then. Waiting for a lease of the same thread is refused at
  /// once: nobody could end it.
  [[nodiscard]] static constexpr LeaseWait up_to(std::chrono::nanoseconds time) noexcept {
    return LeaseWait(time.count() < 0 ? 0 : time.count());
  }
  [[nodiscard]] static constexpr LeaseWait forever() noexcept { return LeaseWait(-1); }

  [[nodiscard]] constexpr bool is_never() const noexcept { return nanoseconds_ == 0; }
  [[nodiscard]] constexpr bool is_forever() const noexcept { return nanoseconds_ < 0; }
  [[nodiscard]] constexpr std::chrono::nanoseconds time() const noexcept {
    return std::chrono::nanoseconds(nanoseconds_);
  }

 private:
  constexpr explicit LeaseWait(std::int64_t nanoseconds) noexcept : nanoseconds_(nanoseconds) {}
  std::int64_t nanoseconds_;
};

/// Whether the host's copy is page-locked.
enum class Pinned : std::uint8_t {
  prefer,  // from 64 KiB on, while there is such memory; else pageable
  /// Or the access is refused, as the memory was. Pageable on the host device, where nothing is
  /// copied, unless a resource gives such memory; refused with unsupported, when the buffer is
  /// made, on any other device that uses the host's memory itself: there is no copy to be
  /// page-locked.
  required,
  never,
};

/// Whether something is checked: as the program says, or else as TERN_CHECK does.
class CheckOption {
 public:
  constexpr CheckOption() noexcept = default;
  // NOLINTNEXTLINE(google-explicit-constructor): an option is set to true or false
  constexpr CheckOption(bool is_on) noexcept : is_set_(true), is_on_(is_on) {}

  [[nodiscard]] constexpr bool is_set() const noexcept { return is_set_; }
  /// Of one that is not set: no.
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return is_on_; }

 private:
  bool is_set_ = false, is_on_ = false;
};

/// What becomes of bytes that only the copy has which is dropped.
enum class Drop : std::uint8_t { save, discard };

struct UnifiedOptions {
  /// Where accesses go that name no stream. Further devices take part when their streams do.
  Device device = {};
  Tag tag = {};
  Pinned pinned = Pinned::prefer;
  /// Where copies come from: the first that gives device memory of a device, pinned memory or host
  /// memory, of which a device that is the host gives too. Without one: the default resource; for
  /// pageable host memory, the heap.
  std::vector<ResourceHandle> resources = {};
  /// Where the host's copy goes when its memory is wanted and nobody else has the bytes. None: it
  /// stays.
  std::shared_ptr<SpillFile> spill = {};
  /// Copies with less than this between them are one. What lies between must be up to date at the
  /// source and in nobody's hands.
  std::size_t merge_below_bytes = 128 * 1024;
  /// Bytes that are stale, never written or about to be written are 0xCB, to be seen, and an access
  /// to what the host wrote without a lease is refused (violation). Unset: as TERN_CHECKED says, or
  /// TERN_CHECK with the words poison or checksum.
  std::optional<bool> checked = {};
  /// Before every lease for reading, the copies that should be the same are compared (violation):
  /// finds who writes on a device without a lease. Every read costs a copy.
  CheckOption compare = {};
  /// The host may touch its copy only while it has a lease: pages that are stale cannot be read,
  /// and pages without a lease for writing not written; who does so ends with a report. Every call
  /// that moves bytes waits until they are there. Only for pageable memory of the library's own: it
  /// is refused with Pinned::required or a named resource of host memory (invalid_argument) and on
  /// a device that shares the host's memory (unsupported), where TERN_CHECK leaves it off; memory
  /// that was adopted has none.
  CheckOption guard = {};
  CallSite site = CallSite::here();
};

/// Memory of a buffer that is the holder's to use, until it is closed. Confined, but it may be
/// closed by another thread.
class TERN_EXPORT RawLease {
 public:
  RawLease() noexcept = default;
  RawLease(RawLease&& other) noexcept
      : core_(std::exchange(other.core_, nullptr)),
        address_(std::exchange(other.address_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        slot_(other.slot_),
        kept_exceptions_(other.kept_exceptions_) {}
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

  /// Null when it is closed, and for no bytes; it has none then.
  [[nodiscard]] void* address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool is_open() const noexcept { return core_ != nullptr; }

  void close() noexcept;
  /// Closes it; of what was to be written the first bytes are, and the others are never written.
  void commit(std::size_t bytes) noexcept;
  /// Others may read what was written, from here on; the holder too.
  [[nodiscard]] Result<void> try_downgrade(CallSite site) noexcept;
  /// Of one that was opened without waiting: the host may use the memory now.
  [[nodiscard]] Result<void> try_wait(CallSite site) noexcept;
  /// Bytes of an escape have changed, up to what the stream has now. From its first one on, only
  /// these are new.
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
  void end() noexcept;
  static void end_fully(UnifiedCore* core, std::uint32_t slot, std::size_t bytes,
                        int kept_exceptions) noexcept;

  UnifiedCore* core_ = nullptr;
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint32_t slot_ = 0;
  /// Exceptions under way when a discard was opened: one more at its end, and it was not finished.
  int kept_exceptions_ = no_discard;
};

/// Of a read that was got before, moved from or made by default.
[[nodiscard]] TERN_EXPORT Failure no_pending_read(CallSite site) noexcept;

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

  /// Nothing is allocated. Refused with invalid_device, size_overflow, out_of_memory.
  [[nodiscard]] static Result<RawUnified> try_make(Shape shape, DType dtype,
                                                   std::size_t element_bytes,
                                                   const UnifiedOptions& options) noexcept;
  /// With memory of the host that somebody else has, whole and written, for its copy there.
  [[nodiscard]] static Result<RawUnified> try_adopt_host(void* address, Shape shape, DType dtype,
                                                         std::size_t element_bytes,
                                                         std::function<void()> release,
                                                         const UnifiedOptions& options) noexcept;

  // --- What it is

  [[nodiscard]] explicit operator bool() const noexcept { return core_ != nullptr; }
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }
  /// Of a view as it was made; of a buffer as it is now.
  [[nodiscard]] std::size_t bytes() const noexcept;
  [[nodiscard]] Shape shape() const;
  [[nodiscard]] DType dtype() const noexcept;
  [[nodiscard]] Tag tag() const noexcept;
  [[nodiscard]] const Device& device() const noexcept;
  [[nodiscard]] bool is_pinned() const noexcept;
  [[nodiscard]] bool is_guarded() const noexcept;
  [[nodiscard]] bool has_copy(Place place) const noexcept;
  [[nodiscard]] BufferState state(std::size_t offset, std::size_t bytes) const noexcept;
  [[nodiscard]] std::vector<Place> valid_places(std::size_t offset, std::size_t bytes) const;
  [[nodiscard]] bool is_stale_on(Place place) const noexcept;
  /// Calls visit(begin, end, places), ascending, over a picture of one moment.
  struct Interval {
    std::size_t begin = 0, end = 0;
    std::vector<Place> places;
  };
  [[nodiscard]] std::vector<Interval> intervals() const;
  [[nodiscard]] UnifiedStatistics stats() const noexcept;
  [[nodiscard]] std::vector<Transfer> transfers() const;
  /// Is everything as it should be? Refused with violation.
  [[nodiscard]] Result<void> check() const noexcept;
  /// Have the copies that should be the same the same bytes? Waits for them. Refused with
  /// violation, naming the first place and range that differ.
  [[nodiscard]] Result<void> try_compare(CallSite site) const noexcept;
  [[nodiscard]] bool overlaps(const RawUnified& other) const noexcept;

  /// What a launch is given; null for none.
  [[nodiscard]] LaunchMemory* launch_memory() const noexcept;

  /// Refused with invalid_view.
  [[nodiscard]] Result<RawUnified> try_view(std::size_t offset, std::size_t bytes,
                                            CallSite site) const noexcept;

  /// What it is a view of.
  [[nodiscard]] RawUnified whole_buffer() const noexcept;

  // --- Access

  [[nodiscard]] Result<RawLease> try_host(Access access, LeaseWait wait,
                                          CallSite site) const noexcept;
  [[nodiscard]] Result<RawLease> try_host_async(CallSite site) const noexcept;
  [[nodiscard]] Result<RawLease> try_device(Access access, StreamRef stream, LeaseWait wait,
                                            CallSite site) const noexcept;
  /// The same for the least that can be; they throw what those return.
  [[nodiscard]] RawLease open_host(Access access, LeaseWait wait, const CallSite& site) const;
  [[nodiscard]] RawLease open_device(Access access, StreamRef stream, LeaseWait wait,
                                     const CallSite& site) const;
  [[nodiscard]] Result<RawLease> try_escape_host(Access access, CallSite site) const noexcept;
  [[nodiscard]] Result<RawLease> try_escape_device(Access access, StreamRef stream,
                                                   CallSite site) const noexcept;

  // --- Bytes

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
  /// To the host or a device, in the order of the stream if it is that device's. Refused with
  /// invalid_device.
  [[nodiscard]] Result<void> try_prefetch_to(Place place, StreamRef stream,
                                             CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_sync_to_device(CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_mark_dirty(Place place, StreamRef stream,
                                            CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_synchronize(CallSite site) const noexcept;

  // --- The whole buffer

  [[nodiscard]] Result<void> try_drop(Place place, Drop what, CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_free(CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_invalidate(CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_resize(std::size_t count, bool keep, StreamRef stream,
                                        CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_set_write_through(std::optional<Place> place,
                                                   CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_keep_on(Place place, bool keeps, CallSite site) const noexcept;
  void set_unwanted() const noexcept;
  [[nodiscard]] Result<void> try_flush_host(CallSite site) const noexcept;
  [[nodiscard]] Result<RawUnified> try_clone(StreamRef stream, CallSite site) const noexcept;
  /// The host's copy, complete, as a buffer of its own; this one has nothing then.
  [[nodiscard]] Result<Buffer> try_release_host(CallSite site) const noexcept;

 private:
  friend class UnifiedCore;
  static constexpr std::size_t whole = ~std::size_t{0};
  explicit RawUnified(UnifiedCore* core) noexcept : core_(core) {}
  [[nodiscard]] Result<ByteRange> try_range(std::size_t offset, std::size_t bytes,
                                            CallSite site) const noexcept;
  /// Of one that is there.
  [[nodiscard]] ByteRange range() const noexcept;
  [[nodiscard]] RawLease open_host_fully(Access access, LeaseWait wait, const CallSite& site) const;
  [[nodiscard]] RawLease open_device_fully(Access access, StreamRef stream, LeaseWait wait,
                                           const CallSite& site) const;

  UnifiedCore* core_ = nullptr;
  std::size_t offset_ = 0;
  std::size_t bytes_ = whole;
};

}  // namespace tern
