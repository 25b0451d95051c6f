#include "tern/trace/finding.hpp"

#include <fmt/format.h>

namespace tern {
namespace {

/// Replaces control characters, because names may come from a file and a report is read on a
/// terminal.
void append_printable(std::string& text, std::string_view content) {
  for (const char c : content) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
}

void append_line(std::string& text, std::string_view label, std::string_view content) {
  if (content.empty()) return;
  text += fmt::format("  {:<7} ", label);
  append_printable(text, content);
  text += '\n';
}

/// Returns the length of the UTF-8 character at the start of the text, or 0 if there is none.
std::size_t utf8_character_bytes(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first < 0xc2   ? 0
                            : first < 0xe0 ? 2
                            : first < 0xf0 ? 3
                            : first < 0xf5 ? 4
                                           : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Rejects overlong forms, surrogates and values above the last code point.
  const bool is_wrong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
                        (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f);
  return is_wrong ? 0 : bytes;
}

void append_json_string(std::string& json, std::string_view text) {
  json += '"';
  while (!text.empty()) {
    const std::size_t bytes = utf8_character_bytes(text);
    const char c = text[0];
    if (bytes == 0) {
      // Names may contain any bytes, but JSON must be UTF-8.
      json += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (bytes == 1 && static_cast<unsigned char>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      json += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
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
