#include "tern/interop/pmr.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "core/no_host_memory.hpp"
#include "interop/blocks_by_address.hpp"

namespace tern {

namespace {

ResourceHandle checked(ResourceHandle resource) {
  if (!resource) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a std::pmr adapter needs a resource, and the pointer is null.")
              .with("name", "resource"));
  }
  if (!resource->traits().is_host_accessible) {
    raise(Failure(ErrorCode::unsupported,
                  "containers cannot use memory of '{device}' ({resource}): {what} is missing. Use "
                  "pinned, managed or host memory.")
              .with("what", name(Capability::host_access))
              .with("resource", resource->name())
              .with("device", resource->device().spec()));
  }
  return resource;
}

std::shared_ptr<BlocksByAddress> blocks_of(const Resource* resource) try {
  return BlocksByAddress::of(resource);
} catch (const std::bad_alloc&) {
  raise(no_host_memory("a std::pmr adapter"));
}

}  // namespace

// --- PmrAdapter

PmrAdapter::PmrAdapter(ResourceHandle resource, Tag tag, CallSite site)
    : resource_(checked(std::move(resource))),
      blocks_(blocks_of(resource_.get())),
      tag_(tag),
      site_(site) {}

PmrAdapter::~PmrAdapter() = default;

std::uint64_t PmrAdapter::mistaken_frees() const noexcept { return blocks_->mistaken_frees(); }

void* PmrAdapter::do_allocate(std::size_t bytes, std::size_t alignment) {
  const Block block = resource_->allocate({.bytes = std::max<std::size_t>(bytes, 1),
                                           .alignment = alignment,
                                           .tag = tag_,
                                           .site = site_});
  try {
    blocks_->add(block, bytes);
  } catch (const std::bad_alloc&) {
    resource_->deallocate(block, {}, site_);
    raise(no_host_memory("the record of a block", site_).with_bytes("requested", bytes));
  }
  return block.address;
}

void PmrAdapter::do_deallocate(void* address, std::size_t bytes, std::size_t) {
  // Remove the entry first: after the free, another thread may get the address.
  const std::optional<Block> block = blocks_->take(address, bytes);
  if (block) resource_->deallocate(*block, {}, site_);
}

bool PmrAdapter::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  const auto* const adapter = dynamic_cast<const PmrAdapter*>(&other);
  return adapter != nullptr && adapter->resource_ == resource_;
}

// --- PmrUpstream

PmrUpstream::PmrUpstream(Device device, std::pmr::memory_resource* upstream)
    : DriverResource(std::move(device), Order::host,
                     "the pmr resource has no freed memory to reuse, and a request for {requested} "
                     "allows only memory that its stream has freed."),
      upstream_(upstream) {
  if (upstream == nullptr) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a pmr resource needs a std::pmr::memory_resource, and the pointer is null.")
              .with("name", "upstream"));
  }
  if (!this->device().can(Capability::host_access)) {
    raise(Failure(ErrorCode::unsupported,
                  "device '{device}' does not use host memory: {what} is missing. Use the host "
                  "device for a pmr resource.")
              .with("what", tern::name(Capability::host_access))
              .with("device", this->device().spec()));
  }
}

std::size_t PmrUpstream::alignment_for(std::size_t requested) const noexcept {
  return std::max(requested, device().info().alignment);
}

Result<void*> PmrUpstream::take(const Request& request, StreamRef) noexcept try {
  const std::lock_guard lock(mutex_);
  return upstream_->allocate(request.bytes, alignment_for(request.alignment));
} catch (const Error& error) {
  return Failure(error.failure()).at(request.site);
} catch (const std::bad_alloc&) {
  return Failure(ErrorCode::out_of_memory,
                 "a std::pmr::memory_resource could not allocate {requested}. Free host memory, or "
                 "raise its limit.",
                 request.site)
      .with_bytes("requested", request.bytes);
} catch (const std::exception& exception) {
  return Failure(ErrorCode::driver,
                 "a std::pmr::memory_resource threw on a request for {requested}: {what}.",
                 request.site)
      .with_bytes("requested", request.bytes)
      .with("what", exception.what());
} catch (...) {
  return Failure(
             ErrorCode::driver,
             "a std::pmr::memory_resource threw an unknown exception on a request for {requested}.",
             request.site)
      .with_bytes("requested", request.bytes);
}

void PmrUpstream::put_back(const Piece& piece, StreamRef, const CallSite&) noexcept {
  const std::lock_guard lock(mutex_);
  upstream_->deallocate(piece.address, piece.bytes, alignment_for(piece.alignment));
}

Result<Mark> PmrUpstream::give(const Piece& piece, StreamRef stream,
                               const CallSite& site) noexcept {
  if (Result<void> waited = wait_for(stream); !waited) return waited.failure();
  put_back(piece, stream, site);
  return Mark{};
}

}  // namespace tern
