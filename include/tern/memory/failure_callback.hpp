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

#pragma once

#include <functional>

#include "tern/core/error.hpp"
#include "tern/core/visibility.hpp"

namespace tern {

/// A function that receives one failure per call.
using FailureCallback = std::function<void(const Failure&)>;

/// Sets the callback and returns the previous one. An empty function restores the default
/// behaviour. Throws std::bad_alloc.
TERN_EXPORT FailureCallback set_failure_callback(FailureCallback callback);

/// Calls the current callback with `failure`. Without a callback, prints violations to standard
/// error. For user-defined resources that have a failure to report.
TERN_EXPORT void report_failure(const Failure& failure) noexcept;

}  // namespace tern
