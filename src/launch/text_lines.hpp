// Puts the line breaks of a kernel text back.
//
// The preprocessor joins the lines of a macro's arguments, so the text of a macro is one line. The
// file that contains the macro has the line breaks, and usually exists where messages about a line
// are read.

#pragma once

#include <string>

#include "tern/launch/kernel_text.hpp"

namespace tern {

/// Returns the text with the line breaks of its file, so that line numbers in the text are those of
/// the file. Returns the text unchanged if the file cannot be read, or has another text by now.
[[nodiscard]] std::string with_lines_of_file(const KernelText& text);

}  // namespace tern
