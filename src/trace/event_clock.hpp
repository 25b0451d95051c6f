// The clock of events.
//
// now_ns() reads the counter of the processor, which takes a third of the time that the system's
// clock takes, and scales it to nanoseconds. Its times start as those of the monotonic clock and
// may deviate from them by one part in 50,000. Processors without a counter of constant rate use
// the monotonic clock.

#pragma once

#include <cstdint>

namespace tern::trace {

[[nodiscard]] std::uint64_t now_ns() noexcept;

}  // namespace tern::trace
