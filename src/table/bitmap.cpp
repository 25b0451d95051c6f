#include "table/bitmap.hpp"

#include <bit>
#include <cstring>

namespace tern {

void pack_bits(std::span<const std::uint8_t> from, std::byte* to) noexcept {
  for (std::size_t i = 0; i < from.size(); i += 8) {
    unsigned byte = 0;
    for (std::size_t bit = 0; bit < 8 && i + bit < from.size(); ++bit) {
      byte |= static_cast<unsigned>(from[i + bit] != 0) << bit;
    }
    to[i / 8] = static_cast<std::byte>(byte);
  }
}

void unpack_bits(const std::byte* from, std::size_t first, std::span<std::uint8_t> to) noexcept {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = bit_at(from, first + i) ? 1 : 0;
}

std::size_t count_bits(const std::byte* bits, std::size_t first, std::size_t count) noexcept {
  std::size_t set = 0, at = first;
  const std::size_t end = first + count;
  for (; at < end && at % 8 != 0; ++at) set += bit_at(bits, at) ? 1u : 0u;
  for (; end - at >= 64; at += 64) {
    std::uint64_t word;
    std::memcpy(&word, bits + at / 8, sizeof word);
    set += static_cast<std::size_t>(std::popcount(word));
  }
  for (; at < end; ++at) set += bit_at(bits, at) ? 1u : 0u;
  return set;
}

void copy_bits(const std::byte* from, std::size_t from_first, std::byte* to, std::size_t to_first,
               std::size_t count) noexcept {
  std::size_t done = 0;
  if (from_first % 8 == 0 && to_first % 8 == 0) {
    if (count >= 8) std::memcpy(to + to_first / 8, from + from_first / 8, count / 8);
    done = count / 8 * 8;
  }
  for (; done < count; ++done) {
    const std::size_t at = to_first + done;
    const std::byte mask = static_cast<std::byte>(1u << (at % 8));
    if (bit_at(from, from_first + done)) {
      to[at / 8] |= mask;
    } else {
      to[at / 8] &= ~mask;
    }
  }
}

}  // namespace tern
