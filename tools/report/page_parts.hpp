// The files of the report page, which the build puts into the program.

#pragma once

#include <string_view>

namespace tern::tools {

extern const std::string_view page_html, page_css, page_js;

}  // namespace tern::tools
