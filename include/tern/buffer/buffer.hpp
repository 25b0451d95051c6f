// A Buffer is elements of one type in a shape, in memory that it shares with its views.
//
// It is a handle: a copy of it names the same bytes, clone() makes new ones. Making one allocates
// nothing; its storage gets memory with its first use, once, and gives it back when the last handle
// or view is gone, behind everything that still uses it. Uses name a stream or are the host's, and
// are put in order by themselves: reading waits for the writers of these bytes, writing for their
// readers too, and for nothing else.
//
// Views are ranges of bytes, of elements, or the same bytes as another type. They keep the storage,
// and their offsets add up. What may not be (a range that leaves its parent, a type that cannot
// live at an address, bytes that nobody wrote, host access to device memory) is refused and changes
// nothing. Each x() throws what try_x() returns.
//
// A Buffer is 80 bytes. It is a value like any other: threads may share the bytes, whose order Tern
// keeps, but not one object.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tern/buffer/host_view.hpp"
#include "tern/buffer/storage.hpp"
#include "tern/core/access.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class TERN_EXPORT Buffer {
 public:
  /// Nothing: no bytes, no device.
  Buffer() noexcept = default;
  /// Throws what try_make returns.
  Buffer(const Device& device, Shape shape, DType dtype, const StorageOptions& options = {});
  /// Without memory yet. Refused with size_overflow, invalid_argument, device_mismatch,
  /// out_of_memory (of the host, for the record).
  [[nodiscard]] static Result<Buffer> try_make(const Device& device, Shape shape, DType dtype,
                                               const StorageOptions& options = {}) noexcept;
  /// With memory.
  [[nodiscard]] static Result<Buffer> try_allocate(const Device& device, Shape shape, DType dtype,
                                                   const StorageOptions& options = {}) noexcept;
  [[nodiscard]] static Buffer allocate(const Device& device, Shape shape, DType dtype,
                                       const StorageOptions& options = {}) {
    return try_allocate(device, std::move(shape), dtype, options).value();
  }
  /// All of a storage, or a range of it, as that. Refused as views are.
  [[nodiscard]] static Result<Buffer> try_over(StorageHandle storage, std::size_t offset_bytes,
                                               Shape shape, DType dtype,
                                               CallSite site = CallSite::here()) noexcept;

  // --- What it is. None of these allocates.

  [[nodiscard]] explicit operator bool() const noexcept { return bool(storage_); }
  /// The storage's: views and copies have the same one. 0 for no buffer.
  [[nodiscard]] StorageId id() const noexcept { return storage_ ? storage_->id() : StorageId{}; }
  [[nodiscard]] const StorageHandle& storage() const noexcept { return storage_; }
  [[nodiscard]] const Device& device() const noexcept;
  [[nodiscard]] StorageKind kind() const noexcept;
  [[nodiscard]] Reach reach() const noexcept;
  [[nodiscard]] bool is_pinned() const noexcept;
  [[nodiscard]] bool is_external() const noexcept { return storage_ && storage_->is_external(); }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t element_count() const noexcept {
    return size_bytes(dtype_) == 0 ? 0 : bytes_ / size_bytes(dtype_);
  }
  /// Of the first byte, in the storage.
  [[nodiscard]] std::size_t offset_bytes() const noexcept { return offset_; }
  [[nodiscard]] bool is_allocated() const noexcept { return storage_ && storage_->is_allocated(); }
  /// Allocated beyond what was asked for; 0 without memory.
  [[nodiscard]] std::size_t wasted_bytes() const noexcept;
  /// Where it is in the device's memory, to tell it from others. Work that uses it is given
  /// device_ptr(). Refused with not_allocated.
  [[nodiscard]] Result<std::uintptr_t> try_address() const noexcept;
  [[nodiscard]] std::uintptr_t address(CallSite site = CallSite::here()) const {
    return try_address().value(site);
  }
  /// The same bytes: one storage, one range, one type and shape.
  friend TERN_EXPORT bool operator==(const Buffer& a, const Buffer& b) noexcept;
  /// "f32 {2, 3} at 24 of buffer 7 on 'sim:0', device memory".
  [[nodiscard]] std::string text() const;

  /// Memory, now; for the stream if one is named.
  Result<void> try_ensure_allocated(StreamRef stream = {},
                                    CallSite site = CallSite::here()) const noexcept;
  void ensure_allocated(StreamRef stream = {}, CallSite site = CallSite::here()) const {
    try_ensure_allocated(stream, site).value();
  }

  // --- Views

  /// Bytes [offset, offset + size) of this one, as bytes. Refused with invalid_view.
  [[nodiscard]] Result<Buffer> try_view(std::size_t offset_bytes, std::size_t size_bytes,
                                        CallSite site = CallSite::here()) const& noexcept;
  /// The same with the share of this one; refused, it is what it was.
  [[nodiscard]] Result<Buffer> try_view(std::size_t offset_bytes, std::size_t size_bytes,
                                        CallSite site = CallSite::here()) && noexcept;
  [[nodiscard]] Buffer view(std::size_t offset_bytes, std::size_t size_bytes,
                            CallSite site = CallSite::here()) const {
    if (is_within(offset_bytes, size_bytes, bytes_) && dtype_ != DType::void_) [[likely]] {
      return Buffer(storage_, offset_ + offset_bytes, size_bytes);
    }
    return try_view(offset_bytes, size_bytes, site).value();
  }
  /// Elements [first, first + count), flat. Refused with invalid_view, and for void.
  [[nodiscard]] Result<Buffer> try_slice(std::size_t first, std::size_t count,
                                         CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer slice(std::size_t first, std::size_t count,
                             CallSite site = CallSite::here()) const {
    return try_slice(first, count, site).value();
  }
  /// The same elements in another shape. Refused with shape_mismatch, size_overflow.
  [[nodiscard]] Result<Buffer> try_reshape(Shape shape,
                                           CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer reshape(Shape shape, CallSite site = CallSite::here()) const {
    return try_reshape(std::move(shape), site).value();
  }
  /// The same bytes as another type, flat; in the same shape if the width is the same. Refused with
  /// misaligned, size_mismatch; with invalid_argument for void.
  [[nodiscard]] Result<Buffer> try_as(DType dtype, CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer as(DType dtype, CallSite site = CallSite::here()) const {
    return try_as(dtype, site).value();
  }
  template <HasDType T>
  [[nodiscard]] Buffer as(CallSite site = CallSite::here()) const {
    return try_as(dtype_of<T>(), site).value();
  }

  // --- The host's access in place

  /// Waits for the writers. Refused with type_mismatch, not_host_accessible, never_written.
  template <HasDType T>
  [[nodiscard]] Result<HostView<const T>> try_read_host(
      CallSite site = CallSite::here()) const noexcept {
    return try_host<const T>(Access::read, site);
  }
  template <HasDType T>
  [[nodiscard]] HostView<const T> read_host(CallSite site = CallSite::here()) const {
    return try_read_host<T>(site).value();
  }
  /// Waits for readers too. Bytes that nobody wrote are whatever they are. Also read_only.
  template <HasDType T>
  [[nodiscard]] Result<HostView<T>> try_rw_host(CallSite site = CallSite::here()) noexcept {
    return try_host<T>(Access::read_write, site);
  }
  template <HasDType T>
  [[nodiscard]] HostView<T> rw_host(CallSite site = CallSite::here()) {
    return try_rw_host<T>(site).value();
  }
  /// To write all of it.
  template <HasDType T>
  [[nodiscard]] Result<HostView<T>> try_discard_host(CallSite site = CallSite::here()) noexcept {
    return try_host<T>(Access::discard, site);
  }
  template <HasDType T>
  [[nodiscard]] HostView<T> discard_host(CallSite site = CallSite::here()) {
    return try_discard_host<T>(site).value();
  }

  // --- Copies to and from host memory of one's own, complete on return

  /// As many bytes as there are here (size_mismatch). From any kind of memory.
  Result<void> try_copy_to(void* destination, std::size_t bytes,
                           CallSite site = CallSite::here()) const noexcept;
  Result<void> try_copy_from(const void* source, std::size_t bytes,
                             CallSite site = CallSite::here()) noexcept;
  /// Of the buffer's type (type_mismatch), as many as it has.
  template <HasDType T>
  Result<void> try_copy_to(std::span<T> destination,
                           CallSite site = CallSite::here()) const noexcept {
    if (Result<void> same = check_type(dtype_of<T>(), site); !same) return same;
    return try_copy_to(destination.data(), destination.size_bytes(), site);
  }
  template <HasDType T>
  void copy_to(std::span<T> destination, CallSite site = CallSite::here()) const {
    try_copy_to(destination, site).value();
  }
  template <HasDType T>
  Result<void> try_copy_from(std::span<const T> source, CallSite site = CallSite::here()) noexcept {
    if (Result<void> same = check_type(dtype_of<T>(), site); !same) return same;
    return try_copy_from(source.data(), source.size_bytes(), site);
  }
  template <HasDType T>
  void copy_from(std::span<const T> source, CallSite site = CallSite::here()) {
    try_copy_from(source, site).value();
  }
  /// A fresh copy of all elements.
  template <HasDType T>
  [[nodiscard]] std::vector<T> to_vector(CallSite site = CallSite::here()) const {
    check_type(dtype_of<T>(), site).value();
    check_download(site).value();
    return make_vector<T>(element_count(), [&](std::span<T> elements) { copy_to(elements, site); });
  }
  /// The one element there is (size_mismatch).
  template <HasDType T>
  [[nodiscard]] Result<T> try_item(CallSite site = CallSite::here()) const noexcept {
    if (Result<void> single = check_item(dtype_of<T>(), site); !single) return single.failure();
    T value;
    if (Result<void> copied = try_copy_to(&value, sizeof(T), site); !copied) {
      return copied.failure();
    }
    return value;
  }
  template <HasDType T>
  [[nodiscard]] T item(CallSite site = CallSite::here()) const {
    return try_item<T>(site).value();
  }

  // --- In stream order

  /// Copies all bytes to or from host memory (size_mismatch), on a stream of the buffer's device
  /// (device_mismatch). The host memory must stay valid until the returned mark is done.
  Result<Mark> try_copy_to(void* destination, std::size_t bytes, StreamRef stream,
                           CallSite site = CallSite::here()) const noexcept;
  Result<Mark> try_copy_from(const void* source, std::size_t bytes, StreamRef stream,
                             CallSite site = CallSite::here()) noexcept;
  /// Elements of the buffer's type (type_mismatch).
  template <HasDType T>
  Result<Mark> try_copy_to(std::span<T> destination, StreamRef stream,
                           CallSite site = CallSite::here()) const noexcept {
    if (Result<void> same = check_type(dtype_of<T>(), site); !same) return same.failure();
    return try_copy_to(destination.data(), destination.size_bytes(), stream, site);
  }
  template <HasDType T>
  Mark copy_to(std::span<T> destination, StreamRef stream,
               CallSite site = CallSite::here()) const {
    return try_copy_to(destination, stream, site).value();
  }
  template <HasDType T>
  Result<Mark> try_copy_from(std::span<const T> source, StreamRef stream,
                             CallSite site = CallSite::here()) noexcept {
    if (Result<void> same = check_type(dtype_of<T>(), site); !same) return same.failure();
    return try_copy_from(source.data(), source.size_bytes(), stream, site);
  }
  template <HasDType T>
  Mark copy_from(std::span<const T> source, StreamRef stream, CallSite site = CallSite::here()) {
    return try_copy_from(source, stream, site).value();
  }
  /// New memory of the same kind and resource with the same bytes.
  [[nodiscard]] Result<Buffer> try_clone(StreamRef stream,
                                         CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer clone(StreamRef stream, CallSite site = CallSite::here()) const {
    return try_clone(stream, site).value();
  }
  /// Repeats a pattern of 1 to 16 bytes, of which there must be a whole number.
  Result<Mark> try_fill_bytes(const Pattern& pattern, StreamRef stream,
                              CallSite site = CallSite::here()) noexcept;
  /// Every element; of the buffer's type (type_mismatch).
  template <HasDType T>
  Result<Mark> try_fill(const T& value, StreamRef stream,
                        CallSite site = CallSite::here()) noexcept {
    if (Result<void> same = check_type(dtype_of<T>(), site); !same) return same.failure();
    Pattern pattern;
    pattern.width_bytes = sizeof(T);
    std::memcpy(pattern.bytes, &value, sizeof(T));
    return try_fill_bytes(pattern, stream, site);
  }
  template <HasDType T>
  Mark fill(const T& value, StreamRef stream, CallSite site = CallSite::here()) {
    return try_fill(value, stream, site).value();
  }

  /// The address for work that the caller submits to the stream at once: what it needs is waited
  /// for on the stream, and everything submitted up to `StorageUse::end` counts as the use. (The
  /// kernel must be able to use the memory: not_host_accessible is its counterpart, unsupported.)
  [[nodiscard]] Result<StorageUse> try_use(StreamRef stream, Access access,
                                           CallSite site = CallSite::here()) const noexcept;
  /// The same for work that is submitted next, by one call: the use ends with it.
  [[nodiscard]] Result<void*> try_device_ptr(StreamRef stream, Access access,
                                             CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] void* device_ptr(StreamRef stream, Access access,
                                 CallSite site = CallSite::here()) const {
    return try_device_ptr(stream, access, site).value();
  }

  /// Blocks the host until nobody uses the storage any more.
  Result<void> try_synchronize() const noexcept;
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize().value(site); }

 private:
  /// Bytes, made where they are wanted: a shape that is moved costs as much as all the rest.
  Buffer(const StorageHandle& storage, std::size_t offset, std::size_t bytes) noexcept
      : storage_(storage),
        offset_(offset),
        bytes_(bytes),
        shape_(Shape::flat(bytes)),
        dtype_(DType::byte) {}
  Buffer(StorageHandle storage, std::size_t offset, std::size_t bytes, Shape shape,
         DType dtype) noexcept
      : storage_(std::move(storage)),
        offset_(offset),
        bytes_(bytes),
        shape_(std::move(shape)),
        dtype_(dtype) {}

  [[nodiscard]] Result<void> check_type(DType wanted, CallSite site) const noexcept;
  [[nodiscard]] Result<void> check_item(DType wanted, CallSite site) const noexcept;
  [[nodiscard]] Result<void> check_there(CallSite site) const noexcept;
  [[nodiscard]] Result<void> check_view(std::size_t offset_bytes, std::size_t size_bytes,
                                        CallSite site) const noexcept;
  /// May all of it be copied to the host? Before the host makes room for it.
  [[nodiscard]] Result<void> check_download(CallSite site) const noexcept;
  struct HostMemory {
    HostAccess access;
    void* address = nullptr;
    Shape shape = {};
  };
  [[nodiscard]] Result<HostMemory> try_host_memory(Access access, CallSite site) const noexcept;
  template <class T>
  [[nodiscard]] Result<HostView<T>> try_host(Access access, CallSite site) const noexcept {
    if (Result<void> same = check_type(dtype_of<T>(), site); !same) return same.failure();
    Result<HostMemory> memory = try_host_memory(access, site);
    if (!memory) return memory.failure();
    return HostView<T>(std::move(memory->access),
                       std::span<T>(static_cast<T*>(memory->address), element_count()),
                       std::move(memory->shape));
  }

  StorageHandle storage_;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
  Shape shape_;
  DType dtype_ = DType::void_;
};

static_assert(sizeof(Buffer) == 80, "a Buffer is a handle: keep it small, and say so above");

}  // namespace tern
