#include "tern/table/schema.hpp"

#include <algorithm>
#include <new>

#include "core/no_host_memory.hpp"

namespace tern {
namespace {

bool is_integer(TypeKind kind) noexcept { return kind >= TypeKind::i8 && kind <= TypeKind::u64; }

bool is_symbol(const Field& field) noexcept {
  return field.metadata.find(Field::type_key) == std::string_view("symbol");
}

bool is_number_of_32_bits(const LogicalType& type) noexcept {
  return type.kind() == TypeKind::i32 || type.kind() == TypeKind::u32;
}

bool is_same_or_allowed(const Field& given, const Field& wanted, const SchemaMatch& options) {
  const auto own_type = [](const Field& field) { return field.metadata.find(Field::type_key); };
  if (own_type(given) != own_type(wanted)) {
    // Types of programs match only if they are equal, except that symbols are 32-bit numbers.
    return options.allows_symbol_as_number && (is_symbol(given) || !own_type(given)) &&
           (is_symbol(wanted) || !own_type(wanted)) && is_number_of_32_bits(given.type) &&
           is_number_of_32_bits(wanted.type);
  }
  if (given.type == wanted.type) return true;
  return options.allows_sign_change && is_integer(given.type.kind()) &&
         is_integer(wanted.type.kind()) && given.type.width_bits() == wanted.type.width_bits();
}

}  // namespace

Metadata::Metadata(std::initializer_list<Pair> pairs) : pairs_(pairs) {}
Metadata::Metadata(std::vector<Pair> pairs) noexcept : pairs_(std::move(pairs)) {}

std::span<const Metadata::Pair> Metadata::pairs() const noexcept { return pairs_; }
bool Metadata::empty() const noexcept { return pairs_.empty(); }

bool operator==(const Metadata& a, const Metadata& b) noexcept { return a.pairs_ == b.pairs_; }

bool operator==(const Field& a, const Field& b) noexcept {
  return a.name == b.name && a.type == b.type && a.is_nullable == b.is_nullable &&
         a.metadata == b.metadata;
}

std::optional<std::string_view> Metadata::find(std::string_view key) const noexcept {
  const auto found =
      std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& p) { return p.first == key; });
  return found == pairs_.end() ? std::nullopt : std::optional<std::string_view>(found->second);
}

Schema::Schema(std::vector<Field> fields, Metadata metadata)
    : body_(std::make_shared<const Body>(Body{std::move(fields), std::move(metadata)})) {}

std::span<const Field> Schema::fields() const noexcept {
  return body_ ? std::span<const Field>(body_->fields) : std::span<const Field>();
}

const Field* Schema::field(std::size_t index) const noexcept {
  return index < size() ? &body_->fields[index] : nullptr;
}

std::optional<std::size_t> Schema::find(std::string_view name) const noexcept {
  for (std::size_t i = 0; i < size(); ++i) {
    if (body_->fields[i].name == name) return i;
  }
  return std::nullopt;
}

const Metadata& Schema::metadata() const noexcept {
  static const Metadata none;
  return body_ ? body_->metadata : none;
}

Result<Schema> Schema::try_select(std::span<const std::size_t> indices,
                                  CallSite site) const noexcept try {
  std::vector<Field> chosen;
  chosen.reserve(indices.size());
  for (const std::size_t index : indices) {
    if (index >= size()) {
      return Failure(ErrorCode::out_of_bounds,
                     "a schema of {count} fields has no field {index}. Use a smaller index.", site)
          .with("index", index)
          .with("count", size());
    }
    chosen.push_back(body_->fields[index]);
  }
  return Schema(std::move(chosen), metadata());
} catch (const std::bad_alloc&) {
  return no_host_memory("a schema", site);
}

Result<void> Schema::check_match(const Schema& wanted, const SchemaMatch& options,
                                 CallSite site) const noexcept {
  if (size() != wanted.size()) {
    return Failure(ErrorCode::shape_mismatch,
                   "the schema has {actual} fields, and {expected} are required. Select the "
                   "required fields.",
                   site)
        .with("actual", size())
        .with("expected", wanted.size());
  }
  for (std::size_t i = 0; i < size(); ++i) {
    const Field& given = body_->fields[i];
    const Field& needed = wanted.body_->fields[i];
    const auto differs = [&](const char* sentence) {
      return Failure(ErrorCode::type_mismatch, sentence, site)
          .with("index", i)
          .with("field", given.name)
          .with("wanted", needed.name);
    };
    if (given.name != needed.name) {
      return differs(
          "field {index} is called '{field}', and '{wanted}' is required. Select the fields in the "
          "required order.");
    }
    if (!is_same_or_allowed(given, needed, options)) {
      return differs(
                 "field {index}, '{field}', is {actual}, and {expected} is required. Convert the "
                 "column.")
          .with("actual", name(given.type.kind()))
          .with("expected", name(needed.type.kind()));
    }
    if (given.is_nullable && !needed.is_nullable) {
      return differs(
          "field {index}, '{field}', is nullable, and a field without nulls is required. Fill the "
          "nulls.");
    }
  }
  return {};
}

bool operator==(const Schema& a, const Schema& b) noexcept {
  if (a.body_ == b.body_) return true;
  return std::ranges::equal(a.fields(), b.fields()) && a.metadata() == b.metadata();
}

}  // namespace tern
