// A LogicalType says what the values of a column mean: a number, a boolean, a point in time, a
// string.
//
// A type is a kind and, for times, a unit and a time zone. The layout in memory follows from the
// type:
// - elements of a dtype, one after the other;
// - for booleans, single bits, the lowest bit of each byte first;
// - for strings and binaries, bytes of different lengths one after the other, and offsets that say
//   where each value begins.
//
// A LogicalType is an immutable value.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"

namespace tern {

/// One line for each kind: TERN_TYPE_KIND(enumerator, name).
#define TERN_FOR_EACH_TYPE_KIND(TERN_TYPE_KIND) \
  TERN_TYPE_KIND(boolean, "bool")               \
  TERN_TYPE_KIND(i8, "i8")                      \
  TERN_TYPE_KIND(i16, "i16")                    \
  TERN_TYPE_KIND(i32, "i32")                    \
  TERN_TYPE_KIND(i64, "i64")                    \
  TERN_TYPE_KIND(u8, "u8")                      \
  TERN_TYPE_KIND(u16, "u16")                    \
  TERN_TYPE_KIND(u32, "u32")                    \
  TERN_TYPE_KIND(u64, "u64")                    \
  TERN_TYPE_KIND(f16, "f16")                    \
  TERN_TYPE_KIND(f32, "f32")                    \
  TERN_TYPE_KIND(f64, "f64")                    \
  TERN_TYPE_KIND(date32, "date32")              \
  TERN_TYPE_KIND(date64, "date64")              \
  TERN_TYPE_KIND(time, "time")                  \
  TERN_TYPE_KIND(timestamp, "timestamp")        \
  TERN_TYPE_KIND(duration, "duration")          \
  TERN_TYPE_KIND(utf8, "utf8")                  \
  TERN_TYPE_KIND(large_utf8, "large_utf8")      \
  TERN_TYPE_KIND(binary, "binary")              \
  TERN_TYPE_KIND(large_binary, "large_binary")

enum class TypeKind : std::uint8_t {
#define TERN_TYPE_KIND(enumerator, name) enumerator,
  TERN_FOR_EACH_TYPE_KIND(TERN_TYPE_KIND)
#undef TERN_TYPE_KIND
};
/// Returns the name of the kind, such as "i32".
[[nodiscard]] TERN_EXPORT std::string_view name(TypeKind kind) noexcept;

enum class TimeUnit : std::uint8_t { second, millisecond, microsecond, nanosecond };
/// Returns "s", "ms", "us" or "ns".
[[nodiscard]] TERN_EXPORT std::string_view name(TimeUnit unit) noexcept;

class TERN_EXPORT LogicalType {
 public:
  /// Creates a type of this kind. Times get seconds as their unit.
  LogicalType(TypeKind kind = TypeKind::i32) noexcept : kind_(kind) {}
  /// The time of day: 32 bits for seconds and milliseconds, 64 bits for microseconds and
  /// nanoseconds.
  [[nodiscard]] static LogicalType time(TimeUnit unit) noexcept;
  /// The time since 1970: in UTC if a zone is given, else local time of an unspecified place.
  [[nodiscard]] static LogicalType timestamp(TimeUnit unit, std::string zone = {}) noexcept;
  [[nodiscard]] static LogicalType duration(TimeUnit unit) noexcept;
  /// Returns the type that a dtype stands for by default. DType::boolean, which is one byte,
  /// becomes a boolean of one bit. Fails with type_mismatch if columns have no such type.
  [[nodiscard]] static Result<LogicalType> try_of(DType dtype,
                                                  CallSite site = CallSite::here()) noexcept;

  [[nodiscard]] TypeKind kind() const noexcept { return kind_; }
  [[nodiscard]] TimeUnit unit() const noexcept { return unit_; }
  [[nodiscard]] const std::string& zone() const noexcept { return zone_; }

  /// Returns whether values are single bits.
  [[nodiscard]] bool is_bits() const noexcept { return kind_ == TypeKind::boolean; }
  /// Returns whether values have different lengths and offsets: strings and binaries.
  [[nodiscard]] bool is_variable() const noexcept { return kind_ >= TypeKind::utf8; }
  [[nodiscard]] bool is_text() const noexcept {
    return kind_ == TypeKind::utf8 || kind_ == TypeKind::large_utf8;
  }
  /// Returns the dtype of the elements in memory; DType::byte for bits, strings and binaries.
  [[nodiscard]] DType dtype() const noexcept;
  /// Returns i32 or i64, or void if the type has no offsets.
  [[nodiscard]] DType offset_dtype() const noexcept;
  /// Returns the size of a value in bits, or 0 if values have different lengths.
  [[nodiscard]] std::size_t width_bits() const noexcept;

  /// Returns a text such as "timestamp[us, Europe/Berlin]".
  [[nodiscard]] std::string text() const;

  friend bool operator==(const LogicalType&, const LogicalType&) noexcept = default;

 private:
  TypeKind kind_;
  TimeUnit unit_ = TimeUnit::second;
  std::string zone_;
};

}  // namespace tern
