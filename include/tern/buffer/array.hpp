// An Array<T> is elements of a C++ type in memory of a device: the typed handle of a storage.
//
// T is any type that may be moved as bytes; it need not have a default constructor. An array has
// its memory from the beginning. Like every handle it is shared by copies, and ends with the last
// of them, behind the work that uses it. It adds an address and a count to the storage, nothing
// else: 24 bytes.
//
// An address for kernels comes with the stream they run on and what they do there (view()), so that
// other streams can be kept in order. What the type does not fix is checked: sizes do not wrap,
// ranges stay inside, streams are of the array's device. Each x() throws what try_x() returns.
// Arrays share bytes between threads as buffers do, but one object belongs to one thread.

#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/storage.hpp"
#include "tern/buffer/view.hpp"
#include "tern/core/access.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// The part of an array that does not depend on its type. Sizes are in bytes.
class TERN_EXPORT RawArray {
 public:
  RawArray() noexcept = default;
  RawArray(const RawArray&) noexcept = default;
  /// What is moved from has no elements.
  RawArray(RawArray&& other) noexcept
      : storage_(std::move(other.storage_)),
        address_(std::exchange(other.address_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  RawArray& operator=(RawArray other) noexcept {
    std::swap(storage_, other.storage_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  /// Memory for `count` elements; from the options' resource, else the device's default.
  [[nodiscard]] static Result<RawArray> try_allocate(const Device& device, std::size_t count,
                                                     std::size_t element_bytes,
                                                     const StorageOptions& options) noexcept;
  [[nodiscard]] static Result<RawArray> try_allocate(const ResourceHandle& resource,
                                                     std::size_t count, std::size_t element_bytes,
                                                     const StorageOptions& options) noexcept;
  [[nodiscard]] static RawArray allocate(const ResourceHandle& resource, std::size_t count,
                                         std::size_t element_bytes, const StorageOptions& options);
  /// The bytes of a buffer, which gets memory now if it has none.
  [[nodiscard]] static Result<RawArray> try_over(const Buffer& buffer, std::size_t alignment,
                                                 std::size_t element_bytes, CallSite site) noexcept;

  [[nodiscard]] const StorageHandle& storage() const noexcept { return storage_; }
  [[nodiscard]] std::byte* address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t capacity_bytes() const noexcept;

  /// A range that is inside.
  [[nodiscard]] RawArray inner(std::size_t offset, std::size_t bytes) const noexcept {
    return RawArray(storage_, address_ + offset, bytes);
  }
  [[nodiscard]] Result<RawArray> try_slice(std::size_t offset, std::size_t bytes,
                                           std::size_t element_bytes, CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_resize(std::size_t count, std::size_t element_bytes,
                                        StreamRef stream, CallSite site) noexcept;
  [[nodiscard]] Result<StorageUse> try_use(StreamRef stream, Access access,
                                           CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_view(StreamRef stream, Access access,
                                      CallSite site) const noexcept;
  /// May all of it be copied to the host? Before the host makes room for it.
  [[nodiscard]] Result<void> check_download(CallSite site) const noexcept;
  [[nodiscard]] Result<Mark> try_read(void* to, std::size_t bytes, StreamRef stream,
                                      CallSite site) const noexcept;
  [[nodiscard]] Result<Mark> try_write(const void* from, std::size_t bytes, StreamRef stream,
                                       CallSite site) noexcept;
  [[nodiscard]] Result<Mark> try_fill(const Pattern& pattern, StreamRef stream,
                                      CallSite site) noexcept;
  [[nodiscard]] Buffer buffer(DType dtype, std::size_t element_bytes) const;

 private:
  RawArray(StorageHandle storage, std::byte* address, std::size_t bytes) noexcept
      : storage_(std::move(storage)), address_(address), bytes_(bytes) {}
  [[nodiscard]] std::size_t offset() const noexcept;

  StorageHandle storage_;
  std::byte* address_ = nullptr;
  std::size_t bytes_ = 0;
};

template <class T>
class Array {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved as bytes");
  static_assert(!std::is_const_v<T> && !std::is_volatile_v<T>, "an array of values");
  static_assert(view_has_fixed_layout<T> && view_has_fixed_layout<const T>);

 public:
  using value_type = T;

  /// No elements, no memory.
  Array() noexcept = default;

  // --- Making one. Refused with size_overflow, out_of_memory, out_of_budget, invalid_argument.

  /// Elements that are to be written before they are read.
  [[nodiscard]] static Result<Array> try_uninitialized(
      const Device& device, std::size_t count, const StorageOptions& options = {}) noexcept {
    return wrap(RawArray::try_allocate(device, count, sizeof(T), options));
  }
  [[nodiscard]] static Array uninitialized(const Device& device, std::size_t count,
                                           const StorageOptions& options = {}) {
    return try_uninitialized(device, count, options).value();
  }
  /// The same from a resource of one's own: the shortest way there is.
  [[nodiscard]] static Result<Array> try_uninitialized(
      const ResourceHandle& resource, std::size_t count,
      const StorageOptions& options = {}) noexcept {
    return wrap(RawArray::try_allocate(resource, count, sizeof(T), options));
  }
  [[nodiscard]] static Array uninitialized(const ResourceHandle& resource, std::size_t count,
                                           const StorageOptions& options = {}) {
    return Array(RawArray::allocate(resource, count, sizeof(T), options));
  }
  [[nodiscard]] static Result<Array> try_zeros(const Device& device, std::size_t count,
                                               StorageOptions options = {}) noexcept {
    options.contents = Contents::zero;
    return wrap(RawArray::try_allocate(device, count, sizeof(T), options));
  }
  [[nodiscard]] static Array zeros(const Device& device, std::size_t count,
                                   StorageOptions options = {}) {
    return try_zeros(device, count, std::move(options)).value();
  }
  /// A copy of host memory, which may be changed as soon as the call returns.
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
  /// The bytes of a buffer as elements; the same storage. Refused with type_mismatch where T has a
  /// dtype and the buffer another that is not byte; with misaligned, size_mismatch.
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

  // --- What it is

  [[nodiscard]] std::size_t size() const noexcept { return raw_.bytes() / sizeof(T); }
  [[nodiscard]] bool empty() const noexcept { return raw_.bytes() == 0; }
  [[nodiscard]] std::size_t bytes() const noexcept { return raw_.bytes(); }
  /// Elements that resize() can reach without moving the others.
  [[nodiscard]] std::size_t capacity() const noexcept { return raw_.capacity_bytes() / sizeof(T); }
  [[nodiscard]] StorageId id() const noexcept {
    return raw_.storage() ? raw_.storage()->id() : StorageId{};
  }
  [[nodiscard]] const StorageHandle& storage() const noexcept { return raw_.storage(); }
  /// To tell it from others; kernels get a view().
  [[nodiscard]] std::uintptr_t address() const noexcept {
    return reinterpret_cast<std::uintptr_t>(raw_.address());
  }
  /// As a buffer of its dtype; of bytes, where T has none.
  [[nodiscard]] Buffer buffer() const {
    if constexpr (HasDType<T>) {
      return raw_.buffer(dtype_of<T>(), sizeof(T));
    } else {
      return raw_.buffer(DType::byte, 1);
    }
  }

  // --- Use

  /// For kernels that are submitted to the stream next: waits are queued there, and the use is on
  /// record, up to what the stream has when somebody first has to wait for it.
  [[nodiscard]] Result<View<T>> try_view(StreamRef stream, Access access,
                                         CallSite site = CallSite::here()) noexcept {
    if (Result<void> begun = raw_.try_view(stream, access, site); !begun) return begun.failure();
    return View<T>(data(), size());
  }
  [[nodiscard]] View<T> view(StreamRef stream, Access access, CallSite site = CallSite::here()) {
    return try_view(stream, access, site).value();
  }
  /// To read.
  [[nodiscard]] Result<View<const T>> try_view(StreamRef stream,
                                               CallSite site = CallSite::here()) const noexcept {
    if (Result<void> begun = raw_.try_view(stream, Access::read, site); !begun) {
      return begun.failure();
    }
    return View<const T>(data(), size());
  }
  [[nodiscard]] View<const T> view(StreamRef stream, CallSite site = CallSite::here()) const {
    return try_view(stream, site).value();
  }

  /// Elements [first, first + count) of the same storage. Refused with invalid_view.
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

  /// More or fewer elements; those that stay keep their values, new ones have any. In place where
  /// the memory allows it, and behind the array is nothing that another handle or slice may have;
  /// else they move in stream order, and the others keep the old memory. Memory that is new has
  /// room for half as many elements more (capacity()) where there is room for that, so that a
  /// series of small steps moves each element a few times. For arrays that begin where their
  /// storage does (invalid_argument).
  Result<void> try_resize(std::size_t count, StreamRef stream,
                          CallSite site = CallSite::here()) noexcept {
    return raw_.try_resize(count, sizeof(T), stream, site);
  }
  void resize(std::size_t count, StreamRef stream, CallSite site = CallSite::here()) {
    try_resize(count, stream, site).value();
  }

  /// Every element, in stream order, by the device's own fill: elements of up to 16 bytes. Refused
  /// as a use of the array is (device_mismatch, read_only).
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

  // --- To and from the host

  /// As many elements as there are (size_mismatch); complete on return.
  Result<void> try_copy_to(std::span<T> elements, CallSite site = CallSite::here()) const noexcept {
    const Result<Mark> copied = raw_.try_read(elements.data(), elements.size_bytes(), {}, site);
    return copied ? Result<void>() : Result<void>(copied.failure());
  }
  void copy_to(std::span<T> elements, CallSite site = CallSite::here()) const {
    try_copy_to(elements, site).value();
  }
  /// In the order of a stream of the array's device (device_mismatch); the memory must stay until
  /// the mark is done.
  Result<Mark> try_copy_to(std::span<T> elements, StreamRef stream,
                           CallSite site = CallSite::here()) const noexcept {
    return raw_.try_read(elements.data(), elements.size_bytes(), stream, site);
  }
  Mark copy_to(std::span<T> elements, StreamRef stream, CallSite site = CallSite::here()) const {
    return try_copy_to(elements, stream, site).value();
  }
  Result<void> try_copy_from(std::span<const T> elements,
                             CallSite site = CallSite::here()) noexcept {
    const Result<Mark> copied = raw_.try_write(elements.data(), elements.size_bytes(), {}, site);
    return copied ? Result<void>() : Result<void>(copied.failure());
  }
  void copy_from(std::span<const T> elements, CallSite site = CallSite::here()) {
    try_copy_from(elements, site).value();
  }
  Result<Mark> try_copy_from(std::span<const T> elements, StreamRef stream,
                             CallSite site = CallSite::here()) noexcept {
    return raw_.try_write(elements.data(), elements.size_bytes(), stream, site);
  }
  Mark copy_from(std::span<const T> elements, StreamRef stream, CallSite site = CallSite::here()) {
    return try_copy_from(elements, stream, site).value();
  }
  /// A fresh copy of all of it.
  [[nodiscard]] std::vector<T> to_host(
      CallSite site = CallSite::here()) const requires std::is_default_constructible_v<T> {
    raw_.check_download(site).value();
    return make_vector<T>(size(), [&](std::span<T> elements) { copy_to(elements, site); });
  }

  /// The same bytes as elements of another type: block, charge and identity stay. Refused with
  /// size_mismatch, misaligned.
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
