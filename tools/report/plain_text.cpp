#include "tools/report/plain_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tern/core/bytes.hpp"
#include "tools/formats/utf8.hpp"

namespace tern::tools {

std::string plain(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    const auto [bytes, point] = first_character(text);
    const bool is_control = point < 0x20 || (point >= 0x7F && point < 0xA0);
    const bool is_direction = point == 0x061C || point == 0x200E || point == 0x200F ||
                              (point >= 0x202A && point <= 0x202E) ||
                              (point >= 0x2066 && point <= 0x2069);
    const bool is_shown = bytes != 0 && !is_control && !is_direction;
    safe += is_shown ? text.substr(0, bytes) : std::string_view(" ");
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return safe;
}

std::string tag_words(std::string_view tag) {
  return tag == "untagged" ? "untagged" : "tag '" + plain(tag) + "'";
}

std::string count_text(std::uint64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string count_text(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string size_range(std::uint64_t least, std::uint64_t most) {
  const std::string first = format_bytes(least), last = format_bytes(most);
  return first == last ? first : first + " to " + last;
}

}  // namespace tern::tools
