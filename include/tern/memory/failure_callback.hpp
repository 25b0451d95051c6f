// Who hears of failures that no caller can be told of.
//
// A free that fails in a destructor, a write beyond a guarded block, two live blocks that overlap:
// nobody is there to catch an exception, so the library calls one function of the program's.
// Without one, violations are printed to standard error, each once, and the rest is only counted.
//
// The callback runs in the thread that met the failure, with no lock held, in several threads at
// once. It may use the library. What it throws is dropped. Thread-safe.

#pragma once

#include <functional>

#include "tern/core/error.hpp"
#include "tern/core/export.hpp"

namespace tern {

using FailureCallback = std::function<void(const Failure&)>;

/// Replaces the callback and returns the one before. An empty one restores the default. Throws
/// std::bad_alloc.
TERN_EXPORT FailureCallback set_failure_callback(FailureCallback callback);

/// Calls it, for resources of one's own.
TERN_EXPORT void report_failure(const Failure& failure) noexcept;

}  // namespace tern
