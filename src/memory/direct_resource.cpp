#include <utility>

#include "tern/memory/driver_resource.hpp"

namespace tern {
namespace {

Capability needed_for(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::pinned:
      return Capability::pinned_memory;
    case MemoryKind::managed:
      return Capability::managed_memory;
    default:
      return Capability::host_access;
  }
}

}  // namespace

DirectResource::DirectResource(Device device, MemoryKind kind)
    : DriverResource(std::move(device), Order::host,
                     "the direct resource has no freed memory to reuse, and a request for "
                     "{requested} allows only memory that its stream has freed."),
      kind_(kind) {
  if (kind != MemoryKind::device && kind != MemoryKind::pinned && kind != MemoryKind::managed) {
    raise(Failure(ErrorCode::invalid_argument,
                  "{value} memory cannot be allocated. Use device, pinned or managed memory.")
              .with("name", "kind")
              .with("value", tern::name(kind)));
  }
  if (kind != MemoryKind::device && !this->device().can(needed_for(kind))) {
    raise(Failure(ErrorCode::unsupported)
              .with("what", tern::name(kind))
              .with("device", this->device().spec()));
  }
}

ResourceTraits DirectResource::traits() const noexcept {
  ResourceTraits traits = DriverResource::traits();
  traits.kind = kind_;
  if (kind_ != MemoryKind::device) traits.is_host_accessible = true;
  return traits;
}

Result<void*> DirectResource::take(const Request& request, StreamRef) noexcept {
  return device().try_allocate(
      kind_, request.bytes,
      {.alignment = request.alignment, .tag = request.tag, .site = request.site});
}

void DirectResource::put_back(const Piece& piece, StreamRef, const CallSite& site) noexcept {
  // The memory was never used, so there is no stream to wait for.
  static_cast<void>(device().try_release(piece.address, site));
}

Result<Mark> DirectResource::give(const Piece& piece, StreamRef stream,
                                  const CallSite& site) noexcept {
  // Work of the stream may still use the memory.
  if (Result<void> waited = wait_for(stream); !waited) return waited.failure();
  if (Result<void> released = device().try_release(piece.address, site); !released) {
    return released.failure();
  }
  return Mark{};
}

}  // namespace tern
