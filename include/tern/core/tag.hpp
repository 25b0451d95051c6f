// A Tag is a short label on memory and work, such as "weights" or "sort.tmp", for reports.
//
//   void* address = device.allocate(MemoryKind::device, bytes, {.tag = "weights"});
//
// A Tag is a 16-bit number that stands for an interned name, so copying and comparing tags is
// cheap. Names stay interned for the life of the process. Interning a name takes a lock; reading
// the name of a tag does not. A label never makes an allocation fail: if all 65,535 numbers are in
// use, or host memory is exhausted, a new name becomes "untagged" and tags_refused() counts it.
// Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tern/detail/core/visibility.hpp"

namespace tern {

class TERN_EXPORT Tag {
 public:
  /// Upper bound on the length of a name. A longer name is cut.
  static constexpr std::size_t max_name_bytes = 255;

  /// The tag "untagged".
  constexpr Tag() noexcept = default;
  /// Interns the name. Equal names yield equal tags. An empty name is "untagged". A name longer
  /// than max_name_bytes is cut at a character boundary. The constructors are implicit, so that
  /// `.tag = "weights"` compiles.
  Tag(std::string_view name) noexcept;
  Tag(const char* name) noexcept : Tag(std::string_view(name == nullptr ? "" : name)) {}
  Tag(const std::string& name) noexcept : Tag(std::string_view(name)) {}
  /// Returns the tag of a name that is already interned. Returns nullopt for any other name and
  /// does not intern it.
  [[nodiscard]] static std::optional<Tag> find(std::string_view name) noexcept;

  /// Returns the number of the tag. 0 is "untagged".
  [[nodiscard]] constexpr std::uint16_t number() const noexcept { return number_; }
  /// Returns the name. The text stays valid until the process ends.
  [[nodiscard]] std::string_view name() const noexcept;

  friend constexpr bool operator==(Tag, Tag) noexcept = default;

 private:
  std::uint16_t number_ = 0;
};

/// Returns how many times a name could not be interned so far.
[[nodiscard]] TERN_EXPORT std::uint64_t tags_refused() noexcept;

}  // namespace tern
