#include "tern/interop/arrow_schema.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "core/no_host_memory.hpp"
#include "interop/arrow_rejected.hpp"
#include "interop/arrow_schema_parts.hpp"
#include "tern/interop/arrow.hpp"

namespace tern {
namespace {

struct Word {
  std::string_view format;
  LogicalType type;
};
/// All but times with a zone and views.
const std::vector<Word>& words() {
  static const std::vector<Word> all = [] {
    std::vector<Word> made = {
        {"b", TypeKind::boolean},      {"c", TypeKind::i8},         {"C", TypeKind::u8},
        {"s", TypeKind::i16},          {"S", TypeKind::u16},        {"i", TypeKind::i32},
        {"I", TypeKind::u32},          {"l", TypeKind::i64},        {"L", TypeKind::u64},
        {"e", TypeKind::f16},          {"f", TypeKind::f32},        {"g", TypeKind::f64},
        {"u", TypeKind::utf8},         {"U", TypeKind::large_utf8}, {"z", TypeKind::binary},
        {"Z", TypeKind::large_binary}, {"tdD", TypeKind::date32},   {"tdm", TypeKind::date64}};
    constexpr std::string_view times[] = {"tts", "ttm", "ttu", "ttn"};
    constexpr std::string_view durations[] = {"tDs", "tDm", "tDu", "tDn"};
    for (unsigned i = 0; i < 4; ++i) {
      made.push_back({times[i], LogicalType::time(static_cast<TimeUnit>(i))});
      made.push_back({durations[i], LogicalType::duration(static_cast<TimeUnit>(i))});
    }
    return made;
  }();
  return all;
}
constexpr std::string_view stamps[] = {"tss:", "tsm:", "tsu:", "tsn:"};

constexpr std::size_t max_format_bytes = 512;

Result<LogicalType> try_type(const char* format, const ArrowWhere& where, CallSite site) {
  if (format == nullptr) {
    return arrow_rejected(where, "format", "null", "it says what the values are", site);
  }
  const std::size_t length = strnlen(format, max_format_bytes + 1);
  const std::string_view text(format, length);
  if (length > max_format_bytes) {
    return arrow_rejected(where, "format", text, "it has up to 512 bytes", site);
  }
  for (const Word& word : words()) {
    if (word.format == text) return word.type;
  }
  for (unsigned i = 0; i < 4; ++i) {
    if (text.starts_with(stamps[i])) {
      return LogicalType::timestamp(static_cast<TimeUnit>(i), std::string(text.substr(4)));
    }
  }
  if (text == "vu") return LogicalType(TypeKind::large_utf8);
  if (text == "vz") return LogicalType(TypeKind::large_binary);
  return arrow_rejected(where, "format", text,
                        "columns are numbers, truth values, times, texts and binaries", site);
}

Result<Metadata> try_metadata(const char* bytes, const ArrowWhere& where, CallSite site) {
  if (bytes == nullptr) return Metadata();
  constexpr std::int32_t most_bytes = 64 << 20;
  const auto number = [&] {
    std::int32_t value;
    std::memcpy(&value, bytes, sizeof value);
    bytes += sizeof value;
    return value;
  };
  const std::int32_t count = number();
  if (count < 0 || count > static_cast<std::int32_t>(max_arrow_children)) {
    return arrow_rejected(where, "metadata count", count, "it may be 0 to 2^20", site);
  }
  std::vector<Metadata::Pair> pairs;
  for (std::int32_t i = 0; i < count; ++i) {
    Metadata::Pair pair;
    for (std::string* part : {&pair.first, &pair.second}) {
      const std::int32_t length = number();
      if (length < 0 || length > most_bytes) {
        return arrow_rejected(where, "metadata length", length, "it may be 0 to 64 MiB", site);
      }
      part->assign(bytes, static_cast<std::size_t>(length));
      bytes += length;
    }
    pairs.push_back(std::move(pair));
  }
  return Metadata(std::move(pairs));
}

std::string metadata_bytes(const Metadata& metadata) {
  std::string bytes;
  const auto add = [&](std::size_t value) {
    const std::int32_t number = static_cast<std::int32_t>(value);
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  add(metadata.pairs().size());
  for (const Metadata::Pair& pair : metadata.pairs()) {
    for (const std::string* part : {&pair.first, &pair.second}) {
      add(part->size());
      bytes += *part;
    }
  }
  return bytes;
}

Result<void> check_released(const ArrowSchema* schema, const ArrowWhere& where, CallSite site) {
  if (schema->release == nullptr) {
    return arrow_rejected(where, "release", "null", "it was released, or moved from", site);
  }
  return {};
}

Result<ArrowField> try_leaf(const ArrowSchema& schema, const ArrowWhere& where, CallSite site) {
  if (Result<void> alive = check_released(&schema, where, site); !alive) return alive.failure();
  Result<LogicalType> type = try_type(schema.format, where, site);
  if (!type) return type.failure();
  if (schema.n_children != 0) {
    return arrow_rejected(where, "n_children", schema.n_children, "this type has none", site);
  }
  if (schema.dictionary != nullptr) {
    return arrow_rejected(where, "dictionary", "set", "dictionaries are not taken; decode them",
                          site);
  }
  Result<Metadata> metadata = try_metadata(schema.metadata, where, site);
  if (!metadata) return metadata.failure();
  ArrowField made;
  made.field.name = schema.name == nullptr ? "" : schema.name;
  made.field.type = *std::move(type);
  made.field.is_nullable = (schema.flags & ARROW_FLAG_NULLABLE) != 0;
  made.field.metadata = *std::move(metadata);
  made.is_view = schema.format[0] == 'v';
  return made;
}

// --- Export

/// What an exported schema points to. The struct and its children each have a share, because
/// children may be moved out.
struct Cargo {
  struct Piece {
    ArrowSchema structure = {};
    std::string format, name, metadata;
    Cargo* cargo = nullptr;
  };
  std::atomic<std::size_t> shares = 1;
  std::vector<Piece> pieces;  // of the children, or the one field
  std::vector<ArrowSchema*> children;
  std::string metadata;
  Schema schema;  // for those that come back
};

void drop(Cargo* cargo) noexcept {
  if (cargo->shares.fetch_sub(1, std::memory_order_acq_rel) == 1) delete cargo;
}

void release_field(ArrowSchema* self) {
  Cargo* const cargo = static_cast<Cargo*>(self->private_data);
  self->release = nullptr;
  drop(cargo);
}

void release_struct(ArrowSchema* self) {
  Cargo* const cargo = static_cast<Cargo*>(self->private_data);
  for (std::int64_t i = 0; i < self->n_children; ++i) {
    ArrowSchema* const child = self->children[i];
    if (child->release != nullptr) child->release(child);
  }
  self->release = nullptr;
  drop(cargo);
}

void fill(Cargo::Piece& piece, Cargo& cargo, const Field& field) {
  piece.format = arrow_format(field.type);
  piece.name = field.name;
  if (!field.metadata.empty()) piece.metadata = metadata_bytes(field.metadata);
  piece.cargo = &cargo;
  ArrowSchema& made = piece.structure;
  made.format = piece.format.c_str();
  made.name = piece.name.c_str();
  made.metadata = field.metadata.empty() ? nullptr : piece.metadata.data();
  made.flags = field.is_nullable ? ARROW_FLAG_NULLABLE : 0;
  made.release = release_field;
  made.private_data = &cargo;
}

}  // namespace

std::string arrow_format(const LogicalType& type) {
  if (type.kind() == TypeKind::timestamp) {
    return std::string(stamps[static_cast<std::size_t>(type.unit())]) + type.zone();
  }
  for (const Word& word : words()) {
    if (word.type == type) return std::string(word.format);
  }
  return "n";
}

Result<LogicalType> try_arrow_type(const char* format, CallSite site) noexcept try {
  return try_type(format, {"schema"}, site);
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow schema", site);
}

Result<void> try_export_arrow_schema(const Schema& schema, ArrowSchema* out, CallSite site) noexcept
    try {
  if (out == nullptr) return no_structure("out", site);
  *out = {};
  auto cargo = std::make_unique<Cargo>();
  cargo->schema = schema;
  cargo->pieces.resize(schema.size());
  cargo->children.reserve(schema.size());
  for (std::size_t i = 0; i < schema.size(); ++i) {
    fill(cargo->pieces[i], *cargo, schema.fields()[i]);
    cargo->children.push_back(&cargo->pieces[i].structure);
  }
  if (!schema.metadata().empty()) cargo->metadata = metadata_bytes(schema.metadata());
  cargo->shares = 1 + schema.size();
  ArrowSchema made = {};
  made.format = "+s";
  made.name = "";
  made.metadata = schema.metadata().empty() ? nullptr : cargo->metadata.data();
  made.n_children = static_cast<std::int64_t>(schema.size());
  made.children = cargo->children.data();
  made.release = release_struct;
  made.private_data = cargo.release();
  *out = made;
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow schema", site);
}

Result<void> try_export_arrow_schema(const Field& field, ArrowSchema* out, CallSite site) noexcept
    try {
  if (out == nullptr) return no_structure("out", site);
  *out = {};
  auto cargo = std::make_unique<Cargo>();
  cargo->pieces.resize(1);
  fill(cargo->pieces[0], *cargo, field);
  *out = cargo.release()->pieces[0].structure;
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow schema", site);
}

Result<ArrowFields> try_read_arrow_schema(const ArrowSchema* schema, CallSite site) noexcept try {
  const ArrowWhere root = {"schema"};
  if (schema == nullptr) return no_structure("schema", site);
  if (Result<void> alive = check_released(schema, root, site); !alive) return alive.failure();
  if (schema->release == release_struct) {
    // Ours comes back. Whoever has it may have changed what it points to, but not what it is of.
    const Cargo& cargo = *static_cast<const Cargo*>(schema->private_data);
    const bool is_whole = schema->n_children == static_cast<std::int64_t>(cargo.children.size()) &&
                          schema->children == cargo.children.data() &&
                          std::ranges::all_of(cargo.children, [](const ArrowSchema* child) {
                            return child->release == release_field;
                          });
    if (is_whole) return ArrowFields{cargo.schema, {}};
  }
  if (schema->format == nullptr || std::strncmp(schema->format, "+s", 3) != 0) {
    const std::size_t length =
        schema->format == nullptr ? 0 : strnlen(schema->format, max_format_bytes);
    return arrow_rejected(root, "format",
                          schema->format == nullptr ? std::string_view("null")
                                                    : std::string_view(schema->format, length),
                          "a table is a struct, '+s'", site);
  }
  if (schema->n_children < 0 ||
      schema->n_children > static_cast<std::int64_t>(max_arrow_children)) {
    return arrow_rejected(root, "n_children", schema->n_children, "it may be 0 to 2^20", site);
  }
  if (schema->n_children != 0 && schema->children == nullptr) {
    return arrow_rejected(root, "children", "null", "a struct with fields has them", site);
  }
  if (schema->dictionary != nullptr) {
    return arrow_rejected(root, "dictionary", "set", "a struct has none", site);
  }
  Result<Metadata> metadata = try_metadata(schema->metadata, root, site);
  if (!metadata) return metadata.failure();
  std::vector<Field> fields;
  std::vector<bool> views;
  for (std::int64_t i = 0; i < schema->n_children; ++i) {
    const ArrowWhere where = {"schema", i};
    if (schema->children[i] == nullptr) {
      return arrow_rejected({"schema"}, "children[i]", "null", "every field has one", site);
    }
    Result<ArrowField> field = try_leaf(*schema->children[i], where, site);
    if (!field) return field.failure();
    fields.push_back(std::move(field->field));
    views.push_back(field->is_view);
  }
  return ArrowFields{Schema(std::move(fields), *std::move(metadata)), std::move(views)};
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow schema", site);
}

Result<ArrowField> try_read_arrow_field(const ArrowSchema* schema, CallSite site) noexcept try {
  if (schema == nullptr) return no_structure("schema", site);
  return try_leaf(*schema, {"schema"}, site);
} catch (const std::bad_alloc&) {
  return no_host_memory("an Arrow schema", site);
}

Result<Schema> try_import_arrow_schema(ArrowSchema* schema, CallSite site) noexcept {
  Result<ArrowFields> read = try_read_arrow_schema(schema, site);
  if (schema != nullptr && schema->release != nullptr) schema->release(schema);
  if (!read) return read.failure();
  return std::move(read->schema);
}

Result<Field> try_import_arrow_field(ArrowSchema* schema, CallSite site) noexcept {
  Result<ArrowField> read = try_read_arrow_field(schema, site);
  if (schema != nullptr && schema->release != nullptr) schema->release(schema);
  if (!read) return read.failure();
  return std::move(read->field);
}

}  // namespace tern
