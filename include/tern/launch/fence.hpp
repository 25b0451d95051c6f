// Fences put work of a stream that somebody else made in order with work of ours, whole streams
// against whole streams: for a library that works on memory of its own, or that is handed so much
// that nobody can declare it.
//
//   fence_to(theirs, ours);        // before: their later work comes behind all that ours has now
//   their_library_call(handle);
//   fence_from(theirs, ours);      // after: our later work comes behind all that theirs has now
//
// Fences hand out no address. A launch that uses buffers is declared with a LaunchRecorder on their
// stream, which waits for less, knows the uses afterwards, and gives addresses only between its
// preflight and its commit.
//
// The devices do the waiting. Events are the device's spare ones, so any number of fences makes a
// few. A stream that is being captured into a graph is refused (stream_misuse) before anything is
// recorded, and the capture stays good: what it holds runs later and again, and neither waits for
// work of now nor can be waited for. Fence before the capture begins and behind the launch of the
// graph. Nothing is recorded where both are the same stream. Each x() throws what try_x() returns.
// Thread-safe.

#pragma once

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Later work of theirs comes behind all that ours has now. Refused with stream_misuse for a stream
/// that takes no work or is being captured; with device_mismatch where the devices' backends
/// differ.
TERN_EXPORT Result<void> try_fence_to(StreamRef theirs, StreamRef ours,
                                      CallSite site = CallSite::here()) noexcept;
inline void fence_to(StreamRef theirs, StreamRef ours, CallSite site = CallSite::here()) {
  try_fence_to(theirs, ours, site).value();
}
/// Later work of ours comes behind all that theirs has now, whoever submitted it.
TERN_EXPORT Result<void> try_fence_from(StreamRef theirs, StreamRef ours,
                                        CallSite site = CallSite::here()) noexcept;
inline void fence_from(StreamRef theirs, StreamRef ours, CallSite site = CallSite::here()) {
  try_fence_from(theirs, ours, site).value();
}

// --- The same by the driver's own handle, of a stream of ours' device, which is borrowed for the
// length of the call: whoever fences often borrows it once. Also refused as Stream::try_borrow.

TERN_EXPORT Result<void> try_fence_to(NativeStream theirs, StreamRef ours,
                                      CallSite site = CallSite::here()) noexcept;
inline void fence_to(NativeStream theirs, StreamRef ours, CallSite site = CallSite::here()) {
  try_fence_to(theirs, ours, site).value();
}
TERN_EXPORT Result<void> try_fence_from(NativeStream theirs, StreamRef ours,
                                        CallSite site = CallSite::here()) noexcept;
inline void fence_from(NativeStream theirs, StreamRef ours, CallSite site = CallSite::here()) {
  try_fence_from(theirs, ours, site).value();
}

}  // namespace tern
