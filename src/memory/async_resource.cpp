#include "tern/memory/async_resource.hpp"

#include <utility>

#include "device/device_state.hpp"

namespace tern {

AsyncResource::AsyncResource(Device device)
    : DriverResource(std::move(device), Order::stream,
                     "the driver's allocator does not say what it uses again, and {requested} "
                     "were asked for from what the stream has freed.") {
  if (!this->device().can(Capability::stream_ordered_memory)) {
    raise(Failure(ErrorCode::unsupported)
              .with("what", tern::name(Capability::stream_ordered_memory))
              .with("device", this->device().spec()));
  }
}

Result<void*> AsyncResource::take(const Request& request, StreamRef stream) noexcept {
  Result<void*> address = stream.try_allocate(
      request.bytes, {.alignment = request.alignment, .tag = request.tag, .site = request.site});
  if (!address || request.stream.id()) return address;
  // The host is to use it first, so it has to be there.
  if (Result<void> ready = stream.try_synchronize(); !ready) {
    put_back({*address, request.bytes, request.alignment}, stream, request.site);
    return ready.failure();
  }
  return address;
}

void AsyncResource::put_back(const Piece& piece, StreamRef stream, const CallSite& site) noexcept {
  static_cast<void>(stream.try_release(piece.address, site));
}

Result<Mark> AsyncResource::give(const Piece& piece, StreamRef stream,
                                 const CallSite& site) noexcept {
  // Its owner may end it meanwhile, in another thread.
  const StreamStay stay(stream);
  if (!stay) {
    // The stream has ended: its work is waited for, and any stream may free then.
    if (Result<void> waited = device().try_synchronize();
        !waited && waited.failure().code() != ErrorCode::device_lost) {
      return waited.failure();
    }
    stream = device().default_stream();
  }
  if (Result<void> released = stream.try_release(piece.address, site); !released) {
    return released.failure();
  }
  // Marks cover what was submitted before they are taken, and the release is part of that.
  const Result<Mark> mark = stream.try_mark();
  return mark ? *mark : Mark{};
}

}  // namespace tern
