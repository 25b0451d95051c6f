#include "tools/top/shared_tenants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tools/report/plain_text.hpp"

namespace tern::tools {
namespace {

std::string limit_text(std::size_t limit_bytes) {
  return limit_bytes >= max_request_bytes ? "none" : format_bytes(limit_bytes);
}

/// Returns the bytes, or nothing for 0.
std::string some_bytes(std::size_t bytes) { return bytes == 0 ? "" : format_bytes(bytes); }

}  // namespace

std::string shared_text(const SharedBudgetState& state) {
  const bool has_limit = state.limit_bytes < max_request_bytes;
  std::string text = fmt::format(
      "shared budget {}: {}{} in use, peak {}, {}\n", plain(state.name),
      format_bytes(state.charged_bytes),
      has_limit ? " of " + format_bytes(state.limit_bytes) : std::string(),
      format_bytes(state.peak_bytes), count_text(state.tenants.size(), "tenant"));
  if (state.tenants.empty()) return text;
  std::vector<SharedTenant> rows = state.tenants;
  std::ranges::stable_sort(rows, std::ranges::greater(), &SharedTenant::charged_bytes);
  constexpr const char* row =
      "{:<20} {:>9} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}  {}\n";
  const auto add = [&](const auto&... values) {
    fmt::format_to(std::back_inserter(text), fmt::runtime(row), values...);
  };
  text += '\n';
  add("tenant", "process", "charged", "peak", "limit", "asked", "evicted", "trimmed", "state");
  for (const SharedTenant& one : rows) {
    add(plain(one.name), one.pid, format_bytes(one.charged_bytes), format_bytes(one.peak_bytes),
        limit_text(one.limit_bytes), some_bytes(one.asked_bytes), some_bytes(one.evicted_bytes),
        some_bytes(one.trimmed_bytes), one.is_alive ? "alive" : "dead");
  }
  return text;
}

}  // namespace tern::tools
