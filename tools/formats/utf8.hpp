// Texts of a trace may contain any bytes, but those of other formats must be UTF-8.

#pragma once

#include <string>
#include <string_view>

namespace tern::tools {

/// Returns the text with U+FFFD in the place of every byte that is not part of a valid character.
[[nodiscard]] std::string valid_utf8(std::string_view text);

}  // namespace tern::tools
