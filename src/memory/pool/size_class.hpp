// The sizes that the pool grants, and the size classes of small blocks.
//
// All sizes are multiples of 256 bytes. Up to 2 KiB every multiple is a class; then there are eight
// classes per octave up to 1 MiB, so at most an eighth is wasted. Blocks above 1 MiB are rounded up
// to 256 bytes, blocks of 16 MiB and more to whole pages. Classes continue up to 16 MiB, only to
// find cached blocks of similar size. Pure arithmetic.

#pragma once

#include <bit>
#include <cstddef>

namespace tern::pool {

inline constexpr std::size_t granule_bytes = 256;
inline constexpr std::size_t page_bytes = std::size_t{2} << 20;
/// The largest block with a size class, and the smallest block with pages of its own.
inline constexpr std::size_t largest_class_bytes = std::size_t{1} << 20;
inline constexpr std::size_t min_large_bytes = std::size_t{16} << 20;

inline constexpr std::size_t linear_classes = 8;
inline constexpr std::size_t classes_per_octave = 8;
inline constexpr std::size_t class_count = 80;
/// Classes of blocks between 1 MiB and 16 MiB, which only group blocks of similar size.
inline constexpr std::size_t middle_class_count = 32;

[[nodiscard]] constexpr std::size_t round_up(std::size_t bytes, std::size_t multiple) noexcept {
  return (bytes + multiple - 1) / multiple * multiple;
}

/// Returns the smallest class that holds `bytes`, which is 1 to min_large_bytes.
[[nodiscard]] constexpr std::size_t class_of(std::size_t bytes) noexcept {
  const std::size_t last = (bytes - 1) / granule_bytes;  // number of the last granule
  if (last < linear_classes) return last;
  // An octave begins at a power of two of granules and has eight steps.
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

/// Returns the size that is granted for `bytes`, which is at least 1 and far below 2^63.
[[nodiscard]] constexpr std::size_t granted_bytes(std::size_t bytes) noexcept {
  if (bytes <= largest_class_bytes) return class_bytes(class_of(bytes));
  return bytes < min_large_bytes ? round_up(bytes, granule_bytes) : round_up(bytes, page_bytes);
}

static_assert(class_bytes(class_count - 1) == largest_class_bytes);
static_assert(class_of(largest_class_bytes) == class_count - 1);
static_assert(class_of(largest_class_bytes + 1) == class_count);
static_assert(class_of(min_large_bytes) == class_count + middle_class_count - 1);

}  // namespace tern::pool
