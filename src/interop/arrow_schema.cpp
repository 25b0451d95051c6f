#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/no_host_memory.hpp"
#include "interop/arrow_rejected.hpp"
#include "interop/arrow_schema_parts.hpp"
#include "interop/foreign_release.hpp"
#include "tern/interop/arrow.hpp"

namespace tern {
namespace {

/// Formats by type kind. Types with a unit follow below.
constexpr std::string_view formats[] = {"b", "c",   "s",   "i", "l", "C", "S", "I", "L", "e", "f",
                                        "g", "tdD", "tdm", "",  "",  "",  "u", "U", "z", "Z"};
static_assert(std::size(formats) == static_cast<std::size_t>(TypeKind::large_binary) + 1);
/// Formats by time unit.
constexpr std::string_view times[] = {"tts", "ttm", "ttu", "ttn"};
constexpr std::string_view durations[] = {"tDs", "tDm", "tDu", "tDn"};
constexpr std::string_view stamps[] = {"tss:", "tsm:", "tsu:", "tsn:"};

/// Returns the format without the time zone, as a zero-terminated text with static storage.
std::string_view static_format(const LogicalType& type) noexcept {
  const std::size_t unit = static_cast<std::size_t>(type.unit());
  switch (type.kind()) {
    case TypeKind::time:
      return times[unit];
    case TypeKind::timestamp:
      return stamps[unit];
    case TypeKind::duration:
      return durations[unit];
    default:
      return formats[static_cast<std::size_t>(type.kind())];
  }
}

constexpr std::size_t max_format_bytes = 512;

/// The types of formats with one letter.
constexpr auto letters = [] {
  std::array<std::uint8_t, 256> made = {};
  made.fill(0xFF);
  for (std::size_t i = 0; i < std::size(formats); ++i) {
    if (formats[i].size() == 1) {
      made[static_cast<unsigned char>(formats[i][0])] = static_cast<std::uint8_t>(i);
    }
  }
  return made;
}();

Result<LogicalType> try_long_type(const char* format, const ArrowWhere& where, CallSite site) {
  if (format == nullptr) {
    return arrow_rejected(where, "format", "null", "a schema needs a format", site);
  }
  const std::size_t length = strnlen(format, max_format_bytes + 1);
  const std::string_view text(format, length);
  if (length > max_format_bytes) {
    return arrow_rejected(where, "format", text, "a format has at most 512 bytes", site);
  }
  for (std::size_t i = 0; i < std::size(formats); ++i) {
    if (length != 0 && formats[i] == text) return LogicalType(static_cast<TypeKind>(i));
  }
  for (unsigned i = 0; i < 4; ++i) {
    const TimeUnit unit = static_cast<TimeUnit>(i);
    if (text == times[i]) return LogicalType::time(unit);
    if (text == durations[i]) return LogicalType::duration(unit);
    if (text.starts_with(stamps[i])) {
      return LogicalType::timestamp(unit, std::string(text.substr(4)));
    }
  }
  if (text == "vu") return LogicalType(TypeKind::large_utf8);
  if (text == "vz") return LogicalType(TypeKind::large_binary);
  return arrow_rejected(where, "format", text,
                        "supported columns: numbers, booleans, times, texts and binaries", site);
}

/// Sets the type of a format.
Result<void> try_type(const char* format, const ArrowWhere& where, LogicalType& type,
                      CallSite site) {
  if (format != nullptr && format[0] != 0 && format[1] == 0) {
    const std::uint8_t kind = letters[static_cast<unsigned char>(format[0])];
    if (kind != 0xFF) {
      // Constructed in place, because assigning the empty zone costs more than the rest.
      type.~LogicalType();
      ::new (static_cast<void*>(&type)) LogicalType(static_cast<TypeKind>(kind));
      return {};
    }
  }
  Result<LogicalType> found = try_long_type(format, where, site);
  if (!found) return found.failure();
  type = *std::move(found);
  return {};
}

Result<Metadata> try_metadata(const char* bytes, const ArrowWhere& where, CallSite site) {
  constexpr std::int32_t max_bytes = 64 << 20;
  const auto number = [&] {
    std::int32_t value;
    std::memcpy(&value, bytes, sizeof value);
    bytes += sizeof value;
    return value;
  };
  const std::int32_t count = number();
  if (count < 0 || count > static_cast<std::int32_t>(max_arrow_children)) {
    return arrow_rejected(where, "metadata count", count, "it must be 0 to 2^20", site);
  }
  std::vector<Metadata::Pair> pairs;
  for (std::int32_t i = 0; i < count; ++i) {
    Metadata::Pair pair;
    for (std::string* part : {&pair.first, &pair.second}) {
      const std::int32_t length = number();
      if (length < 0 || length > max_bytes) {
        return arrow_rejected(where, "metadata length", length, "it must be 0 to 64 MiB", site);
      }
      part->assign(bytes, static_cast<std::size_t>(length));
      bytes += length;
    }
    pairs.push_back(std::move(pair));
  }
  return Metadata(std::move(pairs));
}

/// Returns the size of metadata in Arrow's encoding; 0 for no metadata.
std::size_t metadata_bytes(const Metadata& metadata) noexcept {
  if (metadata.empty()) return 0;
  std::size_t bytes = sizeof(std::int32_t);
  for (const Metadata::Pair& pair : metadata.pairs()) {
    bytes += 2 * sizeof(std::int32_t) + pair.first.size() + pair.second.size();
  }
  return bytes;
}

Result<void> check_released(const ArrowSchema* schema, const ArrowWhere& where, CallSite site) {
  if (schema->release == nullptr) {
    return arrow_rejected(where, "release", "null", "the structure was released or moved from",
                          site);
  }
  return {};
}

/// Reads a field into `field`, which is default-constructed.
Result<void> try_read_field(const ArrowSchema& schema, const ArrowWhere& where, Field& field,
                            CallSite site) {
  if (Result<void> alive = check_released(&schema, where, site); !alive) return alive;
  if (Result<void> known = try_type(schema.format, where, field.type, site); !known) return known;
  if (schema.n_children != 0) {
    return arrow_rejected(where, "n_children", schema.n_children, "this type has no children",
                          site);
  }
  if (schema.dictionary != nullptr) {
    return arrow_rejected(where, "dictionary", "set",
                          "dictionaries are not supported. Decode them first", site);
  }
  if (schema.metadata != nullptr) {
    Result<Metadata> metadata = try_metadata(schema.metadata, where, site);
    if (!metadata) return metadata.failure();
    field.metadata = *std::move(metadata);
  }
  if (schema.name != nullptr) field.name = schema.name;
  field.is_nullable = (schema.flags & ARROW_FLAG_NULLABLE) != 0;
  return {};
}

/// Returns whether a field that was read has text views.
bool has_views(const ArrowSchema& schema) noexcept { return schema.format[0] == 'v'; }

// --- Export

/// The memory that an exported schema points to, in one allocation: this object, the child
/// structures, the child pointers, and encoded texts. It is reference-counted by the struct and its
/// children, because a consumer may move children out.
struct SchemaState {
  std::atomic<std::size_t> shares = 1;
  Schema schema;  // owns the names; returned if the structure is imported again
  ArrowSchema* fields = nullptr;
  ArrowSchema** children = nullptr;
};

void drop(SchemaState* state, std::size_t shares = 1) noexcept {
  if (state->shares.fetch_sub(shares, std::memory_order_acq_rel) != shares) return;
  std::destroy_at(state);
  ::operator delete(state);
}

void release_field(ArrowSchema* self) {
  SchemaState* const state = static_cast<SchemaState*>(self->private_data);
  self->release = nullptr;
  drop(state);
}

void release_struct(ArrowSchema* self) {
  SchemaState* const state = static_cast<SchemaState*>(self->private_data);
  // Drops the references of the struct and of the children that were not moved out in one step.
  std::size_t shares = 1;
  for (std::int64_t i = 0; i < self->n_children; ++i) {
    ArrowSchema* const child = self->children[i];
    if (child->release == nullptr) continue;
    if (child->release == release_field && child->private_data == state) {
      child->release = nullptr;
      ++shares;
    } else {
      call_release(*child);  // the consumer has put another structure here
    }
  }
  self->release = nullptr;
  drop(state, shares);
}

/// Writes texts one after the other into a buffer that is large enough.
class Writer {
 public:
  explicit Writer(char* to) noexcept : to_(to) {}

  const char* put(std::string_view first, std::string_view second) noexcept {
    const char* const text = to_;
    add(first);
    add(second);
    *to_++ = 0;
    return text;
  }
  /// Returns null for empty metadata.
  const char* put(const Metadata& metadata) noexcept {
    if (metadata.empty()) return nullptr;
    const char* const bytes = to_;
    add(metadata.pairs().size());
    for (const Metadata::Pair& pair : metadata.pairs()) {
      for (const std::string* part : {&pair.first, &pair.second}) {
        add(part->size());
        add(*part);
      }
    }
    return bytes;
  }

 private:
  void add(std::string_view text) noexcept {
    std::memcpy(to_, text.data(), text.size());
    to_ += text.size();
  }
  void add(std::size_t value) noexcept {
    const std::int32_t number = static_cast<std::int32_t>(value);
    std::memcpy(to_, &number, sizeof number);
    to_ += sizeof number;
  }

  char* to_;
};

/// Throws std::bad_alloc.
struct Packed {
  SchemaState* state;
  const char* metadata;
};
Packed pack(Schema schema) {
  const std::size_t count = schema.size();
  std::size_t texts = metadata_bytes(schema.metadata());
  for (const Field& field : schema.fields()) {
    texts += metadata_bytes(field.metadata);
    if (const std::string& zone = field.type.zone(); !zone.empty()) texts += 4 + zone.size() + 1;
  }
  static_assert(sizeof(SchemaState) % alignof(ArrowSchema) == 0);
  char* const memory = static_cast<char*>(::operator new(
      sizeof(SchemaState) + count * (sizeof(ArrowSchema) + sizeof(ArrowSchema*)) + texts));
  SchemaState* const state = ::new (static_cast<void*>(memory)) SchemaState;
  state->fields = reinterpret_cast<ArrowSchema*>(memory + sizeof(SchemaState));
  state->children = reinterpret_cast<ArrowSchema**>(state->fields + count);
  Writer writer(reinterpret_cast<char*>(state->children + count));
  for (std::size_t i = 0; i < count; ++i) {
    const Field& field = schema.fields()[i];
    const std::string_view format = static_format(field.type);
    ArrowSchema& made = *::new (static_cast<void*>(state->fields + i)) ArrowSchema();
    made.format = field.type.zone().empty() ? format.data() : writer.put(format, field.type.zone());
    made.name = field.name.c_str();
    made.metadata = writer.put(field.metadata);
    made.flags = field.is_nullable ? ARROW_FLAG_NULLABLE : 0;
    made.release = release_field;
    made.private_data = state;
    state->children[i] = &made;
  }
  const char* const metadata = writer.put(schema.metadata());
  // The fields do not move, because schema handles share them.
  state->schema = std::move(schema);
  return {state, metadata};
}

}  // namespace

std::string arrow_format(const LogicalType& type) {
  return std::string(static_format(type)) + type.zone();
}

Result<LogicalType> try_arrow_type(const char* format, CallSite site) noexcept try {
  LogicalType type;
  if (Result<void> known = try_type(format, {"schema"}, type, site); !known) {
    return known.failure();
  }
  return type;
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow schema", site);
}

Result<void> try_export_arrow_schema(const Schema& schema, ArrowSchema* out, CallSite site) noexcept
    try {
  if (out == nullptr) return no_structure("out", site);
  *out = {};
  const Packed packed = pack(schema);
  packed.state->shares = 1 + schema.size();
  out->format = "+s";
  out->name = "";
  out->metadata = packed.metadata;
  out->n_children = static_cast<std::int64_t>(schema.size());
  out->children = packed.state->children;
  out->release = release_struct;
  out->private_data = packed.state;
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow schema", site);
}

Result<void> try_export_arrow_schema(const Field& field, ArrowSchema* out, CallSite site) noexcept
    try {
  if (out == nullptr) return no_structure("out", site);
  *out = {};
  *out = pack(Schema({field})).state->fields[0];
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow schema", site);
}

Result<ArrowFields> try_read_arrow_schema(const ArrowSchema* schema, CallSite site) noexcept try {
  const ArrowWhere root = {"schema"};
  if (schema == nullptr) return no_structure("schema", site);
  if (Result<void> alive = check_released(schema, root, site); !alive) return alive.failure();
  if (schema->release == release_struct) {
    // A structure that Tern exported is imported as the original schema, unless its fields were
    // changed.
    const SchemaState& state = *static_cast<const SchemaState*>(schema->private_data);
    const std::span<const Field> fields = state.schema.fields();
    bool is_whole = schema->n_children == static_cast<std::int64_t>(fields.size()) &&
                    schema->children == state.children;
    for (std::size_t i = 0; is_whole && i < fields.size(); ++i) {
      const ArrowSchema& child = state.fields[i];
      is_whole = state.children[i] == &child && child.release == release_field &&
                 child.name == fields[i].name.c_str() &&
                 child.flags == (fields[i].is_nullable ? ARROW_FLAG_NULLABLE : 0);
    }
    if (is_whole) return ArrowFields{state.schema, {}};
  }
  if (schema->format == nullptr || std::strncmp(schema->format, "+s", 3) != 0) {
    const std::size_t length =
        schema->format == nullptr ? 0 : strnlen(schema->format, max_format_bytes);
    return arrow_rejected(root, "format",
                          schema->format == nullptr ? std::string_view("null")
                                                    : std::string_view(schema->format, length),
                          "the format of a table must be '+s', a struct", site);
  }
  if (schema->n_children < 0 ||
      schema->n_children > static_cast<std::int64_t>(max_arrow_children)) {
    return arrow_rejected(root, "n_children", schema->n_children, "it must be 0 to 2^20", site);
  }
  if (schema->n_children != 0 && schema->children == nullptr) {
    return arrow_rejected(root, "children", "null", "a struct with fields needs children", site);
  }
  if (schema->dictionary != nullptr) {
    return arrow_rejected(root, "dictionary", "set", "a struct must not have a dictionary", site);
  }
  Metadata metadata;
  if (schema->metadata != nullptr) {
    Result<Metadata> read = try_metadata(schema->metadata, root, site);
    if (!read) return read.failure();
    metadata = *std::move(read);
  }
  std::vector<Field> fields;
  std::vector<bool> views;
  // Reserve for the stated number, but not for an absurd one.
  fields.reserve(static_cast<std::size_t>(std::min<std::int64_t>(schema->n_children, 1024)));
  for (std::int64_t i = 0; i < schema->n_children; ++i) {
    const ArrowWhere where = {"schema", i};
    if (schema->children[i] == nullptr) {
      return arrow_rejected({"schema"}, "children[i]", "null", "every field needs a child", site);
    }
    const ArrowSchema& child = *schema->children[i];
    if (Result<void> read = try_read_field(child, where, fields.emplace_back(), site); !read) {
      return read.failure();
    }
    if (has_views(child)) {
      views.resize(static_cast<std::size_t>(schema->n_children));
      views[static_cast<std::size_t>(i)] = true;
    }
  }
  return ArrowFields{Schema(std::move(fields), std::move(metadata)), std::move(views)};
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow schema", site);
}

Result<ArrowField> try_read_arrow_field(const ArrowSchema* schema, CallSite site) noexcept try {
  if (schema == nullptr) return no_structure("schema", site);
  ArrowField made;
  if (Result<void> read = try_read_field(*schema, {"schema"}, made.field, site); !read) {
    return read.failure();
  }
  made.is_view = has_views(*schema);
  return made;
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow schema", site);
}

Result<Schema> try_import_arrow_schema(ArrowSchema* schema, CallSite site) noexcept {
  Result<ArrowFields> read = try_read_arrow_schema(schema, site);
  if (schema != nullptr) call_release(*schema);
  if (!read) return read.failure();
  return std::move(read->schema);
}

Result<Field> try_import_arrow_field(ArrowSchema* schema, CallSite site) noexcept {
  Result<ArrowField> read = try_read_arrow_field(schema, site);
  if (schema != nullptr) call_release(*schema);
  if (!read) return read.failure();
  return std::move(read->field);
}

}  // namespace tern
