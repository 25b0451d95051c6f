// A Buffer is an array of elements with a dtype and a shape, in memory that it shares with its
// views.
//
//   Buffer x(device, {2, 3}, DType::f32);
//   x.fill(1.0f, stream);
//   std::vector<float> host = x.to_vector<float>();
//
// A Buffer is a handle: a copy refers to the same bytes, clone() copies the bytes. Making a buffer
// allocates no memory. The storage allocates its memory once, on first use, and frees it when the
// last handle or view is gone, in stream order after all work that uses it. Every use names a
// stream or belongs to the host, and Tern orders the uses: a read waits for earlier writes, a write
// also waits for earlier reads.
//
// A view is a range of bytes, a range of elements, or the same bytes with another dtype. A view
// keeps the storage alive. A view of a view has the sum of their offsets. Invalid operations fail
// and change nothing: a range outside its parent, a misaligned dtype, a read of bytes that were
// never written, a host access to device memory.
//
// x() throws what try_x() returns. A Buffer object is 80 bytes. Several threads may use the same
// bytes through Buffer objects of their own; one object must be used by one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tern/buffer/storage_options.hpp"
#include "tern/buffer/use.hpp"
#include "tern/core/access.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// The handle. See the top of this file.
class TERN_EXPORT Buffer {
 public:
  /// Constructs an empty handle: no bytes, no device. Operations fail with not_allocated.
  Buffer() noexcept = default;
  Buffer(const Buffer&) = default;
  Buffer& operator=(const Buffer&) = default;
  /// The moved-from buffer is empty.
  Buffer(Buffer&& other) noexcept
      : storage_(std::move(other.storage_)),
        offset_(std::exchange(other.offset_, 0)),
        bytes_(std::exchange(other.bytes_, 0)),
        shape_(std::move(other.shape_)),
        dtype_(std::exchange(other.dtype_, DType::void_)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    storage_ = std::move(other.storage_);
    offset_ = std::exchange(other.offset_, 0);
    bytes_ = std::exchange(other.bytes_, 0);
    shape_ = std::move(other.shape_);
    dtype_ = std::exchange(other.dtype_, DType::void_);
    return *this;
  }
  ~Buffer() = default;
  /// Makes a buffer without memory. Throws what try_make() returns.
  Buffer(const Device& device, Shape shape, DType dtype, const StorageOptions& options = {});
  /// Makes a buffer; memory is allocated on first use. Fails with size_overflow, invalid_argument,
  /// device_mismatch, or out_of_memory if the host has no memory for the bookkeeping.
  [[nodiscard]] static Result<Buffer> try_make(const Device& device, Shape shape, DType dtype,
                                               const StorageOptions& options = {}) noexcept;
  /// Makes a buffer and allocates its memory. Also fails as allocations do.
  [[nodiscard]] static Result<Buffer> try_allocate(const Device& device, Shape shape, DType dtype,
                                                   const StorageOptions& options = {}) noexcept;
  [[nodiscard]] static Buffer allocate(const Device& device, Shape shape, DType dtype,
                                       const StorageOptions& options = {}) {
    return try_allocate(device, std::move(shape), dtype, options).value();
  }
  /// Returns a range of an existing storage as a buffer. Fails with invalid_argument for no
  /// storage, size_overflow, invalid_view, misaligned.
  [[nodiscard]] static Result<Buffer> try_over(StorageHandle storage, std::size_t offset_bytes,
                                               Shape shape, DType dtype,
                                               CallSite site = CallSite::here()) noexcept;

  // --- Properties. These functions allocate no device memory and do not wait.

  /// Returns false for an empty handle.
  [[nodiscard]] explicit operator bool() const noexcept { return bool(storage_); }
  /// Identity of the storage, shared by all views and copies. 0 for an empty handle.
  [[nodiscard]] StorageId id() const noexcept { return storage_ ? storage_->id() : StorageId{}; }
  /// The allocation and its record of uses, shared by all views and copies. Null for an empty
  /// handle.
  [[nodiscard]] const StorageHandle& storage() const noexcept { return storage_; }
  /// The device whose streams use the memory. An empty Device for an empty handle.
  [[nodiscard]] const Device& device() const noexcept;
  /// The kind of memory the storage has or will have. MemoryKind::host for an empty handle.
  [[nodiscard]] MemoryKind kind() const noexcept;
  /// Returns whether the host and kernels may read and write the memory in place.
  [[nodiscard]] Reach reach() const noexcept;
  /// Returns true for pinned and registered host memory.
  [[nodiscard]] bool is_pinned() const noexcept;
  /// Returns true if other code owns the memory.
  [[nodiscard]] bool is_external() const noexcept { return storage_ && storage_->is_external(); }
  /// The type of the elements; void for plain bytes. The extents of this handle follow: shape().
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  /// Number of bytes of this handle: of a view, those of the view.
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  /// Number of elements; 0 for void.
  [[nodiscard]] std::size_t size() const noexcept {
    return tern::size_bytes(dtype_) == 0 ? 0 : bytes_ / tern::size_bytes(dtype_);
  }
  /// Offset of the first byte in the storage.
  [[nodiscard]] std::size_t offset_bytes() const noexcept { return offset_; }
  /// Returns whether the storage has memory. False before the first use.
  [[nodiscard]] bool is_allocated() const noexcept { return storage_ && storage_->is_allocated(); }
  /// Granted bytes of the storage beyond the requested size. 0 if there is no memory yet.
  [[nodiscard]] std::size_t wasted_bytes() const noexcept;
  /// Returns the address, for comparison and diagnostics. Kernels must get device_ptr() instead.
  /// Fails with not_allocated.
  [[nodiscard]] Result<std::uintptr_t> try_address() const noexcept;
  [[nodiscard]] std::uintptr_t address(CallSite site = CallSite::here()) const {
    return try_address().value(site);
  }
  /// Returns true if both refer to the same range of the same storage, with the same dtype and
  /// shape.
  friend TERN_EXPORT bool operator==(const Buffer& a, const Buffer& b) noexcept;
  /// Returns a description such as "f32 {2, 3} at 24 of buffer 7 on 'sim:0', device memory".
  [[nodiscard]] std::string text() const;

  /// Allocates the memory now if it is not allocated. `stream` will use the memory first.
  Result<void> try_ensure_allocated(StreamRef stream = {},
                                    CallSite site = CallSite::here()) const noexcept;
  void ensure_allocated(StreamRef stream = {}, CallSite site = CallSite::here()) const {
    try_ensure_allocated(stream, site).value();
  }

  // --- Views

  /// Returns bytes [offset, offset + size) as a buffer of bytes. Fails with invalid_view, or with
  /// invalid_argument for a buffer of void.
  [[nodiscard]] Result<Buffer> try_byte_view(std::size_t offset_bytes, std::size_t bytes,
                                             CallSite site = CallSite::here()) const& noexcept;
  /// Like the overload above, but reuses the storage handle of this temporary. If the call fails,
  /// this buffer is unchanged.
  [[nodiscard]] Result<Buffer> try_byte_view(std::size_t offset_bytes, std::size_t bytes,
                                             CallSite site = CallSite::here()) && noexcept;
  [[nodiscard]] Buffer byte_view(std::size_t offset_bytes, std::size_t bytes,
                                 CallSite site = CallSite::here()) const {
    if (is_within(offset_bytes, bytes, bytes_) && dtype_ != DType::void_) [[likely]] {
      return Buffer(storage_, offset_ + offset_bytes, bytes);
    }
    return try_byte_view(offset_bytes, bytes, site).value();
  }
  /// Returns elements [first, first + count) with a one-dimensional shape. Fails with invalid_view,
  /// or with invalid_argument for a buffer of void.
  [[nodiscard]] Result<Buffer> try_slice(std::size_t first, std::size_t count,
                                         CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer slice(std::size_t first, std::size_t count,
                             CallSite site = CallSite::here()) const {
    return try_slice(first, count, site).value();
  }
  /// Returns the same elements with another shape. Fails with shape_mismatch if the number of
  /// elements differs, and with size_overflow.
  [[nodiscard]] Result<Buffer> try_reshape(Shape shape,
                                           CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer reshape(Shape shape, CallSite site = CallSite::here()) const {
    return try_reshape(std::move(shape), site).value();
  }
  /// Returns the same bytes with another dtype. The shape is kept if both dtypes have the same
  /// width, else it is one-dimensional. Fails with misaligned, size_mismatch, or invalid_argument
  /// for void.
  [[nodiscard]] Result<Buffer> try_as(DType dtype, CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer as(DType dtype, CallSite site = CallSite::here()) const {
    return try_as(dtype, site).value();
  }
  template <HasDType T>
  [[nodiscard]] Buffer as(CallSite site = CallSite::here()) const {
    return try_as(dtype_of<T>(), site).value();
  }

  // --- Host access in place

  /// Returns the elements for reading by the host. Waits for the writes of all streams. Fails with
  /// type_mismatch, not_host_accessible, never_written, and access_conflict if accesses are
  /// checked.
  template <HasDType T>
  [[nodiscard]] Result<HostView<const T>> try_read_host(
      CallSite site = CallSite::here()) const noexcept {
    return try_host<const T>(Access::read, site);
  }
  template <HasDType T>
  [[nodiscard]] HostView<const T> read_host(CallSite site = CallSite::here()) const {
    return try_read_host<T>(site).value();
  }
  /// Returns the elements for reading and writing by the host. Waits for reads and writes. Bytes
  /// that were never written have unspecified values. Also fails with read_only.
  template <HasDType T>
  [[nodiscard]] Result<HostView<T>> try_rw_host(CallSite site = CallSite::here()) noexcept {
    return try_host<T>(Access::read_write, site);
  }
  template <HasDType T>
  [[nodiscard]] HostView<T> rw_host(CallSite site = CallSite::here()) {
    return try_rw_host<T>(site).value();
  }
  /// Returns the elements for overwriting all of them: old values are not needed. Waits for reads
  /// and writes. Fails as try_rw_host() does.
  template <HasDType T>
  [[nodiscard]] Result<HostView<T>> try_discard_host(CallSite site = CallSite::here()) noexcept {
    return try_host<T>(Access::discard, site);
  }
  template <HasDType T>
  [[nodiscard]] HostView<T> discard_host(CallSite site = CallSite::here()) {
    return try_discard_host<T>(site).value();
  }

  // --- Copies to and from the caller's host memory, complete on return

  /// try_copy_to() and try_copy_from() copy all bytes and wait for the copy. They work for every
  /// kind of memory. They fail with size_mismatch if `bytes` differs from size_bytes().
  Result<void> try_copy_to(void* destination, std::size_t bytes,
                           CallSite site = CallSite::here()) const noexcept;
  Result<void> try_copy_from(const void* source, std::size_t bytes,
                             CallSite site = CallSite::here()) noexcept;
  /// The overloads for spans copy all elements and wait for the copy. T must be the buffer's dtype
  /// (type_mismatch), and the number of elements must match (size_mismatch). copy_to() and
  /// copy_from() throw what the try_ forms return.
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
  /// Copies all elements to a new vector and waits for the copy. Throws TypeMismatch, NeverWritten.
  template <HasDType T>
  [[nodiscard]] std::vector<T> to_vector(CallSite site = CallSite::here()) const {
    check_type(dtype_of<T>(), site).value();
    check_download(site).value();
    return make_vector<T>(size(), [&](std::span<T> elements) { copy_to(elements, site); });
  }
  /// Returns the only element of the buffer; waits for the copy. Fails with size_mismatch if the
  /// buffer has not exactly one element.
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

  /// With a stream, try_copy_to() and try_copy_from() copy all bytes to or from host memory
  /// (size_mismatch), on a stream of the buffer's device (device_mismatch). Returns the mark of the
  /// copy. The host memory must stay valid until the mark is done.
  Result<Mark> try_copy_to(void* destination, std::size_t bytes, StreamRef stream,
                           CallSite site = CallSite::here()) const noexcept;
  Result<Mark> try_copy_from(const void* source, std::size_t bytes, StreamRef stream,
                             CallSite site = CallSite::here()) noexcept;
  /// Like the overloads above, for elements of the buffer's dtype (type_mismatch).
  template <HasDType T>
  Result<Mark> try_copy_to(std::span<T> destination, StreamRef stream,
                           CallSite site = CallSite::here()) const noexcept {
    if (Result<void> same = check_type(dtype_of<T>(), site); !same) return same.failure();
    return try_copy_to(destination.data(), destination.size_bytes(), stream, site);
  }
  template <HasDType T>
  Mark copy_to(std::span<T> destination, StreamRef stream, CallSite site = CallSite::here()) const {
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
  /// Allocates a buffer of the same kind from the same resource and copies the bytes in stream
  /// order.
  [[nodiscard]] Result<Buffer> try_clone(StreamRef stream,
                                         CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer clone(StreamRef stream, CallSite site = CallSite::here()) const {
    return try_clone(stream, site).value();
  }
  /// Fills the buffer with a repeated pattern of 1 to 16 bytes, in stream order. The buffer must
  /// hold a whole number of patterns. Returns the mark of the fill.
  Result<Mark> try_fill_bytes(const Pattern& pattern, StreamRef stream,
                              CallSite site = CallSite::here()) noexcept;
  /// Sets every element to `value`, in stream order. T must be the buffer's dtype (type_mismatch).
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

  /// Begins a use for work that the caller submits to the stream now. Queues on the stream the
  /// waits that the access needs. Everything submitted before StorageUse::end() belongs to the use.
  /// Fails with unsupported if kernels cannot use this kind of memory in place, and with read_only,
  /// never_written, device_mismatch.
  [[nodiscard]] Result<StorageUse> try_use(StreamRef stream, Access access,
                                           CallSite site = CallSite::here()) const noexcept;
  /// Like try_use(), for work that the caller submits with its next call. Returns the address; the
  /// use ends by itself.
  [[nodiscard]] Result<void*> try_device_ptr(StreamRef stream, Access access,
                                             CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] void* device_ptr(StreamRef stream, Access access,
                                 CallSite site = CallSite::here()) const {
    return try_device_ptr(stream, access, site).value();
  }

  /// Waits until no stream uses the storage any more. If a copy from a file to these bytes, or to
  /// these bytes of a file, has failed, returns its failure.
  Result<void> try_synchronize(CallSite site = CallSite::here()) const noexcept;
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize(site).value(site); }

 private:
  friend class ForeignParts;
  /// Makes a view of bytes. Constructed in place, because moving a Shape costs as much as
  /// everything else here.
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
  [[nodiscard]] Result<void> check_view(std::size_t offset_bytes, std::size_t bytes,
                                        CallSite site) const noexcept;
  /// Checks whether a TransferGate allows copying the whole buffer to the host. Called before the
  /// host allocates memory for the copy.
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
                       std::span<T>(static_cast<T*>(memory->address), size()),
                       std::move(memory->shape));
  }

  StorageHandle storage_;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
  Shape shape_;
  DType dtype_ = DType::void_;
};

static_assert(sizeof(Buffer) == 80, "a Buffer is a handle and must stay small");

}  // namespace tern
