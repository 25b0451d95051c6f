// A GrowingArray<T> is an array that grows at its end, and whose addresses never change.
//
//   auto rows = GrowingArray<float>::make(device);
//   rows.append(chunk, stream);                    // a std::span of host memory, in stream order
//   kernel.launch(stream, elements(rows.size()), inout(rows));
//
// The array reserves addresses when it is made, and maps pages to them as it grows. Growing copies
// nothing, so views, kernels in flight and graphs that use the elements stay valid. Addresses use
// no memory. A budget is charged for pages only; statistics() counts both.
//
// shrink_to_fit() frees the pages that no element uses, once every stream that used the array has
// passed its last use. The host does not wait. Elements can be removed only while no other handle,
// lease, export or graph shares the memory (access_conflict). Elements can also be added while the
// memory is shared.
//
// A device without Capability::virtual_memory (OpenCL) cannot reserve addresses. On such a device,
// the array grows by copying its elements to new memory of 1.5 times its size. A call that would
// have to copy while other handles share the memory fails with access_conflict. To avoid copies,
// call reserve() first.
//
// Calls with a stream add elements in the order of that stream. A stream that is being captured
// into a graph cannot add elements (stream_misuse), because the graph would write the same elements
// at each launch. A call that fails leaves the array unchanged. The array can be moved but not
// copied. Use one object from one thread at a time. Each x() throws what try_x() returns.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/view.hpp"
#include "tern/core/access.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/buffer/raw_growing.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget.hpp"

namespace tern {

/// Options for making a growing array.
struct GrowingOptions {
  /// The maximum size of the array, for which addresses are reserved. 0 selects the memory size of
  /// the device, or less if that would use more than half of the free addresses. On a device
  /// without virtual memory, this is only a limit, and 0 means no limit.
  std::size_t reserved_bytes = 0;
  /// The budget that is charged for the pages, but not for the addresses. Null charges nothing.
  BudgetHandle budget = {};
  Tag tag = {};
  /// Check host accesses, see StorageOptions::checked.
  std::optional<bool> checked = {};
  CallSite site = CallSite::here();
};

/// The sizes of a growing array.
struct GrowingStatistics {
  /// The size of the elements.
  std::size_t size_bytes = 0;
  /// The memory that the array holds, for which the budget is charged. Includes pending_bytes.
  std::size_t resident_bytes = 0;
  /// Pages that will be freed once their last uses are done.
  std::size_t pending_bytes = 0;
  /// The size of the reserved addresses. Equals resident_bytes on a device without virtual memory.
  std::size_t reserved_bytes = 0;
  /// Copies of the elements to new memory. Zero on devices with virtual memory.
  CopyCount moved = {};
};

/// The typed array. See the top of this file.
template <class T>
class GrowingArray {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved as bytes");
  static_assert(!std::is_const_v<T> && !std::is_volatile_v<T>, "an array of values");

 public:
  using value_type = T;

  /// Constructs a handle without an array. It has no elements, and adding one fails with
  /// not_allocated. A moved-from array is in the same state.
  GrowingArray() noexcept = default;

  /// Makes an array without elements, which holds no memory yet. Fails with out_of_memory if the
  /// device has too few free addresses, with device_mismatch for a budget of another device, and
  /// with size_overflow.
  [[nodiscard]] static Result<GrowingArray> try_make(const Device& device,
                                                     const GrowingOptions& options = {}) noexcept {
    Result<RawGrowing> raw = RawGrowing::try_make(device, sizeof(T), options);
    if (!raw) return raw.failure();
    return GrowingArray(*std::move(raw));
  }
  [[nodiscard]] static GrowingArray make(const Device& device, const GrowingOptions& options = {}) {
    return try_make(device, options).value();
  }

  // --- Properties. These functions allocate nothing and do not wait.

  /// Number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return raw_.size_bytes() / sizeof(T); }
  /// Returns whether size() is 0.
  [[nodiscard]] bool empty() const noexcept { return raw_.size_bytes() == 0; }
  /// Size of the elements, without pages that were mapped ahead.
  [[nodiscard]] std::size_t size_bytes() const noexcept { return raw_.size_bytes(); }
  /// Number of elements up to which the array grows without new memory.
  [[nodiscard]] std::size_t capacity() const noexcept { return raw_.capacity_bytes() / sizeof(T); }
  /// Maximum number of elements.
  [[nodiscard]] std::size_t max_size() const noexcept { return raw_.max_bytes() / sizeof(T); }
  [[nodiscard]] GrowingStatistics statistics() const noexcept { return raw_.statistics(); }
  /// The memory and its record of uses, which views and leases share.
  [[nodiscard]] const StorageHandle& storage() const noexcept { return raw_.storage(); }
  /// The address of the first element, for comparison and diagnostics. Null before the first
  /// element. Kernels must get a kernel_view() instead.
  [[nodiscard]] std::uintptr_t address() const noexcept {
    return reinterpret_cast<std::uintptr_t>(raw_.all().address());
  }

  // --- Growing. These functions fail with capacity beyond the reservation, out_of_budget,
  // out_of_memory, size_overflow, stream_misuse, device_mismatch, and not_allocated for a handle
  // without an array.

  /// Adds one element, in stream order. The value is passed with the call, as one fill per 16
  /// bytes. Returns the mark of the write.
  Result<Mark> try_push_back(const T& element, StreamRef stream,
                             CallSite site = CallSite::here()) noexcept {
    return raw_.try_push_back(&element, stream, site);
  }
  Mark push_back(const T& element, StreamRef stream, CallSite site = CallSite::here()) {
    return try_push_back(element, stream, site).value();
  }
  /// Copies elements from host memory to the end of the array, in stream order. Returns the mark of
  /// the copy. The host memory must stay valid until the mark is done.
  Result<Mark> try_append(std::span<const T> elements, StreamRef stream,
                          CallSite site = CallSite::here()) noexcept {
    return raw_.try_append(elements.data(), elements.size(), stream, site);
  }
  Mark append(std::span<const T> elements, StreamRef stream, CallSite site = CallSite::here()) {
    return try_append(elements, stream, site).value();
  }
  /// Copies elements from host memory to the end of the array, and waits for the copy.
  Result<void> try_append(std::span<const T> elements, CallSite site = CallSite::here()) noexcept {
    const Result<Mark> done = raw_.try_append(elements.data(), elements.size(), {}, site);
    return done ? Result<void>() : Result<void>(done.failure());
  }
  void append(std::span<const T> elements, CallSite site = CallSite::here()) {
    try_append(elements, site).value();
  }
  /// Copies the elements of an array of any device to the end of this array, in stream order.
  Result<Mark> try_append(const Array<T>& elements, StreamRef stream,
                          CallSite site = CallSite::here()) noexcept {
    return raw_.try_append(elements.raw_.buffer(DType::byte, 1), stream, site);
  }
  Mark append(const Array<T>& elements, StreamRef stream, CallSite site = CallSite::here()) {
    return try_append(elements, stream, site).value();
  }
  /// Changes the number of elements. New elements are uninitialized: reading them before they are
  /// written fails with never_written. Removing elements keeps the memory, and fails with
  /// access_conflict while other handles share the memory.
  Result<void> try_resize(std::size_t count, StreamRef stream,
                          CallSite site = CallSite::here()) noexcept {
    return raw_.try_resize(count, stream, site);
  }
  void resize(std::size_t count, StreamRef stream, CallSite site = CallSite::here()) {
    try_resize(count, stream, site).value();
  }
  /// Provides memory for at least `count` elements. Does not change the size.
  Result<void> try_reserve(std::size_t count, StreamRef stream,
                           CallSite site = CallSite::here()) noexcept {
    return raw_.try_reserve(count, stream, site);
  }
  void reserve(std::size_t count, StreamRef stream, CallSite site = CallSite::here()) {
    try_reserve(count, stream, site).value();
  }

  // --- Shrinking. These functions fail with access_conflict while other handles share the memory.

  /// Removes all elements and keeps the memory.
  Result<void> try_clear(CallSite site = CallSite::here()) noexcept {
    return raw_.storage() ? raw_.try_resize(0, {}, site) : Result<void>();
  }
  void clear(CallSite site = CallSite::here()) { try_clear(site).value(); }
  /// Frees pages that no element uses, in the pieces in which they were mapped: up to an eighth of
  /// the array may stay. This or a later call frees the pages, once their last uses are done. On a
  /// device without virtual memory, copies the elements to smaller memory, in stream order.
  Result<void> try_shrink_to_fit(StreamRef stream, CallSite site = CallSite::here()) noexcept {
    return raw_.try_shrink_to_fit(stream, site);
  }
  void shrink_to_fit(StreamRef stream, CallSite site = CallSite::here()) {
    try_shrink_to_fit(stream, site).value();
  }
  /// Frees pending pages whose last uses are done. Returns the number of freed bytes. Never waits.
  std::size_t reclaim() noexcept { return raw_.reclaim(); }

  // --- Use

  /// Returns the current elements as an array that shares the memory. The returned array does not
  /// grow with this one.
  [[nodiscard]] Array<T> array() const noexcept { return Array<T>(raw_.all()); }
  /// Returns elements [first, first + count) as an array that shares the memory. Fails with
  /// invalid_view.
  [[nodiscard]] Result<Array<T>> try_slice(std::size_t first, std::size_t count,
                                           CallSite site = CallSite::here()) const noexcept {
    return array().try_slice(first, count, site);
  }
  [[nodiscard]] Array<T> slice(std::size_t first, std::size_t count,
                               CallSite site = CallSite::here()) const {
    return array().slice(first, count, site);
  }
  /// Returns a view of all elements for kernels, as Array::kernel_view() does.
  [[nodiscard]] Result<View<T>> try_kernel_view(StreamRef stream, Access access,
                                                CallSite site = CallSite::here()) noexcept {
    return array().try_kernel_view(stream, access, site);
  }
  [[nodiscard]] View<T> kernel_view(StreamRef stream, Access access,
                                    CallSite site = CallSite::here()) {
    return try_kernel_view(stream, access, site).value();
  }
  /// Copies all elements to `elements` and waits for the copy. Fails with size_mismatch.
  Result<void> try_copy_to(std::span<T> elements, CallSite site = CallSite::here()) const noexcept {
    return array().try_copy_to(elements, site);
  }
  void copy_to(std::span<T> elements, CallSite site = CallSite::here()) const {
    try_copy_to(elements, site).value();
  }
  /// Copies all elements to `elements` in stream order, and returns the mark of the copy.
  /// `elements` must stay valid until the mark is done.
  Result<Mark> try_copy_to(std::span<T> elements, StreamRef stream,
                           CallSite site = CallSite::here()) const noexcept {
    return array().try_copy_to(elements, stream, site);
  }
  Mark copy_to(std::span<T> elements, StreamRef stream, CallSite site = CallSite::here()) const {
    return try_copy_to(elements, stream, site).value();
  }
  /// Copies all elements to a new vector and waits for the copy.
  [[nodiscard]] std::vector<T> to_vector(
      CallSite site = CallSite::here()) const requires std::is_default_constructible_v<T> {
    return array().to_vector(site);
  }

 private:
  explicit GrowingArray(RawGrowing&& raw) noexcept : raw_(std::move(raw)) {}

  RawGrowing raw_;
};

}  // namespace tern
