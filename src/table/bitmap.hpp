// Bitmaps in host memory: one bit for each value, the lowest bit of each byte first.
//
// Columns keep boolean values and validity (1: the value is present) in this form, which is the
// form of Arrow. A bitmap may begin at any bit. These functions write the unused bits of the last
// byte as zero, and ignore them when they read. They are pure functions of host memory: nothing is
// allocated, and the caller provides bitmap_bytes(bits) bytes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tern/detail/core/visibility.hpp"

namespace tern {

/// Returns the number of bytes for that many bits.
[[nodiscard]] constexpr std::size_t bitmap_bytes(std::size_t bits) noexcept {
  return bits / 8 + (bits % 8 != 0 ? 1 : 0);
}

/// Returns whether the bit is set.
[[nodiscard]] constexpr bool bit_at(const std::byte* bits, std::size_t index) noexcept {
  return (static_cast<unsigned>(bits[index / 8]) >> (index % 8) & 1u) != 0;
}

/// Writes one bit for each byte of `from`: 1 if the byte is not zero. Writes the whole last byte.
TERN_EXPORT void pack_bits(std::span<const std::uint8_t> from, std::byte* to) noexcept;
/// Writes one byte, 0 or 1, for each bit, beginning with bit `first`.
TERN_EXPORT void unpack_bits(const std::byte* from, std::size_t first,
                             std::span<std::uint8_t> to) noexcept;
/// Returns how many of the `count` bits beginning with `first` are set.
[[nodiscard]] TERN_EXPORT std::size_t count_bits(const std::byte* bits, std::size_t first,
                                                 std::size_t count) noexcept;
/// Copies bits. Bits around the destination stay unchanged. Source and destination must not
/// overlap.
TERN_EXPORT void copy_bits(const std::byte* from, std::size_t from_first, std::byte* to,
                           std::size_t to_first, std::size_t count) noexcept;

}  // namespace tern
