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
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/table/logical_type.hpp"

namespace tern {

/// Pairs of strings, in their original order. A key may occur more than once.
class TERN_EXPORT Metadata {
 public:
  using Pair = std::pair<std::string, std::string>;

  Metadata() noexcept = default;
  Metadata(std::initializer_list<Pair> pairs) : pairs_(pairs) {}
  explicit Metadata(std::vector<Pair> pairs) noexcept : pairs_(std::move(pairs)) {}

  [[nodiscard]] std::span<const Pair> pairs() const noexcept { return pairs_; }
  [[nodiscard]] bool empty() const noexcept { return pairs_.empty(); }
  /// Returns the value of the first pair with this key. The result is valid as long as this object.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view key) const noexcept;

  friend bool operator==(const Metadata&, const Metadata&) noexcept = default;

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
  bool is_nullable = true;
  Metadata metadata = {};

  friend bool operator==(const Field&, const Field&) noexcept = default;
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
  [[nodiscard]] std::span<const Field> fields() const noexcept;
  /// Returns null if there is no such field.
  [[nodiscard]] const Field* field(std::size_t index) const noexcept;
  /// Returns the index of the first field with this name, or nothing.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const noexcept;
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
