// Fences order all work of a stream that another library owns against all work of one of our
// streams. Use them if the other library works on its own memory.
//
//   fence_to(theirs, ours);        // before: their later work runs after all work on ours so far
//   their_library_call(handle);
//   fence_from(theirs, ours);      // after: our later work runs after all work on theirs so far
//
// A fence gives out no address. For a launch that uses Tern's buffers, declare the buffers with a
// LaunchRecorder on the stream of the other library: it waits for less, records the uses, and gives
// out addresses only between its preflight and its commit.
//
// The devices wait, not the host. Fences use the spare events of the device, so that any number of
// fences needs only a few events. If one of the streams is being captured into a graph, the fence
// fails with stream_misuse before anything is recorded, and the capture stays valid. Captured work
// runs later and repeatedly, so it cannot wait for present work, and present work cannot wait for
// it. Fence before the capture begins, and after the graph was launched. If both streams are the
// same, nothing is recorded.
//
// Each x() throws what try_x() returns. The functions may be called from any thread.

#pragma once

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Makes later work on `theirs` wait for all work on `ours` so far. Fails with stream_misuse if a
/// stream takes no work or is being captured, and with device_mismatch if the devices have
/// different backends.
TERN_EXPORT Result<void> try_fence_to(StreamRef theirs, StreamRef ours,
                                      CallSite site = CallSite::here()) noexcept;
inline void fence_to(StreamRef theirs, StreamRef ours, CallSite site = CallSite::here()) {
  try_fence_to(theirs, ours, site).value();
}
/// Makes later work on `ours` wait for all work on `theirs` so far, including work that Tern did
/// not submit. Fails as try_fence_to() does.
TERN_EXPORT Result<void> try_fence_from(StreamRef theirs, StreamRef ours,
                                        CallSite site = CallSite::here()) noexcept;
inline void fence_from(StreamRef theirs, StreamRef ours, CallSite site = CallSite::here()) {
  try_fence_from(theirs, ours, site).value();
}

// --- The same functions for a native stream handle of the device of `ours`. Each call borrows the
// handle with Stream::try_borrow and fails as that function does. To fence often, borrow the stream
// once and use the functions above.

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
