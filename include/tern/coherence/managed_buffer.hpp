// A ManagedBuffer is one array at one address, for the host and for devices: the driver moves its
// pages to whoever touches them.
//
//   ManagedBuffer<float> b(gpu, {n});
//   { auto h = b.discard_host();  std::ranges::fill(h, 0.f); }
//   b.hints().prefetch(gpu.place(), stream);
//   { auto d = b.rw_device(stream);  kernel(d.data(), d.size()); }
//   use(b.read_host()[3]);
//
// Access is by lease, as with any buffer: read, rw or discard, by the host or by a stream. Leases
// put uses in order and move nothing. A host lease waits for this buffer's own uses, whatever other
// streams do, wherever host and device may use managed memory at the same time; where they may not
// it waits for the device, and host_wait_scope() says which. A device lease covers what is
// submitted to its stream while it is open; closing it marks the stream. Streams of other devices
// of the same kind may use the buffer too.
//
// Memory comes with the first use and has pages of its own, because advice is about pages: 2 MiB
// are aligned to 2 MiB, less to 64 KiB. Copies and views are the same memory; threads may share it,
// but not one object. Each x() throws what try_x() returns.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/host_view.hpp"
#include "tern/buffer/storage.hpp"
#include "tern/coherence/hints.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

struct ManagedOptions {
  /// Of managed memory. None: the device's default resource for it.
  ResourceHandle resource = {};
  Contents contents = Contents::uninitialized;
  Tag tag = {};
  /// Host accesses that collide are refused (access_conflict). Unset: as TERN_CHECKED says.
  std::optional<bool> checked = {};
  CallSite site = CallSite::here();
};

/// Whose work a host lease waits for.
enum class HostWaitScope : std::uint8_t {
  buffer,  // what uses the buffer
  device,  // everything on the device: it must be idle while the host uses managed memory
};

/// The part of a managed buffer that does not depend on the type.
class TERN_EXPORT ManagedMemory {
 public:
  static constexpr std::size_t usual_alignment = std::size_t{2} << 20;
  static constexpr std::size_t small_alignment = std::size_t{64} << 10;

  /// None.
  ManagedMemory() noexcept = default;
  /// Refused with unsupported where the device has no managed memory, invalid_argument for a
  /// resource of another kind, and as buffers are.
  [[nodiscard]] static Result<ManagedMemory> try_make(const Device& device, Shape shape,
                                                      DType dtype,
                                                      const ManagedOptions& options) noexcept;
  [[nodiscard]] Result<ManagedMemory> try_slice(std::size_t first, std::size_t count,
                                                CallSite site) const noexcept;

  [[nodiscard]] const Buffer& buffer() const noexcept { return buffer_; }
  [[nodiscard]] HostWaitScope host_wait_scope() const noexcept;

  /// A use of all of it by a stream: a device's own, or of another one that shares the memory.
  [[nodiscard]] Result<StorageUse> try_use(StreamRef stream, Access access,
                                           CallSite site) const noexcept;

 private:
  explicit ManagedMemory(Buffer buffer) noexcept : buffer_(std::move(buffer)) {}

  Buffer buffer_;
};

/// What is submitted to the stream while it lives uses the buffer. Closes with its end, or when it
/// is told to. Moves, does not copy; may close on another thread.
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

  /// Where kernels find the first element; null when it is closed, and for none.
  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }

  /// What was submitted up to now was the use. The second time nothing.
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

template <HasDType T>
class ManagedBuffer {
 public:
  using value_type = T;

  /// Nothing: no elements, no device.
  ManagedBuffer() noexcept = default;
  /// Throws what try_make returns.
  ManagedBuffer(const Device& device, Shape shape, const ManagedOptions& options = {})
      : ManagedBuffer(try_make(device, std::move(shape), options).value()) {}
  /// Without memory yet.
  [[nodiscard]] static Result<ManagedBuffer> try_make(const Device& device, Shape shape,
                                                      const ManagedOptions& options = {}) noexcept {
    return of(ManagedMemory::try_make(device, std::move(shape), dtype_of<T>(), options));
  }

  // --- What it is. None of these allocates.

  /// The same memory as a buffer of any type: for copies, kernels and plans.
  [[nodiscard]] const Buffer& buffer() const noexcept { return memory_.buffer(); }
  [[nodiscard]] const Device& device() const noexcept { return buffer().device(); }
  [[nodiscard]] const Shape& shape() const noexcept { return buffer().shape(); }
  [[nodiscard]] std::size_t size() const noexcept { return buffer().element_count(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return buffer().bytes(); }
  [[nodiscard]] bool is_allocated() const noexcept { return buffer().is_allocated(); }
  [[nodiscard]] HostWaitScope host_wait_scope() const noexcept { return memory_.host_wait_scope(); }

  /// Elements [first, first + count). Refused with invalid_view.
  [[nodiscard]] Result<ManagedBuffer> try_view(std::size_t first, std::size_t count,
                                               CallSite site = CallSite::here()) const noexcept {
    return of(memory_.try_slice(first, count, site));
  }
  [[nodiscard]] ManagedBuffer view(std::size_t first, std::size_t count,
                                   CallSite site = CallSite::here()) const {
    return try_view(first, count, site).value();
  }
  [[nodiscard]] Hints hints(HintOptions options = {}, CallSite site = CallSite::here()) const {
    return Hints(buffer(), options, site);
  }

  // --- The host's turn: blocks until what it needs is done (host_wait_scope)

  /// Refused with never_written.
  [[nodiscard]] Result<HostView<const T>> try_read_host(
      CallSite site = CallSite::here()) const noexcept {
    return buffer().template try_read_host<T>(site);
  }
  [[nodiscard]] HostView<const T> read_host(CallSite site = CallSite::here()) const {
    return try_read_host(site).value();
  }
  [[nodiscard]] Result<HostView<T>> try_rw_host(CallSite site = CallSite::here()) noexcept {
    return Buffer(buffer()).template try_rw_host<T>(site);
  }
  [[nodiscard]] HostView<T> rw_host(CallSite site = CallSite::here()) {
    return try_rw_host(site).value();
  }
  /// To write all of it.
  [[nodiscard]] Result<HostView<T>> try_discard_host(CallSite site = CallSite::here()) noexcept {
    return Buffer(buffer()).template try_discard_host<T>(site);
  }
  [[nodiscard]] HostView<T> discard_host(CallSite site = CallSite::here()) {
    return try_discard_host(site).value();
  }

  // --- A stream's turn: never blocks. Refused with never_written, device_mismatch, stream_misuse

  [[nodiscard]] Result<ManagedDeviceLease<const T>> try_read_device(
      StreamRef stream, CallSite site = CallSite::here()) const noexcept {
    return try_device<const T>(stream, Access::read, site);
  }
  [[nodiscard]] ManagedDeviceLease<const T> read_device(StreamRef stream,
                                                        CallSite site = CallSite::here()) const {
    return try_read_device(stream, site).value();
  }
  [[nodiscard]] Result<ManagedDeviceLease<T>> try_rw_device(
      StreamRef stream, CallSite site = CallSite::here()) noexcept {
    return try_device<T>(stream, Access::read_write, site);
  }
  [[nodiscard]] ManagedDeviceLease<T> rw_device(StreamRef stream,
                                                CallSite site = CallSite::here()) {
    return try_rw_device(stream, site).value();
  }
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
