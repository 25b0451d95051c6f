// Tells AddressSanitizer or Valgrind which host memory queued copies will read and write.
//
// The destination of a queued copy is poisoned when the copy is submitted and unpoisoned right
// before the copy runs, so the tool reports host accesses in between. The source stays accessible,
// because the host may read it.
//
// If the memory of a copy was freed before the copy runs, the library prints the line that
// submitted the copy, and the tool reports where the memory was freed.
//
// Memory that other queued work may access is not poisoned, because that work runs first and would
// be reported. Such work registers its spans, or that it may access any memory. So an error can be
// missed, but correct accesses are never reported.
//
// Without a tool, these functions do nothing. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tern/core/call_site.hpp"

namespace tern {

struct HostSpan {
  enum class Use : std::uint8_t {
    read,
    written,
    awaited,  // written, and poisoned until then
  };
  const void* address = nullptr;
  std::size_t bytes = 0;
  Use use = Use::read;
};

/// Where an operation comes from.
struct SpansOrigin {
  const void* owner = nullptr;  // the device that runs the operation
  CallSite site = {};
  /// The driver makes the access, so the tool does not see it and the library reports it.
  bool is_moved_by_driver = false;
};

/// Identifies an operation. 0 means that there is no tool, or no memory for the record.
using SpansNumber = std::uint64_t;

/// Call before an operation is submitted. Poisons its awaited spans.
[[nodiscard]] SpansNumber spans_submitted(const SpansOrigin& origin,
                                          std::span<const HostSpan> spans) noexcept;
/// Call before an operation is submitted that may access any memory, such as a host function.
[[nodiscard]] SpansNumber anything_submitted(const SpansOrigin& origin) noexcept;
/// Call right before the operation runs. Unpoisons its memory and reports freed memory.
void spans_run(SpansNumber number) noexcept;
/// spans_run() as a host function; its context is the result of as_context().
inline void run_spans(void* number) { spans_run(reinterpret_cast<SpansNumber>(number)); }
/// Call when the operation is complete or was not submitted. Unpoisons its memory and removes it.
void spans_ended(SpansNumber number) noexcept;
inline void end_spans(void* number) { spans_ended(reinterpret_cast<SpansNumber>(number)); }
[[nodiscard]] inline void* as_context(SpansNumber number) noexcept {
  return reinterpret_cast<void*>(number);
}
/// Call when a device is lost or closed. Removes all operations of the device.
void spans_lost(const void* owner) noexcept;
/// Poisons memory for a caller that keeps its own records. Undo it with unpoison_in_flight() and
/// the same range.
void poison_in_flight(const void* address, std::size_t bytes) noexcept;
void unpoison_in_flight(const void* address, std::size_t bytes) noexcept;

/// For the fork hook: the child has no devices, so it may use its copy of all memory in flight.
void spans_before_fork() noexcept;
void spans_after_fork(bool is_child) noexcept;

/// Returns the number of operations in flight on all devices. For tests.
[[nodiscard]] std::size_t spans_in_flight() noexcept;

}  // namespace tern
