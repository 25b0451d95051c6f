// Not part of the interface.
//
// An AddressedResource is a resource for allocators of other libraries, which free memory by its
// address. All AddressedResources of one resource share one record of blocks, so each of them can
// free what another allocated. Copies are cheap. Keeps the resource alive. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class BlocksByAddress;

namespace detail {

/// What an allocator needs of its memory.
struct AccessNeeds {
  bool by_device = false;
  bool by_host = false;
};

class TERN_EXPORT AddressedResource {
 public:
  /// Requests carry the tag and the call site. Throws InvalidArgument for a null resource,
  /// Unsupported if the resource lacks a need, and OutOfMemory.
  AddressedResource(ResourceHandle resource, AccessNeeds needs, Tag tag, CallSite site);
  AddressedResource(const AddressedResource&) noexcept;
  AddressedResource(AddressedResource&&) noexcept;
  AddressedResource& operator=(const AddressedResource&) noexcept;
  AddressedResource& operator=(AddressedResource&&) noexcept;
  ~AddressedResource();

  [[nodiscard]] const ResourceHandle& resource() const noexcept { return resource_; }
  [[nodiscard]] Tag tag() const noexcept { return tag_; }
  [[nodiscard]] CallSite site() const noexcept { return site_; }
  /// The number of frees that were ignored, of all AddressedResources of the resource.
  [[nodiscard]] std::uint64_t mistaken_frees() const noexcept;

  /// Returns memory for the first use on `stream`, or by the host. Returns null for 0 bytes. Throws
  /// the error of the resource.
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment, StreamRef stream) const;
  /// Frees memory in the order of `stream`, or of the host. Null does nothing. An address without a
  /// live block of this size is reported to the failure callback and otherwise ignored.
  void deallocate(void* address, std::size_t bytes, StreamRef stream) const noexcept;

  /// The same for streams of other code, which are borrowed for the call. A free on a stream that
  /// cannot be borrowed is a mistaken free: it leaves the block live.
  [[nodiscard]] void* allocate_on(NativeStream stream, std::size_t bytes,
                                  std::size_t alignment) const;
  void deallocate_on(NativeStream stream, void* address, std::size_t bytes) const noexcept;

 private:
  ResourceHandle resource_;
  std::shared_ptr<BlocksByAddress> blocks_;
  Tag tag_;
  CallSite site_;
};

}  // namespace detail
}  // namespace tern
