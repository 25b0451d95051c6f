// A CallSite is the line of user code that asked for something.
//
// It is filled by a defaulted argument, so the user writes nothing: `void f(CallSite site =
// CallSite::here())`. A plain value of three words; the strings have static storage. It does not
// use std::source_location because clang 14 lacks it.

#pragma once

#include <cstdint>

namespace tern {

struct CallSite {
  const char* file = "";
  const char* function = "";
  std::uint32_t line = 0;

  [[nodiscard]] static constexpr CallSite here(
      const char* file = __builtin_FILE(), const char* function = __builtin_FUNCTION(),
      std::uint32_t line = static_cast<std::uint32_t>(__builtin_LINE())) noexcept {
    return {file, function, line};
  }

  [[nodiscard]] constexpr bool is_known() const noexcept { return line != 0; }
};

}  // namespace tern
