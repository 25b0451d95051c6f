// An Array<T> is a typed array in memory of a device.
//
//   auto x = Array<float>::zeros(device, 1024);
//   View<float> view = x.view(stream, Access::read_write);  // pass to a kernel on `stream`
//   std::vector<float> host = x.to_vector();
//
// T is any trivially copyable type; a default constructor is not needed. An Array allocates its
// memory when it is made. An Array is a handle: copies share one storage. When the last handle is
// gone, the memory is freed in stream order, after all work that uses it. The object itself is 24
// bytes: a storage handle, an address and a size.
//
// To get an address for a kernel, call kernel_view() with the stream on which the kernel runs and
// the access of the kernel. Tern then orders the kernel after conflicting work of other streams.
// Everything that the type does not guarantee is checked: sizes do not overflow, ranges stay inside
// the array, streams belong to the array's device.
//
// x() throws what try_x() returns. Several threads may use the same bytes through arrays of their
// own; one Array object must be used by one thread at a time.

#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/storage_options.hpp"
#include "tern/buffer/use.hpp"
#include "tern/buffer/view.hpp"
#include "tern/core/access.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/raw_array.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

template <class T>
class GrowingArray;
template <class T>
class Scalar;

/// The typed handle. See the top of this file.
template <class T>
class Array {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved as bytes");
  static_assert(!std::is_const_v<T> && !std::is_volatile_v<T>, "an array of values");
  static_assert(view_has_fixed_layout<T> && view_has_fixed_layout<const T>);

 public:
  using value_type = T;

  /// Constructs an array without elements or memory.
  Array() noexcept = default;

  // --- Construction. Fails with size_overflow, out_of_memory, out_of_budget, invalid_argument.

  /// Allocates elements without a value. Reading an element before it is written fails with
  /// never_written.
  [[nodiscard]] static Result<Array> try_uninitialized(
      const Device& device, std::size_t count, const StorageOptions& options = {}) noexcept {
    return wrap(RawArray::try_allocate(device, count, sizeof(T), options));
  }
  [[nodiscard]] static Array uninitialized(const Device& device, std::size_t count,
                                           const StorageOptions& options = {}) {
    return try_uninitialized(device, count, options).value();
  }
  /// Allocates from `resource`. This is the fastest way to make an array.
  [[nodiscard]] static Result<Array> try_uninitialized(
      const ResourceHandle& resource, std::size_t count,
      const StorageOptions& options = {}) noexcept {
    return wrap(RawArray::try_allocate(resource, count, sizeof(T), options));
  }
  [[nodiscard]] static Array uninitialized(const ResourceHandle& resource, std::size_t count,
                                           const StorageOptions& options = {}) {
    return Array(RawArray::allocate(resource, count, sizeof(T), options));
  }
  /// Allocates elements whose bytes are all 0.
  [[nodiscard]] static Result<Array> try_zeros(const Device& device, std::size_t count,
                                               StorageOptions options = {}) noexcept {
    options.contents = Contents::zero;
    return wrap(RawArray::try_allocate(device, count, sizeof(T), options));
  }
  [[nodiscard]] static Array zeros(const Device& device, std::size_t count,
                                   StorageOptions options = {}) {
    return try_zeros(device, count, std::move(options)).value();
  }
  /// Allocates an array and copies `elements` into it. The caller may change `elements` as soon as
  /// the call returns.
  [[nodiscard]] static Result<Array> try_from(const Device& device, std::span<const T> elements,
                                              const StorageOptions& options = {}) noexcept {
    Result<Array> array = try_uninitialized(device, elements.size(), options);
    if (!array) return array;
    if (Result<void> copied = array->try_copy_from(elements, options.site); !copied) {
      return copied.failure();
    }
    return array;
  }
  [[nodiscard]] static Array from(const Device& device, std::span<const T> elements,
                                  const StorageOptions& options = {}) {
    return try_from(device, elements, options).value();
  }
  /// Returns the bytes of a buffer as elements of T, in the same storage. Allocates the buffer's
  /// memory if it has none yet. Fails with type_mismatch if T has a dtype and the buffer's dtype is
  /// neither that nor byte, with misaligned, and with size_mismatch.
  [[nodiscard]] static Result<Array> try_over(const Buffer& buffer,
                                              CallSite site = CallSite::here()) noexcept {
    if constexpr (HasDType<T>) {
      if (buffer.dtype() != dtype_of<T>() && buffer.dtype() != DType::byte) {
        const Result<HostView<const T>> refused = buffer.template try_read_host<T>(site);
        return refused.failure();
      }
    }
    return wrap(RawArray::try_over(buffer, alignof(T), sizeof(T), site));
  }

  // --- Properties. These functions allocate nothing and do not wait.

  /// Number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return raw_.size_bytes() / sizeof(T); }
  /// Returns true for an array without elements, with a device or without.
  [[nodiscard]] bool empty() const noexcept { return raw_.size_bytes() == 0; }
  /// Number of bytes of the elements, without the spare capacity.
  [[nodiscard]] std::size_t size_bytes() const noexcept { return raw_.size_bytes(); }
  /// Number of elements up to which resize() can grow the array in place.
  [[nodiscard]] std::size_t capacity() const noexcept { return raw_.capacity_bytes() / sizeof(T); }
  /// Identity of the storage. 0 for an empty array.
  [[nodiscard]] StorageId id() const noexcept {
    return raw_.storage() ? raw_.storage()->id() : StorageId{};
  }
  /// The allocation and its record of uses, shared with slices. Null for an empty array.
  [[nodiscard]] const StorageHandle& storage() const noexcept { return raw_.storage(); }
  /// The address, for comparison and diagnostics. Kernels must get a kernel_view() instead.
  [[nodiscard]] std::uintptr_t address() const noexcept {
    return reinterpret_cast<std::uintptr_t>(raw_.address());
  }
  /// Returns the array as a Buffer of T's dtype, or of bytes if T has no dtype.
  [[nodiscard]] Buffer buffer() const {
    if constexpr (HasDType<T>) {
      return raw_.buffer(dtype_of<T>(), sizeof(T));
    } else {
      return raw_.buffer(DType::byte, 1);
    }
  }

  // --- Use in stream order

  /// Returns a view for kernels that the caller submits to `stream` next. Queues on the stream the
  /// waits that the access needs, and records the use. The use covers all work that the stream has
  /// when another user first has to wait for it. Does not block the host, unless the device of an
  /// earlier use cannot be waited for by a stream. Fails with device_mismatch, never_written,
  /// read_only, access_conflict.
  [[nodiscard]] Result<View<T>> try_kernel_view(StreamRef stream, Access access,
                                                CallSite site = CallSite::here()) noexcept {
    if (Result<void> begun = raw_.try_kernel_view(stream, access, site); !begun)
      return begun.failure();
    return View<T>(data(), size());
  }
  [[nodiscard]] View<T> kernel_view(StreamRef stream, Access access,
                                    CallSite site = CallSite::here()) {
    return try_kernel_view(stream, access, site).value();
  }
  /// Returns a view for kernels that only read.
  [[nodiscard]] Result<View<const T>> try_kernel_view(
      StreamRef stream, CallSite site = CallSite::here()) const noexcept {
    if (Result<void> begun = raw_.try_kernel_view(stream, Access::read, site); !begun) {
      return begun.failure();
    }
    return View<const T>(data(), size());
  }
  [[nodiscard]] View<const T> kernel_view(StreamRef stream,
                                          CallSite site = CallSite::here()) const {
    return try_kernel_view(stream, site).value();
  }

  /// Returns elements [first, first + count) as an array that shares the storage. Fails with
  /// invalid_view.
  [[nodiscard]] Result<Array> try_slice(std::size_t first, std::size_t count,
                                        CallSite site = CallSite::here()) const noexcept {
    return wrap(raw_.try_slice(first, count, sizeof(T), site));
  }
  [[nodiscard]] Array slice(std::size_t first, std::size_t count,
                            CallSite site = CallSite::here()) const {
    if (!is_within(first, count, size())) [[unlikely]]
      return try_slice(first, count, site).value();
    return Array(raw_.inner(first * sizeof(T), count * sizeof(T)));
  }

  /// Changes the number of elements. Existing elements keep their values; new elements have no
  /// value. The array grows in place if the memory is large enough and no other handle or slice may
  /// own the bytes behind the array. Otherwise the elements are copied in stream order to new
  /// memory, and other handles keep the old memory. New memory has room for half as many elements
  /// again (capacity()) if that much can be allocated, so repeated small steps copy each element
  /// only a few times. Fails with invalid_argument if the array does not begin at the start of its
  /// storage, not_allocated if it has no storage, unsupported if no resource allocated its memory,
  /// device_mismatch, and as allocations do.
  Result<void> try_resize(std::size_t count, StreamRef stream,
                          CallSite site = CallSite::here()) noexcept {
    return raw_.try_resize(count, sizeof(T), stream, site);
  }
  void resize(std::size_t count, StreamRef stream, CallSite site = CallSite::here()) {
    try_resize(count, stream, site).value();
  }

  /// Sets every element to `value`, in stream order, with the device's fill operation. T may have
  /// up to 16 bytes. Returns the mark of the fill. Fails like any use (device_mismatch, read_only).
  Result<Mark> try_fill(const T& value, StreamRef stream,
                        CallSite site = CallSite::here()) noexcept {
    static_assert(sizeof(T) <= Pattern::max_bytes, "devices fill with up to 16 bytes");
    Pattern pattern;
    pattern.width_bytes = sizeof(T);
    std::memcpy(pattern.bytes, &value, sizeof(T));
    return raw_.try_fill(pattern, stream, site);
  }
  Mark fill(const T& value, StreamRef stream, CallSite site = CallSite::here()) {
    return try_fill(value, stream, site).value();
  }

  // --- Copies to and from host memory

  /// Copies all elements to `elements` and waits for the copy. Fails with size_mismatch if the
  /// number of elements differs.
  Result<void> try_copy_to(std::span<T> elements, CallSite site = CallSite::here()) const noexcept {
    const Result<Mark> copied = raw_.try_read(elements.data(), elements.size_bytes(), {}, site);
    return copied ? Result<void>() : Result<void>(copied.failure());
  }
  void copy_to(std::span<T> elements, CallSite site = CallSite::here()) const {
    try_copy_to(elements, site).value();
  }
  /// Copies in stream order and returns the mark of the copy. The stream must belong to the array's
  /// device (device_mismatch). `elements` must stay valid until the mark is done.
  Result<Mark> try_copy_to(std::span<T> elements, StreamRef stream,
                           CallSite site = CallSite::here()) const noexcept {
    return raw_.try_read(elements.data(), elements.size_bytes(), stream, site);
  }
  Mark copy_to(std::span<T> elements, StreamRef stream, CallSite site = CallSite::here()) const {
    return try_copy_to(elements, stream, site).value();
  }
  /// Copies `elements` to the array and waits for the copy. Fails with size_mismatch.
  Result<void> try_copy_from(std::span<const T> elements,
                             CallSite site = CallSite::here()) noexcept {
    const Result<Mark> copied = raw_.try_write(elements.data(), elements.size_bytes(), {}, site);
    return copied ? Result<void>() : Result<void>(copied.failure());
  }
  void copy_from(std::span<const T> elements, CallSite site = CallSite::here()) {
    try_copy_from(elements, site).value();
  }
  /// Copies in stream order and returns the mark of the copy. `elements` must stay valid until the
  /// mark is done. Fails with size_mismatch, device_mismatch.
  Result<Mark> try_copy_from(std::span<const T> elements, StreamRef stream,
                             CallSite site = CallSite::here()) noexcept {
    return raw_.try_write(elements.data(), elements.size_bytes(), stream, site);
  }
  Mark copy_from(std::span<const T> elements, StreamRef stream, CallSite site = CallSite::here()) {
    return try_copy_from(elements, stream, site).value();
  }
  /// Copies all elements to a new vector and waits for the copy.
  [[nodiscard]] std::vector<T> to_vector(
      CallSite site = CallSite::here()) const requires std::is_default_constructible_v<T> {
    raw_.check_download(site).value();
    return make_vector<T>(size(), [&](std::span<T> elements) { copy_to(elements, site); });
  }

  /// Returns the same bytes as elements of another type, in the same storage: nothing is allocated
  /// or charged. Fails with size_mismatch, misaligned.
  template <class U>
  [[nodiscard]] Result<Array<U>> try_as(CallSite site = CallSite::here()) const noexcept {
    return Array<U>::wrap(
        RawArray::try_over(raw_.buffer(DType::byte, 1), alignof(U), sizeof(U), site));
  }
  template <class U>
  [[nodiscard]] Array<U> as(CallSite site = CallSite::here()) const {
    return try_as<U>(site).value();
  }

 private:
  template <class U>
  friend class Array;
  friend class GrowingArray<T>;
  friend class Scalar<T>;

  [[nodiscard]] T* data() const noexcept { return reinterpret_cast<T*>(raw_.address()); }
  [[nodiscard]] static Result<Array> wrap(Result<RawArray> raw) noexcept {
    if (!raw) return raw.failure();
    return Array(*std::move(raw));
  }
  explicit Array(RawArray&& raw) noexcept : raw_(std::move(raw)) {}

  RawArray raw_;
};

static_assert(sizeof(Array<float>) == 24 && std::is_standard_layout_v<Array<float>>,
              "an Array is a storage, an address and a size");

}  // namespace tern
