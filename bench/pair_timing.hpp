// Allocate and free, over and over: what a block costs that is given back at once.

#pragma once

#include <cstddef>

#include "bench/contestants.hpp"

namespace tern::bench {

/// Median nanoseconds per pair of each contestant: batches of about a twenty-fifth of the seconds
/// per figure, taken in turns. Throws if a contestant refuses.
[[nodiscard]] Scores pair_ns(const Context& context, const Contestants& contestants,
                             StreamRef stream, std::size_t bytes, std::size_t batches);

}  // namespace tern::bench
