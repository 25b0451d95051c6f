#include <utility>

#include "device/device_state.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern {
namespace {

Failure bad_setting(const char* name, std::size_t value, const char* sentence,
                    CallSite site) noexcept {
  return Failure(ErrorCode::invalid_argument, sentence, site)
      .with("name", name)
      .with_bytes("value", value);
}

}  // namespace

AsyncResource::AsyncResource(Device device, const AsyncOptions& options)
    : DriverResource(std::move(device), Order::stream,
                     "the driver's allocator does not report which memory it reuses, and a request "
                     "for {requested} allows only memory that its stream has freed.") {
  if (!this->device().can(Capability::stream_ordered_memory)) {
    raise(Failure(ErrorCode::unsupported)
              .with("what", tern::name(Capability::stream_ordered_memory))
              .with("device", this->device().spec()));
  }
  if (Result<void> sound = check(options); !sound) raise(sound.failure());
  if (Result<void> applied = try_apply(options); !applied) raise(applied.failure());
}

Result<void> AsyncResource::check(const AsyncOptions& options) const noexcept {
  const CallSite site = options.site;
  const std::size_t total = device().info().total_bytes;
  if (options.max_bytes == std::size_t{0}) {
    return bad_setting("max_bytes", 0,
                       "'{name}' of a driver pool cannot be {value}, because nothing could be "
                       "allocated. Leave it unset for no maximum.",
                       site);
  }
  if (options.max_bytes && *options.max_bytes > total) {
    return bad_setting("max_bytes", *options.max_bytes,
                       "'{name}' of a driver pool cannot be {value}: '{device}' has {total} of "
                       "memory. Leave it unset for no maximum.",
                       site)
        .with_bytes("total", total)
        .with("device", device().spec());
  }
  const std::size_t initial = options.initial_bytes.value_or(0);
  const std::size_t limit = options.max_bytes.value_or(total);
  if (initial > limit) {
    return bad_setting("initial_bytes", initial,
                       "'{name}' of a driver pool cannot be {value}: the pool of '{device}' may "
                       "hold at most {limit}. Use less, or raise max_bytes.",
                       site)
        .with_bytes("limit", limit)
        .with("device", device().spec());
  }
  if (options.release_threshold_bytes && *options.release_threshold_bytes < initial) {
    return bad_setting("release_threshold_bytes", *options.release_threshold_bytes,
                       "'{name}' of a driver pool cannot be {value} with initial_bytes of "
                       "{initial}: the next synchronization would release these bytes. Raise it.",
                       site)
        .with_bytes("initial", initial);
  }
  for (const Device& peer : options.peers) {
    if (Result<void> fine = check_peer(peer, site); !fine) return fine;
  }
  return {};
}

Result<void> AsyncResource::check_peer(const Device& peer, CallSite site) const noexcept {
  if (!peer.is_open()) {
    return Failure(ErrorCode::invalid_argument,
                   "'{name}' of a driver pool cannot be {value}. Open the device first.", site)
        .with("name", "peers")
        .with("value", "a device that is not open");
  }
  if (peer == device()) {
    return Failure(ErrorCode::invalid_argument,
                   "'{name}' of the driver pool of '{value}' cannot be '{value}' itself, which "
                   "always has access. Name another device.",
                   site)
        .with("name", "peers")
        .with("value", peer.spec());
  }
  if (peer.info().backend != device().info().backend) {
    return Failure(ErrorCode::device_mismatch,
                   "'{name}' of the driver pool of '{a}' cannot be '{b}', a device of another "
                   "backend. Copy the memory to '{b}'.",
                   site)
        .with("name", "peers")
        .with("a", device().spec())
        .with("b", peer.spec());
  }
  return {};
}

Result<void> AsyncResource::try_apply(const AsyncOptions& options) noexcept {
  if (options.max_bytes || options.release_threshold_bytes) {
    const Result<void> set = DeviceState::of(device())->backend().set_driver_pool(
        {options.max_bytes, options.release_threshold_bytes});
    if (!set) return Failure(set.failure()).at(options.site);
  }
  for (const Device& peer : options.peers) {
    if (Result<void> set = try_set_peer_access(peer, true, options.site); !set) return set;
  }
  if (options.initial_bytes.value_or(0) == 0) return {};
  // A pool that keeps nothing has no initial size, and says so here.
  if (const Result<DriverPoolInfo> pool = try_driver_pool(); !pool) {
    return Failure(pool.failure()).at(options.site);
  }
  const StreamRef stream = device().default_stream();
  const Result<void*> taken = stream.try_allocate(*options.initial_bytes, {.site = options.site});
  if (!taken) return taken.failure();
  return stream.try_release(*taken, options.site);
}

Result<DriverPoolInfo> AsyncResource::try_driver_pool() const noexcept {
  return DeviceState::of(device())->backend().driver_pool();
}

Result<void> AsyncResource::try_set_release_threshold(std::size_t bytes, CallSite site) noexcept {
  const Result<void> set =
      DeviceState::of(device())->backend().set_driver_pool({.release_threshold_bytes = bytes});
  return set ? set : Result<void>(Failure(set.failure()).at(site));
}

Result<void> AsyncResource::try_set_peer_access(const Device& peer, bool is_allowed,
                                                CallSite site) noexcept {
  if (Result<void> fine = check_peer(peer, site); !fine) return fine;
  const Result<void> set = DeviceState::of(device())->backend().set_driver_pool_access(
      DeviceState::of(peer)->backend(), is_allowed);
  return set ? set : Result<void>(Failure(set.failure()).at(site));
}

Result<void> AsyncResource::try_reset_peaks(CallSite site) noexcept {
  const Result<void> reset = DeviceState::of(device())->backend().reset_driver_pool_peaks();
  return reset ? reset : Result<void>(Failure(reset.failure()).at(site));
}

Result<void*> AsyncResource::take(const Request& request, StreamRef stream) noexcept {
  Result<void*> address = stream.try_allocate(
      request.bytes, {.alignment = request.alignment, .tag = request.tag, .site = request.site});
  if (!address || request.stream.id()) return address;
  // The host is to use it first, so it has to be there.
  if (Result<void> ready = DeviceState::wait_for_stream(stream, request.site); !ready) {
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
  const StreamPin stay(stream);
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
