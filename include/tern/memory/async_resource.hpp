// An AsyncResource hands every request to the driver's own stream-ordered allocator.
//
// A block is ready for the work of its stream that follows, and free in the order of the stream
// that frees it: neither waits. Requests without a stream go to the default stream. Thread-safe;
// keeps its device open.
//
// Where the driver has a pool with settings (cuda), they can be read and changed here; elsewhere
// that is refused with unsupported. A device has one such pool: settings hold for all resources of
// the device, and stay when a resource ends.

#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/device/backend.hpp"
#include "tern/device/device.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern {

/// Of the driver's pool. What is unset stays as it is: the pool has no maximum and keeps everything
/// that is freed.
struct AsyncOptions {
  /// Taken from the system at once, so that the first allocations need not.
  std::optional<std::size_t> initial_bytes = {};
  /// The most that the pool holds. Only before anything was allocated there.
  std::optional<std::size_t> max_bytes = {};
  /// Freed memory above this goes back to the system when a stream or the device is waited for.
  std::optional<std::size_t> release_threshold_bytes = {};
  /// Devices whose kernels may use blocks of this resource.
  std::vector<Device> peers = {};
  CallSite site = CallSite::here();
};

class TERN_EXPORT AsyncResource final : public DriverResource {
 public:
  /// Throws Unsupported if the device allocates in the order of the host only, or if options are
  /// set and its driver has no pool; InvalidArgument, which names the setting, for one that cannot
  /// be; for a peer as try_set_peer_access() refuses.
  explicit AsyncResource(Device device, const AsyncOptions& options = {});

  [[nodiscard]] const char* name() const noexcept override { return "async"; }

  /// What is in force, and what the driver's pool holds. Each x() throws what try_x() returns.
  [[nodiscard]] Result<DriverPoolInfo> try_driver_pool() const noexcept;
  [[nodiscard]] DriverPoolInfo driver_pool(CallSite site = CallSite::here()) const {
    return try_driver_pool().value(site);
  }
  Result<void> try_set_release_threshold(std::size_t bytes,
                                         CallSite site = CallSite::here()) noexcept;
  void set_release_threshold(std::size_t bytes, CallSite site = CallSite::here()) {
    try_set_release_threshold(bytes, site).value();
  }
  /// May kernels of `peer` use blocks of this resource, those that are live included? Refused with
  /// invalid_argument for the resource's own device and one that is not open, device_mismatch for a
  /// device of another backend, unsupported for one that cannot.
  Result<void> try_set_peer_access(const Device& peer, bool is_allowed,
                                   CallSite site = CallSite::here()) noexcept;
  void set_peer_access(const Device& peer, bool is_allowed, CallSite site = CallSite::here()) {
    try_set_peer_access(peer, is_allowed, site).value();
  }
  /// Peaks begin anew with what the pool holds now.
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
