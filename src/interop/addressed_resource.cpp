#include "tern/detail/interop/addressed_resource.hpp"

#include <cstdint>
#include <new>
#include <optional>
#include <utility>

#include "core/no_host_memory.hpp"
#include "interop/blocks_by_address.hpp"
#include "tern/core/error.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/device_info.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern::detail {
namespace {

ResourceHandle checked(ResourceHandle resource, AccessNeeds needs, CallSite site) {
  if (!resource) {
    raise(Failure(ErrorCode::invalid_argument,
                  "an allocator for CUDA libraries needs a resource, and the pointer is null.",
                  site)
              .with("name", "resource"));
  }
  const ResourceTraits traits = resource->traits();
  const bool lacks_device = needs.by_device && !traits.is_device_accessible;
  if (lacks_device || (needs.by_host && !traits.is_host_accessible)) {
    raise(
        Failure(ErrorCode::unsupported,
                "memory of '{device}' ({resource}) does not have the property {what}. Use another "
                "kind of memory, or leave the property out.",
                site)
            .with("what", lacks_device ? "device_accessible" : "host_accessible")
            .with("resource", resource->name())
            .with("device", resource->device().spec()));
  }
  return resource;
}

std::shared_ptr<BlocksByAddress> blocks_of(const Resource* resource, CallSite site) try {
  return BlocksByAddress::of(resource);
} catch (const std::bad_alloc&) {
  raise(no_host_memory("an allocator for CUDA libraries", site));
}

}  // namespace

AddressedResource::AddressedResource(ResourceHandle resource, AccessNeeds needs, Tag tag,
                                     CallSite site)
    : resource_(checked(std::move(resource), needs, site)),
      blocks_(blocks_of(resource_.get(), site)),
      tag_(tag),
      site_(site) {}

AddressedResource::AddressedResource(const AddressedResource&) noexcept = default;
AddressedResource::AddressedResource(AddressedResource&&) noexcept = default;
AddressedResource& AddressedResource::operator=(const AddressedResource&) noexcept = default;
AddressedResource& AddressedResource::operator=(AddressedResource&&) noexcept = default;
AddressedResource::~AddressedResource() = default;

std::uint64_t AddressedResource::mistaken_frees() const noexcept {
  return blocks_->mistaken_frees();
}

void* AddressedResource::allocate(std::size_t bytes, std::size_t alignment,
                                  StreamRef stream) const {
  if (bytes == 0) return nullptr;
  const Block block = resource_->allocate(
      {.bytes = bytes, .alignment = alignment, .stream = stream, .tag = tag_, .site = site_});
  try {
    blocks_->add(block, bytes);
  } catch (const std::bad_alloc&) {
    resource_->deallocate(block, stream, site_);
    raise(no_host_memory("the record of a block", site_).with_bytes("requested", bytes));
  }
  return block.address;
}

void AddressedResource::deallocate(void* address, std::size_t bytes,
                                   StreamRef stream) const noexcept {
  if (address == nullptr) return;
  // Remove the entry first: after the free, another thread may get the address.
  if (const std::optional<Block> block = blocks_->take(address, bytes)) {
    resource_->deallocate(*block, stream, site_);
    return;
  }
  report_failure(
      Failure(ErrorCode::use_after_free,
              "a CUDA library freed {bytes} at {address} on '{device}' ({resource}), and no live "
              "block of this size starts there. Free each block once, with the size of the "
              "request.",
              site_)
          .with_bytes("bytes", bytes)
          .with("address", reinterpret_cast<std::uintptr_t>(address), Unit::hex)
          .with("resource", resource_->name())
          .with("device", resource_->device().spec()));
}

void* AddressedResource::allocate_on(NativeStream stream, std::size_t bytes,
                                     std::size_t alignment) const {
  if (bytes == 0) return nullptr;
  const Stream borrowed = Stream::borrow(resource_->device(), stream, site_);
  return allocate(bytes, alignment, borrowed);
}

void AddressedResource::deallocate_on(NativeStream stream, void* address,
                                      std::size_t bytes) const noexcept {
  if (address == nullptr) return;
  const Result<Stream> borrowed = Stream::try_borrow(resource_->device(), stream);
  if (borrowed) return deallocate(address, bytes, *borrowed);
  // Without the stream there is no moment at which the memory may be reused.
  blocks_->note_mistaken_free();
  report_failure(Failure(borrowed.failure()).at(site_));
}

}  // namespace tern::detail
