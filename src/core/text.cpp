#include "core/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tern {

std::size_t utf8_prefix_bytes(std::string_view text, std::size_t limit) noexcept {
  if (text.size() <= limit) return text.size();
  std::size_t end = limit;
  // A byte 10xxxxxx continues a character, so the cut must not be before such a byte.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return end;
}

std::size_t format_bytes_to(char* buffer, std::size_t capacity, std::uint64_t bytes) noexcept {
  if (bytes < 1024) return fmt::format_to_n(buffer, capacity, "{} B", bytes).size;

  static constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  while (unit + 1 < std::size(units) && (bytes >> (10 * (unit + 2))) != 0) ++unit;

  // Computes tenths in integers, because doubles would round 2^64 - 1 and differ between libraries.
  // The shift comes before the multiplication, because bytes * 10 can wrap; rest * 10 cannot,
  // because rest has at most 60 bits.
  const unsigned shift = static_cast<unsigned>(10 * (unit + 1));
  const std::uint64_t whole = bytes >> shift;
  const std::uint64_t rest = bytes & ((std::uint64_t{1} << shift) - 1);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  std::uint64_t tenths = whole * 10 + ((rest * 10 + half) >> shift);
  if (tenths >= 10240 && unit + 1 < std::size(units)) {  // 1023.95 and up: 1.0 of the next unit
    tenths = 10;
    ++unit;
  }
  return fmt::format_to_n(buffer, capacity, "{}.{} {}", tenths / 10, tenths % 10, units[unit]).size;
}

bool equals_ignoring_case(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return ascii_lower(x) == ascii_lower(y);
         });
}

}  // namespace tern
