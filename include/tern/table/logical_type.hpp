// A LogicalType says what the values of a column mean: a number, a truth value, a point in time, a
// text.
//
// It is a kind, and for times a unit and a zone. How the values lie in memory follows from it:
// elements of a dtype side by side; single bits, the first in the lowest of a byte, for truth
// values; or bytes of different lengths behind each other, with offsets that say where each begins,
// for texts and binaries. A value like any other, immutable once made.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"

namespace tern {

/// One line per kind: TERN_TYPE_KIND(enumerator, name).
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
[[nodiscard]] TERN_EXPORT std::string_view name(TypeKind kind) noexcept;

enum class TimeUnit : std::uint8_t { second, millisecond, microsecond, nanosecond };
/// "s", "ms", "us", "ns".
[[nodiscard]] TERN_EXPORT std::string_view name(TimeUnit unit) noexcept;

class TERN_EXPORT LogicalType {
 public:
  /// Of a kind that says everything; times of a kind without a unit count seconds.
  LogicalType(TypeKind kind = TypeKind::i32) noexcept : kind_(kind) {}
  /// Of a day: 32 bits for seconds and milliseconds, 64 for finer ones.
  [[nodiscard]] static LogicalType time(TimeUnit unit) noexcept;
  /// Since 1970; in UTC where a zone is named, else in local time of somewhere.
  [[nodiscard]] static LogicalType timestamp(TimeUnit unit, std::string zone = {}) noexcept;
  [[nodiscard]] static LogicalType duration(TimeUnit unit) noexcept;
  /// What a dtype means if nobody says more. Truth values are bits here, and bytes there. Refused
  /// with type_mismatch where columns have no such type.
  [[nodiscard]] static Result<LogicalType> try_of(DType dtype,
                                                  CallSite site = CallSite::here()) noexcept;

  [[nodiscard]] TypeKind kind() const noexcept { return kind_; }
  [[nodiscard]] TimeUnit unit() const noexcept { return unit_; }
  [[nodiscard]] const std::string& zone() const noexcept { return zone_; }

  [[nodiscard]] bool is_bits() const noexcept { return kind_ == TypeKind::boolean; }
  /// Texts and binaries: values of different lengths, behind offsets.
  [[nodiscard]] bool is_variable() const noexcept { return kind_ >= TypeKind::utf8; }
  [[nodiscard]] bool is_text() const noexcept {
    return kind_ == TypeKind::utf8 || kind_ == TypeKind::large_utf8;
  }
  /// Of the elements in memory; byte for bits and for what is variable.
  [[nodiscard]] DType dtype() const noexcept;
  /// i32 or i64; void for what has none.
  [[nodiscard]] DType offset_dtype() const noexcept;
  /// Of a value; 0 for what is variable.
  [[nodiscard]] std::size_t width_bits() const noexcept;

  /// "timestamp[us, Europe/Berlin]".
  [[nodiscard]] std::string text() const;

  friend bool operator==(const LogicalType&, const LogicalType&) noexcept = default;

 private:
  TypeKind kind_;
  TimeUnit unit_ = TimeUnit::second;
  std::string zone_;
};

}  // namespace tern
