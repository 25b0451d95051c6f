// Texts of a trace may contain any bytes, but those of other formats must be UTF-8.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tern::tools {

/// A character of a text: its length, or 0 if the bytes are not a valid character, and its code
/// point.
struct Utf8Character {
  std::size_t bytes = 0;
  std::uint32_t point = 0;
};

/// Returns the character that the text begins with. The text must not be empty.
[[nodiscard]] Utf8Character first_character(std::string_view text);

/// Returns the text with U+FFFD in the place of every byte that is not part of a valid character.
[[nodiscard]] std::string valid_utf8(std::string_view text);

}  // namespace tern::tools
