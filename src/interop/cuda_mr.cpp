#include "tern/interop/cuda_mr.hpp"

#include <cstdint>
#include <exception>
#include <new>
#include <optional>

#include "device/device_state.hpp"
#include "tern/core/error.hpp"

namespace tern::detail {
namespace {

Failure thrown(std::size_t bytes, const char* what, const CallSite& site) noexcept {
  return Failure(ErrorCode::driver,
                 "a memory resource of a CUDA library threw on a block of {requested}: {what}.",
                 site)
      .with_bytes("requested", bytes)
      .with("what", what);
}

/// Calls `function`, with the device current. An exception becomes a Failure.
template <class Function>
Result<void> call_upstream(const Device& device, std::size_t bytes, const CallSite& site,
                           Function&& function) noexcept {
  struct Call {
    Function& function;
    const std::size_t bytes;
    const CallSite& site;
    std::optional<Failure> failure;

    void operator()() noexcept try { function(); } catch (const Error& error) {
      failure = Failure(error.failure()).at(site);
    } catch (const std::bad_alloc& exception) {
      failure = Failure(ErrorCode::out_of_memory,
                        "a memory resource of a CUDA library could not allocate {requested} "
                        "({what}). Free memory, or raise its limit.",
                        site)
                    .with_bytes("requested", bytes)
                    .with("what", exception.what());
    } catch (const std::exception& exception) {
      failure = thrown(bytes, exception.what(), site);
    } catch (...) {
      failure = thrown(bytes, "an exception of an unknown type", site);
    }
  } call{function, bytes, site, std::nullopt};
  const Result<void> called = DeviceState::of(device)->backend().call_current(
      [](void* context) { (*static_cast<Call*>(context))(); }, &call);
  if (!called) return Failure(called.failure()).at(site);
  if (call.failure) return *call.failure;
  return {};
}

}  // namespace

AnyCudaMrUpstream::AnyCudaMrUpstream(Device device, MemoryKind kind, bool has_streams)
    : DriverResource(std::move(device), has_streams ? Order::stream : Order::host,
                     "a memory resource of a CUDA library does not report which memory it reuses, "
                     "and a request for {requested} allows only memory that its stream has freed."),
      kind_(kind),
      has_streams_(has_streams) {
  if (kind != MemoryKind::device && kind != MemoryKind::pinned && kind != MemoryKind::managed) {
    raise(Failure(ErrorCode::invalid_argument,
                  "a memory resource of a CUDA library cannot have {value} memory. Use device, "
                  "pinned or managed.")
              .with("name", "kind")
              .with("value", tern::name(kind)));
  }
}

ResourceTraits AnyCudaMrUpstream::traits() const noexcept {
  ResourceTraits traits = DriverResource::traits();
  traits.kind = kind_;
  if (kind_ != MemoryKind::device) traits.is_host_accessible = true;
  return traits;
}

std::size_t AnyCudaMrUpstream::alignment_for(std::size_t requested) const noexcept {
  return std::max(requested, device().info().alignment);
}

Result<void*> AnyCudaMrUpstream::take(const Request& request, StreamRef stream) noexcept {
  NativeStream native;
  if (has_streams_) {
    const Result<NativeStream> handle = stream.try_native();
    if (!handle) return Failure(handle.failure()).at(request.site);
    native = *handle;
  }
  void* address = nullptr;
  const std::size_t alignment = alignment_for(request.alignment);
  const Result<void> called = call_upstream(device(), request.bytes, request.site, [&] {
    address = allocate_upstream(native, request.bytes, alignment);
    if (address == nullptr) throw std::bad_alloc();
  });
  if (!called) return called.failure();
  const Piece piece{address, request.bytes, request.alignment};
  // Some memory resources ignore the alignment of the request.
  if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) {
    put_back(piece, stream, request.site);
    return Failure(ErrorCode::misaligned,
                   "a memory resource of a CUDA library does not align blocks to {alignment}. "
                   "Request a smaller alignment, or use another memory resource.",
                   request.site)
        .with("alignment", alignment);
  }
  if (!has_streams_ || request.stream.id()) return address;
  // The host uses the block first, so the block must be ready now.
  if (Result<void> ready = DeviceState::wait_for_stream(stream, request.site); !ready) {
    put_back(piece, stream, request.site);
    return ready.failure();
  }
  return address;
}

Result<void> AnyCudaMrUpstream::try_put_back(const Piece& piece, StreamRef stream,
                                             const CallSite& site) noexcept {
  NativeStream native;
  if (has_streams_) {
    const Result<NativeStream> handle = stream.try_native();
    if (!handle) return Failure(handle.failure()).at(site);
    native = *handle;
  }
  return call_upstream(device(), piece.bytes, site, [&] {
    deallocate_upstream(native, piece.address, piece.bytes, alignment_for(piece.alignment));
  });
}

void AnyCudaMrUpstream::put_back(const Piece& piece, StreamRef stream,
                                 const CallSite& site) noexcept {
  static_cast<void>(try_put_back(piece, stream, site));
}

Result<Mark> AnyCudaMrUpstream::give(const Piece& piece, StreamRef stream,
                                     const CallSite& site) noexcept {
  const auto is_kept = [](const Result<void>& result) {
    return !result && result.failure().code() != ErrorCode::device_lost;
  };
  if (!has_streams_) {
    if (Result<void> waited = wait_for(stream); !waited) return waited.failure();
    if (Result<void> gone = try_put_back(piece, {}, site); is_kept(gone)) return gone.failure();
    return Mark{};
  }
  // The owner may end the stream meanwhile, in another thread.
  const StreamPin stay(stream);
  if (!stay) {
    // The stream has ended. Once its work is complete, any stream may free the block.
    if (Result<void> waited = device().try_synchronize(); is_kept(waited)) return waited.failure();
    stream = device().default_stream();
  }
  if (Result<void> gone = try_put_back(piece, stream, site); is_kept(gone)) return gone.failure();
  const Result<Mark> mark = stream.try_mark();
  return mark ? *mark : Mark{};
}

}  // namespace tern::detail
