// Kernels that are Python functions: the launches in flight, and the exceptions of those that
// failed.
//
// A function runs later than its launch, on a thread that has no caller to raise to. Its exception
// is kept, and raised by the next call of the launching thread that releases the interpreter lock,
// or by a call of any thread that waits for the stream or reads memory of the device.

#pragma once

#include <atomic>

#include "tern/core/place.hpp"
#include "tern/device/mark.hpp"

namespace tern::python {

/// The number of exceptions that are kept.
extern std::atomic<int> kept_exceptions;

/// Raises a kept exception of this thread, of the device or of the stream. Does nothing if there is
/// none. Holds the interpreter lock.
void raise_kept_exception(DeviceId device, StreamId stream);

inline void check_launches(DeviceId device = {}, StreamId stream = {}) {
  if (kept_exceptions.load(std::memory_order_relaxed) > 0) [[unlikely]] {
    raise_kept_exception(device, stream);
  }
}

}  // namespace tern::python
