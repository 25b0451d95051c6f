// Timing for bench cases. Several bodies are measured in turns, so that a slow phase of the machine
// affects all of them. The result is the median, so that single outliers do not count.

#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace tern::bench {

using Body = std::function<void()>;

/// Returns the seconds that one call of each body takes. Each round calls every body once. The
/// result is the median of the rounds. There is one warm-up round, then at least 5 rounds or about
/// `seconds` per body.
[[nodiscard]] std::vector<double> median_seconds(const std::vector<Body>& bodies, double seconds);

/// Returns the nanoseconds per operation of a body that makes `operations` operations.
[[nodiscard]] double median_ns(const Body& body, std::size_t operations, double seconds);

/// Like median_ns(), with a step before each round that does not count.
[[nodiscard]] double median_ns_after(const Body& prepare, const Body& body, std::size_t operations,
                                     double seconds);

/// `values` must not be empty.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace tern::bench
