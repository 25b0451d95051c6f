// Not part of the interface.
//
// RawArray is the part of Array<T> that does not depend on T: bytes of a storage. Array<T> states
// the rules.

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
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// The untyped part of an Array. Sizes are in bytes.
class TERN_EXPORT RawArray {
 public:
  RawArray() noexcept = default;
  RawArray(const RawArray&) noexcept = default;
  /// The moved-from array has no elements.
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

  /// Allocates `count` elements from options.resource, or else from the default resource of the
  /// device.
  [[nodiscard]] static Result<RawArray> try_allocate(const Device& device, std::size_t count,
                                                     std::size_t element_bytes,
                                                     const StorageOptions& options) noexcept;
  /// Allocates `count` elements from `resource`.
  [[nodiscard]] static Result<RawArray> try_allocate(const ResourceHandle& resource,
                                                     std::size_t count, std::size_t element_bytes,
                                                     const StorageOptions& options) noexcept;
  [[nodiscard]] static RawArray allocate(const ResourceHandle& resource, std::size_t count,
                                         std::size_t element_bytes, const StorageOptions& options);
  /// Returns the bytes of a buffer as an array. Allocates the buffer's memory if it has none yet.
  [[nodiscard]] static Result<RawArray> try_over(const Buffer& buffer, std::size_t alignment,
                                                 std::size_t element_bytes, CallSite site) noexcept;

  [[nodiscard]] const StorageHandle& storage() const noexcept { return storage_; }
  /// Address of the first element. Null if there are no elements.
  [[nodiscard]] std::byte* address() const noexcept { return address_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  /// Bytes up to which the array can grow in place.
  [[nodiscard]] std::size_t capacity_bytes() const noexcept;

  /// Returns a range of the array. The caller guarantees that the range is inside.
  [[nodiscard]] RawArray inner(std::size_t offset, std::size_t bytes) const noexcept {
    return RawArray(storage_, address_ + offset, bytes);
  }
  /// Implements Array<T>::try_slice(). The functions below implement functions of Array<T> as well.
  [[nodiscard]] Result<RawArray> try_slice(std::size_t offset, std::size_t bytes,
                                           std::size_t element_bytes, CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_resize(std::size_t count, std::size_t element_bytes,
                                        StreamRef stream, CallSite site) noexcept;
  [[nodiscard]] Result<StorageUse> try_use(StreamRef stream, Access access,
                                           CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_kernel_view(StreamRef stream, Access access,
                                             CallSite site) const noexcept;
  /// Checks whether a TransferGate allows copying the whole array to the host. Called before the
  /// host allocates memory for the copy.
  [[nodiscard]] Result<void> check_download(CallSite site) const noexcept;
  /// Copies the array to host memory. Without a stream, waits for the copy and returns an empty
  /// mark.
  [[nodiscard]] Result<Mark> try_read(void* to, std::size_t bytes, StreamRef stream,
                                      CallSite site) const noexcept;
  /// Copies host memory to the array. Without a stream, waits for the copy and returns an empty
  /// mark.
  [[nodiscard]] Result<Mark> try_write(const void* from, std::size_t bytes, StreamRef stream,
                                       CallSite site) noexcept;
  [[nodiscard]] Result<Mark> try_fill(const Pattern& pattern, StreamRef stream,
                                      CallSite site) noexcept;
  /// Writes the whole array, of `bytes`, in stream order. The bytes are passed with the call, as
  /// fills, so the caller may change them when the call returns. For few bytes.
  [[nodiscard]] Result<Mark> try_put(const void* value, std::size_t bytes, StreamRef stream,
                                     CallSite site) noexcept;
  /// Copies the array to host memory in stream order, and waits for the copy.
  [[nodiscard]] Result<void> try_get(void* to, std::size_t bytes, StreamRef stream,
                                     CallSite site) const noexcept;
  [[nodiscard]] Buffer buffer(DType dtype, std::size_t element_bytes) const;

 private:
  friend class RawGrowing;
  RawArray(StorageHandle storage, std::byte* address, std::size_t bytes) noexcept
      : storage_(std::move(storage)), address_(address), bytes_(bytes) {}
  [[nodiscard]] std::size_t offset() const noexcept;

  StorageHandle storage_;
  std::byte* address_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tern
