// Finds the smallest number that serves, where trying a number is expensive.

#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

namespace tern::tools {

/// Returns a number above `low`, at most `high`, that serves, while the number before it does not,
/// or is `low`. Numbers close to `low` are tried first, because answers are usually there. If
/// numbers that serve and numbers that do not alternate, the result is one of the places where they
/// change. Returns nothing if neither the tried numbers nor `high` serve.
template <class Serves>
std::optional<std::size_t> find_smallest(std::size_t low, std::size_t high, Serves serves) {
  if (high <= low) return std::nullopt;
  std::size_t found = 0;
  for (std::size_t step = 1; found == 0; step *= 2) {
    const std::size_t next = low + std::min(step, high - low);
    if (serves(next)) {
      found = next;
    } else if (next == high) {
      return std::nullopt;
    } else {
      low = next;
    }
  }
  while (found - low > 1) {
    const std::size_t middle = low + (found - low) / 2;
    (serves(middle) ? found : low) = middle;
  }
  return found;
}

}  // namespace tern::tools
