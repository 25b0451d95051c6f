// Resources that keep nothing: each request and each free is a call of the driver. DirectResource
// allocates in the order of the host, AsyncResource in the order of streams. Both are
// DriverResources (detail/memory/driver_resource.hpp): the granted size is the requested size.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/detail/memory/driver_resource.hpp"
#include "tern/device/device.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

// A DirectResource calls the driver for every block: one call to allocate, one call to free.
//
// It is slow but exact: every block is an allocation that a sanitizer or profiler can see. Drivers
// free memory immediately, not in stream order, so freeing a block waits until the stream has
// finished its work. Blocks are device, pinned or managed memory. Thread-safe. Keeps its device
// open.

/// Allocates and frees each block with one driver call.
class TERN_EXPORT DirectResource final : public DriverResource {
 public:
  /// Throws InvalidArgument if the device is not open or the kind is none of device, pinned and
  /// managed. Throws Unsupported if the device has no memory of that kind.
  explicit DirectResource(Device device, MemoryKind kind = MemoryKind::device);

  [[nodiscard]] const char* name() const noexcept override { return "direct"; }
  /// The kind of memory of every block.
  [[nodiscard]] MemoryKind kind() const noexcept { return kind_; }
  [[nodiscard]] ResourceTraits traits() const noexcept override;

 private:
  [[nodiscard]] Result<void*> take(const Request& request, StreamRef stream) noexcept override;
  void put_back(const Piece& piece, StreamRef stream, const CallSite& site) noexcept override;
  [[nodiscard]] Result<Mark> give(const Piece& piece, StreamRef stream,
                                  const CallSite& site) noexcept override;

  const MemoryKind kind_;
};

// An AsyncResource passes every request to the driver's stream-ordered allocator.
//
// A block is ready for later work of its stream, and is freed in the order of the stream that frees
// it. Neither waits. Requests without a stream use the default stream. Thread-safe; keeps its
// device open.
//
// If the driver's pool has settings (cuda), they can be read and changed; other devices fail with
// unsupported. A device has one driver pool, so the settings apply to all resources of the device
// and outlive the resource.

/// Settings of the driver's pool. An unset value is not changed; by default the pool has no maximum
/// and keeps all freed memory.
struct AsyncOptions {
  /// Allocated from the system immediately, so that the first allocations are fast.
  std::optional<std::size_t> initial_bytes = {};
  /// Maximum size of the pool. Can only be set before the first allocation.
  std::optional<std::size_t> max_bytes = {};
  /// Freed memory above this size is returned to the system when the host waits for a stream or the
  /// device.
  std::optional<std::size_t> release_threshold_bytes = {};
  /// Devices whose kernels may access blocks of this resource.
  std::vector<Device> peers = {};
  CallSite site = CallSite::here();
};

class TERN_EXPORT AsyncResource final : public DriverResource {
 public:
  /// Throws Unsupported if the device has no stream-ordered allocation, or if an option is set and
  /// the driver has no pool. Throws InvalidArgument, which names the setting, for an invalid value.
  /// For a peer, throws what try_set_peer_access() returns.
  explicit AsyncResource(Device device, const AsyncOptions& options = {});

  [[nodiscard]] const char* name() const noexcept override { return "async"; }

  /// Returns the settings and sizes of the driver's pool. Each x() throws what try_x() returns.
  [[nodiscard]] Result<DriverPoolInfo> try_driver_pool() const noexcept;
  [[nodiscard]] DriverPoolInfo driver_pool(CallSite site = CallSite::here()) const {
    return try_driver_pool().value(site);
  }
  /// Sets AsyncOptions::release_threshold_bytes, for all users of the driver's pool. Fails with
  /// unsupported if the driver has no pool, and with invalid_argument for a value that the driver
  /// does not accept.
  Result<void> try_set_release_threshold(std::size_t bytes,
                                         CallSite site = CallSite::here()) noexcept;
  void set_release_threshold(std::size_t bytes, CallSite site = CallSite::here()) {
    try_set_release_threshold(bytes, site).value();
  }
  /// Sets whether kernels of `peer` may access blocks of this resource, including live blocks.
  /// Fails with invalid_argument for the resource's own device or an empty Device, with
  /// device_mismatch for a device of another backend, and with unsupported if the peer cannot
  /// access the memory.
  Result<void> try_set_peer_access(const Device& peer, bool is_allowed,
                                   CallSite site = CallSite::here()) noexcept;
  void set_peer_access(const Device& peer, bool is_allowed, CallSite site = CallSite::here()) {
    try_set_peer_access(peer, is_allowed, site).value();
  }
  /// Resets the peaks to the current sizes.
  Result<void> try_reset_peaks(CallSite site = CallSite::here()) noexcept;
  void reset_peaks(CallSite site = CallSite::here()) { try_reset_peaks(site).value(); }

 private:
  [[nodiscard]] Result<void> check(const AsyncOptions& options) const noexcept;
  [[nodiscard]] Result<void> check_peer(const Device& peer, CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_apply(const AsyncOptions& options) noexcept;
  [[nodiscard]] Result<void*> take(const Request& request, StreamRef stream) noexcept override;
  void put_back(const Piece& piece, StreamRef stream, const CallSite& site) noexcept override;
  [[nodiscard]] Result<Mark> give(const Piece& piece, StreamRef stream,
                                  const CallSite& site) noexcept override;
};

}  // namespace tern
