// A Timeline is a number that only rises, set by streams and hosts, and waited for by hosts.
//
// A stream sets a value when the device *finishes* the work before it, not when it is submitted;
// the host sets one at once. A value below the present one changes nothing. Waiting never misses a
// value that was reached before or during the call. Thread-safe; it lives until the last stream
// that will still set it has done so. Copies are the same timeline.

#pragma once

#include <cstdint>
#include <memory>

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"

namespace tern {

struct TimelineState;

class TERN_EXPORT Timeline {
 public:
  explicit Timeline(std::uint64_t value = 0);
  // Copies only: a timeline that was moved from would be none.
  Timeline(const Timeline&) noexcept = default;
  Timeline& operator=(const Timeline&) noexcept = default;

  [[nodiscard]] std::uint64_t value() const noexcept;

  /// Raises the value now.
  void set(std::uint64_t value) noexcept;
  /// Raises it when the stream has completed everything submitted to it so far. Needs
  /// Capability::host_functions.
  Result<void> try_set(StreamRef stream, std::uint64_t value,
                       CallSite site = CallSite::here()) const noexcept;
  void set(StreamRef stream, std::uint64_t value, CallSite site = CallSite::here()) const {
    try_set(stream, value, site).value();
  }

  /// Blocks the host until the value is reached, at most `timeout_ns` (0: for ever). Refused with
  /// timeout, which carries the target and the value reached by then.
  Result<void> try_wait(std::uint64_t value, std::uint64_t timeout_ns = 0) const noexcept;
  void wait(std::uint64_t value, std::uint64_t timeout_ns = 0,
            CallSite site = CallSite::here()) const {
    try_wait(value, timeout_ns).value(site);
  }

 private:
  std::shared_ptr<TimelineState> state_;
};

}  // namespace tern
