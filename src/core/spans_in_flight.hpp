// The host memory that queued work will read and write, for AddressSanitizer and Valgrind.
//
// What a queued copy writes is closed to the host when the copy is submitted and opened right
// before the copy runs, so that the tool reports whoever reads or writes it in between. What a copy
// reads stays open, because others may read it too.
//
// Memory that a copy is about to read or write and that was freed by then is reported with the line
// that submitted the copy; the tool says who freed it.
//
// Memory that other queued work may touch is not closed: that work comes first, and would be
// reported. Such work registers the spans it touches, or that it may touch anything. So an access
// can be missed, but nothing is reported that is in order.
//
// All of it does nothing without a tool. Thread-safe.

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
    awaited,  // written, and nobody else may touch it until then
  };
  const void* address = nullptr;
  std::size_t bytes = 0;
  Use use = Use::read;
};

/// Whose operation it is, and who will touch the memory.
struct SpansOrigin {
  const void* owner = nullptr;  // the device that runs it
  CallSite site = {};
  /// The tool does not see the access, or not as one of this library.
  bool is_moved_by_driver = false;
};

/// Of one operation. 0: there is no tool, or no memory to remember the operation by.
using SpansNumber = std::uint64_t;

/// An operation is about to be submitted.
[[nodiscard]] SpansNumber spans_submitted(const SpansOrigin& origin,
                                          std::span<const HostSpan> spans) noexcept;
/// An operation is about to be submitted that may touch any memory, as a host function may.
[[nodiscard]] SpansNumber anything_submitted(const SpansOrigin& origin) noexcept;
/// The operation runs now: its memory is open.
void spans_run(SpansNumber number) noexcept;
/// As a host function, of a context that as_context() returns.
inline void run_spans(void* number) { spans_run(reinterpret_cast<SpansNumber>(number)); }
/// The operation is over, or was never submitted: its memory is open, and nobody waits for it.
void spans_ended(SpansNumber number) noexcept;
inline void end_spans(void* number) { spans_ended(reinterpret_cast<SpansNumber>(number)); }
[[nodiscard]] inline void* as_context(SpansNumber number) noexcept {
  return reinterpret_cast<void*>(number);
}
/// The device is lost: none of its operations will run.
void spans_lost(const void* owner) noexcept;
/// Of all devices, for tests.
[[nodiscard]] std::size_t spans_in_flight() noexcept;

}  // namespace tern
