// Chooses the route of a copy. This is the only place that looks at kinds, devices and
// capabilities.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tern/buffer/buffer.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// The route that the bytes of a copy take.
enum class CopyRoute : std::uint8_t {
  direct,       // submitted to the stream
  handed_over,  // submitted to a stream of the other side's device, with waits on both ends
  peer,         // between two devices of one backend, on a stream of the destination's device
  staged,       // through host memory, piece by piece
  from_file,    // the file is read in the background, into host memory or a staging buffer
  to_file       // the file is written in the background
};
/// Returns the name of the enumerator, such as "direct".
[[nodiscard]] std::string_view name(CopyRoute route) noexcept;

/// Returns the route of a copy on a stream of `device`. Copies nothing. Fails with not_allocated
/// for an empty handle, read_only if the destination is a read-only file, and device_mismatch if
/// neither side belongs to the device, unless the device reaches both sides.
[[nodiscard]] Result<CopyRoute> try_copy_route(const Buffer& destination, const Buffer& source,
                                               const Device& device) noexcept;

/// Checks that the stream belongs to the storage's device (device_mismatch).
[[nodiscard]] Result<void> check_stream_of(const Storage& storage, StreamRef stream,
                                           CallSite site) noexcept;

/// Returns true for host memory, page-locked or not: the host and the streams of every device can
/// use it by its address.
[[nodiscard]] bool is_host_memory(const Storage& storage) noexcept;

/// Returns whether streams of the device can read and write the storage.
[[nodiscard]] bool reaches(DeviceId device, const Storage& storage) noexcept;

/// The route of a copy and the device that runs it.
struct CopyPlan {
  CopyRoute route = CopyRoute::direct;
  /// The device whose stream runs the copy. Null for the caller's stream, or if each side has its
  /// own.
  const Device* runner = nullptr;
};

/// Plans a copy on a stream of `device`. At most one side is a file. Returns nothing if the device
/// can take no part in the copy.
[[nodiscard]] std::optional<CopyPlan> plan_copy(const Storage& to, const Storage& from,
                                                DeviceId device) noexcept;

/// Returns the address of the first byte for a stream of the device. The storage has memory that
/// the device reaches.
[[nodiscard]] std::byte* address_for(const Storage& storage, DeviceId device) noexcept;

/// Tells the checker of the storage's device that a stream of another backend uses its host memory.
/// To that checker this is a host access. The use has begun, so the host has already waited.
[[nodiscard]] Result<void> note_foreign_use(const Storage& storage, StreamRef stream, Access access,
                                            std::size_t offset, std::size_t bytes,
                                            CallSite site) noexcept;

}  // namespace tern
