#include "tern/trace/finding.hpp"

#include <fmt/format.h>

namespace tern {
namespace {

/// Names may come from a file, and a report is read on a terminal.
void append_printable(std::string& text, std::string_view content) {
  for (const char c : content) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
}

void append_line(std::string& text, std::string_view label, std::string_view content) {
  if (content.empty()) return;
  text += fmt::format("  {:<7} ", label);
  append_printable(text, content);
  text += '\n';
}

void append_json_string(std::string& json, std::string_view text) {
  json += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (byte < 0x20) {
      json += fmt::format("\\u{:04x}", byte);
    } else {
      json += c;
    }
  }
  json += '"';
}

}  // namespace

std::string code_text(FindingCode code) {
  return fmt::format("TERN-S{}", static_cast<unsigned>(code));
}

std::string_view title(FindingCode code) noexcept {
  switch (code) {
#define TERN_FINDING(enumerator, number, title) \
  case FindingCode::enumerator:                 \
    return title;
    TERN_FOR_EACH_FINDING(TERN_FINDING)
#undef TERN_FINDING
  }
  return "unknown";
}

std::string Finding::text() const {
  std::string text = fmt::format("{:<47} ", fmt::format("{} {}", code_text(code), title(code)));
  append_printable(text, context);
  text += fmt::format("  step {}\n", step);
  append_line(text, "what", what);
  append_line(text, "now", now);
  for (std::size_t i = 0; i < before.size(); ++i) {
    append_line(text, i == 0 ? "before" : "", before[i]);
  }
  append_line(text, "block", block);
  append_line(text, "order", order);
  append_line(text, "fix", fix);
  append_line(text, "replay", replay);
  return text;
}

std::string Finding::json() const {
  std::string json = "{";
  const auto add = [&](std::string_view key, std::string_view value) {
    if (json.size() > 1) json += ", ";
    append_json_string(json, key);
    json += ": ";
    append_json_string(json, value);
  };
  add("code", code_text(code));
  add("title", title(code));
  add("context", context);
  json += fmt::format(", \"step\": {}, \"space\": {}, \"offset\": {}, \"bytes\": {}", step,
                      range.space, range.offset, range.bytes);
  add("what", what);
  add("now", now);
  json += ", \"before\": [";
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (i > 0) json += ", ";
    append_json_string(json, before[i]);
  }
  json += ']';
  add("block", block);
  add("order", order);
  add("fix", fix);
  add("replay", replay);
  return json + "}";
}

}  // namespace tern
