// A Scalar<T> is one value in device memory, which is set and read in stream order.
//
//   auto total = Scalar<float>::make(device, 0.0f, stream);
//   sum.launch(stream, elements(n), in(x), inout(total));
//   float result = total.get(stream);              // waits for the kernel, and for nothing later
//
// set() passes the value with the call: the caller keeps no host memory valid, and the host does
// not wait. get() waits until its copy on the stream is done. A Scalar is a handle: copies of it
// share the value. Tern orders uses of the value like uses of an Array: a set() runs after earlier
// uses on other streams, and later uses run after the set(). Use one object from one thread at a
// time. Each x() throws what try_x() returns.

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "tern/buffer/array.hpp"
#include "tern/buffer/storage_options.hpp"
#include "tern/buffer/view.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// The typed handle. See the top of this file.
template <class T>
class Scalar {
  static_assert(std::is_trivially_copyable_v<T>, "a value is moved as bytes");
  static_assert(!std::is_const_v<T> && !std::is_volatile_v<T>, "a value that can be set");

 public:
  using value_type = T;

  /// Constructs a handle without a value. set() and get() fail with size_mismatch.
  Scalar() noexcept = default;

  /// Makes a scalar without a value. get() fails with never_written until the value is written.
  /// Fails like an allocation.
  [[nodiscard]] static Result<Scalar> try_make(const Device& device,
                                               const StorageOptions& options = {}) noexcept {
    Result<Array<T>> array = Array<T>::try_uninitialized(device, 1, options);
    if (!array) return array.failure();
    return Scalar(*std::move(array));
  }
  [[nodiscard]] static Scalar make(const Device& device, const StorageOptions& options = {}) {
    return try_make(device, options).value();
  }
  /// Makes a scalar and sets it in stream order.
  [[nodiscard]] static Result<Scalar> try_make(const Device& device, const T& value,
                                               StreamRef stream,
                                               const StorageOptions& options = {}) noexcept {
    Result<Scalar> scalar = try_make(device, options);
    if (!scalar) return scalar;
    if (const Result<Mark> set = scalar->try_set(value, stream, options.site); !set) {
      return set.failure();
    }
    return scalar;
  }
  [[nodiscard]] static Scalar make(const Device& device, const T& value, StreamRef stream,
                                   const StorageOptions& options = {}) {
    return try_make(device, value, stream, options).value();
  }

  /// Sets the value in stream order. Returns the mark of the write.
  Result<Mark> try_set(const T& value, StreamRef stream,
                       CallSite site = CallSite::here()) noexcept {
    return array_.raw_.try_put(&value, sizeof(T), stream, site);
  }
  Mark set(const T& value, StreamRef stream, CallSite site = CallSite::here()) {
    return try_set(value, stream, site).value();
  }
  /// Waits for earlier work of the stream, and returns the value. Fails with never_written, and
  /// with stream_misuse while the stream is being captured into a graph.
  [[nodiscard]] Result<T> try_get(StreamRef stream,
                                  CallSite site = CallSite::here()) const noexcept {
    std::array<std::byte, sizeof(T)> bytes;
    const Result<void> got = array_.raw_.try_get(bytes.data(), sizeof(T), stream, site);
    if (!got) return got.failure();
    return std::bit_cast<T>(bytes);
  }
  [[nodiscard]] T get(StreamRef stream, CallSite site = CallSite::here()) const {
    return try_get(stream, site).value();
  }
  /// Copies the value to `value` in stream order, and returns the mark of the copy. `value` must
  /// stay valid until the mark is done.
  Result<Mark> try_copy_to(T& value, StreamRef stream,
                           CallSite site = CallSite::here()) const noexcept {
    return array_.try_copy_to(std::span<T>(&value, 1), stream, site);
  }
  Mark copy_to(T& value, StreamRef stream, CallSite site = CallSite::here()) const {
    return try_copy_to(value, stream, site).value();
  }

  /// Returns the value as an array of one element, which shares the memory.
  [[nodiscard]] const Array<T>& array() const noexcept { return array_; }
  /// Returns a view for kernels, as Array::kernel_view() does.
  [[nodiscard]] Result<View<T>> try_kernel_view(StreamRef stream, Access access,
                                                CallSite site = CallSite::here()) noexcept {
    return array_.try_kernel_view(stream, access, site);
  }
  [[nodiscard]] View<T> kernel_view(StreamRef stream, Access access,
                                    CallSite site = CallSite::here()) {
    return try_kernel_view(stream, access, site).value();
  }

 private:
  explicit Scalar(Array<T>&& array) noexcept : array_(std::move(array)) {}

  Array<T> array_;
};

}  // namespace tern
