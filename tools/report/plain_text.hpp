// Text of a trace, made safe for a terminal.

#pragma once

#include <string>
#include <string_view>

namespace tern::tools {

/// Replaces control characters, and characters that change the direction of text, by spaces.
[[nodiscard]] std::string plain(std::string_view text);

}  // namespace tern::tools
