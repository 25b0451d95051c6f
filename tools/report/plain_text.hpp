// Names of a trace as text for a terminal.

#pragma once

#include <string>
#include <string_view>

namespace tern::tools {

/// Returns the text with a space for each control character, each character that changes the
/// direction of the text, and each byte that is not UTF-8.
[[nodiscard]] std::string plain(std::string_view text);

}  // namespace tern::tools
