// A Timeline is a counter that only increases. Streams and the host set it; the host waits for it.
//
//   Timeline timeline;
//   timeline.set(stream, 1);   // when the work submitted so far has completed
//   timeline.wait(1);
//
// A stream sets a value when the device *completes* the preceding work, not when the work is
// submitted. The host sets a value immediately. Setting a value below the current one has no
// effect. wait() never misses a value that was reached before or during the call.
//
// Copies refer to the same timeline. The timeline lives until the last handle is gone and the last
// stream that will set it has done so. Thread-safe.

#pragma once

#include <cstdint>
#include <memory>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/stream.hpp"

namespace tern {

struct TimelineState;

class TERN_EXPORT Timeline {
 public:
  /// Creates a timeline with an initial value. Throws std::bad_alloc.
  explicit Timeline(std::uint64_t value = 0);
  // Copies refer to the same timeline. There is no move constructor, because a timeline that was
  // moved from would have no state.
  Timeline(const Timeline&) noexcept = default;
  Timeline& operator=(const Timeline&) noexcept = default;

  /// Returns the current value.
  [[nodiscard]] std::uint64_t value() const noexcept;

  /// Raises the value now and wakes waiting threads.
  void set(std::uint64_t value) noexcept;
  /// Raises the value when the stream has completed everything submitted to it so far. Needs
  /// Capability::host_functions. Fails with stream_misuse if the stream does not accept work, and
  /// with out_of_memory.
  Result<void> try_set(StreamRef stream, std::uint64_t value,
                       CallSite site = CallSite::here()) const noexcept;
  void set(StreamRef stream, std::uint64_t value, CallSite site = CallSite::here()) const {
    try_set(stream, value, site).value();
  }

  /// Blocks the host until the value is reached, for at most `timeout_ns` nanoseconds. 0 waits
  /// without a limit. Fails with timeout, which carries the awaited value and the current value.
  /// Fails with the failure of the device if the work of the stream that would set the value
  /// failed.
  Result<void> try_wait(std::uint64_t value, std::uint64_t timeout_ns = 0) const noexcept;
  void wait(std::uint64_t value, std::uint64_t timeout_ns = 0,
            CallSite site = CallSite::here()) const {
    try_wait(value, timeout_ns).value(site);
  }

 private:
  std::shared_ptr<TimelineState> state_;
};

}  // namespace tern
