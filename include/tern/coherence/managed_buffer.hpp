// A ManagedBuffer is one array at one address, for the host and for devices. The driver moves its
// pages to whichever processor touches them.
//
//   ManagedBuffer<float> b(gpu, {n});
//   { auto h = b.discard_host();  std::ranges::fill(h, 0.f); }
//   b.hints().prefetch(gpu.place(), stream);
//   { auto d = b.rw_device(stream);  kernel(d.data(), d.size()); }
//   use(b.read_host()[3]);
//
// Access is by lease: read, rw or discard, by the host or by a stream. Leases put uses in order and
// copy nothing. A host lease waits for the uses of this buffer only, if the device supports
// concurrent access to managed memory; otherwise the lease waits for all work of the device.
// host_waits_for_device() returns which of the two applies. A device lease covers the work that is
// submitted to its stream while the lease is open, and leaves a mark when it closes. Streams of
// other devices of the same backend may use the buffer too, if both devices support concurrent
// access.
//
// Memory is allocated on first use. A buffer has pages of its own, because hints apply to whole
// pages: buffers of 2 MiB and more are aligned to 2 MiB, smaller ones to 64 KiB. Copies and views
// share the memory. Several threads may use the memory, each through its own object. Each x()
// throws what try_x() returns.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/storage_options.hpp"
#include "tern/buffer/use.hpp"
#include "tern/coherence/hints.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/coherence/managed_memory.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// An open access by a stream. Work that is submitted to the stream while the lease is open may use
/// the buffer. The lease closes when it is destroyed, or on close(), on any thread. A lease can be
/// moved, not copied.
template <class T>
class [[nodiscard]] ManagedDeviceLease {
 public:
  ManagedDeviceLease() noexcept = default;
  ManagedDeviceLease(StorageUse use, T* data, std::size_t size, StreamRef stream) noexcept
      : use_(std::move(use)), data_(data), size_(size), stream_(stream) {}
  ManagedDeviceLease(ManagedDeviceLease&& other) noexcept
      : use_(std::move(other.use_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        stream_(std::exchange(other.stream_, {})) {}
  ManagedDeviceLease& operator=(ManagedDeviceLease&& other) noexcept {
    ManagedDeviceLease ended(std::move(*this));
    std::swap(use_, other.use_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~ManagedDeviceLease() { close(); }

  /// Returns the address of the first element, for kernels. Returns null if the lease is closed or
  /// has no elements.
  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// The stream whose work may use the buffer.
  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }

  /// Ends the use, which covers all work submitted so far. A second call does nothing.
  void close() noexcept {
    use_.end();
    data_ = nullptr;
    size_ = 0;
  }

 private:
  StorageUse use_;
  T* data_ = nullptr;
  std::size_t size_ = 0;
  StreamRef stream_ = {};
};

/// A handle of a managed array of T. Copies share the memory.
template <HasDType T>
class ManagedBuffer {
 public:
  using value_type = T;

  /// Creates an empty handle, without elements and without a device.
  ManagedBuffer() noexcept = default;
  /// Throws what try_make() returns.
  ManagedBuffer(const Device& device, Shape shape, const StorageOptions& options = {})
      : ManagedBuffer(try_make(device, std::move(shape), options).value()) {}
  /// Creates a buffer without memory. Its kind of memory is managed, and its alignment at least
  /// that of a page, whatever the options say. Fails with unsupported if the device has no managed
  /// memory, with invalid_argument for a resource of another kind of memory, and like a buffer.
  [[nodiscard]] static Result<ManagedBuffer> try_make(const Device& device, Shape shape,
                                                      const StorageOptions& options = {}) noexcept {
    return of(ManagedMemory::try_make(device, std::move(shape), dtype_of<T>(), options));
  }

  // --- Queries. None of them allocates. device(), shape(), size_bytes() and is_allocated() are
  // those of buffer().

  /// Returns the same memory as an untyped Buffer, for copies, kernels and plans.
  [[nodiscard]] const Buffer& buffer() const noexcept { return memory_.buffer(); }
  [[nodiscard]] const Device& device() const noexcept { return buffer().device(); }
  [[nodiscard]] const Shape& shape() const noexcept { return buffer().shape(); }
  [[nodiscard]] std::size_t size() const noexcept { return buffer().size(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return buffer().size_bytes(); }
  [[nodiscard]] bool is_allocated() const noexcept { return buffer().is_allocated(); }
  /// Returns whether a host lease waits for all work of the device, because the device does not
  /// support concurrent access to managed memory. Otherwise a host lease waits for the work that
  /// uses the buffer.
  [[nodiscard]] bool host_waits_for_device() const noexcept {
    return memory_.host_waits_for_device();
  }

  /// Returns elements [first, first + count) of the same memory. Fails with invalid_view.
  [[nodiscard]] Result<ManagedBuffer> try_slice(std::size_t first, std::size_t count,
                                                CallSite site = CallSite::here()) const noexcept {
    return of(memory_.try_slice(first, count, site));
  }
  [[nodiscard]] ManagedBuffer slice(std::size_t first, std::size_t count,
                                    CallSite site = CallSite::here()) const {
    return try_slice(first, count, site).value();
  }
  /// Returns an object to give hints on this memory. Throws what Hints::try_make() returns.
  [[nodiscard]] Hints hints(HintOptions options = {}, CallSite site = CallSite::here()) const {
    return Hints(buffer(), options, site);
  }

  // --- Host leases. Opening one waits as host_waits_for_device() says.

  /// Opens a lease for reading. Fails with never_written.
  [[nodiscard]] Result<HostView<const T>> try_read_host(
      CallSite site = CallSite::here()) const noexcept {
    return buffer().template try_read_host<T>(site);
  }
  [[nodiscard]] HostView<const T> read_host(CallSite site = CallSite::here()) const {
    return try_read_host(site).value();
  }
  /// Opens a lease for reading and writing.
  [[nodiscard]] Result<HostView<T>> try_rw_host(CallSite site = CallSite::here()) noexcept {
    return Buffer(buffer()).template try_rw_host<T>(site);
  }
  [[nodiscard]] HostView<T> rw_host(CallSite site = CallSite::here()) {
    return try_rw_host(site).value();
  }
  /// Opens a lease that overwrites all elements.
  [[nodiscard]] Result<HostView<T>> try_discard_host(CallSite site = CallSite::here()) noexcept {
    return Buffer(buffer()).template try_discard_host<T>(site);
  }
  [[nodiscard]] HostView<T> discard_host(CallSite site = CallSite::here()) {
    return try_discard_host(site).value();
  }

  // --- Device leases. Opening one does not wait. Fails with never_written, device_mismatch,
  // stream_misuse.

  /// Opens a lease for reading by work on the stream.
  [[nodiscard]] Result<ManagedDeviceLease<const T>> try_read_device(
      StreamRef stream, CallSite site = CallSite::here()) const noexcept {
    return try_device<const T>(stream, Access::read, site);
  }
  [[nodiscard]] ManagedDeviceLease<const T> read_device(StreamRef stream,
                                                        CallSite site = CallSite::here()) const {
    return try_read_device(stream, site).value();
  }
  /// Opens a lease for reading and writing by work on the stream.
  [[nodiscard]] Result<ManagedDeviceLease<T>> try_rw_device(
      StreamRef stream, CallSite site = CallSite::here()) noexcept {
    return try_device<T>(stream, Access::read_write, site);
  }
  [[nodiscard]] ManagedDeviceLease<T> rw_device(StreamRef stream,
                                                CallSite site = CallSite::here()) {
    return try_rw_device(stream, site).value();
  }
  /// Opens a lease that overwrites all elements by work on the stream.
  [[nodiscard]] Result<ManagedDeviceLease<T>> try_discard_device(
      StreamRef stream, CallSite site = CallSite::here()) noexcept {
    return try_device<T>(stream, Access::discard, site);
  }
  [[nodiscard]] ManagedDeviceLease<T> discard_device(StreamRef stream,
                                                     CallSite site = CallSite::here()) {
    return try_discard_device(stream, site).value();
  }

 private:
  explicit ManagedBuffer(ManagedMemory memory) noexcept : memory_(std::move(memory)) {}
  static Result<ManagedBuffer> of(Result<ManagedMemory> memory) noexcept {
    if (!memory) return memory.failure();
    return ManagedBuffer(*std::move(memory));
  }
  template <class U>
  [[nodiscard]] Result<ManagedDeviceLease<U>> try_device(StreamRef stream, Access access,
                                                         CallSite site) const noexcept {
    Result<StorageUse> use = memory_.try_use(stream, access, site);
    if (!use) return use.failure();
    auto* const first = static_cast<std::byte*>(use->address());
    U* const data = size() == 0 ? nullptr : reinterpret_cast<U*>(first + buffer().offset_bytes());
    return ManagedDeviceLease<U>(*std::move(use), data, size(), stream);
  }

  ManagedMemory memory_;
};

}  // namespace tern
