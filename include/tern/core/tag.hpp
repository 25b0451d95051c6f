// A Tag is a short label on memory and work: "weights", "sort.tmp".
//
// It is a 16-bit number that stands for an interned name, so that carrying, comparing and counting
// by it costs nothing. Names are interned for the life of the process; interning takes a lock,
// reading a name does not. When all 65,535 are taken, or memory is, further names become "untagged"
// and are counted by tags_refused(): a label must never make an allocation fail. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tern/core/export.hpp"

namespace tern {

class TERN_EXPORT Tag {
 public:
  static constexpr std::size_t max_name_bytes = 255;

  /// "untagged".
  constexpr Tag() noexcept = default;
  /// Equal names give equal tags. An empty name is "untagged"; a longer one than max_name_bytes is
  /// cut at a character boundary. Implicit, so that `.tag = "weights"` reads as it should.
  Tag(std::string_view name) noexcept;
  Tag(const char* name) noexcept : Tag(std::string_view(name == nullptr ? "" : name)) {}
  Tag(const std::string& name) noexcept : Tag(std::string_view(name)) {}
  /// The tag of a name that is interned already; nothing if it is not, and it stays so.
  [[nodiscard]] static std::optional<Tag> find(std::string_view name) noexcept;

  [[nodiscard]] constexpr std::uint16_t number() const noexcept { return number_; }
  /// Lives as long as the process.
  [[nodiscard]] std::string_view name() const noexcept;

  friend constexpr bool operator==(Tag, Tag) noexcept = default;

 private:
  std::uint16_t number_ = 0;
};

/// How many names could not be interned so far.
[[nodiscard]] TERN_EXPORT std::uint64_t tags_refused() noexcept;

}  // namespace tern
