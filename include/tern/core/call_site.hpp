// A CallSite names a line of user code: file, function and line number.
//
// Functions take a CallSite as their last argument, with a default that names the caller's line, so
// errors and reports show where the user made the call:
//
//   void f(CallSite site = CallSite::here());
//
// A CallSite is a plain value of three words. Its strings have static storage and are never freed.
// The type does not use std::source_location because clang 14 lacks it.

#pragma once

#include <cstdint>

namespace tern {

struct CallSite {
  const char* file = "";
  const char* function = "";
  std::uint32_t line = 0;

  /// Returns the line of the caller. Call it without arguments, as a default argument: the builtins
  /// are then evaluated at the call of the outer function.
  [[nodiscard]] static constexpr CallSite here(
      const char* file = __builtin_FILE(), const char* function = __builtin_FUNCTION(),
      std::uint32_t line = static_cast<std::uint32_t>(__builtin_LINE())) noexcept {
    return {file, function, line};
  }

  /// Returns false for a default-constructed CallSite.
  [[nodiscard]] constexpr bool is_known() const noexcept { return line != 0; }
};

}  // namespace tern
