// Timing for bench cases: several bodies measured in turns, the median of each.
//
// In turns, so that what slows the machine down for a while slows all of them; the median, so that
// the rest of it does not count.

#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace tern::bench {

using Body = std::function<void()>;

/// Seconds one call of each body takes: the median over rounds of one call each, after one round to
/// warm up, for about `seconds` per body and at least 5 rounds.
[[nodiscard]] std::vector<double> median_seconds(const std::vector<Body>& bodies, double seconds);

/// Nanoseconds per operation of a body that does `operations` of them.
[[nodiscard]] double median_ns(const Body& body, std::size_t operations, double seconds);

/// There must be some.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace tern::bench
