// Sizes as the pool grants them, and the classes in which it keeps small blocks.
//
// Everything is a multiple of 256 bytes. Up to 2 KiB every multiple is a class, then eight classes
// per octave up to 1 MiB, so that no more than an eighth is wasted. Above that a block has the size
// it was asked for, and from 16 MiB on whole pages; the classes go on to there, to find blocks of
// about a size. Pure arithmetic.

#pragma once

#include <bit>
#include <cstddef>

namespace tern::pool {

inline constexpr std::size_t granule_bytes = 256;
inline constexpr std::size_t page_bytes = std::size_t{2} << 20;
/// The largest block that has a class, and the smallest that has pages of its own.
inline constexpr std::size_t largest_class_bytes = std::size_t{1} << 20;
inline constexpr std::size_t least_large_bytes = std::size_t{16} << 20;

inline constexpr std::size_t linear_classes = 8;
inline constexpr std::size_t classes_per_octave = 8;
inline constexpr std::size_t class_count = 80;
/// Of blocks above those with a class and below the large ones, which only lie together by it.
inline constexpr std::size_t middle_class_count = 32;

[[nodiscard]] constexpr std::size_t round_up(std::size_t bytes, std::size_t multiple) noexcept {
  return (bytes + multiple - 1) / multiple * multiple;
}

/// The smallest class that holds so many bytes: 1 to least_large_bytes.
[[nodiscard]] constexpr std::size_t class_of(std::size_t bytes) noexcept {
  const std::size_t last = (bytes - 1) / granule_bytes;  // the last granule's number
  if (last < linear_classes) return last;
  // An octave begins at a power of two of granules, and has eight steps.
  const auto scale = static_cast<std::size_t>(std::bit_width(last)) - 4;
  return linear_classes + scale * classes_per_octave + (last >> scale) % classes_per_octave;
}

[[nodiscard]] constexpr std::size_t class_bytes(std::size_t index) noexcept {
  if (index < linear_classes) return (index + 1) * granule_bytes;
  const std::size_t octave = 3 + (index - linear_classes) / classes_per_octave;
  const std::size_t step = (index - linear_classes) % classes_per_octave + 1;
  const std::size_t begin = std::size_t{1} << octave;
  return (begin + step * (begin / classes_per_octave)) * granule_bytes;
}

/// What is granted for so many bytes, at least 1 and far below 2^63.
[[nodiscard]] constexpr std::size_t granted_bytes(std::size_t bytes) noexcept {
  if (bytes <= largest_class_bytes) return class_bytes(class_of(bytes));
  return bytes < least_large_bytes ? round_up(bytes, granule_bytes) : round_up(bytes, page_bytes);
}

static_assert(class_bytes(class_count - 1) == largest_class_bytes);
static_assert(class_of(largest_class_bytes) == class_count - 1);
static_assert(class_of(largest_class_bytes + 1) == class_count);
static_assert(class_of(least_large_bytes) == class_count + middle_class_count - 1);

}  // namespace tern::pool
