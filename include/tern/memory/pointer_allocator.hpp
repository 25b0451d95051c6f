// A PointerAllocator allocates from a resource for code that frees memory by its address alone.
//
//   PointerAllocator allocator(pool);
//   void* address = allocator.allocate({.bytes = 4096, .stream = stream});
//   PointerAllocator::free(address, stream);
//
// The allocators of other libraries (PyTorch, CuPy, RMM, Thrust) identify memory in a free only by
// its address. One table for the process finds the block, and the resource that allocated it, by
// the address, without a lock. So any thread can free memory of any allocator, even if the
// default resource has changed.
//
// Streams. A free is stream-ordered: earlier work of the stream may still use the memory. If other
// streams use the memory too, state that with record_use(). The memory then becomes free when all
// of them have passed the work that was submitted to them before the free. Until then, the
// resource counts the memory as live.
//
// Mistakes. Freeing an address that is not live, or twice, fails with use_after_free. A failed free
// changes nothing.
//
// Lifetime. Copies share the resource, which stays alive until the last copy is gone and all of its
// memory is freed. Thread-safe.

#pragma once

#include <cstddef>
#include <memory>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class PointerOwner;

class TERN_EXPORT PointerAllocator {
 public:
  /// Throws InvalidArgument if `resource` is null, Unsupported if its blocks have no generation,
  /// CapacityReached after 65,536 resources, and OutOfMemory if the host has no memory.
  explicit PointerAllocator(ResourceHandle resource);

  [[nodiscard]] const ResourceHandle& resource() const noexcept;

  /// Allocates memory and returns its address: null for 0 bytes. If the resource is out of memory
  /// or budget, the call waits for frees that record_use() has delayed and tries again, unless the
  /// request has Wait::never. Fails as the resource does.
  [[nodiscard]] Result<void*> try_allocate(const Request& request) const noexcept;
  [[nodiscard]] void* allocate(const Request& request) const {
    return try_allocate(request).value();
  }

  /// Frees memory of any PointerAllocator in the order of the stream. Without a stream, the
  /// free is in the order of the host. Freeing null does nothing. Fails with use_after_free if no
  /// live memory begins at the address, and as the resource does.
  static Result<void> try_free(void* address, StreamRef stream,
                               CallSite site = CallSite::here()) noexcept;
  static void free(void* address, StreamRef stream, CallSite site = CallSite::here()) {
    try_free(address, stream, site).value(site);
  }
  /// Frees memory in the order of the stream that allocated it. The stream may have ended. If the
  /// stream was borrowed, its owner may have destroyed it: no driver call uses its handle.
  static Result<void> try_free_in_order(void* address, CallSite site = CallSite::here()) noexcept;
  static void free_in_order(void* address, CallSite site = CallSite::here()) {
    try_free_in_order(address, site).value(site);
  }

  /// States that the stream uses the memory too, until the memory is freed. Fails with
  /// use_after_free if no live memory begins at the address, with device_mismatch for a stream of
  /// another device, and with out_of_memory if the host has no memory.
  static Result<void> try_record_use(void* address, StreamRef stream,
                                     CallSite site = CallSite::here()) noexcept;
  static void record_use(void* address, StreamRef stream, CallSite site = CallSite::here()) {
    try_record_use(address, stream, site).value(site);
  }

  /// Returns the block that begins at the address. Fails with use_after_free if there is none.
  [[nodiscard]] static Result<Block> try_find(const void* address) noexcept;
  [[nodiscard]] static Block find(const void* address, CallSite site = CallSite::here()) {
    return try_find(address).value(site);
  }

  /// Completes the frees that record_use() has delayed and whose streams have passed the free.
  /// Returns the number of blocks that stay delayed. Does not wait for streams.
  std::size_t poll() const noexcept;

 private:
  std::shared_ptr<PointerOwner> owner_;
};

}  // namespace tern
