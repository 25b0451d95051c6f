// Vector clocks of the checker's oracle: the order of each actor, a stream or a host thread.
//
// A mark may cover a little more work than was submitted when it was taken. So each actor has two
// clocks, one for the minimum order and one for the maximum. If they disagree about a race, there
// is no verdict.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tern::tools {

inline constexpr std::size_t max_actors = 12;
using Clock = std::array<std::uint64_t, max_actors>;

inline void join(Clock& to, const Clock& from) {
  for (std::size_t i = 0; i < max_actors; ++i) to[i] = std::max(to[i], from[i]);
}

struct Epoch {
  std::size_t actor = 0;
  std::uint64_t count = 0;  // 0: before everything
};

/// Both oracles: the least order there is for certain, and the most there may be.
struct Order {
  Clock least = {}, most = {};
};
inline void join(Order& to, const Order& from) {
  join(to.least, from.least);
  join(to.most, from.most);
}

enum class Verdict : std::uint8_t { ordered, race, unknown };

}  // namespace tern::tools
