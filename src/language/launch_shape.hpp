// The shape of a launch, and the orders in which an interpreter may run its blocks and threads.

#pragma once

#include <array>
#include <cstdint>
#include <numeric>

namespace tern::language {

/// A number of blocks or threads along x, y and z, or the position of one of them.
using Position3 = std::array<std::uint64_t, 3>;

struct LaunchShape {
  Position3 grid{1, 1, 1};   // blocks
  Position3 block{1, 1, 1};  // threads
};

/// Returns the number of positions, or 0 if there are none or more than `limit`.
[[nodiscard]] inline std::uint64_t volume(const Position3& shape, std::uint64_t limit) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) {
    if (extent == 0 || extent > limit / count) return 0;
    count *= extent;
  }
  return count;
}
/// The position with this number, counted along x, then y, then z.
[[nodiscard]] inline Position3 position(std::uint64_t number, const Position3& shape) {
  if (number < shape[0]) return {number, 0, 0};  // the usual case: divisions are slow
  return {number % shape[0], number / shape[0] % shape[1], number / shape[0] / shape[1]};
}

/// An order of `count` < 2^32 numbers: equal steps from a first one, so it needs no memory.
class LaunchOrder {
 public:
  LaunchOrder(std::uint64_t count, std::uint64_t seed) : count_(count) {
    if (seed == 0 || count < 2) return;
    // splitmix64
    seed += 0x9e3779b97f4a7c15u;
    seed = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9u;
    seed = (seed ^ seed >> 27) * 0x94d049bb133111ebu;
    seed ^= seed >> 31;
    first_ = seed % count;
    step_ = 1 + (seed >> 32) % count;
    while (std::gcd(step_, count) != 1) ++step_;
  }
  [[nodiscard]] std::uint64_t operator[](std::uint64_t i) const {
    return step_ == 1 && first_ == 0 ? i : (first_ + i * step_) % count_;
  }

 private:
  std::uint64_t count_;
  std::uint64_t first_ = 0;
  std::uint64_t step_ = 1;
};

}  // namespace tern::language
