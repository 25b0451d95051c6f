// Random numbers for bench cases. A seed gives the same numbers on every machine and with every
// standard library.

#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

namespace tern::bench {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    // splitmix64: cheap compared with what is measured.
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// Returns 0 to count - 1. For counts far below 2^32 the bias is negligible.
  std::size_t below(std::size_t count) { return (next() >> 32) * count >> 32; }
  /// Returns a number from `least` to `most`, both included.
  std::size_t between(std::size_t least, std::size_t most) {
    return least + below(most - least + 1);
  }
  /// Returns a number in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double from, double to) { return from + (to - from) * unit(); }
  bool chance(double probability) { return unit() < probability; }
  double lognormal(double mu, double sigma) {
    const double radius = std::sqrt(-2 * std::log(1 - unit()));
    return std::exp(mu + sigma * radius * std::cos(2 * std::numbers::pi * unit()));
  }
  /// Chooses an octave uniformly, then a number in the octave uniformly. Both bounds are powers of
  /// two.
  std::size_t log_uniform(std::size_t least, std::size_t most) {
    const auto octaves = static_cast<std::size_t>(std::countr_zero(most) - std::countr_zero(least));
    const std::size_t octave = least << below(octaves);
    return octave + below(octave);
  }

 private:
  std::uint64_t state_;
};

}  // namespace tern::bench
