// Adapters between resources and std::pmr: with a PmrAdapter, standard containers allocate from a
// resource; a PmrUpstream is a resource that allocates from a std::pmr::memory_resource.
//
// Containers do not know streams. The host uses their memory immediately after allocation and frees
// it immediately. If a stream uses the memory of a container, wait for the stream before the
// container is destroyed or grows. Both classes are thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <mutex>

#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class BlocksByAddress;

/// Keeps its resource alive. Two adapters of one resource compare equal and can free each other's
/// memory, so containers can be moved between them. Like every std::pmr resource, the adapter must
/// outlive the containers that use it. Memory that was not freed by then stays live in the
/// resource.
class TERN_EXPORT PmrAdapter final : public std::pmr::memory_resource {
 public:
  /// Requests carry the tag and the call site of this constructor. Throws InvalidArgument for a
  /// null resource, Unsupported if the host cannot access its memory, and OutOfMemory.
  explicit PmrAdapter(ResourceHandle resource, Tag tag = {}, CallSite site = CallSite::here());
  PmrAdapter(const PmrAdapter&) = delete;
  PmrAdapter& operator=(const PmrAdapter&) = delete;
  ~PmrAdapter() override;

  [[nodiscard]] const ResourceHandle& resource() const noexcept { return resource_; }
  /// Returns the number of invalid frees: of an unknown address, with a wrong size, or a second
  /// time. They are ignored. The resource counts frees that it could not carry out itself.
  [[nodiscard]] std::uint64_t mistaken_frees() const noexcept;

 private:
  /// Throws the error of the resource: OutOfMemory, OutOfBudget, Misaligned, ... Returns a non-null
  /// address for 0 bytes too, as the standard requires.
  [[nodiscard]] void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* address, std::size_t bytes, std::size_t alignment) override;
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

  const ResourceHandle resource_;
  const std::shared_ptr<BlocksByAddress> blocks_;
  const Tag tag_;
  const CallSite site_;
};

/// Makes one upstream call per block, one at a time, because std::pmr resources need not be
/// thread-safe. Freeing waits for the block's stream. An exception of the upstream becomes a
/// Failure.
class TERN_EXPORT PmrUpstream final : public DriverResource {
 public:
  /// The device must use host memory as its own memory, as the host device does; otherwise throws
  /// Unsupported. The upstream must outlive this resource and its blocks. Throws InvalidArgument
  /// for a null upstream or an empty Device.
  PmrUpstream(Device device, std::pmr::memory_resource* upstream);

  [[nodiscard]] const char* name() const noexcept override { return "pmr"; }
  /// The resource that the blocks come from. It must outlive this object.
  [[nodiscard]] std::pmr::memory_resource* upstream() const noexcept { return upstream_; }

 private:
  [[nodiscard]] Result<void*> take(const Request& request, StreamRef stream) noexcept override;
  void put_back(const Piece& piece, StreamRef stream, const CallSite& site) noexcept override;
  [[nodiscard]] Result<Mark> give(const Piece& piece, StreamRef stream,
                                  const CallSite& site) noexcept override;
  /// Returns the alignment to request upstream: at least the default alignment of the device.
  [[nodiscard]] std::size_t alignment_for(std::size_t requested) const noexcept;

  std::pmr::memory_resource* const upstream_;
  std::mutex mutex_;  // held during upstream calls
};

}  // namespace tern
