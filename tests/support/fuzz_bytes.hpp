// The input bytes of a fuzzer, read as the decisions of a program that builds structures.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>

#include "tern/core/call_site.hpp"

namespace tern::test {

class FuzzBytes {
 public:
  explicit FuzzBytes(std::span<const std::byte> bytes) noexcept : left_(bytes) {}

  [[nodiscard]] bool is_empty() const noexcept { return left_.empty(); }
  /// Returns zero when the bytes are used up.
  template <class T>
  T take() noexcept {
    T value = {};
    const std::size_t taken = left_.size() < sizeof value ? left_.size() : sizeof value;
    if (taken != 0) std::memcpy(&value, left_.data(), taken);
    left_ = left_.subspan(taken);
    return value;
  }
  [[nodiscard]] bool chance(unsigned one_in) noexcept { return take<std::uint8_t>() % one_in == 0; }
  /// Returns a small number in most cases, and sometimes any number.
  std::int64_t number(std::int64_t small) noexcept {
    const std::uint8_t how = take<std::uint8_t>();
    if (how < 200) return take<std::uint16_t>() % (small + 1);
    if (how < 220) return -1;
    if (how < 235) return std::numeric_limits<std::int64_t>::min();
    if (how < 250) return std::numeric_limits<std::int64_t>::max();
    return take<std::int64_t>();
  }

 private:
  std::span<const std::byte> left_;
};

/// Throws if a rule is broken. The fuzzer treats an uncaught exception as a crash; a test reports
/// it.
inline void require_in_fuzz(bool holds, CallSite site = CallSite::here()) {
  if (holds) return;
  throw std::logic_error(std::string("a rule of imports is broken, see ") + site.file + ":" +
                         std::to_string(site.line));
}

}  // namespace tern::test
