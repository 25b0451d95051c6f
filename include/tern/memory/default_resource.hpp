// The default resource of a device allocates the memory of every buffer that names no resource.
//
//   ResourceHandle pool = default_resource(device);
//   ResourceHandle old = set_default_resource(device, my_resource);
//
// The first caller creates the default resource: a PoolResource, plus the wrappers that TERN_MEMORY
// asks for. If several threads call at once, all get the same resource. If creating it fails, the
// next call tries again. Memory keeps its resource alive, so setting another default never
// invalidates existing blocks.
//
// Lifetime: the built-in default resource does not keep its device open. It is destroyed with the
// last Device, stream or event handle of the program, unless the program still owns a handle to the
// resource. A resource that the program sets holds a Device handle of its own, so it keeps the
// device open until the program sets another resource or null. All functions are thread-safe.

#pragma once

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/memory_kind.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// Returns the default resource for one kind of memory: device, pinned or managed. Creates it on
/// the first call. Fails with invalid_device, after_fork or after_shutdown; with invalid_argument
/// for any other kind; with unsupported if the device has no memory of that kind; or with the error
/// of creating the pool.
[[nodiscard]] TERN_EXPORT Result<ResourceHandle> try_default_resource(
    const Device& device, MemoryKind kind = MemoryKind::device) noexcept;
[[nodiscard]] inline ResourceHandle default_resource(const Device& device,
                                                     MemoryKind kind = MemoryKind::device,
                                                     CallSite site = CallSite::here()) {
  return try_default_resource(device, kind).value(site);
}

/// Returns the default resource for device memory without touching a refcount; the fast path costs
/// two loads. The reference is valid while the caller owns a handle to the device and nobody sets
/// another default or shuts the default down. Code that does either gets the old resource returned
/// and must keep it until all users of the reference are done.
///
/// Throws what try_default_resource() returns, with two differences. On the fast path there is no
/// check for a forked child; the resource itself rejects the request. If the program has no handle
/// of the device left, so that nothing would keep the resource alive, the function throws
/// AfterShutdown.
[[nodiscard]] TERN_EXPORT Resource& default_resource_ref(const Device& device);

/// Sets the default resource for the kind of memory that `resource` allocates, and returns the
/// previous default. Returns null if there was none yet. If `resource` is null, the built-in pool
/// becomes the default for `kind` again. Passing the returned handle back therefore restores the
/// previous state. Throws DeviceMismatch for a resource of another device, InvalidDevice,
/// AfterFork, AfterShutdown, OutOfMemory.
TERN_EXPORT ResourceHandle set_default_resource(const Device& device, ResourceHandle resource,
                                                MemoryKind kind = MemoryKind::device);

/// Removes the default resources of all kinds. Afterwards every function above fails with
/// after_shutdown. Returns the last default resource for device memory, whose statistics show what
/// is still live. Returns null if there was none, or on a second call. Throws InvalidDevice,
/// AfterFork, OutOfMemory.
TERN_EXPORT ResourceHandle shutdown_default_resource(const Device& device);

}  // namespace tern
