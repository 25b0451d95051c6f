// Measures pairs of one allocation and one free of the same block.

#pragma once

#include <cstddef>

#include "bench/contestants.hpp"

namespace tern::bench {

/// How the loop is written: the Result of try_allocate() is passed on to the free, or the Block of
/// allocate() is kept in a struct, as most programs do.
enum class PairStyle { result, kept };

/// Returns the median nanoseconds per pair for each contestant. The contestants run in turns, in
/// batches of about 1/25 of the seconds per figure. Throws if an allocation fails.
[[nodiscard]] Scores pair_ns(const Context& context, const Contestants& contestants,
                             StreamRef stream, std::size_t bytes, std::size_t batches,
                             PairStyle style = PairStyle::result);

}  // namespace tern::bench
