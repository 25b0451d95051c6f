// Not part of the interface.
//
// RawGrowing is the part of GrowingArray<T> that does not depend on T: bytes at the start of a
// reservation. GrowingArray<T> states the rules.

#pragma once

#include <cstddef>
#include <utility>

#include "tern/buffer/buffer.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/raw_array.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class AddressRange;
struct GrowingOptions;
struct GrowingStatistics;

/// The untyped part of a GrowingArray. Counts are in elements of element_bytes().
class TERN_EXPORT RawGrowing {
 public:
  RawGrowing() noexcept = default;
  RawGrowing(RawGrowing&& other) noexcept { swap(other); }
  RawGrowing& operator=(RawGrowing&& other) noexcept {
    RawGrowing(std::move(other)).swap(*this);
    return *this;
  }
  ~RawGrowing() = default;

  [[nodiscard]] static Result<RawGrowing> try_make(const Device& device, std::size_t element_bytes,
                                                   const GrowingOptions& options) noexcept;

  [[nodiscard]] const StorageHandle& storage() const noexcept { return storage_; }
  [[nodiscard]] std::size_t element_bytes() const noexcept { return element_bytes_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return storage_ ? storage_->bytes() : 0; }
  [[nodiscard]] std::size_t capacity_bytes() const noexcept;
  [[nodiscard]] std::size_t max_bytes() const noexcept;
  [[nodiscard]] GrowingStatistics statistics() const noexcept;
  /// Returns all elements.
  [[nodiscard]] RawArray all() const noexcept;

  // The functions below implement functions of GrowingArray<T>.
  [[nodiscard]] Result<void> try_reserve(std::size_t count, StreamRef stream,
                                         CallSite site) noexcept;
  [[nodiscard]] Result<void> try_resize(std::size_t count, StreamRef stream,
                                        CallSite site) noexcept;
  /// Copies from host memory. Without a stream, waits for the copy and returns an empty mark.
  [[nodiscard]] Result<Mark> try_append(const void* elements, std::size_t count, StreamRef stream,
                                        CallSite site) noexcept;
  [[nodiscard]] Result<Mark> try_append(const Buffer& elements, StreamRef stream,
                                        CallSite site) noexcept;
  [[nodiscard]] Result<Mark> try_push_back(const void* element, StreamRef stream,
                                           CallSite site) noexcept;
  [[nodiscard]] Result<void> try_shrink_to_fit(StreamRef stream, CallSite site) noexcept;
  /// Frees pages that wait for their last users, if these are done. Returns the bytes.
  std::size_t reclaim() noexcept;

 private:
  void swap(RawGrowing& other) noexcept;
  [[nodiscard]] Result<void> check_there(CallSite site) const noexcept;
  /// Fails with access_conflict if other handles share the memory.
  [[nodiscard]] Result<void> check_sole(const char* what, CallSite site) const noexcept;
  /// Provides memory for `bytes`, without changing the size.
  [[nodiscard]] Result<void> try_back(std::size_t bytes, StreamRef stream, CallSite site) noexcept;
  /// Copies the elements to new memory for `capacity` bytes.
  [[nodiscard]] Result<void> try_move(std::size_t capacity, StreamRef stream,
                                      CallSite site) noexcept;
  /// Adds elements without a value and returns them.
  [[nodiscard]] Result<RawArray> try_extend(std::size_t count, StreamRef stream,
                                            CallSite site) noexcept;
  /// Returns the mark, or takes the new elements back if writing them failed.
  [[nodiscard]] Result<Mark> finish(const Result<Mark>& written, std::size_t size_before) noexcept;

  StorageHandle storage_;
  AddressRange* range_ = nullptr;  // in the origin of the storage; null if the memory is copied
  std::size_t element_bytes_ = 1;
  std::size_t limit_bytes_ = 0;  // of GrowingOptions, or max_request_bytes
  CopyCount moved_ = {};
};

}  // namespace tern
