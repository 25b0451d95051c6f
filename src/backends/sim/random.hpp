// Random numbers that are the same on every platform: one sequence per seed and purpose.
//
// The seed is hashed first. Otherwise adjacent seeds would give shifted copies of one sequence, and
// a hundred seeds would test the same thing a hundred times.

#pragma once

#include <cstdint>
#include <string_view>

namespace tern::sim {

enum class Purpose : std::uint64_t { schedule = 1, coins, faults, fill, program };

[[nodiscard]] constexpr std::uint64_t hash(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Combines a value or a text with a hash.
[[nodiscard]] constexpr std::uint64_t mix_in(std::uint64_t state, std::uint64_t value) noexcept {
  return hash(state ^ (value + 0x9e3779b97f4a7c15u + (state << 6)));
}
[[nodiscard]] constexpr std::uint64_t mix_in(std::uint64_t state, std::string_view text) noexcept {
  for (const char c : text) state = mix_in(state, static_cast<unsigned char>(c));
  return mix_in(state, text.size());
}

class Random {
 public:
  constexpr Random(std::uint64_t seed, Purpose purpose) noexcept
      : state_(hash(hash(seed + step) + static_cast<std::uint64_t>(purpose) * step)) {}

  constexpr std::uint64_t next() noexcept { return hash(state_ += step); }
  /// Returns a uniform number below `bound`, which must be small compared to 2^64. Uses integers
  /// only.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }
  /// Returns true with probability percent / 100.
  constexpr bool chance(std::uint64_t percent) noexcept { return below(100) < percent; }

 private:
  static constexpr std::uint64_t step = 0x9e3779b97f4a7c15u;
  std::uint64_t state_;
};

}  // namespace tern::sim
