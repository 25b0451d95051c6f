// The default resource of a device: where memory comes from if nobody says otherwise.
//
// It is made when it is first asked for; of several threads that ask, all get the same one, and a
// set-up that failed is tried again by the next that asks. Whoever holds memory of it holds the
// resource too, so setting another never takes a block away from its owner.
//
// It lives as long as the device's handles do and does not count as one: when the last Device,
// stream or event of the program's is gone, so is the default resource, unless somebody holds it.
// A resource that the program sets itself was made with such a handle, and keeps the device open
// until another is set, or null. Thread-safe.

#pragma once

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/memory_kind.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// One for each kind that a device gives: device, pinned and managed. Refused with invalid_device,
/// after_fork, after_shutdown, invalid_argument for another kind, and as the making of it fails:
/// unsupported, where the device has no such memory.
[[nodiscard]] TERN_EXPORT Result<ResourceHandle> try_default_resource(
    const Device& device, MemoryKind kind = MemoryKind::device) noexcept;
[[nodiscard]] inline ResourceHandle default_resource(const Device& device,
                                                     MemoryKind kind = MemoryKind::device,
                                                     CallSite site = CallSite::here()) {
  return try_default_resource(device, kind).value(site);
}

/// That of device memory without a share in it, for the price of two loads. It is there while the
/// caller has the device and nobody sets another or shuts it down; whoever does that is given the
/// old one, and keeps it until all are done with it. Throws what try_default_resource() returns,
/// but leaves it to the resource to refuse a forked child, and AfterShutdown where only the
/// resource itself is left to keep the device open.
[[nodiscard]] TERN_EXPORT Resource& default_resource_ref(const Device& device);

/// For the kind of memory the resource gives. Gives the old one; null if there was none yet. Null
/// as the new one, of the kind that is named then, means the built-in one, so
/// giving the old one back restores what was. Throws DeviceMismatch for a resource of another
/// device, InvalidDevice, AfterFork, AfterShutdown, OutOfMemory.
TERN_EXPORT ResourceHandle set_default_resource(const Device& device, ResourceHandle resource,
                                                MemoryKind kind = MemoryKind::device);

/// From now on the device has no default resource: all of the above is refused with after_shutdown.
/// Gives the last one of device memory, whose statistics say what is still live; null if there was
/// none, as after the first time. Throws InvalidDevice, AfterFork, OutOfMemory.
TERN_EXPORT ResourceHandle shutdown_default_resource(const Device& device);

}  // namespace tern
