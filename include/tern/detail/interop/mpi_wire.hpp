// Not part of the interface.
//
// The headers that ranks exchange before bytes travel: descriptions of memory, and errors. A header
// is the name of the format and a JSON object. Keys are sorted and spaces are fixed, so that equal
// descriptions have equal bytes. python/ternmem/_mpi_wire.py reads and writes the same headers.
// Functions throw BadFormat for invalid headers.

#pragma once

#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/error.hpp"
#include "tern/core/shape.hpp"

namespace tern::mpi::detail {

/// The first bytes of every header. The digit changes with the format.
inline constexpr std::string_view magic = "TERNMPI1";
/// The bytes that each rank sends to all others after a disagreement.
inline constexpr std::size_t block_bytes = 4096;
/// Staged memory travels in pieces of this size: two at a time for messages, one for collectives.
inline constexpr std::size_t piece_bytes = std::size_t{4} << 20;

/// A value of JSON, without fractions.
struct Json {
  using List = std::vector<Json>;
  using Object = std::map<std::string, Json>;
  std::variant<std::nullptr_t, bool, std::int64_t, std::string, List, Object> value = nullptr;

  Json() noexcept = default;
  Json(bool truth) noexcept : value(truth) {}
  Json(int number) noexcept : value(std::int64_t{number}) {}
  Json(std::int64_t number) noexcept : value(number) {}
  Json(std::uint64_t number) noexcept : value(static_cast<std::int64_t>(number)) {}
  Json(std::string text) noexcept : value(std::move(text)) {}
  Json(std::string_view text) : value(std::string(text)) {}
  Json(const char* text) : value(std::string(text)) {}
  Json(List list) noexcept : value(std::move(list)) {}
  Json(Object object) noexcept : value(std::move(object)) {}

  friend bool operator==(const Json& a, const Json& b) { return a.value == b.value; }

  template <class T>
  [[nodiscard]] const T* as() const noexcept {
    return std::get_if<T>(&value);
  }
  /// Returns a member of an object, or null.
  [[nodiscard]] const Json* find(const std::string& name) const noexcept {
    const Object* const object = as<Object>();
    if (object == nullptr) return nullptr;
    const auto found = object->find(name);
    return found == object->end() ? nullptr : &found->second;
  }
};

[[noreturn]] inline void refuse_header(std::string_view problem, std::uint64_t rank) {
  raise(Failure(ErrorCode::bad_format,
                "a header from rank {rank} {problem}. Use the same version of Tern on all ranks.")
            .with("rank", rank)
            .with("problem", problem));
}

/// Returns a member of an object that must have it.
template <class T>
[[nodiscard]] const T& member(const Json& object, const char* name, int rank) {
  const Json* const found = object.find(name);
  const T* const typed = found == nullptr ? nullptr : found->as<T>();
  if (typed == nullptr) {
    refuse_header(std::string("has no valid member '") + name + "'",
                  static_cast<std::uint64_t>(rank));
  }
  return *typed;
}

// --- JSON as text

/// Appends text as JSON: ASCII, with everything else as \uXXXX.
inline void append_text(std::string& to, std::string_view text) {
  const auto escape = [&](std::uint32_t unit) {
    char code[8];
    std::snprintf(code, sizeof(code), "\\u%04x", unit);
    to += code;
  };
  to += '"';
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const std::size_t length = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    if (length == 1 || at + length > text.size()) {
      const std::string_view short_ones = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt";
      if (const std::size_t found = short_ones.find(text[at]); found != std::string_view::npos) {
        to += '\\';
        to += letters[found];
      } else if (byte < 0x20 || byte >= 0x7F) {
        escape(byte);
      } else {
        to += text[at];
      }
      ++at;
      continue;
    }
    std::uint32_t point = byte & (0x7Fu >> length);
    for (std::size_t next = 1; next < length; ++next) {
      point = point << 6 | (static_cast<unsigned char>(text[at + next]) & 0x3Fu);
    }
    if (point > 0xFFFF) {
      escape(0xD800 + ((point - 0x10000) >> 10));
      escape(0xDC00 + ((point - 0x10000) & 0x3FF));
    } else {
      escape(point);
    }
    at += length;
  }
  to += '"';
}

/// Appends a value as Python's json.dumps(value, sort_keys=True) writes it.
inline void append_json(std::string& to, const Json& json) {
  if (const auto* truth = json.as<bool>()) {
    to += *truth ? "true" : "false";
  } else if (const auto* number = json.as<std::int64_t>()) {
    to += std::to_string(*number);
  } else if (const auto* text = json.as<std::string>()) {
    append_text(to, *text);
  } else if (const auto* list = json.as<Json::List>()) {
    to += '[';
    for (const Json& one : *list) {
      if (&one != list->data()) to += ", ";
      append_json(to, one);
    }
    to += ']';
  } else if (const auto* object = json.as<Json::Object>()) {
    to += '{';
    for (const auto& [name, one] : *object) {
      if (to.back() != '{') to += ", ";
      append_text(to, name);
      to += ": ";
      append_json(to, one);
    }
    to += '}';
  } else {
    to += "null";
  }
}

/// Reads JSON. Every problem is BadFormat: the text comes from elsewhere.
class JsonReader {
 public:
  JsonReader(std::string_view text, int rank) noexcept
      : text_(text), rank_(static_cast<std::uint64_t>(rank)) {}

  [[nodiscard]] Json read() {
    Json json = value(0);
    skip_space();
    if (at_ != text_.size()) refuse();
    return json;
  }

 private:
  static constexpr int max_depth = 16;

  [[noreturn]] void refuse() const { refuse_header("is not valid JSON", rank_); }
  void skip_space() noexcept {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  [[nodiscard]] bool take(std::string_view word) noexcept {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  [[nodiscard]] Json value(int depth) {
    skip_space();
    if (depth > max_depth || at_ == text_.size()) refuse();
    if (take("null")) return {};
    if (take("true")) return true;
    if (take("false")) return false;
    if (text_[at_] == '"') return string();
    if (take("[")) return list(depth);
    if (take("{")) return object(depth);
    std::int64_t number = 0;
    const auto [end, problem] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
    if (problem != std::errc()) refuse();
    at_ = static_cast<std::size_t>(end - text_.data());
    // A fraction is no number of a header, and is refused by what follows it.
    return number;
  }
  [[nodiscard]] Json list(int depth) {
    Json::List made;
    skip_space();
    if (take("]")) return made;
    do made.push_back(value(depth + 1));
    while (next_or("]"));
    return made;
  }
  [[nodiscard]] Json object(int depth) {
    Json::Object made;
    skip_space();
    if (take("}")) return made;
    do {
      skip_space();
      std::string name = string();
      skip_space();
      if (!take(":")) refuse();
      made.insert_or_assign(std::move(name), value(depth + 1));
    } while (next_or("}"));
    return made;
  }
  /// Whether another element follows. If not, the closing bracket does.
  [[nodiscard]] bool next_or(std::string_view closing) {
    skip_space();
    if (take(",")) return true;
    if (!take(closing)) refuse();
    return false;
  }
  [[nodiscard]] std::string string() {
    if (!take("\"")) refuse();
    std::string made;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] != '\\') {
        made += text_[at_++];
        continue;
      }
      if (++at_ == text_.size()) refuse();
      const char letter = text_[at_++];
      const std::string_view letters = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
      if (letter == 'u') {
        append_point(made);
      } else if (const std::size_t found = letters.find(letter); found != letters.npos) {
        made += meant[found];
      } else {
        refuse();
      }
    }
    if (!take("\"")) refuse();
    return made;
  }
  [[nodiscard]] std::uint32_t unit() {
    std::uint32_t found = 0;
    const char* const first = text_.data() + at_;
    if (text_.size() - at_ < 4) refuse();
    if (const auto read = std::from_chars(first, first + 4, found, 16); read.ptr != first + 4) {
      refuse();
    }
    at_ += 4;
    return found;
  }
  /// Appends the code point of \uXXXX, or of two of them, as UTF-8.
  void append_point(std::string& to) {
    std::uint32_t point = unit();
    if (point >= 0xD800 && point < 0xDC00 && take("\\u")) {
      point = 0x10000 + ((point - 0xD800) << 10) + ((unit() - 0xDC00) & 0x3FF);
    }
    const auto append = [&](std::uint32_t byte) { to += static_cast<char>(byte); };
    if (point < 0x80) {
      append(point);
    } else if (point < 0x800) {
      append(0xC0 | point >> 6);
      append(0x80 | (point & 0x3F));
    } else {
      if (point < 0x10000) {
        append(0xE0 | point >> 12);
      } else {
        append(0xF0 | point >> 18);
        append(0x80 | (point >> 12 & 0x3F));
      }
      append(0x80 | (point >> 6 & 0x3F));
      append(0x80 | (point & 0x3F));
    }
  }

  std::string_view text_;
  std::uint64_t rank_;
  std::size_t at_ = 0;
};

/// Returns the bytes of a header.
[[nodiscard]] inline std::string pack(const Json& fields) {
  std::string made(magic);
  append_json(made, fields);
  return made;
}

/// Returns the fields of a header from a rank.
[[nodiscard]] inline Json unpack(std::string_view text, int rank) {
  if (!text.starts_with(magic)) {
    refuse_header("does not start with TERNMPI1", static_cast<std::uint64_t>(rank));
  }
  return JsonReader(text.substr(magic.size()), rank).read();
}

/// Returns the first seven bytes of the SHA-256 of a text as a number.
[[nodiscard]] inline std::int64_t digest_of(std::string_view text) {
  // The first bits of the fractions of cube roots and square roots of primes, as the standard says.
  static constexpr std::array<std::uint32_t, 64> constants = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
      0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
      0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
      0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
      0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
      0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
      0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
      0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
      0xc67178f2};
  std::array<std::uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded(text);
  padded += '\x80';
  padded.resize((padded.size() + 8 + 63) / 64 * 64 - 8);
  for (int shift = 56; shift >= 0; shift -= 8) {
    padded += static_cast<char>(std::uint64_t{text.size()} * 8 >> shift);
  }
  for (std::size_t block = 0; block < padded.size(); block += 64) {
    std::array<std::uint32_t, 64> words = {};
    for (std::size_t i = 0; i < 64; ++i) {
      words[i / 4] = words[i / 4] << 8 | static_cast<unsigned char>(padded[block + i]);
    }
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = words[i - 15], b = words[i - 2];
      words[i] = words[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + words[i - 7] +
                 (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    std::array<std::uint32_t, 8> now = state;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t e = now[4], a = now[0];
      const std::uint32_t first = now[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                  ((e & now[5]) ^ (~e & now[6])) + constants[i] + words[i];
      const std::uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                                   ((a & now[1]) ^ (a & now[2]) ^ (now[1] & now[2]));
      now = {first + second, a, now[1], now[2], now[3] + first, e, now[5], now[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) state[i] += now[i];
  }
  return static_cast<std::int64_t>((std::uint64_t{state[0]} << 32 | state[1]) >> 8);
}

// --- Descriptions of memory

/// Returns the name that Python uses for a dtype.
[[nodiscard]] inline std::string dtype_text(DType dtype) {
  switch (dtype) {
    case DType::byte:
      return "uint8";
    case DType::index:
      return "uint64";
    case DType::f16:
      return "float16";
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    default:
      break;
  }
  const std::string own(name(dtype));
  if (own[0] == 'i') return "int" + own.substr(1);
  return own[0] == 'u' ? "uint" + own.substr(1) : own;
}

/// Returns the description of dense memory.
[[nodiscard]] inline Json describe(DType dtype, const Shape& shape, std::size_t bytes) {
  Json::List extents;
  for (const std::size_t extent : shape.extents()) extents.emplace_back(std::uint64_t{extent});
  return Json::Object{
      {"bytes", std::uint64_t{bytes}}, {"dtype", dtype_text(dtype)}, {"shape", std::move(extents)}};
}

/// Returns a description as text for errors.
[[nodiscard]] inline std::string text_of(const Json& fields, int rank) {
  const auto bytes = static_cast<std::uint64_t>(member<std::int64_t>(fields, "bytes", rank));
  if (fields.find("columns") != nullptr) {
    return "a table of " + std::to_string(member<Json::List>(fields, "columns", rank).size()) +
           " columns and " + std::to_string(member<std::int64_t>(fields, "rows", rank)) +
           " rows, " + format_bytes(bytes);
  }
  std::string shape;
  append_json(shape, *fields.find("shape"));
  return member<std::string>(fields, "dtype", rank) + " " + shape + ", " + format_bytes(bytes);
}

/// Returns whether two descriptions agree, and if not, the code of the error.
struct Mismatch {
  bool is_equal = true;
  ErrorCode code = ErrorCode::shape_mismatch;
};
[[nodiscard]] inline Mismatch compare(const Json& here, const Json& there) {
  const auto differs = [&](const char* name) {
    const Json *const a = here.find(name), *const b = there.find(name);
    return a == nullptr || b == nullptr ? a != b : !(*a == *b);
  };
  if ((here.find("columns") == nullptr) != (there.find("columns") == nullptr) || differs("dtype")) {
    return {false, ErrorCode::type_mismatch};
  }
  if (differs("bytes")) return {false, ErrorCode::size_mismatch};
  return {!differs("shape"), ErrorCode::shape_mismatch};
}

// --- Errors

/// Returns the name of Python's class for a code.
[[nodiscard]] inline std::string class_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::capacity:
      return "CapacityError";
    case ErrorCode::timeout:
      return "TimeoutError";
    case ErrorCode::sync_failed:
      return "SyncError";
    case ErrorCode::file:
      return "FileError";
    case ErrorCode::driver:
      return "DriverError";
    default:
      break;
  }
  static constexpr std::string_view names[] = {
#define TERN_CODE(code, type, base) #type,
      TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
  };
  return std::string(names[static_cast<std::size_t>(code)]) + "Error";
}

/// Returns what another rank needs to raise the same error.
[[nodiscard]] inline Json fields_of(const Failure& failure) {
  Json::Object numbers;
  for (std::size_t i = 0; i < failure.field_count(); ++i) {
    const Failure::Field field = failure.field(i);
    if (field.unit != Unit::text && field.number < std::uint64_t{1} << 62) {
      numbers.emplace(std::string(field.name), field.number);
    }
  }
  return Json::Object{{"class", class_of(failure.code())},
                      {"numbers", std::move(numbers)},
                      {"text", failure.text()}};
}

/// Returns the error that another rank described. `sentence` has a placeholder {text}; without
/// one, the text is the sentence. Errors of programs that Tern has no code for are sync_failed.
[[nodiscard]] inline Failure failure_of(const Json& error, const char* sentence, int rank) {
  static constexpr ErrorCode codes[] = {
#define TERN_CODE(code, type, base) ErrorCode::code,
      TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
  };
  const std::string& type = member<std::string>(error, "class", rank);
  ErrorCode code = ErrorCode::sync_failed;
  for (const ErrorCode one : codes) {
    if (class_of(one) == type) code = one;
  }
  Failure made(code, sentence);
  made.with("rank", static_cast<std::uint64_t>(rank));
  // The names of fields live as long as the program, so only these numbers travel.
  for (const char* const name : {"sent_bytes", "expected_bytes", "actual_bytes", "received_bytes",
                                 "source", "dest", "requested", "limit", "remaining"}) {
    const Json* const numbers = error.find("numbers");
    const Json* const found = numbers == nullptr ? nullptr : numbers->find(name);
    if (found != nullptr && found->as<std::int64_t>() != nullptr) {
      made.with(name, static_cast<std::uint64_t>(*found->as<std::int64_t>()));
    }
  }
  return made.with("text", member<std::string>(error, "text", rank));
}

}  // namespace tern::mpi::detail
