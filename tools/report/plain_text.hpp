// Names of a trace as text for a terminal.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tern::tools {

/// Returns the text with a space for each control character, each character that changes the
/// direction of the text, and each byte that is not UTF-8.
[[nodiscard]] std::string plain(std::string_view text);

/// Returns "tag 'weights'", or "untagged" for the name of memory without a tag.
[[nodiscard]] std::string tag_words(std::string_view tag);

/// Returns "1 copy" or "2 copies".
[[nodiscard]] std::string count_text(std::uint64_t count, std::string_view one,
                                     std::string_view many);
/// Returns "1 move" or "2 moves".
[[nodiscard]] std::string count_text(std::uint64_t count, std::string_view noun);

/// Returns "4.0 MiB", or "4.0 MiB to 24.0 MiB" if the sizes differ.
[[nodiscard]] std::string size_range(std::uint64_t least, std::uint64_t most);

}  // namespace tern::tools
