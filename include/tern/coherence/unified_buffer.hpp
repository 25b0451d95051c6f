// A UnifiedBuffer<T> is one array with copies on the host and on devices, of which Tern keeps
// track.
//
// Bytes move when, and only when, an access needs them. An access is a lease: it names a place and
// what is done there (read, rw, discard), and gives memory for as long as it lives. Reading brings
// what is stale and leaves other copies as they are; writing makes its range stale elsewhere;
// discard writes all of its range and fetches nothing. All of it goes by byte ranges: a view never
// changes anything outside itself.
//
// Nothing is allocated before its first use, and zero elements reach no device. Only the host's
// accesses block, and only on work with this buffer; a device lease covers the submission, and its
// end leaves a mark on the stream. Leases that collide are refused with access_conflict, naming
// both lines, unless the caller asks to wait. What is refused has changed nothing: memory and
// copies come first, then the directory. A copy that fails is sync_failed, with direction and
// cause. Every implicit copy is counted, with its reason and the line that caused it.
//
// Views and leases keep the buffer; destroying it first is fine, waits for nothing and writes
// nothing back. All accesses may be made from several threads. Each x() throws what try_x()
// returns.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/view.hpp"
#include "tern/coherence/buffer_state.hpp"
#include "tern/coherence/raw_unified.hpp"
#include "tern/coherence/transfer.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/argument.hpp"

namespace tern {

/// So many elements; as many bytes as there can be where that is more, which nothing has.
template <class T>
[[nodiscard]] constexpr std::size_t bytes_of(std::size_t count) noexcept {
  constexpr std::size_t most = ~std::size_t{0};
  return count > most / sizeof(T) ? most : count * sizeof(T);
}

/// The host's access: a range of elements. A const T is for reading.
template <class T>
class [[nodiscard]] HostLease {
 public:
  using value_type = std::remove_cv_t<T>;

  HostLease() noexcept = default;
  explicit HostLease(RawLease raw) noexcept : raw_(std::move(raw)) {}
  /// Opens one; throws what RawUnified::try_host() returns.
  HostLease(const RawUnified& buffer, Access access, LeaseWait wait, const CallSite& site)
      : raw_(buffer.open_host(access, wait, site)) {}

  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(raw_.address()); }
  [[nodiscard]] std::size_t size() const noexcept { return raw_.bytes() / sizeof(T); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] T* begin() const noexcept { return data(); }
  [[nodiscard]] T* end() const noexcept { return data() + size(); }
  [[nodiscard]] T& operator[](std::size_t index) const noexcept { return data()[index]; }
  /// Of a lease that stays: a loop over the span of a temporary would outlive it.
  [[nodiscard]] std::span<T> span() const& noexcept { return {data(), size()}; }
  std::span<T> span() && = delete;

  [[nodiscard]] bool is_open() const noexcept { return raw_.is_open(); }
  void close() noexcept { raw_.close(); }
  /// Closes a discard of which only the first elements were written, or none.
  void commit(std::size_t count) noexcept requires(!std::is_const_v<T>) {
    raw_.commit(bytes_of<T>(count));
  }
  void abandon() noexcept requires(!std::is_const_v<T>) { raw_.commit(0); }
  /// The same memory for reading, without a gap in between; others may read too.
  [[nodiscard]] HostLease<const T> downgrade(CallSite site = CallSite::here()) && {
    raw_.try_downgrade(site).value();
    return HostLease<const T>(std::move(raw_));
  }

 private:
  RawLease raw_;
};

/// Memory for work that is submitted to the lease's stream while it is open.
template <class T>
class [[nodiscard]] DeviceLease {
 public:
  using value_type = std::remove_cv_t<T>;

  DeviceLease() noexcept = default;
  DeviceLease(RawLease raw, StreamRef stream) noexcept : raw_(std::move(raw)), stream_(stream) {}
  /// Opens one; throws what RawUnified::try_device() returns.
  DeviceLease(const RawUnified& buffer, Access access, StreamRef stream, LeaseWait wait,
              const CallSite& site)
      : raw_(buffer.open_device(access, stream, wait, site)), stream_(stream) {}

  /// Of the device; what the host finds there is not its to know.
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(raw_.address()); }
  [[nodiscard]] std::size_t size() const noexcept { return raw_.bytes() / sizeof(T); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// For kernels.
  [[nodiscard]] View<T> view() const noexcept { return View<T>(data(), size()); }
  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }

  [[nodiscard]] bool is_open() const noexcept { return raw_.is_open(); }
  void close() noexcept { raw_.close(); }
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

/// A read of the host that is under way.
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

  /// Is there something to get?
  [[nodiscard]] bool is_pending() const noexcept { return is_pending_; }
  /// Waits for the bytes, and gives the lease away: a second call finds none and is refused with
  /// not_allocated, as is the first of one that was moved from or made by default. Refused with
  /// sync_failed it may be called again.
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
  RawLease raw_;  // none for no bytes
  bool is_pending_ = false;
};

/// A pointer that leaves: a lease that may be long, whose holder says what has changed.
///
/// For reading, others may read, and nobody writes. For writing, others may read: until the first
/// commit() every such read copies again, because nobody knows what has changed, and is refused
/// with access_conflict while another one reads the copy that would be written; from then on what
/// was committed is new, and nothing else.
template <class T>
class [[nodiscard]] EscapedPointer {
 public:
  EscapedPointer() noexcept = default;
  explicit EscapedPointer(RawLease raw) noexcept : raw_(std::move(raw)) {}

  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(raw_.address()); }
  [[nodiscard]] std::size_t size() const noexcept { return raw_.bytes() / sizeof(T); }
  void close() noexcept { raw_.close(); }

  /// These elements were written: on a device by work that the stream has now, or without one the
  /// escape's. Refused with invalid_view.
  Result<void> try_commit(std::size_t first, std::size_t count, StreamRef stream = {},
                          CallSite site = CallSite::here()) noexcept requires(!std::is_const_v<T>) {
    return raw_.try_commit_range(bytes_of<T>(first), bytes_of<T>(count), stream, site);
  }
  void commit(std::size_t first, std::size_t count, StreamRef stream = {},
              CallSite site = CallSite::here()) requires(!std::is_const_v<T>) {
    try_commit(first, count, stream, site).value();
  }
  void commit(CallSite site = CallSite::here()) requires(!std::is_const_v<T>) {
    try_commit(0, size(), {}, site).value();
  }

 private:
  RawLease raw_;
};

/// A part of a unified buffer, which it shares; a copy of it is the same part.
template <class T>
class UnifiedView {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved as bytes");
  static_assert(!std::is_const_v<T> && !std::is_volatile_v<T>, "a buffer of values");

 public:
  using value_type = T;

  /// None: every access is refused with not_allocated.
  UnifiedView() noexcept = default;
  explicit UnifiedView(RawUnified raw) noexcept : raw_(std::move(raw)) {}

  // --- What it is. None of these moves or allocates.

  [[nodiscard]] std::size_t size() const noexcept { return raw_.bytes() / sizeof(T); }
  [[nodiscard]] bool empty() const noexcept { return raw_.bytes() == 0; }
  [[nodiscard]] std::size_t nbytes() const noexcept { return raw_.bytes(); }
  [[nodiscard]] static constexpr DType dtype() noexcept {
    if constexpr (HasDType<T>) {
      return dtype_of<T>();
    } else {
      return DType::byte;
    }
  }
  [[nodiscard]] Tag tag() const noexcept { return raw_.tag(); }
  /// Where accesses go that name no stream.
  [[nodiscard]] const Device& default_device() const noexcept { return raw_.device(); }
  [[nodiscard]] BufferState state() const noexcept { return raw_.state(0, raw_.bytes()); }
  /// Of some of the elements; outside there is nothing.
  [[nodiscard]] BufferState state(std::size_t first, std::size_t count) const noexcept {
    return raw_.state(bytes_of<T>(first), bytes_of<T>(count));
  }
  /// The places that are up to date in all of it.
  [[nodiscard]] std::vector<Place> valid_places() const {
    return raw_.valid_places(0, raw_.bytes());
  }
  [[nodiscard]] std::vector<Place> valid_places(std::size_t first, std::size_t count) const {
    return raw_.valid_places(bytes_of<T>(first), bytes_of<T>(count));
  }
  /// Was anything written that the place does not have?
  [[nodiscard]] bool is_stale_on(Place place) const noexcept { return raw_.is_stale_on(place); }
  /// Calls visit(begin, end, places) for each run of bytes that are up to date in the same places.
  template <class Visit>
  void for_each_interval(Visit visit) const {
    for (const RawUnified::Interval& one : raw_.intervals()) {
      visit(one.begin, one.end, std::span<const Place>(one.places));
    }
  }
  [[nodiscard]] bool overlaps(const UnifiedView& other) const noexcept {
    return raw_.overlaps(other.raw_);
  }
  [[nodiscard]] const RawUnified& raw() const noexcept { return raw_; }
  /// For the length of a launch; in(), out() and inout() make it.
  [[nodiscard]] LaunchArgument as_argument(Access access) const noexcept {
    return LaunchArgument::of_movable(raw_.launch_memory(), raw_.offset(), raw_.bytes(), access,
                                      ArgumentType::of<T>());
  }

  /// Elements [first, first + count). Refused with invalid_view; a view that a resize has left
  /// outside is so with its next access.
  [[nodiscard]] Result<UnifiedView> try_view(std::size_t first, std::size_t count,
                                             CallSite site = CallSite::here()) const noexcept {
    Result<RawUnified> part = raw_.try_view(bytes_of<T>(first), bytes_of<T>(count), site);
    if (!part) return part.failure();
    return UnifiedView(*std::move(part));
  }
  [[nodiscard]] UnifiedView view(std::size_t first, std::size_t count,
                                 CallSite site = CallSite::here()) {
    return try_view(first, count, site).value();
  }
  [[nodiscard]] const UnifiedView view(std::size_t first, std::size_t count,
                                       CallSite site = CallSite::here()) const {
    return try_view(first, count, site).value();
  }
  /// The same in bytes.
  [[nodiscard]] UnifiedView<std::byte> byte_view(std::size_t offset, std::size_t bytes,
                                                 CallSite site = CallSite::here()) {
    return UnifiedView<std::byte>(raw_.try_view(offset, bytes, site).value());
  }

  // --- The host. Refused with never_written (read), access_conflict, sync_failed, and as memory is
  // refused.

  [[nodiscard]] Result<HostLease<const T>> try_read_host(
      LeaseWait wait = LeaseWait::never(), CallSite site = CallSite::here()) const noexcept {
    return as_host<const T>(raw_.try_host(Access::read, wait, site));
  }
  [[nodiscard]] HostLease<const T> read_host(LeaseWait wait = LeaseWait::never(),
                                             CallSite site = CallSite::here()) const {
    return HostLease<const T>(raw_, Access::read, wait, site);
  }
  /// The copy is queued and the call returns.
  [[nodiscard]] Result<PendingRead<T>> try_read_host_async(
      CallSite site = CallSite::here()) const noexcept {
    Result<RawLease> lease = raw_.try_host_async(site);
    if (!lease) return lease.failure();
    return PendingRead<T>(*std::move(lease));
  }
  [[nodiscard]] PendingRead<T> read_host_async(CallSite site = CallSite::here()) const {
    return try_read_host_async(site).value();
  }
  [[nodiscard]] Result<HostLease<T>> try_rw_host(LeaseWait wait = LeaseWait::never(),
                                                 CallSite site = CallSite::here()) noexcept {
    return as_host<T>(raw_.try_host(Access::read_write, wait, site));
  }
  [[nodiscard]] HostLease<T> rw_host(LeaseWait wait = LeaseWait::never(),
                                     CallSite site = CallSite::here()) {
    return HostLease<T>(raw_, Access::read_write, wait, site);
  }
  /// All of it will be written. Left by an exception, it is never written.
  [[nodiscard]] Result<HostLease<T>> try_discard_host(LeaseWait wait = LeaseWait::never(),
                                                      CallSite site = CallSite::here()) noexcept {
    return as_host<T>(raw_.try_host(Access::discard, wait, site));
  }
  [[nodiscard]] HostLease<T> discard_host(LeaseWait wait = LeaseWait::never(),
                                          CallSite site = CallSite::here()) {
    return HostLease<T>(raw_, Access::discard, wait, site);
  }

  // --- Devices: the stream's. They never block, unless they are given time to wait.

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
  [[nodiscard]] Result<DeviceLease<T>> try_rw_device(StreamRef stream,
                                                     LeaseWait wait = LeaseWait::never(),
                                                     CallSite site = CallSite::here()) noexcept {
    return as_device<T>(raw_.try_device(Access::read_write, stream, wait, site), stream);
  }
  [[nodiscard]] DeviceLease<T> rw_device(StreamRef stream, LeaseWait wait = LeaseWait::never(),
                                         CallSite site = CallSite::here()) {
    return {raw_, Access::read_write, stream, wait, site};
  }
  [[nodiscard]] Result<DeviceLease<T>> try_discard_device(
      StreamRef stream, LeaseWait wait = LeaseWait::never(),
      CallSite site = CallSite::here()) noexcept {
    return as_device<T>(raw_.try_device(Access::discard, stream, wait, site), stream);
  }
  [[nodiscard]] DeviceLease<T> discard_device(StreamRef stream, LeaseWait wait = LeaseWait::never(),
                                              CallSite site = CallSite::here()) {
    return {raw_, Access::discard, stream, wait, site};
  }

  // --- Pointers that leave. Refused as leases are.

  [[nodiscard]] Result<EscapedPointer<const T>> try_escape_read_host(
      CallSite site = CallSite::here()) const noexcept {
    return as_escape<const T>(raw_.try_escape_host(Access::read, site));
  }
  [[nodiscard]] EscapedPointer<const T> escape_read_host(CallSite site = CallSite::here()) const {
    return try_escape_read_host(site).value();
  }
  [[nodiscard]] Result<EscapedPointer<T>> try_escape_host(
      CallSite site = CallSite::here()) noexcept {
    return as_escape<T>(raw_.try_escape_host(Access::read_write, site));
  }
  [[nodiscard]] EscapedPointer<T> escape_host(CallSite site = CallSite::here()) {
    return try_escape_host(site).value();
  }
  [[nodiscard]] Result<EscapedPointer<const T>> try_escape_read_device(
      StreamRef stream, CallSite site = CallSite::here()) const noexcept {
    return as_escape<const T>(raw_.try_escape_device(Access::read, stream, site));
  }
  [[nodiscard]] EscapedPointer<const T> escape_read_device(StreamRef stream,
                                                           CallSite site = CallSite::here()) const {
    return try_escape_read_device(stream, site).value();
  }
  [[nodiscard]] Result<EscapedPointer<T>> try_escape_device(
      StreamRef stream, CallSite site = CallSite::here()) noexcept {
    return as_escape<T>(raw_.try_escape_device(Access::read_write, stream, site));
  }
  [[nodiscard]] EscapedPointer<T> escape_device(StreamRef stream,
                                                CallSite site = CallSite::here()) {
    return try_escape_device(stream, site).value();
  }

  // --- Elements, fills, copies

  /// One element, from wherever it is; no copy is made up to date. Refused with out_of_bounds.
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
  /// To every place that has the element; where nobody wrote it, to the host.
  Result<void> try_store_host(std::size_t index, const T& value,
                              CallSite site = CallSite::here()) noexcept {
    if (index >= size()) return beyond(index, site);
    return raw_.try_store(index * sizeof(T), &value, sizeof(T), site);
  }
  void store_host(std::size_t index, const T& value, CallSite site = CallSite::here()) {
    try_store_host(index, value, site).value();
  }

  /// Every element, where they are: on a device that has any of them, in the order of the stream if
  /// it is that device's; else on the host.
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

  /// As many elements as there are (shape_mismatch): a discard of the host, and a read.
  Result<void> try_copy_from(std::span<const T> elements,
                             CallSite site = CallSite::here()) noexcept {
    return raw_.try_copy_from(elements.data(), elements.size_bytes(), site);
  }
  void copy_from(std::span<const T> elements, CallSite site = CallSite::here()) {
    try_copy_from(elements, site).value();
  }
  Result<void> try_copy_to_host(std::span<T> elements,
                                CallSite site = CallSite::here()) const noexcept {
    return raw_.try_copy_to(elements.data(), elements.size_bytes(), site);
  }
  void copy_to_host(std::span<T> elements, CallSite site = CallSite::here()) const {
    try_copy_to_host(elements, site).value();
  }
  [[nodiscard]] std::vector<T> to_vector(
      CallSite site = CallSite::here()) const requires std::is_default_constructible_v<T> {
    return make_vector<T>(size(), [&](std::span<T> elements) { copy_to_host(elements, site); });
  }

  // --- Ahead of an access

  /// A read of the stream's device without a lease: what is stale is on its way.
  Result<void> try_prefetch(StreamRef stream, CallSite site = CallSite::here()) const noexcept {
    return raw_.try_prefetch(stream, site);
  }
  void prefetch(StreamRef stream, CallSite site = CallSite::here()) const {
    try_prefetch(stream, site).value();
  }
  Result<void> try_prefetch_host(CallSite site = CallSite::here()) const noexcept {
    return raw_.try_prefetch_host(site);
  }
  void prefetch_host(CallSite site = CallSite::here()) const { try_prefetch_host(site).value(); }
  /// The same for the default device and for the host, complete on return.
  Result<void> try_sync_to_device(CallSite site = CallSite::here()) const noexcept {
    return raw_.try_sync_to_device(site);
  }
  void sync_to_device(CallSite site = CallSite::here()) const { try_sync_to_device(site).value(); }
  Result<void> try_sync_to_host(CallSite site = CallSite::here()) const noexcept {
    const Result<RawLease> lease = raw_.try_host(Access::read, LeaseWait::never(), site);
    return lease ? Result<void>() : Result<void>(lease.failure());
  }
  void sync_to_host(CallSite site = CallSite::here()) const { try_sync_to_host(site).value(); }

  // --- What others wrote, through pointers that Tern knows nothing of. Refused with not_allocated
  // where that place has no copy, with coherence_conflict where another one is newer.

  Result<void> try_mark_host_dirty(CallSite site = CallSite::here()) noexcept {
    return raw_.try_mark_dirty(Place::host(), {}, site);
  }
  void mark_host_dirty(CallSite site = CallSite::here()) { try_mark_host_dirty(site).value(); }
  /// By work of the stream up to now; without one, of the default device's default stream.
  Result<void> try_mark_device_dirty(StreamRef stream = {},
                                     CallSite site = CallSite::here()) noexcept {
    const Place place = stream.id() ? Place::device(stream.device_id()) : raw_.device().place();
    return raw_.try_mark_dirty(place, stream, site);
  }
  void mark_device_dirty(StreamRef stream = {}, CallSite site = CallSite::here()) {
    try_mark_device_dirty(stream, site).value();
  }

 protected:
  template <class U>
  [[nodiscard]] static Result<HostLease<U>> as_host(Result<RawLease> raw) noexcept {
    if (!raw) return raw.failure();
    return HostLease<U>(*std::move(raw));
  }
  template <class U>
  [[nodiscard]] static Result<EscapedPointer<U>> as_escape(Result<RawLease> raw) noexcept {
    if (!raw) return raw.failure();
    return EscapedPointer<U>(*std::move(raw));
  }
  template <class U>
  [[nodiscard]] static Result<DeviceLease<U>> as_device(Result<RawLease> raw,
                                                        StreamRef stream) noexcept {
    if (!raw) return raw.failure();
    return DeviceLease<U>(*std::move(raw), stream);
  }
  [[nodiscard]] Failure beyond(std::size_t index, CallSite site) const noexcept {
    return Failure(ErrorCode::out_of_bounds,
                   "there is no element {index} in unified buffer '{tag}' of {count}.", site)
        .with("index", index)
        .with("count", size())
        .with("generation", std::uint64_t{0})
        .with("tag", raw_.tag().name());
  }

  RawUnified raw_;
};

/// Arguments of kernels: the bytes come to the launch's device first, for all arguments or none.
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

template <class T>
class UnifiedBuffer : public UnifiedView<T> {
  using Base = UnifiedView<T>;
  using Base::raw_;

 public:
  /// None.
  UnifiedBuffer() noexcept = default;
  /// Throws what try_make returns.
  explicit UnifiedBuffer(Shape shape, const UnifiedOptions& options)
      : UnifiedBuffer(try_make(std::move(shape), options).value()) {}
  /// Nothing is allocated. Refused with invalid_device, size_overflow, out_of_memory.
  [[nodiscard]] static Result<UnifiedBuffer> try_make(Shape shape,
                                                      const UnifiedOptions& options) noexcept {
    return wrap(RawUnified::try_make(std::move(shape), Base::dtype(), sizeof(T), options));
  }
  /// The host's copy is memory that somebody else has: written, and never allocated anew. `release`
  /// is called once, when Tern is done with it.
  [[nodiscard]] static Result<UnifiedBuffer> try_adopt_host(std::span<T> elements,
                                                            std::function<void()> release,
                                                            const UnifiedOptions& options) {
    return wrap(RawUnified::try_adopt_host(elements.data(), Shape::flat(elements.size()),
                                           Base::dtype(), sizeof(T), std::move(release), options));
  }
  [[nodiscard]] static UnifiedBuffer adopt_host(std::span<T> elements,
                                                std::function<void()> release,
                                                const UnifiedOptions& options) {
    return try_adopt_host(elements, std::move(release), options).value();
  }

  UnifiedBuffer(UnifiedBuffer&&) noexcept = default;
  UnifiedBuffer& operator=(UnifiedBuffer&&) noexcept = default;
  ~UnifiedBuffer() = default;
  /// New memory with the same bytes, on the stream's device.
  [[nodiscard]] Result<UnifiedBuffer> try_clone(StreamRef stream,
                                                CallSite site = CallSite::here()) const noexcept {
    return wrap(raw_.try_clone(stream, site));
  }
  [[nodiscard]] UnifiedBuffer clone(StreamRef stream, CallSite site = CallSite::here()) const {
    return try_clone(stream, site).value();
  }

  // --- What it is

  [[nodiscard]] Shape shape() const { return raw_.shape(); }
  /// Is the host's copy page-locked? False where there is none yet.
  [[nodiscard]] bool is_pinned() const noexcept { return raw_.is_pinned(); }
  /// Are the pages of the host's copy closed to those who have no lease?
  [[nodiscard]] bool is_guarded() const noexcept { return raw_.is_guarded(); }
  [[nodiscard]] bool has_copy(Place place) const noexcept { return raw_.has_copy(place); }
  [[nodiscard]] UnifiedStatistics stats() const noexcept { return raw_.stats(); }
  /// The latest of them, oldest first.
  [[nodiscard]] std::vector<Transfer> transfers() const { return raw_.transfers(); }
  /// Are the invariants kept? Refused with violation.
  [[nodiscard]] Result<void> check() const noexcept { return raw_.check(); }
  /// Are the copies that should be the same? Waits for them. Refused with violation, naming the
  /// first place and bytes that differ.
  Result<void> try_compare(CallSite site = CallSite::here()) const noexcept {
    return raw_.try_compare(site);
  }
  void compare(CallSite site = CallSite::here()) const { try_compare(site).value(); }
  /// Of exactly this shape (shape_mismatch).
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

  // --- The short names

  [[nodiscard]] HostLease<T> host(CallSite site = CallSite::here()) {
    return Base::rw_host(LeaseWait::never(), site);
  }
  [[nodiscard]] DeviceLease<const T> device(StreamRef stream,
                                            CallSite site = CallSite::here()) const {
    return Base::read_device(stream, LeaseWait::never(), site);
  }
  /// Throws Unsupported: there is no such backend.
  [[noreturn]] void metal(CallSite site = CallSite::here()) const {
    raise(Failure(ErrorCode::unsupported,
                  "there is no {what} backend. Use device() with a stream of a device there is.",
                  site)
              .with("what", "Metal"));
  }

  // --- Copies that go

  /// What only this copy has is saved first: of the host's on the default device, of a device's on
  /// the host. Nothing where there is no copy. Refused with access_conflict, and as copies are.
  Result<void> try_drop_host(Drop what = Drop::save, CallSite site = CallSite::here()) noexcept {
    return raw_.try_drop(Place::host(), what, site);
  }
  void drop_host(Drop what = Drop::save, CallSite site = CallSite::here()) {
    try_drop_host(what, site).value();
  }
  Result<void> try_drop_device(const Device& device, Drop what = Drop::save,
                               CallSite site = CallSite::here()) noexcept {
    return raw_.try_drop(device.place(), what, site);
  }
  void drop_device(const Device& device, Drop what = Drop::save, CallSite site = CallSite::here()) {
    try_drop_device(device, what, site).value();
  }
  void drop_device(Drop what = Drop::save, CallSite site = CallSite::here()) {
    try_drop_device(raw_.device(), what, site).value();
  }
  /// Every copy goes, and nothing is written any more.
  Result<void> try_free(CallSite site = CallSite::here()) noexcept { return raw_.try_free(site); }
  void free(CallSite site = CallSite::here()) { try_free(site).value(); }
  /// Nothing is written any more; the memory stays.
  Result<void> try_invalidate(CallSite site = CallSite::here()) noexcept {
    return raw_.try_invalidate(site);
  }
  void invalidate(CallSite site = CallSite::here()) { try_invalidate(site).value(); }

  // --- Sizes that change; the shape is flat then

  Result<void> try_resize_discard(std::size_t count, CallSite site = CallSite::here()) noexcept {
    return raw_.try_resize(count, false, {}, site);
  }
  void resize_discard(std::size_t count, CallSite site = CallSite::here()) {
    try_resize_discard(count, site).value();
  }
  /// Copies that have something move to new memory in the order of the stream; what is new was
  /// never written.
  Result<void> try_resize_keep(std::size_t count, StreamRef stream = {},
                               CallSite site = CallSite::here()) noexcept {
    return raw_.try_resize(count, true, stream, site);
  }
  void resize_keep(std::size_t count, StreamRef stream = {}, CallSite site = CallSite::here()) {
    try_resize_keep(count, stream, site).value();
  }

  // --- Policies and the end

  /// What is written elsewhere is copied there when its lease closes, and behind launches and
  /// fills; nothing: no longer. A copy that fails is counted, and made by the next access.
  Result<void> try_write_through(std::optional<Place> place,
                                 CallSite site = CallSite::here()) noexcept {
    return raw_.try_set_write_through(place, site);
  }
  void write_through(std::optional<Place> place, CallSite site = CallSite::here()) {
    try_write_through(place, site).value();
  }
  /// The copy there does not go when memory is short (coherence/pressure.hpp), or may again.
  /// Refused with invalid_device for a device that does not take part.
  Result<void> try_keep_on(Place place, bool keeps = true,
                           CallSite site = CallSite::here()) noexcept {
    return raw_.try_keep_on(place, keeps, site);
  }
  void keep_on(Place place, bool keeps = true, CallSite site = CallSite::here()) {
    try_keep_on(place, keeps, site).value();
  }
  /// Nobody will use it soon: its copies are the first of their kind to go. The next access takes
  /// that back.
  void wont_use() const noexcept { raw_.set_unwanted(); }
  /// Blocks the host until nobody uses any of its memory.
  Result<void> try_synchronize(CallSite site = CallSite::here()) const noexcept {
    return raw_.try_synchronize(site);
  }
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize(site).value(); }
  /// Every byte that was written is on the host.
  Result<void> try_flush_host(CallSite site = CallSite::here()) const noexcept {
    return raw_.try_flush_host(site);
  }
  void flush_host(CallSite site = CallSite::here()) const { try_flush_host(site).value(); }
  /// The host's copy, complete, as a buffer of its own.
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
