// Bitmaps of the host: one bit for each value, the first in the lowest of a byte.
//
// Validity of a column (1: there is a value) and truth values are kept like this, because Arrow and
// those who speak it do. A bitmap may begin at any bit; bits behind the last one of a byte are zero
// in what is made here, and not looked at in what is read. Pure functions of the host's memory; the
// caller has bytes for as many bits as he names (bitmap_bytes).

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tern/core/export.hpp"

namespace tern {

/// For so many bits.
[[nodiscard]] constexpr std::size_t bitmap_bytes(std::size_t bits) noexcept {
  return bits / 8 + (bits % 8 != 0 ? 1 : 0);
}

[[nodiscard]] constexpr bool bit_at(const std::byte* bits, std::size_t index) noexcept {
  return (static_cast<unsigned>(bits[index / 8]) >> (index % 8) & 1u) != 0;
}

/// One bit for each byte that is not zero; all of the last byte is written.
TERN_EXPORT void pack_bits(std::span<const std::uint8_t> from, std::byte* to) noexcept;
/// One byte, 0 or 1, for each bit from `first` on.
TERN_EXPORT void unpack_bits(const std::byte* from, std::size_t first,
                             std::span<std::uint8_t> to) noexcept;
/// How many of `count` bits from `first` on are set.
[[nodiscard]] TERN_EXPORT std::size_t count_bits(const std::byte* bits, std::size_t first,
                                                 std::size_t count) noexcept;
/// Bits from one place to another; those around the destination stay. They must not overlap.
TERN_EXPORT void copy_bits(const std::byte* from, std::size_t from_first, std::byte* to,
                           std::size_t to_first, std::size_t count) noexcept;

}  // namespace tern
