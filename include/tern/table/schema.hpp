// A Schema is what the columns of a table are called and mean, in order.
//
// A field has a name, a type, whether it may hold nulls, and metadata: pairs of bytes that Tern
// carries and does not read, except for `tern.type`, in which programs keep the name of a type of
// their own (type_key). Names need not differ, because those of others do not; a lookup gives the
// first.
//
// Immutable: copies share their fields, and threads may share a schema.

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
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/table/logical_type.hpp"

namespace tern {

/// Pairs of bytes, in the order they came in. A key may be there twice.
class TERN_EXPORT Metadata {
 public:
  using Pair = std::pair<std::string, std::string>;

  Metadata() noexcept = default;
  Metadata(std::initializer_list<Pair> pairs) : pairs_(pairs) {}
  explicit Metadata(std::vector<Pair> pairs) noexcept : pairs_(std::move(pairs)) {}

  [[nodiscard]] std::span<const Pair> pairs() const noexcept { return pairs_; }
  [[nodiscard]] bool empty() const noexcept { return pairs_.empty(); }
  /// The value of the first pair with the key; it lives as long as this.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view key) const noexcept;

  friend bool operator==(const Metadata&, const Metadata&) noexcept = default;

 private:
  std::vector<Pair> pairs_;
};

struct Field {
  /// The key of the metadata in which programs name a type of their own; "symbol" is a number of 32
  /// bits that stands for a text.
  static constexpr std::string_view type_key = "tern.type";

  std::string name = {};
  LogicalType type = {};
  bool is_nullable = true;
  Metadata metadata = {};

  friend bool operator==(const Field&, const Field&) noexcept = default;
};

/// What may differ between a field and the one that is wanted.
struct SchemaMatch {
  /// Integers of one width, signed or not.
  bool allows_sign_change = false;
  /// Symbols, and integers of 32 bits.
  bool allows_symbol_as_number = false;
};

class TERN_EXPORT Schema {
 public:
  /// No fields.
  Schema() noexcept = default;
  /// Throws std::bad_alloc.
  explicit Schema(std::vector<Field> fields, Metadata metadata = {});

  /// How many fields.
  [[nodiscard]] std::size_t size() const noexcept { return fields().size(); }
  [[nodiscard]] std::span<const Field> fields() const noexcept;
  /// Null if there are not so many.
  [[nodiscard]] const Field* field(std::size_t index) const noexcept;
  /// The first with the name.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const noexcept;
  [[nodiscard]] const Metadata& metadata() const noexcept;

  /// These fields, in this order. Refused with out_of_bounds, naming the index; with out_of_memory.
  [[nodiscard]] Result<Schema> try_select(std::span<const std::size_t> indices,
                                          CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Schema select(std::span<const std::size_t> indices,
                              CallSite site = CallSite::here()) const {
    return try_select(indices, site).value();
  }

  /// May data of this schema be used as that of another? Names and types are the same, as far as
  /// the options do not allow more; what may hold nulls does not go where none may be. Floats,
  /// truth values, texts and times never change. Refused with shape_mismatch for another number of
  /// fields, with type_mismatch, naming the field and both.
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
