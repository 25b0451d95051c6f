// A UnifiedBuffer<T> is one array that can have a copy on the host and on each device. Tern tracks
// which bytes of each copy are up to date, and copies bytes only when an access needs them.
//
//   UnifiedBuffer<float> rho(Shape{count}, {.device = gpu, .tag = "rho"});  // allocates nothing
//   { auto h = rho.discard_host();  std::ranges::fill(h, 0.0f); }           // the host writes all
//   { auto d = rho.rw_device(stream);  kernel(d.kernel_view(), stream); }   // copies to the device
//   { auto h = rho.slice(0, 16).read_host();  use(h[3]); }                  // copies 64 bytes back
//
// An access is a lease. A lease names a place, and what happens to the bytes there:
// - read copies the stale bytes of its range to the place. Copies in other places stay valid.
// - rw (read and write) also copies the stale bytes, and makes its range stale in all other places.
// - discard overwrites its whole range. It copies nothing, and makes its range stale elsewhere.
//
// Order and threads: a host access waits for the work that uses this buffer, and for no other work.
// A device lease does not wait, with a few exceptions (see read_device). Its addresses are for work
// that is submitted to its stream while the lease is open; closing the lease leaves a mark, and
// later accesses wait for that mark. Several threads may access one buffer. One handle, view or
// lease object belongs to one thread at a time.
//
// Conflicts: an access that conflicts with an open lease fails with access_conflict and names both
// source lines, unless the caller passes a LeaseWait. Two leases conflict if their ranges overlap
// and one of them writes.
//
// Failure: each x() throws what try_x() returns. A failed access has not changed the buffer,
// because the directory is updated only after memory was allocated and copies were queued. If a
// copy fails, the access fails with sync_failed, which names the direction and the cause. If a
// device is lost, bytes that nobody else has and that were in flight from it count as never
// written.
//
// Ownership: memory is allocated on first use. A buffer of zero elements reaches no device. Views
// and leases share ownership, so the UnifiedBuffer object may be destroyed before them. Destroying
// a buffer waits for nothing and writes nothing back. Every copy that Tern makes is counted with
// its reason and the source line that caused it (unified_statistics.hpp).

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/view.hpp"
#include "tern/coherence/unified_options.hpp"
#include "tern/coherence/unified_statistics.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/detail/coherence/raw_unified.hpp"
#include "tern/detail/core/any_function.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/argument.hpp"

namespace tern {

/// Returns the size in bytes of `count` elements. If the product overflows, returns the largest
/// std::size_t, which no buffer can have.
template <class T>
[[nodiscard]] constexpr std::size_t bytes_of(std::size_t count) noexcept {
  constexpr std::size_t most = ~std::size_t{0};
  return count > most / sizeof(T) ? most : count * sizeof(T);
}

/// An open access of the host, as a range of elements. HostLease<const T> is for reading. The lease
/// closes when it is destroyed. Assigning to a lease swaps the two leases.
template <class T>
class [[nodiscard]] HostLease {
 public:
  using value_type = std::remove_cv_t<T>;

  HostLease() noexcept = default;
  explicit HostLease(RawLease raw) noexcept : raw_(std::move(raw)) {}
  /// Opens a lease. Throws what RawUnified::try_host() returns.
  HostLease(const RawUnified& buffer, Access access, LeaseWait wait, const CallSite& site)
      : raw_(buffer.open_host(access, wait, site)) {}

  /// Returns the first element, or null if the lease is closed or has no elements.
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(raw_.address()); }
  /// Return the number of elements, or 0 if the lease is closed. A lease is a range: empty(),
  /// begin() and end() are those of span().
  [[nodiscard]] std::size_t size() const noexcept { return raw_.size_bytes() / sizeof(T); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] T* begin() const noexcept { return data(); }
  [[nodiscard]] T* end() const noexcept { return data() + size(); }
  [[nodiscard]] T& operator[](std::size_t index) const noexcept { return data()[index]; }
  /// Only for a lease with a name. A span of a temporary lease would outlive the lease.
  [[nodiscard]] std::span<T> span() const& noexcept { return {data(), size()}; }
  std::span<T> span() && = delete;

  /// Returns false after close(), commit() and abandon(), and for a lease that was moved from.
  [[nodiscard]] bool is_open() const noexcept { return raw_.is_open(); }
  /// Closes the lease. The destructor does the same.
  void close() noexcept { raw_.close(); }
  /// Closes a discard lease of which only the first `count` elements were written. The other
  /// elements count as never written. On an rw lease, commit() only closes.
  void commit(std::size_t count) noexcept requires(!std::is_const_v<T>) {
    raw_.commit(bytes_of<T>(count));
  }
  /// Closes a discard lease of which no element was written.
  void abandon() noexcept requires(!std::is_const_v<T>) { raw_.commit(0); }
  /// Turns a write lease into a read lease on the same memory. No other writer can get in between,
  /// and other readers may open leases from now on.
  [[nodiscard]] HostLease<const T> downgrade(CallSite site = CallSite::here()) && {
    raw_.try_downgrade(site).value();
    return HostLease<const T>(std::move(raw_));
  }

 private:
  RawLease raw_;
};

/// An open access of a device: memory for work that is submitted to the lease's stream while the
/// lease is open. The lease closes when it is destroyed, and does not wait for that work.
template <class T>
class [[nodiscard]] DeviceLease {
 public:
  using value_type = std::remove_cv_t<T>;

  DeviceLease() noexcept = default;
  DeviceLease(RawLease raw, StreamRef stream) noexcept : raw_(std::move(raw)), stream_(stream) {}
  /// Opens a lease. Throws what RawUnified::try_device() returns.
  DeviceLease(const RawUnified& buffer, Access access, StreamRef stream, LeaseWait wait,
              const CallSite& site)
      : raw_(buffer.open_device(access, stream, wait, site)), stream_(stream) {}

  /// Returns an address for work on the device. The host must not dereference it.
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(raw_.address()); }
  /// Return the number of elements, or 0 if the lease is closed; and whether that is 0: empty().
  [[nodiscard]] std::size_t size() const noexcept { return raw_.size_bytes() / sizeof(T); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// Returns a View of the elements, to pass to a kernel.
  [[nodiscard]] View<T> kernel_view() const noexcept { return View<T>(data(), size()); }
  /// The stream to which work on data() must be submitted.
  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }

  /// Returns false after close(), commit() and abandon(), and for a lease that was moved from.
  [[nodiscard]] bool is_open() const noexcept { return raw_.is_open(); }
  /// Records a mark on the stream, for which later accesses wait. Does not wait. The destructor
  /// does the same.
  void close() noexcept { raw_.close(); }
  /// commit(), abandon() and downgrade() do what those of HostLease do, in the order of the stream.
  void commit(std::size_t count) noexcept requires(!std::is_const_v<T>) {
    raw_.commit(bytes_of<T>(count));
  }
  void abandon() noexcept requires(!std::is_const_v<T>) { raw_.commit(0); }
  [[nodiscard]] DeviceLease<const T> downgrade(CallSite site = CallSite::here()) && {
    raw_.try_downgrade(site).value();
    return DeviceLease<const T>(std::move(raw_), stream_);
  }

 private:
  RawLease raw_;
  StreamRef stream_ = {};
};

/// A read of the host whose copy is in flight. Destroying it closes the lease.
template <class T>
class [[nodiscard]] PendingRead {
 public:
  PendingRead() noexcept = default;
  explicit PendingRead(RawLease raw) noexcept : raw_(std::move(raw)), is_pending_(true) {}
  PendingRead(PendingRead&& other) noexcept
      : raw_(std::move(other.raw_)), is_pending_(std::exchange(other.is_pending_, false)) {}
  PendingRead& operator=(PendingRead&& other) noexcept {
    raw_ = std::move(other.raw_);
    std::swap(is_pending_, other.is_pending_);
    return *this;
  }
  ~PendingRead() = default;

  /// Returns whether get() would return a lease.
  [[nodiscard]] bool is_pending() const noexcept { return is_pending_; }
  /// Waits for the bytes and returns the lease. The lease can be fetched once: a second call fails
  /// with not_allocated, and so does a call on an object that was moved from or
  /// default-constructed. If try_get() fails with sync_failed, it may be called again.
  [[nodiscard]] Result<HostLease<const T>> try_get(CallSite site = CallSite::here()) noexcept {
    if (!is_pending_) return no_pending_read(site);
    if (Result<void> ready = raw_.try_wait(site); !ready) return ready.failure();
    is_pending_ = false;
    return HostLease<const T>(std::move(raw_));
  }
  [[nodiscard]] HostLease<const T> get(CallSite site = CallSite::here()) {
    return try_get(site).value();
  }

 private:
  RawLease raw_;  // empty for a buffer without bytes
  bool is_pending_ = false;
};

/// A lease for code that Tern cannot observe: the holder may keep the pointer for a long time, and
/// says with commit() which elements it has written.
///
/// An UntrackedLease for reading lets others read and lets nobody write. An UntrackedLease for
/// writing lets others read too. Until its first commit(), Tern does not know what the holder has
/// written, so every read in another place copies the whole range again. Such a read fails with
/// access_conflict if its copy would overwrite bytes that another lease is reading. After the first
/// commit(), only the committed elements count as written.
template <class T>
class [[nodiscard]] UntrackedLease {
 public:
  UntrackedLease() noexcept = default;
  explicit UntrackedLease(RawLease raw) noexcept : raw_(std::move(raw)) {}

  /// Returns the first element, or null once the lease is closed. The address stays the same while
  /// the lease is open.
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(raw_.address()); }
  [[nodiscard]] std::size_t size() const noexcept { return raw_.size_bytes() / sizeof(T); }
  /// Closes the lease. The holder must not use the pointer any more.
  void close() noexcept { raw_.close(); }

  /// Says that these elements were written. On a device, later accesses wait for all work submitted
  /// to `stream` so far; without a stream, to the stream of this lease. Fails with invalid_view if
  /// the elements are outside of the lease. A closed lease ignores the call.
  Result<void> try_commit(std::size_t first, std::size_t count, StreamRef stream = {},
                          CallSite site = CallSite::here()) noexcept requires(!std::is_const_v<T>) {
    return raw_.try_commit_range(bytes_of<T>(first), bytes_of<T>(count), stream, site);
  }
  void commit(std::size_t first, std::size_t count, StreamRef stream = {},
              CallSite site = CallSite::here()) requires(!std::is_const_v<T>) {
    try_commit(first, count, stream, site).value();
  }
  /// Says that all elements were written.
  void commit(CallSite site = CallSite::here()) requires(!std::is_const_v<T>) {
    try_commit(0, size(), {}, site).value();
  }

 private:
  RawLease raw_;
};

/// A range of the elements of a unified buffer. A view shares ownership of the buffer, and a copy
/// of a view is the same range. The functions of a const view never write elements.
template <class T>
class UnifiedView {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved as bytes");
  static_assert(!std::is_const_v<T> && !std::is_volatile_v<T>, "a buffer of values");

 public:
  using value_type = T;

  /// Creates an empty view. Every access to an empty view fails with not_allocated.
  UnifiedView() noexcept = default;
  explicit UnifiedView(RawUnified raw) noexcept : raw_(std::move(raw)) {}

  // --- Queries. None of them copies bytes, waits for a device or allocates device memory.

  /// size() returns the number of elements, size_bytes() of bytes, and empty() whether there are
  /// none: the current size of a buffer, or the size a view was made with.
  [[nodiscard]] std::size_t size() const noexcept { return raw_.size_bytes() / sizeof(T); }
  [[nodiscard]] bool empty() const noexcept { return raw_.size_bytes() == 0; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return raw_.size_bytes(); }
  /// Returns DType::byte for element types that have no dtype.
  [[nodiscard]] static constexpr DType dtype() noexcept {
    if constexpr (HasDType<T>) {
      return dtype_of<T>();
    } else {
      return DType::byte;
    }
  }
  /// Returns UnifiedOptions::tag, under which reports and counters list the buffer.
  [[nodiscard]] Tag tag() const noexcept { return raw_.tag(); }
  /// Returns the device that is used where no stream is named.
  [[nodiscard]] const Device& default_device() const noexcept { return raw_.device(); }
  /// Returns which copies of the view are up to date.
  [[nodiscard]] BufferState state() const noexcept { return raw_.state(0, raw_.size_bytes()); }
  /// Returns the state of some elements, or `uninitialized` if they are outside of the view.
  [[nodiscard]] BufferState state(std::size_t first, std::size_t count) const noexcept {
    return raw_.state(bytes_of<T>(first), bytes_of<T>(count));
  }
  /// Returns the places in which every element is up to date.
  [[nodiscard]] std::vector<Place> valid_places() const {
    return raw_.valid_places(0, raw_.size_bytes());
  }
  [[nodiscard]] std::vector<Place> valid_places(std::size_t first, std::size_t count) const {
    return raw_.valid_places(bytes_of<T>(first), bytes_of<T>(count));
  }
  /// Returns whether the place lacks bytes that were written.
  [[nodiscard]] bool is_stale_on(Place place) const noexcept { return raw_.is_stale_on(place); }
  /// Calls visit(begin, end, places) for each run of bytes that are up to date in the same places.
  /// The offsets are bytes of this view, ascending, and all from the same moment.
  template <class Visit>
  void for_each_interval(Visit visit) const {
    for (const RawUnified::Interval& one : raw_.intervals()) {
      visit(one.begin, one.end, std::span<const Place>(one.places));
    }
  }
  /// Returns whether both views refer to the same buffer and have a byte in common.
  [[nodiscard]] bool overlaps(const UnifiedView& other) const noexcept {
    return raw_.overlaps(other.raw_);
  }
  /// Returns the buffer without its element type, for code that is not a template. The reference is
  /// valid as long as this object.
  [[nodiscard]] const RawUnified& raw() const noexcept { return raw_; }
  /// Returns a kernel argument, valid for one launch. Use in(), out() or inout() instead.
  [[nodiscard]] LaunchArgument as_argument(Access access) const noexcept {
    return LaunchArgument::of_movable(raw_.launch_memory(), raw_.offset(), raw_.size_bytes(),
                                      access, ArgumentType::of<T>());
  }

  /// Returns elements [first, first + count). Fails with invalid_view if they are outside of this
  /// view. If a later resize leaves a view outside of the buffer, the next access through the view
  /// fails with invalid_view.
  [[nodiscard]] Result<UnifiedView> try_slice(std::size_t first, std::size_t count,
                                              CallSite site = CallSite::here()) const noexcept {
    Result<RawUnified> part = raw_.try_slice(bytes_of<T>(first), bytes_of<T>(count), site);
    if (!part) return part.failure();
    return UnifiedView(*std::move(part));
  }
  [[nodiscard]] UnifiedView slice(std::size_t first, std::size_t count,
                                  CallSite site = CallSite::here()) {
    return try_slice(first, count, site).value();
  }
  [[nodiscard]] const UnifiedView slice(std::size_t first, std::size_t count,
                                        CallSite site = CallSite::here()) const {
    return try_slice(first, count, site).value();
  }
  /// Returns bytes [offset, offset + bytes). Fails with invalid_view.
  [[nodiscard]] UnifiedView<std::byte> byte_view(std::size_t offset, std::size_t bytes,
                                                 CallSite site = CallSite::here()) {
    return UnifiedView<std::byte>(raw_.try_slice(offset, bytes, site).value());
  }

  // --- Host leases. Opening one waits until the host may use the bytes. Fails with
  // access_conflict, sync_failed, the failures of an allocation, and for read with never_written.

  /// Opens a lease for reading. Several read leases may be open at the same time, in any places.
  [[nodiscard]] Result<HostLease<const T>> try_read_host(
      LeaseWait wait = LeaseWait::never(), CallSite site = CallSite::here()) const noexcept {
    return as_host<const T>(raw_.try_host(Access::read, wait, site));
  }
  [[nodiscard]] HostLease<const T> read_host(LeaseWait wait = LeaseWait::never(),
                                             CallSite site = CallSite::here()) const {
    return HostLease<const T>(raw_, Access::read, wait, site);
  }
  /// Queues the copies and returns without waiting for them. PendingRead::get() waits.
  [[nodiscard]] Result<PendingRead<T>> try_read_host_async(
      CallSite site = CallSite::here()) const noexcept {
    Result<RawLease> lease = raw_.try_host_async(site);
    if (!lease) return lease.failure();
    return PendingRead<T>(*std::move(lease));
  }
  [[nodiscard]] PendingRead<T> read_host_async(CallSite site = CallSite::here()) const {
    return try_read_host_async(site).value();
  }
  /// Opens a lease for reading and writing. The range may contain bytes that were never written;
  /// their values are unspecified.
  [[nodiscard]] Result<HostLease<T>> try_rw_host(LeaseWait wait = LeaseWait::never(),
                                                 CallSite site = CallSite::here()) noexcept {
    return as_host<T>(raw_.try_host(Access::read_write, wait, site));
  }
  [[nodiscard]] HostLease<T> rw_host(LeaseWait wait = LeaseWait::never(),
                                     CallSite site = CallSite::here()) {
    return HostLease<T>(raw_, Access::read_write, wait, site);
  }
  /// Opens a lease that overwrites every element. If an exception leaves the scope of the lease,
  /// its range counts as never written. commit() keeps only the first elements.
  [[nodiscard]] Result<HostLease<T>> try_discard_host(LeaseWait wait = LeaseWait::never(),
                                                      CallSite site = CallSite::here()) noexcept {
    return as_host<T>(raw_.try_host(Access::discard, wait, site));
  }
  [[nodiscard]] HostLease<T> discard_host(LeaseWait wait = LeaseWait::never(),
                                          CallSite site = CallSite::here()) {
    return HostLease<T>(raw_, Access::discard, wait, site);
  }

  // --- Device leases, on the device of the stream. Opening one does not wait for a device, except
  // to read bytes from a spill file, to copy from a device of another backend, to evict a host
  // copy, or if the option compare or guard is on. It also waits if a LeaseWait allows it. Fails as
  // host leases do, and if the stream takes no work.

  /// Opens a lease for reading by work on the stream.
  [[nodiscard]] Result<DeviceLease<const T>> try_read_device(
      StreamRef stream, LeaseWait wait = LeaseWait::never(),
      CallSite site = CallSite::here()) const noexcept {
    return as_device<const T>(raw_.try_device(Access::read, stream, wait, site), stream);
  }
  [[nodiscard]] DeviceLease<const T> read_device(StreamRef stream,
                                                 LeaseWait wait = LeaseWait::never(),
                                                 CallSite site = CallSite::here()) const {
    return {raw_, Access::read, stream, wait, site};
  }
  /// Opens a lease for reading and writing by work on the stream.
  [[nodiscard]] Result<DeviceLease<T>> try_rw_device(StreamRef stream,
                                                     LeaseWait wait = LeaseWait::never(),
                                                     CallSite site = CallSite::here()) noexcept {
    return as_device<T>(raw_.try_device(Access::read_write, stream, wait, site), stream);
  }
  [[nodiscard]] DeviceLease<T> rw_device(StreamRef stream, LeaseWait wait = LeaseWait::never(),
                                         CallSite site = CallSite::here()) {
    return {raw_, Access::read_write, stream, wait, site};
  }
  /// Opens a lease that overwrites every element by work on the stream. The old bytes are not
  /// copied.
  [[nodiscard]] Result<DeviceLease<T>> try_discard_device(
      StreamRef stream, LeaseWait wait = LeaseWait::never(),
      CallSite site = CallSite::here()) noexcept {
    return as_device<T>(raw_.try_device(Access::discard, stream, wait, site), stream);
  }
  [[nodiscard]] DeviceLease<T> discard_device(StreamRef stream, LeaseWait wait = LeaseWait::never(),
                                              CallSite site = CallSite::here()) {
    return {raw_, Access::discard, stream, wait, site};
  }

  // --- Pointers for code that Tern cannot observe (UntrackedLease). They fail as leases do, and
  // never wait for conflicting leases.

  /// Opens a lease on the host copy for reading.
  [[nodiscard]] Result<UntrackedLease<const T>> try_export_read_host(
      CallSite site = CallSite::here()) const noexcept {
    return as_export<const T>(raw_.try_export_host(Access::read, site));
  }
  [[nodiscard]] UntrackedLease<const T> export_read_host(CallSite site = CallSite::here()) const {
    return try_export_read_host(site).value();
  }
  /// Opens a lease on the host copy for reading and writing.
  [[nodiscard]] Result<UntrackedLease<T>> try_export_host(
      CallSite site = CallSite::here()) noexcept {
    return as_export<T>(raw_.try_export_host(Access::read_write, site));
  }
  [[nodiscard]] UntrackedLease<T> export_host(CallSite site = CallSite::here()) {
    return try_export_host(site).value();
  }
  /// Opens a lease on the copy of the stream's device for reading.
  [[nodiscard]] Result<UntrackedLease<const T>> try_export_read_device(
      StreamRef stream, CallSite site = CallSite::here()) const noexcept {
    return as_export<const T>(raw_.try_export_device(Access::read, stream, site));
  }
  [[nodiscard]] UntrackedLease<const T> export_read_device(StreamRef stream,
                                                           CallSite site = CallSite::here()) const {
    return try_export_read_device(stream, site).value();
  }
  /// Opens a lease on the copy of the stream's device for reading and writing.
  [[nodiscard]] Result<UntrackedLease<T>> try_export_device(
      StreamRef stream, CallSite site = CallSite::here()) noexcept {
    return as_export<T>(raw_.try_export_device(Access::read_write, stream, site));
  }
  [[nodiscard]] UntrackedLease<T> export_device(StreamRef stream,
                                                CallSite site = CallSite::here()) {
    return try_export_device(stream, site).value();
  }

  // --- Elements, fills, copies

  /// Returns one element, read from any place in which it is up to date. Copies in other places
  /// stay as they are. Waits for the read. Fails with out_of_bounds, never_written,
  /// access_conflict, sync_failed.
  [[nodiscard]] Result<T> try_load_host(std::size_t index,
                                        CallSite site = CallSite::here()) const noexcept {
    if (index >= size()) return beyond(index, site);
    std::remove_const_t<T> value;
    Result<void> loaded = raw_.try_load(index * sizeof(T), &value, sizeof(T), site);
    if (!loaded) return loaded.failure();
    return value;
  }
  [[nodiscard]] T load_host(std::size_t index, CallSite site = CallSite::here()) const {
    return try_load_host(index, site).value();
  }
  /// Writes one element in every place in which it is up to date, so that no copy becomes stale. An
  /// element that was never written is written on the host. Waits for the writes. If it fails, the
  /// element has its old or its new value, and the same value wherever it counts as up to date.
  Result<void> try_store_host(std::size_t index, const T& value,
                              CallSite site = CallSite::here()) noexcept {
    if (index >= size()) return beyond(index, site);
    return raw_.try_store(index * sizeof(T), &value, sizeof(T), site);
  }
  void store_host(std::size_t index, const T& value, CallSite site = CallSite::here()) {
    try_store_host(index, value, site).value();
  }

  /// Sets every element to `value`. The fill runs on a device that has any of the elements up to
  /// date. If the device of `stream` is one of them, the fill runs there, in stream order. If no
  /// device has any, the host fills, and waits for the work that uses this buffer.
  Result<void> try_fill(const T& value, StreamRef stream = {},
                        CallSite site = CallSite::here()) noexcept {
    static_assert(sizeof(T) <= Pattern::max_bytes, "a fill repeats up to 16 bytes");
    Pattern pattern;
    pattern.width_bytes = sizeof(T);
    std::memcpy(pattern.bytes, &value, sizeof(T));
    return raw_.try_fill(pattern, stream, site);
  }
  void fill(const T& value, StreamRef stream = {}, CallSite site = CallSite::here()) {
    try_fill(value, stream, site).value();
  }

  /// Copies all elements in, as a discard lease of the host. Fails with size_mismatch if the span
  /// has another number of elements.
  Result<void> try_copy_from(std::span<const T> elements,
                             CallSite site = CallSite::here()) noexcept {
    return raw_.try_copy_from(elements.data(), elements.size_bytes(), site);
  }
  void copy_from(std::span<const T> elements, CallSite site = CallSite::here()) {
    try_copy_from(elements, site).value();
  }
  /// Copies all elements out, as a read lease of the host: waits, and leaves the host copy up to
  /// date. Fails with size_mismatch if the span has another number of elements.
  Result<void> try_copy_to(std::span<T> elements, CallSite site = CallSite::here()) const noexcept {
    return raw_.try_copy_to(elements.data(), elements.size_bytes(), site);
  }
  void copy_to(std::span<T> elements, CallSite site = CallSite::here()) const {
    try_copy_to(elements, site).value();
  }
  /// Returns all elements, as copy_to() does.
  [[nodiscard]] std::vector<T> to_vector(
      CallSite site = CallSite::here()) const requires std::is_default_constructible_v<T> {
    return make_vector<T>(size(), [&](std::span<T> elements) { copy_to(elements, site); });
  }

  // --- Prefetch and synchronize

  /// Queues the copies that a read lease on this stream would need, and returns. Never evicts a
  /// copy that would have to be written back first.
  Result<void> try_prefetch(StreamRef stream, CallSite site = CallSite::here()) const noexcept {
    return raw_.try_prefetch(stream, site);
  }
  void prefetch(StreamRef stream, CallSite site = CallSite::here()) const {
    try_prefetch(stream, site).value();
  }
  /// Queues the copies that a read lease of the host would need, and returns.
  Result<void> try_prefetch_host(CallSite site = CallSite::here()) const noexcept {
    return raw_.try_prefetch_host(site);
  }
  void prefetch_host(CallSite site = CallSite::here()) const { try_prefetch_host(site).value(); }
  /// Like prefetch() to the default device, but evicts as a lease does, and waits for all work that
  /// uses the buffer.
  Result<void> try_sync_to_device(CallSite site = CallSite::here()) const noexcept {
    return raw_.try_sync_to_device(site);
  }
  void sync_to_device(CallSite site = CallSite::here()) const { try_sync_to_device(site).value(); }
  /// Copies the stale bytes to the host, and waits for them.
  Result<void> try_sync_to_host(CallSite site = CallSite::here()) const noexcept {
    const Result<RawLease> lease = raw_.try_host(Access::read, LeaseWait::never(), site);
    return lease ? Result<void>() : Result<void>(lease.failure());
  }
  void sync_to_host(CallSite site = CallSite::here()) const { try_sync_to_host(site).value(); }

  // --- Writes that Tern did not see, made through pointers without a lease. mark_host_dirty() and
  // mark_device_dirty() mark the range as up to date in one place and stale in all others. They
  // fail with not_allocated if the place has no copy, with coherence_conflict if another place has
  // newer bytes, and with access_conflict.

  /// The host wrote the range before this call. Later accesses do not wait for it.
  Result<void> try_mark_host_dirty(CallSite site = CallSite::here()) noexcept {
    return raw_.try_mark_dirty(Place::host(), {}, site);
  }
  void mark_host_dirty(CallSite site = CallSite::here()) { try_mark_host_dirty(site).value(); }
  /// Work on `stream` wrote the range: later accesses wait for all work submitted to the stream so
  /// far; without a stream, to the default stream of the default device.
  Result<void> try_mark_device_dirty(StreamRef stream = {},
                                     CallSite site = CallSite::here()) noexcept {
    const Place place = stream.id() ? Place::device(stream.device_id()) : raw_.device().place();
    return raw_.try_mark_dirty(place, stream, site);
  }
  void mark_device_dirty(StreamRef stream = {}, CallSite site = CallSite::here()) {
    try_mark_device_dirty(stream, site).value();
  }

 protected:
  /// as_host(), as_export() and as_device() wrap the raw lease of a call, or pass its failure on.
  template <class U>
  [[nodiscard]] static Result<HostLease<U>> as_host(Result<RawLease> raw) noexcept {
    if (!raw) return raw.failure();
    return HostLease<U>(*std::move(raw));
  }
  template <class U>
  [[nodiscard]] static Result<UntrackedLease<U>> as_export(Result<RawLease> raw) noexcept {
    if (!raw) return raw.failure();
    return UntrackedLease<U>(*std::move(raw));
  }
  template <class U>
  [[nodiscard]] static Result<DeviceLease<U>> as_device(Result<RawLease> raw,
                                                        StreamRef stream) noexcept {
    if (!raw) return raw.failure();
    return DeviceLease<U>(*std::move(raw), stream);
  }
  /// Returns the failure for an index behind the last element.
  [[nodiscard]] Failure beyond(std::size_t index, CallSite site) const noexcept {
    return Failure(ErrorCode::out_of_bounds,
                   "there is no element {index} in unified buffer '{tag}' of {count}.", site)
        .with("index", index)
        .with("count", size())
        .with("generation", std::uint64_t{0})
        .with("tag", raw_.tag().name());
  }

  RawUnified raw_;  // the buffer, and the range of this view
};

/// Kernel arguments. A launch copies the bytes that its device lacks before the kernel runs, for
/// all arguments or for none.
template <class T>
[[nodiscard]] LaunchArgument in(const UnifiedView<T>& view) noexcept {
  return view.as_argument(Access::read);
}
template <class T>
[[nodiscard]] LaunchArgument out(UnifiedView<T>& view) noexcept {
  return view.as_argument(Access::discard);
}
template <class T>
[[nodiscard]] LaunchArgument out(UnifiedView<T>&& view) noexcept {
  return view.as_argument(Access::discard);
}
template <class T>
[[nodiscard]] LaunchArgument inout(UnifiedView<T>& view) noexcept {
  return view.as_argument(Access::read_write);
}
template <class T>
[[nodiscard]] LaunchArgument inout(UnifiedView<T>&& view) noexcept {
  return view.as_argument(Access::read_write);
}

/// The owner of a unified buffer: everything that a view can do, and the operations on the whole
/// buffer. A UnifiedBuffer can be moved; clone() makes a deep copy.
template <class T>
class UnifiedBuffer : public UnifiedView<T> {
  using Base = UnifiedView<T>;
  using Base::raw_;

 public:
  /// Creates an empty handle. Every access fails with not_allocated.
  UnifiedBuffer() noexcept = default;
  /// Throws what try_make() returns.
  explicit UnifiedBuffer(Shape shape, const UnifiedOptions& options)
      : UnifiedBuffer(try_make(std::move(shape), options).value()) {}
  /// Creates a buffer without memory. Fails with invalid_device if the device is not open, with
  /// size_overflow, with out_of_memory, and with unsupported or invalid_argument if the options
  /// exclude each other (see Pinned and UnifiedOptions::guard).
  [[nodiscard]] static Result<UnifiedBuffer> try_make(Shape shape,
                                                      const UnifiedOptions& options) noexcept {
    return wrap(RawUnified::try_make(std::move(shape), Base::dtype(), sizeof(T), options));
  }
  /// Creates a buffer whose host copy is memory of the caller. Its elements count as written. The
  /// memory is never evicted. Tern calls `release` once, when Tern no longer uses the memory; if
  /// try_adopt_host() fails, Tern does not call `release`.
  [[nodiscard]] static Result<UnifiedBuffer> try_adopt_host(std::span<T> elements,
                                                            AnyFunction<void()> release,
                                                            const UnifiedOptions& options) {
    return wrap(RawUnified::try_adopt_host(elements.data(), Shape::flat(elements.size()),
                                           Base::dtype(), sizeof(T), std::move(release), options));
  }
  [[nodiscard]] static UnifiedBuffer adopt_host(std::span<T> elements, AnyFunction<void()> release,
                                                const UnifiedOptions& options) {
    return try_adopt_host(elements, std::move(release), options).value();
  }

  UnifiedBuffer(UnifiedBuffer&&) noexcept = default;
  UnifiedBuffer& operator=(UnifiedBuffer&&) noexcept = default;
  ~UnifiedBuffer() = default;
  /// Returns a new buffer with the same bytes, in memory of the stream's device. The copies are
  /// queued in stream order, and the host does not wait. Fails with access_conflict, sync_failed,
  /// and the failures of an allocation.
  [[nodiscard]] Result<UnifiedBuffer> try_clone(StreamRef stream,
                                                CallSite site = CallSite::here()) const noexcept {
    return wrap(raw_.try_clone(stream, site));
  }
  [[nodiscard]] UnifiedBuffer clone(StreamRef stream, CallSite site = CallSite::here()) const {
    return try_clone(stream, site).value();
  }

  // --- Queries of the whole buffer

  /// Returns the shape that the buffer was made with. A resize makes the shape flat.
  [[nodiscard]] Shape shape() const { return raw_.shape(); }
  /// Returns whether the host copy is page-locked, or false if there is no host copy yet.
  [[nodiscard]] bool is_pinned() const noexcept { return raw_.is_pinned(); }
  /// Returns whether pages of the host copy are protected (UnifiedOptions::guard).
  [[nodiscard]] bool is_guarded() const noexcept { return raw_.is_guarded(); }
  /// Returns whether the place has a copy, whether or not its bytes are up to date.
  [[nodiscard]] bool has_copy(Place place) const noexcept { return raw_.has_copy(place); }
  /// Returns what this buffer has copied so far, and why.
  [[nodiscard]] UnifiedStatistics statistics() const noexcept { return raw_.statistics(); }
  /// Returns the latest 64 transfers, oldest first.
  [[nodiscard]] std::vector<Transfer> transfers() const { return raw_.transfers(); }
  /// Checks the invariants of the buffer. Fails with violation.
  [[nodiscard]] Result<void> check() const noexcept { return raw_.check(); }
  /// Compares all copies that should be equal, and waits for them. Fails with violation, naming the
  /// first byte that differs and both places.
  Result<void> try_compare(CallSite site = CallSite::here()) const noexcept {
    return raw_.try_compare(site);
  }
  void compare(CallSite site = CallSite::here()) const { try_compare(site).value(); }
  /// Like copy_from(), but also fails with shape_mismatch if `shape` is not the shape of the
  /// buffer.
  Result<void> try_copy_from(std::span<const T> elements, const Shape& shape,
                             CallSite site = CallSite::here()) noexcept {
    if (shape != this->shape()) {
      return Failure(ErrorCode::shape_mismatch,
                     "elements of shape {actual} are not of the buffer's shape {expected}.", site)
          .with("expected", this->shape().text())
          .with("actual", shape.text());
    }
    return Base::try_copy_from(elements, site);
  }
  using Base::try_copy_from;

  // --- Short names

  /// Opens an rw lease of the host.
  [[nodiscard]] HostLease<T> host(CallSite site = CallSite::here()) {
    return Base::rw_host(LeaseWait::never(), site);
  }
  /// Opens a read lease on the device of the stream.
  [[nodiscard]] DeviceLease<const T> device(StreamRef stream,
                                            CallSite site = CallSite::here()) const {
    return Base::read_device(stream, LeaseWait::never(), site);
  }

  // --- Free memory

  /// Frees the copy of one place. With Drop::write_back, bytes that only this copy has are copied
  /// first: from the host to the default device, from a device to the host. Does nothing if the
  /// place has no copy. Fails with access_conflict if a lease uses the copy or writes any byte of
  /// the buffer.
  Result<void> try_drop_host(Drop what = Drop::write_back,
                             CallSite site = CallSite::here()) noexcept {
    return raw_.try_drop(Place::host(), what, site);
  }
  void drop_host(Drop what = Drop::write_back, CallSite site = CallSite::here()) {
    try_drop_host(what, site).value();
  }
  /// Without a device, drop_device() frees the copy on the default device.
  Result<void> try_drop_device(const Device& device, Drop what = Drop::write_back,
                               CallSite site = CallSite::here()) noexcept {
    return raw_.try_drop(device.place(), what, site);
  }
  void drop_device(const Device& device, Drop what = Drop::write_back,
                   CallSite site = CallSite::here()) {
    try_drop_device(device, what, site).value();
  }
  void drop_device(Drop what = Drop::write_back, CallSite site = CallSite::here()) {
    try_drop_device(raw_.device(), what, site).value();
  }
  /// Frees all copies. All bytes count as never written. Fails with access_conflict if a lease is
  /// open.
  Result<void> try_free(CallSite site = CallSite::here()) noexcept { return raw_.try_free(site); }
  void free(CallSite site = CallSite::here()) { try_free(site).value(); }
  /// Marks all bytes as never written, and keeps the memory. Fails with access_conflict if a lease
  /// is open.
  Result<void> try_invalidate(CallSite site = CallSite::here()) noexcept {
    return raw_.try_invalidate(site);
  }
  void invalidate(CallSite site = CallSite::here()) { try_invalidate(site).value(); }

  // --- Change the size. The shape is flat afterwards. Fails with access_conflict if a lease is
  // open.

  /// Frees all copies and sets the size. All bytes count as never written.
  Result<void> try_resize_discard(std::size_t count, CallSite site = CallSite::here()) noexcept {
    return raw_.try_resize(count, false, {}, site);
  }
  void resize_discard(std::size_t count, CallSite site = CallSite::here()) {
    try_resize_discard(count, site).value();
  }
  /// Sets the size and keeps the old elements. Each copy with up-to-date bytes moves to new memory,
  /// in the order of `stream` if that stream can reach the copy. New elements count as never
  /// written.
  Result<void> try_resize_keep(std::size_t count, StreamRef stream = {},
                               CallSite site = CallSite::here()) noexcept {
    return raw_.try_resize(count, true, stream, site);
  }
  void resize_keep(std::size_t count, StreamRef stream = {}, CallSite site = CallSite::here()) {
    try_resize_keep(count, stream, site).value();
  }

  // --- Policies, and the end of the buffer

  /// Copies everything that is written elsewhere to this place: when a write lease closes, and
  /// after launches and fills. An empty `place` turns the policy off. If such a copy fails, it is
  /// counted (UnifiedStatistics::failed_write_throughs) and the next access makes it. Fails with
  /// invalid_device for a device, other than the default device, that this buffer has never used.
  Result<void> try_write_through(std::optional<Place> place,
                                 CallSite site = CallSite::here()) noexcept {
    return raw_.try_set_write_through(place, site);
  }
  void write_through(std::optional<Place> place, CallSite site = CallSite::here()) {
    try_write_through(place, site).value();
  }
  /// Excludes the copy of this place from eviction (coherence/pressure.hpp), or with `keeps` false
  /// allows eviction again. Fails with invalid_device for a device, other than the default device,
  /// that this buffer has never used.
  Result<void> try_pin_residency(Place place, bool keeps = true,
                                 CallSite site = CallSite::here()) noexcept {
    return raw_.try_pin_residency(place, keeps, site);
  }
  void pin_residency(Place place, bool keeps = true, CallSite site = CallSite::here()) {
    try_pin_residency(place, keeps, site).value();
  }
  /// Says that the buffer is not needed soon: its copies are evicted before other copies of their
  /// kind. The next access ends this.
  void mark_evict_first() const noexcept { raw_.set_unwanted(); }
  /// Waits until no stream uses any memory of the buffer.
  Result<void> try_synchronize(CallSite site = CallSite::here()) const noexcept {
    return raw_.try_synchronize(site);
  }
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize(site).value(); }
  /// Copies every byte that was written to the host, and waits for it.
  Result<void> try_flush_host(CallSite site = CallSite::here()) const noexcept {
    return raw_.try_flush_host(site);
  }
  void flush_host(CallSite site = CallSite::here()) const { try_flush_host(site).value(); }
  /// Returns the host copy as a Buffer of its own, with every written byte up to date. All other
  /// copies are freed, and this buffer counts as never written. Waits for the copies. Fails with
  /// access_conflict if a lease is open.
  [[nodiscard]] Result<Buffer> try_release_host(CallSite site = CallSite::here()) && noexcept {
    return raw_.try_release_host(site);
  }
  [[nodiscard]] Buffer release_host(CallSite site = CallSite::here()) && {
    return raw_.try_release_host(site).value();
  }

 private:
  explicit UnifiedBuffer(RawUnified raw) noexcept : Base(std::move(raw)) {}
  [[nodiscard]] static Result<UnifiedBuffer> wrap(Result<RawUnified> raw) noexcept {
    if (!raw) return raw.failure();
    return UnifiedBuffer(*std::move(raw));
  }
};

}  // namespace tern
