// Measures pairs of one allocation and one free of the same block.

#pragma once

#include <cstddef>

#include "bench/contestants.hpp"

namespace tern::bench {

/// Returns the median nanoseconds per pair for each contestant. The contestants run in turns, in
/// batches of about 1/25 of the seconds per figure. Throws if an allocation fails.
[[nodiscard]] Scores pair_ns(const Context& context, const Contestants& contestants,
                             StreamRef stream, std::size_t bytes, std::size_t batches);

}  // namespace tern::bench
