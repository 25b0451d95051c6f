// Which way the bytes of a copy go: the one place that looks at kinds, devices and capabilities.

#pragma once

#include <cstddef>
#include <optional>

#include "tern/buffer/copy.hpp"
#include "tern/buffer/storage.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Refuses a stream of another device than the storage's (device_mismatch).
[[nodiscard]] Result<void> check_stream_of(const Storage& storage, StreamRef stream,
                                           CallSite site) noexcept;

/// The host's own, page-locked or not: the host and streams of every device use it by its address.
[[nodiscard]] bool is_host_memory(const Storage& storage) noexcept;

/// Can a stream of the device read and write it?
[[nodiscard]] bool reaches(DeviceId device, const Storage& storage) noexcept;

struct CopyPlan {
  CopyRoute route = CopyRoute::direct;
  /// Whose stream is given the copy. Null where each side has one of its own.
  const Device* runner = nullptr;
};

/// For a copy on a stream of the device; the destination is no file. None: the device has nothing
/// to do with it.
[[nodiscard]] std::optional<CopyPlan> plan_copy(const Storage& to, const Storage& from,
                                                DeviceId device) noexcept;

/// Where a stream of the device finds the first byte, of memory that is there and that it reaches.
[[nodiscard]] std::byte* address_for(const Storage& storage, DeviceId device) noexcept;

/// What a checker does not see by itself: host memory of its device is used by a stream of another
/// backend, which is as if the host did. (The use has begun, so the host has waited.)
[[nodiscard]] Result<void> note_foreign_use(const Storage& storage, StreamRef stream, Access access,
                                            std::size_t offset, std::size_t bytes,
                                            CallSite site) noexcept;

}  // namespace tern
