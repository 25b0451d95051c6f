// Memory for Thrust and CUB from a resource: an allocator for containers, and temporary storage for
// algorithms.
//
//   tern::ThrustScratch scratch(tern::default_resource(device), stream);
//   thrust::sort(scratch.on(thrust::cuda::par_nosync), keys, keys + count);
//
// This header includes no header of CUDA. Memory is allocated and freed in the order of one stream,
// so it is reused without a wait. To use a cudaStream_t, borrow it with Stream::borrow() and keep
// the Stream. All calls throw the errors of the resource; OutOfMemory derives from
// std::bad_alloc. One object may be used by several threads, if they may submit to its stream.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/interop/addressed_resource.hpp"
#include "tern/detail/interop/cuda_stream.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

namespace detail {

/// Thrust's `rebind<U>` is a class with a member `other`. That of the standard is the type itself.
template <class Pointer, class U>
concept RebindsLikeThrust = requires {
  typename Pointer::template rebind<U>::other;
};

/// The pointer to U that belongs to a pointer to another type.
template <class Pointer, class U>
struct RebindPointer {
  using type = typename std::pointer_traits<Pointer>::template rebind<U>;
};
template <class Pointer, class U>
requires RebindsLikeThrust<Pointer, U>
struct RebindPointer<Pointer, U> {
  using type = typename Pointer::template rebind<U>::other;
};

/// The stream, or the default stream of the resource's device.
[[nodiscard]] inline StreamRef stream_or_default(StreamRef stream, const ResourceHandle& resource) {
  return stream.id() || !resource ? stream : resource->device().default_stream();
}

}  // namespace detail

/// An allocator for containers of Thrust. `Pointer` is the container's pointer type:
///
///   using Allocator = tern::ThrustAllocator<thrust::device_ptr<float>>;
///   thrust::device_vector<float, Allocator> x(count, Allocator(resource));
///
/// Thrust's containers initialize, copy and destroy their elements on the default stream. So an
/// allocator without a stream argument uses the default stream. Copies keep the resource alive.
/// Allocators of one resource and one stream compare equal.
template <class Pointer>
class ThrustAllocator {
 public:
  using pointer = Pointer;
  using value_type = typename std::pointer_traits<Pointer>::element_type;
  using const_pointer = typename detail::RebindPointer<Pointer, const value_type>::type;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::false_type;
  /// For containers: the allocator of another element type, as `other`.
  template <class U>
  struct rebind {
    using other = ThrustAllocator<typename detail::RebindPointer<Pointer, U>::type>;
  };

  /// Throws InvalidArgument for a null resource, Unsupported if the device cannot access its
  /// memory, and OutOfMemory.
  explicit ThrustAllocator(ResourceHandle resource, StreamRef stream = {}, Tag tag = {},
                           CallSite site = CallSite::here())
      : stream_(detail::stream_or_default(stream, resource)),
        memory_(std::move(resource), {.by_device = true}, tag, site) {}
  template <class Other>
  ThrustAllocator(const ThrustAllocator<Other>& other) noexcept
      : stream_(other.stream_), memory_(other.memory_) {}

  /// Allocates memory for `count` elements in the order of the stream. Returns null for 0. Throws
  /// SizeOverflow, and the error of the resource.
  [[nodiscard]] pointer allocate(size_type count) {
    const std::optional<std::size_t> bytes = checked_multiply(count, sizeof(value_type));
    if (!bytes) {
      raise(Failure(ErrorCode::size_overflow,
                    "{count} elements of {size} exceed the address space. Use fewer elements.",
                    memory_.site())
                .with("count", count)
                .with_bytes("size", sizeof(value_type)));
    }
    return pointer(
        static_cast<value_type*>(memory_.allocate(*bytes, alignof(value_type), stream_)));
  }
  /// Frees the memory in the order of the stream. A mistaken free goes to the failure callback.
  void deallocate(pointer address, size_type count) noexcept {
    memory_.deallocate(const_cast<void*>(static_cast<const volatile void*>(raw(address))),
                       count * sizeof(value_type), stream_);
  }

  [[nodiscard]] const ResourceHandle& resource() const noexcept { return memory_.resource(); }
  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }

  friend bool operator==(const ThrustAllocator& a, const ThrustAllocator& b) noexcept {
    return a.resource() == b.resource() && a.stream_ == b.stream_;
  }

 private:
  template <class Other>
  friend class ThrustAllocator;

  [[nodiscard]] static value_type* raw(const pointer& address) noexcept {
    if constexpr (std::is_pointer_v<pointer>) {
      return address;
    } else {
      return address.get();
    }
  }

  StreamRef stream_;
  detail::AddressedResource memory_;
};

/// Temporary storage for algorithms of Thrust. Must outlive the calls that use it. Algorithms free
/// their temporary storage before they return.
class ThrustScratch {
 public:
  using value_type = char;

  /// Throws InvalidArgument for a null resource, Unsupported if the device cannot access its
  /// memory, and OutOfMemory.
  explicit ThrustScratch(ResourceHandle resource, StreamRef stream = {}, Tag tag = {},
                         CallSite site = CallSite::here())
      : stream_(detail::stream_or_default(stream, resource)),
        memory_(std::move(resource), {.by_device = true}, tag, site) {}

  /// Returns the execution policy for this storage and its stream. `policy` is thrust::cuda::par or
  /// thrust::cuda::par_nosync. Throws StreamMisuse if the stream has ended.
  template <class Policy>
  [[nodiscard]] auto on(const Policy& policy) {
    return policy(*this).on(detail::cuda_handle(stream_.try_native().value()));
  }

  /// Called by algorithms. Allocates at least one byte, also for 0. Throws the error of the
  /// resource.
  [[nodiscard]] char* allocate(std::ptrdiff_t bytes) {
    // With null as its storage, an algorithm would only compute the size.
    const auto needed = std::max(static_cast<std::size_t>(bytes), std::size_t{1});
    return static_cast<char*>(memory_.allocate(needed, 0, stream_));
  }
  /// Called by algorithms. Frees in the order of the stream.
  void deallocate(char* address, std::size_t bytes) noexcept {
    memory_.deallocate(address, std::max(bytes, std::size_t{1}), stream_);
  }

  [[nodiscard]] const ResourceHandle& resource() const noexcept { return memory_.resource(); }
  [[nodiscard]] StreamRef stream() const noexcept { return stream_; }

 private:
  StreamRef stream_;
  detail::AddressedResource memory_;
};

/// Runs an algorithm of CUB with temporary storage from a resource, which is freed in the order of
/// the stream. Calls `algorithm(storage, bytes, stream)` twice: with null, to get the size, and
/// with storage of this size. Returns the status of the last call. If the first call fails, there
/// is no second call.
///
///   tern::with_cub_storage(resource, stream, [&](void* storage, std::size_t& bytes, auto on) {
///     return cub::DeviceScan::ExclusiveSum(storage, bytes, in, out, count, on);
///   });
template <class Algorithm>
auto with_cub_storage(const ResourceHandle& resource, StreamRef stream, Algorithm&& algorithm,
                      Tag tag = {}, CallSite site = CallSite::here()) {
  stream = detail::stream_or_default(stream, resource);
  CUstream_st* const handle = detail::cuda_handle(stream.try_native().value(site));
  std::size_t bytes = 0;
  const auto asked = algorithm(static_cast<void*>(nullptr), bytes, handle);
  if (asked != decltype(asked){}) return asked;
  const OwnedBlock storage(
      resource,
      {.bytes = std::max(bytes, std::size_t{1}), .stream = stream, .tag = tag, .site = site});
  return algorithm(storage.address(), bytes, handle);
}

}  // namespace tern
