// Kernels that are Python functions: the launches in flight, and the exceptions of those that
// failed.
//
// While a function runs, its thread must not call the device, and Python may destroy any object
// there. Handles of memory, streams and kernels that end inside of a function are therefore kept,
// and released by the next call outside of functions.
//
// A function runs later than its launch, on a thread that has no caller to raise to. Its exception
// is kept, and raised by the next call of the launching thread that releases the interpreter lock,
// or by a call of any thread that waits for the stream or reads memory of the device.

#pragma once

#include <atomic>
#include <memory>

#include "tern/core/place.hpp"
#include "tern/device/mark.hpp"

namespace tern::python {

/// The number of exceptions and handles that are kept.
extern std::atomic<int> kept_things;
/// Whether this thread runs a kernel that is a Python function.
extern thread_local bool is_in_kernel;
/// Whether that kernel runs on the host. A call that waits for its stream would never return. The
/// simulated device reports such calls itself.
extern thread_local bool is_in_host_kernel;
/// Raises StreamMisuseError.
[[noreturn]] void refuse_in_kernel();

/// Releases the kept handles. Then raises a kept exception of this thread, of the device or of the
/// stream, if there is one. Holds the interpreter lock.
void settle_launches(DeviceId device, StreamId stream);

inline void check_launches(DeviceId device = {}, StreamId stream = {}) {
  if (kept_things.load(std::memory_order_relaxed) > 0 && !is_in_kernel) [[unlikely]] {
    settle_launches(device, stream);
  }
}

/// Releases the kept handles and reports the exceptions that no wait has raised. Called at the end
/// of the program.
void end_launches();

/// Keeps a handle until the next call outside of functions.
void keep_handle(std::shared_ptr<void> handle) noexcept;

}  // namespace tern::python
