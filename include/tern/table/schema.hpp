// A Schema lists the fields of a table in order: their names, types and metadata.
//
// A field has a name, a type, a flag whether it may have nulls, and metadata. Metadata are pairs of
// strings that Tern keeps and does not interpret. The exception is `tern.type` (Field::type_key),
// which holds the name of a type that a program has defined. Names need not be unique, because they
// are not unique in Arrow either; a lookup returns the first field of that name.
//
// A schema is immutable. Copies share the fields, and several threads may use one schema.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

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

/// One line for each kind: TERN_TYPE_KIND(enumerator, name).
/// - `boolean` is one bit per value;
/// - `i8`, `i16`, `i32`, `i64`, `u8`, `u16`, `u32`, `u64`, `f16`, `f32`, `f64` are the dtypes of
///   these names;
/// - `date32` counts days and `date64` milliseconds since 1970;
/// - `time`, `timestamp` and `duration` count a TimeUnit: see LogicalType;
/// - `utf8` and `binary` are text and bytes with 32-bit offsets, `large_utf8` and `large_binary`
///   with 64-bit offsets.
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

/// What the values of a column are. The list above explains each kind.
enum class TypeKind : std::uint8_t {
#define TERN_TYPE_KIND(enumerator, name) enumerator,
  TERN_FOR_EACH_TYPE_KIND(TERN_TYPE_KIND)
#undef TERN_TYPE_KIND
};
/// Returns the name of the kind, such as "i32".
[[nodiscard]] TERN_EXPORT std::string_view name(TypeKind kind) noexcept;

/// What a time counts: `second`, `millisecond`, `microsecond` or `nanosecond`.
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
  /// A length of time, in 64 bits with a sign.
  [[nodiscard]] static LogicalType duration(TimeUnit unit) noexcept;
  /// Returns the type that a dtype stands for by default. DType::boolean, which is one byte,
  /// becomes a boolean of one bit. Fails with type_mismatch if columns have no such type.
  [[nodiscard]] static Result<LogicalType> try_of(DType dtype,
                                                  CallSite site = CallSite::here()) noexcept;

  /// kind() is what the values are. unit() and zone() have a meaning for times only.
  [[nodiscard]] TypeKind kind() const noexcept { return kind_; }
  [[nodiscard]] TimeUnit unit() const noexcept { return unit_; }
  [[nodiscard]] const std::string& zone() const noexcept { return zone_; }

  /// Returns whether values are single bits.
  [[nodiscard]] bool is_bits() const noexcept { return kind_ == TypeKind::boolean; }
  /// Returns whether values have different lengths and offsets: strings and binaries.
  [[nodiscard]] bool is_variable() const noexcept { return kind_ >= TypeKind::utf8; }
  /// Returns whether values are UTF-8 strings.
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

  friend TERN_EXPORT bool operator==(const LogicalType& a, const LogicalType& b) noexcept;

 private:
  TypeKind kind_;
  TimeUnit unit_ = TimeUnit::second;
  std::string zone_;
};

/// Pairs of strings, in their original order. A key may occur more than once.
class TERN_EXPORT Metadata {
 public:
  using Pair = std::pair<std::string, std::string>;

  Metadata() noexcept = default;
  Metadata(std::initializer_list<Pair> pairs);
  explicit Metadata(std::vector<Pair> pairs) noexcept;

  [[nodiscard]] std::span<const Pair> pairs() const noexcept;
  /// Returns whether there are no pairs.
  [[nodiscard]] bool empty() const noexcept;
  /// Returns the value of the first pair with this key. The result is valid as long as this object.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view key) const noexcept;

  friend TERN_EXPORT bool operator==(const Metadata& a, const Metadata& b) noexcept;

 private:
  std::vector<Pair> pairs_;
};

/// One field of a schema.
struct Field {
  /// The metadata key under which programs name their own types. "symbol" is a 32-bit number that
  /// stands for a string.
  static constexpr std::string_view type_key = "tern.type";

  std::string name = {};
  LogicalType type = {};
  /// Whether values may be missing. A column of this field then may have a validity bitmap.
  bool is_nullable = true;
  Metadata metadata = {};

  friend TERN_EXPORT bool operator==(const Field& a, const Field& b) noexcept;
};

/// Which differences check_match() accepts.
struct SchemaMatch {
  /// Accept signed for unsigned integers of the same width, and the reverse.
  bool allows_sign_change = false;
  /// Accept 32-bit integers for symbols, and the reverse.
  bool allows_symbol_as_number = false;
};

class TERN_EXPORT Schema {
 public:
  /// Creates a schema without fields.
  Schema() noexcept = default;
  /// Throws std::bad_alloc.
  explicit Schema(std::vector<Field> fields, Metadata metadata = {});

  /// Returns the number of fields.
  [[nodiscard]] std::size_t size() const noexcept { return fields().size(); }
  /// Returns the fields in order. The span is valid while a copy of the schema exists.
  [[nodiscard]] std::span<const Field> fields() const noexcept;
  /// Returns null if there is no such field.
  [[nodiscard]] const Field* field(std::size_t index) const noexcept;
  /// Returns the index of the first field with this name, or nothing.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const noexcept;
  /// Returns the pairs that belong to the whole table.
  [[nodiscard]] const Metadata& metadata() const noexcept;

  /// Returns a schema with these fields, in this order. Fails with out_of_bounds, naming the index,
  /// and with out_of_memory.
  [[nodiscard]] Result<Schema> try_select(std::span<const std::size_t> indices,
                                          CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Schema select(std::span<const std::size_t> indices,
                              CallSite site = CallSite::here()) const {
    return try_select(indices, site).value();
  }

  /// Checks whether data of this schema can be used as data of the schema `wanted`. Names and types
  /// must be equal, except as the options allow. A field that may have nulls does not match a field
  /// that may not. Floats, booleans, strings and times always have to be equal. Fails with
  /// shape_mismatch if the number of fields differs, and with type_mismatch, naming the field and
  /// both types.
  [[nodiscard]] Result<void> check_match(const Schema& wanted, const SchemaMatch& options = {},
                                         CallSite site = CallSite::here()) const noexcept;

  friend TERN_EXPORT bool operator==(const Schema& a, const Schema& b) noexcept;

 private:
  struct Body {
    std::vector<Field> fields;
    Metadata metadata;
  };
  std::shared_ptr<const Body> body_;
};

}  // namespace tern
