#include "tools/report/plain_text.hpp"

#include <cstdint>
#include <utility>

#include "tern/core/bytes.hpp"

namespace tern::tools {
namespace {

/// Returns the length in bytes of the first UTF-8 character of the text, and its code point. For an
/// invalid byte, returns 1 and 0.
std::pair<std::size_t, std::uint32_t> first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {1, byte(0)};
  const std::size_t length = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || length > text.size()) return {1, 0};
  std::uint32_t point = byte(0) & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {1, 0};
    point = point << 6 | (byte(i) & 0x3FU);
  }
  return {length, point};
}

}  // namespace

std::string plain(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    const auto [bytes, point] = first_character(text);
    const bool is_control = point < 0x20 || (point >= 0x7F && point < 0xA0);
    const bool is_direction = point == 0x061C || point == 0x200E || point == 0x200F ||
                              (point >= 0x202A && point <= 0x202E) ||
                              (point >= 0x2066 && point <= 0x2069);
    safe += is_control || is_direction ? std::string_view(" ") : text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  return safe;
}

std::string size_range(std::uint64_t least, std::uint64_t most) {
  const std::string first = format_bytes(least), last = format_bytes(most);
  return first == last ? first : first + " to " + last;
}

}  // namespace tern::tools
