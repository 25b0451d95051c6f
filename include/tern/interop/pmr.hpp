// Between resources and std::pmr: a PmrAdapter lets standard containers use a resource, and a
// PmrUpstream lets resources stand on a std::pmr one.
//
// Containers know nothing of streams. Their memory is used by the host, is ready when it is given,
// and is free at once: whoever hands it to a stream waits for that before the container ends.
// Both are thread-safe.

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

class PmrBlocks;

/// Keeps its resource alive. Two adapters of one resource are equal, and each frees what the other
/// gave, so containers may be moved between them. As with every std::pmr resource, it must outlive
/// the containers that use it; memory that was not freed by then stays live in the resource.
class TERN_EXPORT PmrAdapter final : public std::pmr::memory_resource {
 public:
  /// Requests carry the tag, and the call site of this constructor. Throws InvalidArgument for
  /// null, Unsupported if the host cannot use the memory, OutOfMemory.
  explicit PmrAdapter(ResourceHandle resource, Tag tag = {}, CallSite site = CallSite::here());
  PmrAdapter(const PmrAdapter&) = delete;
  PmrAdapter& operator=(const PmrAdapter&) = delete;
  ~PmrAdapter() override;

  [[nodiscard]] const ResourceHandle& resource() const noexcept { return resource_; }
  /// Frees of what was never given, with another size, or twice. They change nothing. What the
  /// resource itself could not free is counted there.
  [[nodiscard]] std::uint64_t mistaken_frees() const noexcept;

 private:
  /// Throws what the resource refuses with: OutOfMemory, OutOfBudget, Misaligned, ... Of no bytes
  /// it gives an address too, as the standard wants it.
  [[nodiscard]] void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* address, std::size_t bytes, std::size_t alignment) override;
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

  const ResourceHandle resource_;
  const std::shared_ptr<PmrBlocks> blocks_;
  const Tag tag_;
  const CallSite site_;
};

/// One call upstream for each block, one at a time: std::pmr resources need not be thread-safe.
/// Freeing waits for the block's stream. What the upstream throws becomes a refusal.
class TERN_EXPORT PmrUpstream final : public DriverResource {
 public:
  /// Memory of the host, on a device that uses it as its own: the host device. The upstream must
  /// outlive this and its blocks. Throws InvalidArgument for null or no device, Unsupported.
  PmrUpstream(Device device, std::pmr::memory_resource* upstream);

  [[nodiscard]] const char* name() const noexcept override { return "pmr"; }
  [[nodiscard]] std::pmr::memory_resource* upstream() const noexcept { return upstream_; }

 private:
  [[nodiscard]] Result<void*> take(const Request& request, StreamRef stream) noexcept override;
  void put_back(const Piece& piece, StreamRef stream, const CallSite& site) noexcept override;
  [[nodiscard]] Result<Mark> give(const Piece& piece, StreamRef stream,
                                  const CallSite& site) noexcept override;
  /// What the upstream is asked for: what every block of the device has, at least.
  [[nodiscard]] std::size_t alignment_for(std::size_t requested) const noexcept;

  std::pmr::memory_resource* const upstream_;
  std::mutex mutex_;  // held in the upstream
};

}  // namespace tern
