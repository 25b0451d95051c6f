// The fuzz target for Arrow: builds a table from the input bytes, imports it, reads all of it, and
// exports it again. Lengths that the importer cannot check stay within allocated memory. The
// imported table is compared with the input: its nulls must be those of the bitmaps, whatever
// null_count says.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "support/fuzz_bytes.hpp"
#include "table/bitmap.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/interop/arrow.hpp"

namespace tern::test {

class FuzzedTable {
 public:
  static constexpr std::int64_t max_rows = 300;
  // Enough for three offsets and a length, each at its maximum, with 16 bytes per element.
  static constexpr std::size_t buffer_bytes = 4 * 301 * 16;

  explicit FuzzedTable(FuzzBytes& from) {
    const std::size_t count = from.take<std::uint8_t>() % 4;
    for (std::size_t i = 0; i < count; ++i) add_column(from);
    for (Piece& piece : pieces_) {
      schemas_.push_back(from.chance(60) ? nullptr : &piece.schema);
      arrays_.push_back(from.chance(60) ? nullptr : &piece.array);
    }
    // One more pointer, so that a child count that is one too large reads a valid element.
    schemas_.push_back(nullptr);
    arrays_.push_back(nullptr);
    schema.format = from.chance(40) ? "+l" : "+s";
    schema.n_children = static_cast<std::int64_t>(count) + (from.chance(30) ? 1 : 0);
    schema.children = from.chance(60) ? nullptr : schemas_.data();
    schema.flags = from.take<std::int8_t>();
    schema.private_data = this;
    schema.release = [](ArrowSchema* self) {
      ++static_cast<FuzzedTable*>(self->private_data)->schema_released;
      self->release = nullptr;
    };
    array.length = root_rows(from);
    array.offset = root_rows(from);
    array.null_count = from.chance(10) ? from.number(400) : 0;
    array.n_buffers = from.chance(40) ? from.number(3) : 1;
    array.buffers = from.chance(60) ? nullptr : root_buffers_.data();
    if (from.chance(8)) {
      // The bitmap has a bit for each row of the columns. Without columns, its size is unknown.
      root_buffers_[0] = contents_(from).data();
    }
    array.n_children = static_cast<std::int64_t>(count) + (from.chance(30) ? 1 : 0);
    array.children = from.chance(60) ? nullptr : arrays_.data();
    array.private_data = this;
    array.release = [](ArrowArray* self) {
      ++static_cast<FuzzedTable*>(self->private_data)->array_released;
      self->release = nullptr;
    };
  }
  FuzzedTable(const FuzzedTable&) = delete;
  FuzzedTable& operator=(const FuzzedTable&) = delete;

  /// Of an imported table: returns whether the bitmap of the struct marks a row as missing.
  [[nodiscard]] bool has_missing_rows() const {
    return !pieces_.empty() && nulls_in(root_buffers_[0], offset_, rows_) != 0;
  }
  /// Of an imported table: returns the number of nulls in a column.
  [[nodiscard]] std::size_t nulls_of(std::size_t column) const {
    const Piece& piece = pieces_[column];
    return nulls_in(piece.buffers[0], offset_ + piece.offset, rows_);
  }
  [[nodiscard]] bool is_nullable(std::size_t column) const {
    return (pieces_[column].schema.flags & ARROW_FLAG_NULLABLE) != 0;
  }
  /// Call before the import, which takes the structures and their numbers.
  void remember() {
    rows_ = array.length;
    offset_ = array.offset;
    for (Piece& piece : pieces_) piece.offset = piece.array.offset;
  }

  ArrowSchema schema = {};
  ArrowArray array = {};
  int schema_released = 0, array_released = 0;

 private:
  static std::size_t nulls_in(const void* bits, std::int64_t first, std::int64_t count) {
    std::size_t nulls = 0;
    for (std::int64_t i = first; bits != nullptr && i < first + count; ++i) {
      nulls += bit_at(static_cast<const std::byte*>(bits), static_cast<std::size_t>(i)) ? 0u : 1u;
    }
    return nulls;
  }
  struct Piece {
    std::string format, metadata;
    std::array<const void*, 6> buffers = {};
    ArrowSchema schema = {};
    ArrowArray array = {};
    std::int64_t offset = 0;
  };

  // More rows than any memory can hold, so an importer must reject it.
  static constexpr std::int64_t too_many = (std::int64_t{1} << 56) + 1;

  static std::int64_t rows(FuzzBytes& from) {
    const std::int64_t value = from.number(max_rows);
    return value <= max_rows || value >= too_many ? value : 0;
  }
  /// A struct has as many rows as its columns. A struct without columns may have any number.
  static std::int64_t root_rows(FuzzBytes& from) {
    constexpr std::array<std::int64_t, 6> many = {
        std::int64_t{1} << 40, too_many - 1,          too_many,
        std::int64_t{1} << 57, std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::max()};
    if (from.chance(12)) return many[from.take<std::uint8_t>() % many.size()];
    return from.number(max_rows);
  }
  std::vector<std::byte>& contents_(FuzzBytes& from) {
    std::vector<std::byte>& made = memory_.emplace_back(buffer_bytes);
    const std::uint8_t fill = from.take<std::uint8_t>();
    std::memset(made.data(), fill, made.size());
    const std::size_t own = from.take<std::uint8_t>() % 64;
    for (std::size_t i = 0; i < own; ++i) made[i] = from.take<std::byte>();
    return made;
  }
  /// Ascending offsets, some of which the input changes.
  template <class Offset>
  const void* offsets(FuzzBytes& from) {
    std::vector<std::byte>& made = memory_.emplace_back(buffer_bytes);
    const std::size_t step = from.take<std::uint8_t>() % 4;
    const std::size_t entries = buffer_bytes / sizeof(Offset);
    for (std::size_t i = 0; i < entries; ++i) {
      const Offset value = static_cast<Offset>(i * step < buffer_bytes ? i * step : buffer_bytes);
      std::memcpy(made.data() + i * sizeof value, &value, sizeof value);
    }
    const std::size_t changes = from.take<std::uint8_t>() % 4;
    for (std::size_t i = 0; i < changes; ++i) {
      const std::size_t at = from.take<std::uint16_t>() % 320;
      Offset value = from.take<Offset>();
      const bool is_absurd = sizeof value == 8 && static_cast<std::int64_t>(value) >= too_many;
      if (value > static_cast<Offset>(buffer_bytes) && !(is_absurd && from.chance(2))) {
        value %= static_cast<Offset>(buffer_bytes);
      }
      std::memcpy(made.data() + at * sizeof value, &value, sizeof value);
    }
    return made.data();
  }
  void add_column(FuzzBytes& from) {
    constexpr std::array<const char*, 22> formats = {
        "i",   "l",   "b",   "u",       "U",   "z",  "Z",  "c", "S",  "g",     "e",
        "tdD", "tdm", "ttu", "tsn:UTC", "tDs", "vu", "vz", "n", "+l", "d:1,2", ""};
    Piece& piece = pieces_.emplace_back();
    piece.format = from.chance(15) ? std::string(from.take<std::uint8_t>() % 9,
                                                 static_cast<char>(from.take<std::uint8_t>()))
                                   : formats[from.take<std::uint8_t>() % formats.size()];
    const bool is_view = piece.format == "vu" || piece.format == "vz";
    const bool is_wide = piece.format == "U" || piece.format == "Z";
    const bool is_text = is_wide || piece.format == "u" || piece.format == "z";
    ArrowSchema& field = piece.schema;
    field.format = from.chance(60) ? nullptr : piece.format.c_str();
    field.name = from.chance(20) ? nullptr : "x";
    field.flags = from.take<std::int8_t>();
    if (from.chance(12)) {
      // One pair of key and value. Its lengths are correct or negative.
      const std::int32_t length = from.chance(3) ? -1 - from.take<std::uint8_t>() : 2;
      const std::int32_t numbers[] = {from.chance(4) ? from.take<std::int32_t>() | (1 << 31) : 1,
                                      length};
      piece.metadata.assign(reinterpret_cast<const char*>(numbers), sizeof numbers);
      piece.metadata += "kk";
      piece.metadata.append(4, '\0');
      field.metadata = piece.metadata.data();
    }
    field.n_children = from.chance(40) ? from.number(3) : 0;
    if (!from.chance(60)) field.release = [](ArrowSchema* self) { self->release = nullptr; };

    ArrowArray& column = piece.array;
    // At most as many rows as there is memory for, because the importer cannot check the length.
    column.length = std::min(from.chance(3) ? from.number(max_rows) : max_rows * 2, max_rows * 2);
    column.offset = rows(from);
    column.null_count = from.chance(3) ? from.number(max_rows) : from.chance(2) ? -1 : 0;
    column.n_buffers = from.chance(30) ? from.number(6) : is_view ? 5 : is_text ? 3 : 2;
    if (is_view && column.n_buffers > 6) column.n_buffers = 6;
    column.buffers = from.chance(60) ? nullptr : piece.buffers.data();
    column.n_children = from.chance(40) ? from.number(3) : 0;
    if (!from.chance(60)) column.release = [](ArrowArray* self) { self->release = nullptr; };
    for (std::size_t i = 0; i < piece.buffers.size(); ++i) {
      if (i == 1 && is_text) {
        piece.buffers[i] = is_wide ? offsets<std::int64_t>(from) : offsets<std::int32_t>(from);
      } else if (is_view && i == static_cast<std::size_t>(column.n_buffers) - 1) {
        // Sizes that are not negative must be correct.
        std::vector<std::byte>& sizes = memory_.emplace_back(buffer_bytes);
        for (std::size_t k = 0; k < 8; ++k) {
          const std::int64_t size = from.chance(9) ? -1 : static_cast<std::int64_t>(buffer_bytes);
          std::memcpy(sizes.data() + k * sizeof size, &size, sizeof size);
        }
        piece.buffers[i] = sizes.data();
      } else if (i < 4 || is_view) {
        piece.buffers[i] = from.chance(12) ? nullptr : contents_(from).data();
      }
      if (piece.buffers[i] != nullptr && from.chance(40)) {
        // Misaligned, but with enough memory behind the address.
        piece.buffers[i] = static_cast<const std::byte*>(piece.buffers[i]) + 1;
      }
    }
  }

  std::deque<Piece> pieces_;
  std::deque<std::vector<std::byte>> memory_;
  std::vector<ArrowSchema*> schemas_;
  std::vector<ArrowArray*> arrays_;
  std::array<const void*, 4> root_buffers_ = {};
  std::int64_t rows_ = 0, offset_ = 0;
};

/// The nulls must be those of the bitmaps, whatever the structure says.
inline void compare(const Table& taken, const FuzzedTable& made) {
  require_in_fuzz(!made.has_missing_rows());
  for (std::size_t i = 0; i < taken.arity(); ++i) {
    const std::size_t nulls = made.nulls_of(i);
    require_in_fuzz(nulls == 0 || made.is_nullable(i));
    require_in_fuzz(taken.column(i)->null_count() == nulls);
    const std::vector<bool> valid = taken.column(i)->to_valid();
    require_in_fuzz(static_cast<std::size_t>(std::ranges::count(valid, false)) == nulls);
  }
}

inline void read_all(const Table& table) {
  for (const Column& column : table.columns()) {
    require_in_fuzz(column.to_valid().size() == table.capacity());
    if (column.type().is_bits()) {
      require_in_fuzz(column.to_bools().size() == table.capacity());
    } else if (column.type().is_variable()) {
      require_in_fuzz(column.to_strings().size() == table.capacity());
    } else if (table.capacity() != 0) {
      std::vector<std::byte> values(column.values().size_bytes());
      column.values().try_copy_to(values.data(), values.size()).value();
    }
    if (column.null_count()) require_in_fuzz(*column.null_count() <= table.capacity());
  }
}

/// A stream whose chunk is the table. It returns the table only once.
struct FuzzedStream {
  FuzzedStream(FuzzBytes& from, FuzzedTable& of) : table(of) {
    // Returns false when the input bytes are used up.
    const auto is_wrong = [&](unsigned one_in) { return from.take<std::uint8_t>() % one_in == 1; };
    if (is_wrong(20)) stream.device_type = from.take<std::int32_t>();
    chunk_type = is_wrong(20) ? from.take<std::int32_t>() : stream.device_type;
    if (is_wrong(10)) chunk_id = from.number(3);
    fails = is_wrong(20);
    if (!is_wrong(40)) stream.get_schema = get_schema;
    if (!is_wrong(40)) stream.get_next = get_next;
    stream.release = [](ArrowDeviceArrayStream* self) {
      ++of_stream(self).released;
      self->release = nullptr;
    };
    stream.private_data = this;
  }
  static FuzzedStream& of_stream(ArrowDeviceArrayStream* self) {
    return *static_cast<FuzzedStream*>(self->private_data);
  }
  static int get_schema(ArrowDeviceArrayStream* self, ArrowSchema* out) {
    FuzzedStream& from = of_stream(self);
    *out = from.table.schema;
    from.has_given_schema = true;
    return 0;
  }
  static int get_next(ArrowDeviceArrayStream* self, ArrowDeviceArray* out) {
    FuzzedStream& from = of_stream(self);
    if (from.fails) return 5;
    *out = {};
    if (from.has_given) return 0;
    out->array = from.table.array;
    out->device_type = from.chunk_type;
    out->device_id = from.chunk_id;
    from.has_given = true;
    return 0;
  }
  FuzzedTable& table;
  ArrowDeviceArrayStream stream = {.device_type = ARROW_DEVICE_CPU,
                                   .get_schema = nullptr,
                                   .get_next = nullptr,
                                   .get_last_error = nullptr,
                                   .release = nullptr,
                                   .private_data = nullptr};
  std::int32_t chunk_type = ARROW_DEVICE_CPU;
  std::int64_t chunk_id = -1;
  bool fails = false, has_given = false, has_given_schema = false;
  int released = 0;
};

inline void fuzz_arrow_stream(const Device& host, FuzzBytes& from, FuzzedTable& made,
                              const ArrowOptions& options) {
  FuzzedStream stream(from, made);
  made.remember();
  {
    const Result<Table> taken = try_import_arrow(host, &stream.stream, options);
    require_in_fuzz(stream.released == 1);
    require_in_fuzz(made.schema_released == (stream.has_given_schema ? 1 : 0));
    if (taken) {
      read_all(*taken);
      if (stream.has_given) compare(*taken, made);
    } else {
      require_in_fuzz(taken.failure().text().size() > 20);
    }
  }
  static_cast<void>(reclaim_deferred());
  require_in_fuzz(made.array_released == (stream.has_given ? 1 : 0));
}

inline void fuzz_arrow(std::span<const std::byte> bytes) {
  static const Device host = open_device("host");
  FuzzBytes from(bytes);
  const ArrowOptions options = {.checks_text = from.chance(2)};
  const bool is_streamed = from.take<std::uint8_t>() % 3 == 1;
  const auto made = std::make_unique<FuzzedTable>(from);
  if (is_streamed) return fuzz_arrow_stream(host, from, *made, options);
  made->remember();
  {
    const Result<Table> taken = try_import_arrow(host, &made->array, &made->schema, options);
    require_in_fuzz(made->schema_released == 1);
    if (!taken) {
      require_in_fuzz(taken.failure().text().size() > 20);
    } else {
      read_all(*taken);
      compare(*taken, *made);
      ArrowArray again;
      ArrowSchema schema;
      try_export_arrow(*taken, &again).value();
      for (std::size_t i = 0; i < taken->arity(); ++i) {
        require_in_fuzz(again.children[i]->null_count ==
                        static_cast<std::int64_t>(made->nulls_of(i)));
      }
      try_export_arrow_schema(taken->schema(), &schema).value();
      const Table back = try_import_arrow(host, &again, &schema).value();
      require_in_fuzz(back.schema() == taken->schema() && back.rows() == taken->rows());
      const Table both[] = {*taken, back};
      require_in_fuzz(Table::try_concat(both).value().rows() == 2 * *taken->rows());
    }
  }
  static_cast<void>(reclaim_deferred());
  require_in_fuzz(made->array_released == 1);
}

}  // namespace tern::test
