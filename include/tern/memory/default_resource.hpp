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

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/any_function.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/device_info.hpp"
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

// shutdown() ends the library's own use of memory and reports what the program has not freed.
//
//   ShutdownReport report = tern::shutdown();
//   if (!report.is_clean()) std::puts(report.text().c_str());
//
// shutdown() waits for every open device, retries failed frees and trims the default resources. It
// returns the blocks that are still live, the frees that failed and the bytes that were pending.
// After shutdown(), asking for a default resource fails with AfterShutdown. Devices, streams and
// the program's own resources stay usable, so the program can still free its blocks.
//
// shutdown() may be called more than once and from several threads. One call runs at a time, and
// each call returns the blocks that are live at its end. A device that is lost or cannot be waited
// for is listed in the report, and the shutdown of the other devices goes on. In a forked child
// shutdown() does nothing and returns an empty report.

/// The result of shutdown().
struct ShutdownReport {
  /// Live blocks, grouped; the largest group first. Call sites are known only for blocks of default
  /// resources, and only if TERN_MEMORY contains "track"; check CallSite::is_known().
  std::vector<Holder> leaks;
  /// The number of frees that failed without a caller to tell, and the bytes that are still live
  /// because of such failures.
  std::uint64_t failed_frees = 0;
  std::size_t failed_free_bytes = 0;
  /// Bytes that default resources had pending when shutdown() began: freed, but their stream had
  /// not passed the free.
  std::size_t pending_bytes = 0;
  /// One failure for each device that could not be waited for.
  std::vector<Failure> unfinished;

  /// Returns true if nothing is live, no failed free is outstanding and every device was waited
  /// for.
  [[nodiscard]] bool is_clean() const noexcept {
    return leaks.empty() && failed_free_bytes == 0 && unfinished.empty();
  }
  /// Returns a table of the leaks and one line for each other fact, or "no leaks".
  [[nodiscard]] std::string text() const;
};

/// Shuts the library down and returns the report. Waits for every open device. Throws
/// std::bad_alloc.
TERN_EXPORT ShutdownReport shutdown();

// The failure callback receives failures that cannot be returned to a caller.
//
// Examples: a free that fails in a destructor, a write beyond a guarded block, two live blocks that
// overlap. No caller could catch an exception there, so the library calls one function that the
// program sets. Without a callback, the library prints each violation to standard error and only
// counts other failures.
//
// The callback runs on the thread that met the failure, with no lock held. Several threads may call
// it at the same time. It may use the library. Exceptions from the callback are ignored. All
// functions are thread-safe.

/// A function that receives one failure per call.
using FailureCallback = AnyFunction<void(const Failure&)>;

/// Sets the callback and returns the previous one. An empty function restores the default
/// behaviour. Throws std::bad_alloc.
TERN_EXPORT FailureCallback set_failure_callback(FailureCallback callback);

/// Calls the current callback with `failure`. Without a callback, prints violations to standard
/// error. For user-defined resources that have a failure to report.
TERN_EXPORT void report_failure(const Failure& failure) noexcept;

}  // namespace tern
