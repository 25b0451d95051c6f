// CopyAllocator allocates the memory of the copies of one unified buffer, as the options of the
// buffer say: from which resource, page-locked, guarded, or in memory of a device that the host
// uses too.
//
// It does not evict: see UnifiedCore::try_make_memory. Its only state is a reference to the
// options, which never change, so it needs no lock.

#pragma once

#include <cstddef>

#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/coherence/raw_unified.hpp"

namespace tern {

class CopyAllocator {
 public:
  /// Pinned::prefer page-locks host copies from this size on.
  static constexpr std::size_t min_pinned_bytes = 64 * 1024;

  /// The options must outlive the allocator.
  explicit CopyAllocator(const UnifiedOptions& options) noexcept : options_(options) {}

  /// Returns whether the device uses the host copy directly.
  [[nodiscard]] bool shares_host_copy(const Device& device) const noexcept;
  /// Returns the resource for copies on a device that does not share the host copy.
  [[nodiscard]] Result<ResourceHandle> try_device_resource(const Device& device) const noexcept;
  /// Allocate the host copy, and the copy of a device that does not share it. Set `asked` to the
  /// resource that was asked last, also if it failed.
  [[nodiscard]] Result<StorageHandle> try_host_copy(std::size_t bytes, StreamRef stream,
                                                    ResourceHandle& asked,
                                                    CallSite site) const noexcept;
  [[nodiscard]] Result<StorageHandle> try_device_copy(const Device& device, std::size_t bytes,
                                                      StreamRef stream, ResourceHandle& asked,
                                                      CallSite site) const noexcept;

 private:
  /// Makes the storage of the host copy. It has no memory yet, unless it is page-locked.
  [[nodiscard]] Result<StorageHandle> try_make_host(std::size_t bytes, ResourceHandle& asked,
                                                    CallSite site) const noexcept;

  const UnifiedOptions& options_;
};

}  // namespace tern
