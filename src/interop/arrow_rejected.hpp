// Failures for invalid Arrow structures: the path of the field, its value, and what is accepted.

#pragma once

#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "tern/core/error.hpp"

namespace tern {

/// A structure, such as "array" or "schema.children[3]".
struct ArrowWhere {
  const char* root = "array";
  std::int64_t child = -1;
};

/// The path of a field, such as "array.children[3].buffers[1]", cut if it is too long.
class ArrowPath {
 public:
  ArrowPath(const ArrowWhere& where, std::string_view field) noexcept {
    add(where.root);
    if (where.child >= 0) {
      add(".children[");
      char digits[24];
      const std::to_chars_result end = std::to_chars(digits, digits + sizeof digits, where.child);
      add({digits, static_cast<std::size_t>(end.ptr - digits)});
      add("]");
    }
    add(".");
    add(field);
  }
  [[nodiscard]] std::string_view text() const noexcept { return {text_, size_}; }

 private:
  void add(std::string_view part) noexcept {
    const std::size_t room = sizeof text_ - size_;
    const std::size_t taken = part.size() < room ? part.size() : room;
    std::memcpy(text_ + size_, part.data(), taken);
    size_ += taken;
  }

  char text_[96];
  std::size_t size_ = 0;
};

/// A failure for a null pointer.
inline Failure no_structure(const char* name, CallSite site) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "the pointer to an Arrow structure is missing: '{name}' is {value}.", site)
      .with("name", name)
      .with("value", "null");
}

template <class Value>
Failure arrow_rejected(const ArrowWhere& where, std::string_view field, const Value& value,
                       const char* expected, CallSite site) noexcept {
  Failure failure(ErrorCode::arrow_rejected,
                  "an Arrow structure cannot be imported ({field}: {value}): {expected}.", site);
  failure.with("field", ArrowPath(where, field).text());
  if constexpr (std::is_integral_v<Value>) {
    if constexpr (std::is_signed_v<Value>) {
      failure.with_signed("value", value);
    } else {
      failure.with("value", static_cast<std::uint64_t>(value));
    }
  } else {
    // The text is foreign and may have any length.
    failure.with("value", std::string_view(value).substr(0, 40));
  }
  failure.with("expected", expected);
  return failure;
}

/// Why a structure is rejected. The checks of every column set a flaw and not a Failure, which is
/// large: making room for it would cost more than the checks.
struct ArrowFlaw {
  const char* field = nullptr;
  const char* expected = nullptr;
  const char* text = nullptr;  // the value, or null if it is a number
  std::int64_t number = 0;
  bool is_signed = true;

  // Set the flaw and return true.
  bool set(const char* at, const char* value, const char* wanted) noexcept {
    *this = {at, wanted, value};
    return true;
  }
  bool set(const char* at, std::int64_t value, const char* wanted) noexcept {
    *this = {at, wanted, nullptr, value};
    return true;
  }
  bool set(const char* at, std::size_t value, const char* wanted) noexcept {
    *this = {at, wanted, nullptr, static_cast<std::int64_t>(value), false};
    return true;
  }
};

[[gnu::cold, gnu::noinline]] inline Failure arrow_rejected(const ArrowWhere& where,
                                                           const ArrowFlaw& flaw,
                                                           CallSite site) noexcept {
  if (flaw.text != nullptr)
    return arrow_rejected(where, flaw.field, flaw.text, flaw.expected, site);
  if (flaw.is_signed) return arrow_rejected(where, flaw.field, flaw.number, flaw.expected, site);
  return arrow_rejected(where, flaw.field, static_cast<std::uint64_t>(flaw.number), flaw.expected,
                        site);
}

}  // namespace tern
