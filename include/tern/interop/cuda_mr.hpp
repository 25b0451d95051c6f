// Adapters between resources and the memory resources of CUDA C++ libraries (CCCL and RMM): with a
// CudaMrAdapter, these libraries allocate from a resource of Tern; a CudaMrUpstream is a resource
// of Tern that allocates from a memory resource of these libraries.
//
//   tern::CudaMrAdapter<cuda::mr::device_accessible> memory(tern::default_resource(device));
//   rmm::mr::set_current_device_resource(memory);
//
// This header includes no header of CUDA. Both classes support the current functions,
// allocate(stream, bytes, alignment) and allocate_sync(bytes, alignment), and the older functions,
// allocate_async(bytes, alignment, stream) and allocate(bytes, alignment). A CudaMrAdapter is
// thread-safe. A CudaMrUpstream is thread-safe if its memory resource is.

#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/interop/addressed_resource.hpp"
#include "tern/detail/interop/cuda_stream.hpp"
#include "tern/detail/memory/driver_resource.hpp"
#include "tern/device/device.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

namespace detail {

template <class Property>
[[nodiscard]] constexpr std::string_view text_with_name() noexcept {
  return __PRETTY_FUNCTION__;
}

/// Returns whether `name` is the name of the type, in any namespace. Properties are empty classes
/// of headers that this header does not include, so only their names tell them apart.
template <class Property>
[[nodiscard]] constexpr bool is_property(std::string_view name) noexcept {
  constexpr std::string_view text = text_with_name<Property>();
  const auto is_part_of_name = [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  const std::size_t at = text.rfind(name);
  return at != std::string_view::npos && !is_part_of_name(text[at - 1]) &&
         !is_part_of_name(text[at + name.size()]);
}

template <class T, class... Types>
concept OneOf = (std::same_as<T, Types> || ...);

template <class... Properties>
inline constexpr AccessNeeds access_needs = {
    .by_device = (is_property<Properties>("device_accessible") || ...),
    .by_host = (is_property<Properties>("host_accessible") || ...)};

}  // namespace detail

/// A memory resource for CUDA C++ libraries. Its properties are the template arguments, usually
/// cuda::mr::device_accessible, cuda::mr::host_accessible or both. Memory is allocated and freed in
/// the order of the library's stream, which is borrowed for the call. Copies refer to the same
/// resource, keep it alive, compare equal, and can free each other's memory.
///
/// Allocations throw the error of the resource: OutOfMemory and OutOfBudget derive from
/// std::bad_alloc. If the stream cannot be borrowed, allocations throw StreamMisuse, DeviceMismatch
/// or Unsupported. Frees do not
/// throw. A free of an unknown address, with a wrong size, a second time, or on a stream that
/// cannot be borrowed is reported to the failure callback, counted, and otherwise ignored.
template <class... Properties>
class CudaMrAdapter {
 public:
  /// The default alignment, which is also that of cudaMalloc.
  static constexpr std::size_t default_alignment = 256;

  /// Requests carry the tag and the call site of this constructor. Throws InvalidArgument for a
  /// null resource, Unsupported if the memory lacks a property, and OutOfMemory.
  explicit CudaMrAdapter(ResourceHandle resource, Tag tag = {}, CallSite site = CallSite::here())
      : memory_(std::move(resource), detail::access_needs<Properties...>, tag, site) {}

  [[nodiscard]] const ResourceHandle& resource() const noexcept { return memory_.resource(); }
  /// Returns the number of frees that were ignored, of all adapters of the resource.
  [[nodiscard]] std::uint64_t mistaken_frees() const noexcept { return memory_.mistaken_frees(); }

  // --- In the order of a stream. Returns null for 0 bytes.

  template <detail::CudaStream Stream>
  [[nodiscard]] void* allocate(const Stream& stream, std::size_t bytes,
                               std::size_t alignment = default_alignment) const {
    return memory_.allocate_on(detail::native_of(stream), bytes, alignment);
  }
  template <detail::CudaStream Stream>
  void deallocate(const Stream& stream, void* address, std::size_t bytes,
                  std::size_t /*alignment*/ = default_alignment) const noexcept {
    memory_.deallocate_on(detail::native_of(stream), address, bytes);
  }
  /// allocate_async() and deallocate_async() are the older names.
  template <detail::CudaStream Stream>
  [[nodiscard]] void* allocate_async(std::size_t bytes, std::size_t alignment,
                                     const Stream& stream) const {
    return allocate(stream, bytes, alignment);
  }
  template <detail::CudaStream Stream>
  [[nodiscard]] void* allocate_async(std::size_t bytes, const Stream& stream) const {
    return allocate(stream, bytes);
  }
  template <detail::CudaStream Stream>
  void deallocate_async(void* address, std::size_t bytes, std::size_t alignment,
                        const Stream& stream) const noexcept {
    deallocate(stream, address, bytes, alignment);
  }
  template <detail::CudaStream Stream>
  void deallocate_async(void* address, std::size_t bytes, const Stream& stream) const noexcept {
    deallocate(stream, address, bytes);
  }

  // --- In the order of the host. The memory is ready when the call returns. Free memory only after
  // the streams that use it have been waited for.

  [[nodiscard]] void* allocate_sync(std::size_t bytes,
                                    std::size_t alignment = default_alignment) const {
    return memory_.allocate(bytes, alignment, {});
  }
  void deallocate_sync(void* address, std::size_t bytes,
                       std::size_t /*alignment*/ = default_alignment) const noexcept {
    memory_.deallocate(address, bytes, {});
  }
  /// The older names.
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment = default_alignment) const {
    return allocate_sync(bytes, alignment);
  }
  void deallocate(void* address, std::size_t bytes,
                  std::size_t alignment = default_alignment) const noexcept {
    deallocate_sync(address, bytes, alignment);
  }

  friend bool operator==(const CudaMrAdapter& a, const CudaMrAdapter& b) noexcept {
    return a.resource() == b.resource();
  }
  /// CCCL finds the properties of a memory resource with this function.
  template <detail::OneOf<Properties...> Property>
  friend constexpr void get_property(const CudaMrAdapter& /*adapter*/,
                                     Property /*property*/) noexcept {}

 private:
  detail::AddressedResource memory_;
};

namespace detail {

template <class R>
concept AllocatesOnStreams = requires(R& memory, CudaStreamArgument stream, void* address,
                                      std::size_t number) {
  { memory.allocate(stream, number, number) } -> std::same_as<void*>;
  memory.deallocate(stream, address, number, number);
};
template <class R>
concept AllocatesAsync = requires(R& memory, CudaStreamArgument stream, void* address,
                                  std::size_t number) {
  { memory.allocate_async(number, number, stream) } -> std::same_as<void*>;
  memory.deallocate_async(address, number, number, stream);
};
template <class R>
concept AllocatesSync = requires(R& memory, void* address, std::size_t number) {
  { memory.allocate_sync(number, number) } -> std::same_as<void*>;
  memory.deallocate_sync(address, number, number);
};
template <class R>
concept AllocatesForHost = requires(R& memory, void* address, std::size_t number) {
  { memory.allocate(number, number) } -> std::same_as<void*>;
  memory.deallocate(address, number, number);
};

/// The part of a CudaMrUpstream that does not depend on the memory resource.
class TERN_EXPORT AnyCudaMrUpstream : public DriverResource {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "cuda_mr"; }
  [[nodiscard]] MemoryKind kind() const noexcept { return kind_; }
  [[nodiscard]] ResourceTraits traits() const noexcept override;

 protected:
  AnyCudaMrUpstream(Device device, MemoryKind kind, bool has_streams);

 private:
  /// Call the memory resource, which may throw. The stream is null for memory resources without
  /// streams.
  [[nodiscard]] virtual void* allocate_upstream(NativeStream stream, std::size_t bytes,
                                                std::size_t alignment) = 0;
  virtual void deallocate_upstream(NativeStream stream, void* address, std::size_t bytes,
                                   std::size_t alignment) = 0;

  [[nodiscard]] Result<void*> take(const Request& request, StreamRef stream) noexcept override;
  void put_back(const Piece& piece, StreamRef stream, const CallSite& site) noexcept override;
  [[nodiscard]] Result<Mark> give(const Piece& piece, StreamRef stream,
                                  const CallSite& site) noexcept override;
  [[nodiscard]] Result<void> try_put_back(const Piece& piece, StreamRef stream,
                                          const CallSite& site) noexcept;
  [[nodiscard]] std::size_t alignment_for(std::size_t requested) const noexcept;

  const MemoryKind kind_;
  const bool has_streams_;
};

}  // namespace detail

/// A resource that allocates from a memory resource of CCCL or RMM, such as cuda::mr::any_resource,
/// rmm::device_async_resource_ref or rmm::mr::cuda_async_memory_resource. Makes one upstream call
/// per block, with the device current on the calling thread. An exception of the upstream becomes a
/// Failure: a std::bad_alloc becomes out_of_memory. If the functions of the upstream have no
/// stream parameter, freeing a block waits for the block's stream.
template <class R>
class CudaMrUpstream final : public detail::AnyCudaMrUpstream {
 public:
  static_assert(detail::AllocatesOnStreams<R> || detail::AllocatesAsync<R> ||
                    detail::AllocatesSync<R> || detail::AllocatesForHost<R>,
                "R is not a memory resource of CCCL or RMM.");

  /// Keeps `upstream`. A reference such as rmm::device_async_resource_ref does not keep its memory
  /// resource alive; any_resource does. `kind` is the kind of the upstream's memory: device, pinned
  /// or managed. Throws InvalidArgument for an empty Device or another kind.
  CudaMrUpstream(Device device, R upstream, MemoryKind kind = MemoryKind::device)
      : AnyCudaMrUpstream(std::move(device), kind,
                          detail::AllocatesOnStreams<R> || detail::AllocatesAsync<R>),
        upstream_(std::move(upstream)) {}

  /// The memory resource of the other library.
  [[nodiscard]] R& upstream() noexcept { return upstream_; }

 private:
  [[nodiscard]] void* allocate_upstream(NativeStream stream, std::size_t bytes,
                                        std::size_t alignment) override {
    [[maybe_unused]] const detail::CudaStreamArgument on(stream);
    if constexpr (detail::AllocatesOnStreams<R>) {
      return upstream_.allocate(on, bytes, alignment);
    } else if constexpr (detail::AllocatesAsync<R>) {
      return upstream_.allocate_async(bytes, alignment, on);
    } else if constexpr (detail::AllocatesSync<R>) {
      return upstream_.allocate_sync(bytes, alignment);
    } else {
      return upstream_.allocate(bytes, alignment);
    }
  }
  void deallocate_upstream(NativeStream stream, void* address, std::size_t bytes,
                           std::size_t alignment) override {
    [[maybe_unused]] const detail::CudaStreamArgument on(stream);
    if constexpr (detail::AllocatesOnStreams<R>) {
      upstream_.deallocate(on, address, bytes, alignment);
    } else if constexpr (detail::AllocatesAsync<R>) {
      upstream_.deallocate_async(address, bytes, alignment, on);
    } else if constexpr (detail::AllocatesSync<R>) {
      upstream_.deallocate_sync(address, bytes, alignment);
    } else {
      upstream_.deallocate(address, bytes, alignment);
    }
  }

  R upstream_;
};

}  // namespace tern
