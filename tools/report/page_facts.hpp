// The facts of the report page: everything but its columns. README.md has the fields.

#pragma once

#include <nlohmann/json.hpp>

#include "tools/report/comparison.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {

[[nodiscard]] nlohmann::json page_facts(const TraceSummary& summary);
[[nodiscard]] nlohmann::json comparison_facts(const Comparison& comparison);

}  // namespace tern::tools
