#include "launch/text_lines.hpp"

#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

namespace tern {
namespace {

constexpr std::uint32_t max_line = 1'000'000;
constexpr std::uintmax_t max_file_bytes = 64 * 1024 * 1024;

bool is_blank(char c) noexcept { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_in_name(char c) noexcept {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// A position in the file, with the number of line breaks that were passed.
class Cursor {
 public:
  explicit Cursor(std::string_view file) noexcept : rest_(file) {}

  [[nodiscard]] bool is_at_end() const noexcept { return rest_.empty(); }
  [[nodiscard]] char next() const noexcept { return rest_.front(); }
  [[nodiscard]] std::string_view rest() const noexcept { return rest_; }
  [[nodiscard]] std::uint32_t line() const noexcept { return line_; }

  void advance() noexcept {
    if (rest_.front() == '\n') ++line_;
    rest_.remove_prefix(1);
  }
  void skip_blanks_and_comments() noexcept {
    while (!rest_.empty()) {
      if (is_blank(rest_.front()) || rest_.starts_with("\\\n")) {
        advance();
      } else if (rest_.starts_with("//")) {
        while (!rest_.empty() && rest_.front() != '\n') advance();
      } else if (rest_.starts_with("/*")) {
        const std::size_t end = rest_.find("*/", 2);
        const std::size_t length = end == rest_.npos ? rest_.size() : end + 2;
        for (std::size_t i = 0; i < length; ++i) advance();
      } else {
        return;
      }
    }
  }

 private:
  std::string_view rest_;
  std::uint32_t line_ = 1;
};

std::optional<std::string> read(std::string_view path) {
  const std::string name(path);
  std::error_code ignored;
  // Reading a folder or a pipe would fail or wait.
  if (!std::filesystem::is_regular_file(name, ignored)) return std::nullopt;
  const std::uintmax_t bytes = std::filesystem::file_size(name, ignored);
  std::ifstream file(name);
  if (!file || bytes > max_file_bytes) return std::nullopt;
  std::string content(static_cast<std::size_t>(bytes), '\0');
  file.read(content.data(), static_cast<std::streamsize>(bytes));
  content.resize(static_cast<std::size_t>(file.gcount()));
  return content;
}

/// Returns the length of the token at the beginning: a name, a number, or one character.
std::size_t token_length(std::string_view text) noexcept {
  std::size_t length = 0;
  while (length < text.size() && is_in_name(text[length])) ++length;
  return length == 0 ? 1 : length;
}

/// Copies the text, and the line breaks that the file has between the same tokens. A token of the
/// text that the file does not have next was added by the macro. A comma that the text does not
/// have next separates arguments of the macro. Returns nullopt if the two differ elsewhere.
std::optional<std::string> merge(std::string_view text, Cursor file) {
  constexpr std::size_t max_added = 24;
  std::string merged(file.line() - 1, '\n');
  std::uint32_t line = file.line();
  std::size_t added = 0;
  for (std::size_t length; !text.empty(); text.remove_prefix(length)) {
    length = 1;
    if (is_blank(text.front())) {
      merged += text.front();
      continue;
    }
    length = token_length(text);
    const std::string_view token = text.substr(0, length);
    Cursor ahead = file;
    ahead.skip_blanks_and_comments();
    if (ahead.rest().starts_with(',') && token != ",") {
      ahead.advance();
      ahead.skip_blanks_and_comments();
    }
    const std::string_view rest = ahead.rest();
    if (rest.substr(0, rest.empty() ? 0 : token_length(rest)) == token) {
      merged.append(ahead.line() - line, '\n');
      line = ahead.line();
      for (std::size_t i = 0; i < length; ++i) ahead.advance();
      file = ahead;
    } else if (++added > max_added) {
      return std::nullopt;
    }
    merged += token;
  }
  return merged;
}

/// Returns the place after the kernel's name in the last macro of this name that begins in the line
/// or above it: some compilers count the line of a macro at its end.
std::optional<Cursor> find_macro(std::string_view file, std::string_view name,
                                 std::uint32_t line) noexcept {
  std::optional<Cursor> found;
  Cursor cursor(file);
  while (!cursor.is_at_end() && cursor.line() <= line) {
    if (!cursor.rest().starts_with("TERN_")) {
      cursor.advance();
      continue;
    }
    while (!cursor.is_at_end() && is_in_name(cursor.next())) cursor.advance();
    Cursor ahead = cursor;
    ahead.skip_blanks_and_comments();
    if (!ahead.rest().starts_with('(')) continue;
    ahead.advance();
    ahead.skip_blanks_and_comments();
    if (ahead.is_at_end() || ahead.rest().substr(0, token_length(ahead.rest())) != name) continue;
    while (!ahead.is_at_end() && is_in_name(ahead.next())) ahead.advance();
    found = ahead;
  }
  return found;
}

}  // namespace

std::string with_lines_of_file(const KernelText& text) {
  std::string plain(text.text);
  if (text.file.empty() || text.line == 0 || text.line > max_line) return plain;
  const std::optional<std::string> file = read(text.file);
  if (!file) return plain;
  const std::optional<Cursor> macro = find_macro(*file, text.entry, text.line);
  if (!macro) return plain;
  return merge(plain, *macro).value_or(plain);
}

}  // namespace tern
