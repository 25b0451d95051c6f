#include "coherence/copy_allocator.hpp"

#include <memory>
#include <new>
#include <utility>

#include "coherence/guarded_heap.hpp"
#include "coherence/host_heap.hpp"
#include "core/no_host_memory.hpp"
#include "tern/memory/default_resource.hpp"

namespace tern {
namespace {

bool shares_host_memory(const Device& device) noexcept {
  return device.info().is_host || device.can(Capability::host_access);
}

/// Returns the first resource in the options that provides this kind of memory, or null.
ResourceHandle find_resource(const UnifiedOptions& options, DeviceId device,
                             MemoryKind kind) noexcept {
  for (const ResourceHandle& resource : options.resources) {
    if (!resource) continue;
    MemoryKind given = resource->traits().kind;
    const Device& from = resource->device();
    // Memory of the host device is host memory.
    if (kind == MemoryKind::host && from.info().is_host && given == MemoryKind::device) {
      given = MemoryKind::host;
    }
    if (given != kind || (kind == MemoryKind::device && from.id() != device)) continue;
    return resource;
  }
  return {};
}

/// Allocates the memory of a new storage.
Result<StorageHandle> try_allocate(Result<StorageHandle> made, StreamRef stream,
                                   ResourceHandle& asked, CallSite site) noexcept {
  if (!made) return Failure(made.failure()).at(site);
  asked = (*made)->resource();
  if (Result<void> there = (*made)->try_ensure(stream, site); !there) return there.failure();
  return made;
}

}  // namespace

bool CopyAllocator::shares_host_copy(const Device& device) const noexcept {
  // The host device always shares it. Another device does if the host copy is memory of that
  // device.
  return device.info().is_host || (shares_host_memory(device) && device == options_.device);
}

Result<ResourceHandle> CopyAllocator::try_device_resource(const Device& device) const noexcept {
  if (ResourceHandle found = find_resource(options_, device.id(), MemoryKind::device)) return found;
  return try_default_resource(device);
}

Result<StorageHandle> CopyAllocator::try_make_host(std::size_t bytes, ResourceHandle& asked,
                                                   CallSite site) const noexcept {
  StorageOptions options{.contents = Contents::unspecified,
                         .tag = options_.tag,
                         .checked = false,
                         .site = options_.site};
  const Device& device = options_.device;
  const bool is_host = device.info().is_host;
  if (!is_host && shares_host_memory(device)) {
    options.resource = find_resource(options_, device.id(), MemoryKind::device);
    return Storage::try_make(device, bytes, options);
  }
  const bool wants_pinned = options_.pinned == Pinned::required ||
                            (options_.pinned == Pinned::prefer && !options_.guard.value_or(false) &&
                             bytes >= min_pinned_bytes);
  if (wants_pinned && (!is_host || find_resource(options_, {}, MemoryKind::pinned))) {
    options.resource = find_resource(options_, {}, MemoryKind::pinned);
    options.kind = MemoryKind::pinned;
    // Large pieces of page-aligned memory are spilled around the page cache.
    if (options_.spill && !options.resource && bytes >= mib) options.alignment = 4096;
    const Device& owner = options.resource ? options.resource->device() : device;
    Result<StorageHandle> pinned = Storage::try_make(owner, bytes, options);
    Result<void> there = pinned ? (*pinned)->try_ensure({}, site) : Result<void>(pinned.failure());
    if (there) return pinned;
    if (pinned) asked = (*pinned)->resource();
    if (options_.pinned == Pinned::required) return Failure(there.failure()).at(site);
    options.resource = {};
    options.kind = MemoryKind::device;
    options.alignment = 0;
  }
  if (ResourceHandle resource = find_resource(options_, {}, MemoryKind::host)) {
    options.resource = std::move(resource);
    return Storage::try_make(options.resource->device(), bytes, options);
  }
  if (is_host) {
    options.resource = find_resource(options_, device.id(), MemoryKind::device);
    return Storage::try_make(device, bytes, options);
  }
  std::unique_ptr<StorageOrigin> heap;
  if (options_.guard.value_or(false) && bytes != 0) {
    heap.reset(new (std::nothrow) GuardedHeap(bytes, options_.tag));
  } else {
    heap.reset(new (std::nothrow) HostHeap(bytes));
  }
  if (!heap) return no_host_memory("a copy on the host", site);
  return Storage::try_make(device, bytes, MemoryKind::host, std::move(heap), options);
}

Result<StorageHandle> CopyAllocator::try_host_copy(std::size_t bytes, StreamRef stream,
                                                   ResourceHandle& asked,
                                                   CallSite site) const noexcept {
  return try_allocate(try_make_host(bytes, asked, site), stream, asked, site);
}

Result<StorageHandle> CopyAllocator::try_device_copy(const Device& device, std::size_t bytes,
                                                     StreamRef stream, ResourceHandle& asked,
                                                     CallSite site) const noexcept {
  return try_allocate(
      Storage::try_make(device, bytes,
                        {.resource = find_resource(options_, device.id(), MemoryKind::device),
                         .contents = Contents::unspecified,
                         .tag = options_.tag,
                         .checked = false,
                         .site = options_.site}),
      stream, asked, site);
}

}  // namespace tern
