// Columns and tables. Rows holds the number of rows, which the host or only the device knows.

#include "tern/table/table.hpp"

#include <algorithm>
#include <limits>
#include <mutex>
#include <new>

#include "core/no_host_memory.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

Failure too_many_rows(std::uint64_t rows, std::size_t capacity, CallSite site) noexcept {
  return Failure(ErrorCode::invalid_view,
                 "a table with a capacity of {capacity} rows cannot have {rows} rows. Create a "
                 "larger table, or check what wrote the count.",
                 site)
      .with("rows", rows)
      .with("capacity", capacity);
}

/// Checks that the row count fits into the integer on the device.
Result<void> check_counted(const Buffer& cell, std::uint64_t rows, CallSite site) noexcept {
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  if (!cell || cell.dtype() != DType::u32 || rows <= most) return {};
  return Failure(
             ErrorCode::invalid_view,
             "{rows} rows exceed a u32 row count, whose maximum is {most}. Use a u64 row count.",
             site)
      .with("field", "row_count")
      .with("rows", rows)
      .with("most", most);
}

}  // namespace

/// The row count. Tables with the same rows share it.
class Table::Rows {
 public:
  Rows(Buffer cell, std::optional<std::uint64_t> known) noexcept
      : cell_(std::move(cell)), known_(known) {}

  /// From now on, writes of the integer are counted, so that known() detects them.
  Result<void> try_begin() noexcept {
    if (!cell_) return {};
    const Result<std::uint64_t> writes = cell_.storage()->try_count_writes();
    if (!writes) return writes.failure();
    seen_ = *writes;
    return {};
  }

  [[nodiscard]] const Buffer& cell() const noexcept { return cell_; }

  [[nodiscard]] std::optional<std::uint64_t> known() noexcept {
    const std::lock_guard lock(mutex_);
    if (!cell_ || !known_) return known_;
    const Result<std::uint64_t> writes = cell_.storage()->try_count_writes();
    if (!writes || *writes != seen_) known_.reset();
    return known_;
  }

  [[nodiscard]] Result<std::uint64_t> try_read(std::size_t capacity, CallSite site) noexcept {
    if (const std::optional<std::uint64_t> there = known()) return *there;
    // Counted before the read: a write during the read makes the result stale.
    const Result<std::uint64_t> writes = cell_.storage()->try_count_writes();
    if (!writes) return writes.failure();
    std::uint64_t rows = 0;
    if (cell_.dtype() == DType::u32) {
      const Result<std::uint32_t> narrow = cell_.try_item<std::uint32_t>(site);
      if (!narrow) return narrow.failure();
      rows = *narrow;
    } else {
      const Result<std::uint64_t> wide = cell_.try_item<std::uint64_t>(site);
      if (!wide) return wide.failure();
      rows = *wide;
    }
    if (rows > capacity) return too_many_rows(rows, capacity, site);
    const std::lock_guard lock(mutex_);
    known_ = rows;
    seen_ = *writes;
    return rows;
  }

  [[nodiscard]] Result<void> try_set(std::uint64_t rows, StreamRef stream, CallSite site) noexcept {
    if (cell_) {
      if (!stream.id()) {
        return Failure(ErrorCode::stream_misuse,
                       "the row count is on '{device}', and {why}. Pass a stream, in whose order "
                       "the count is written.",
                       site)
            .with("stream", std::uint64_t{0})
            .with("why", "no stream was given")
            .with("device", cell_.device().spec());
      }
      if (Result<void> fits = check_counted(cell_, rows, site); !fits) return fits;
      const Result<std::uint64_t> before = cell_.storage()->try_count_writes();
      if (!before) return before.failure();
      const Result<Mark> filled =
          cell_.dtype() == DType::u32
              ? cell_.try_fill(static_cast<std::uint32_t>(rows), stream, site)
              : cell_.try_fill(rows, stream, site);
      if (!filled) return filled.failure();
      const Result<std::uint64_t> writes = cell_.storage()->try_count_writes();
      if (!writes) return writes.failure();
      const std::lock_guard lock(mutex_);
      // If another thread wrote in between, either value may be the last one.
      known_ = *writes == *before + 1 ? std::optional(rows) : std::nullopt;
      seen_ = *writes;
      return {};
    }
    const std::lock_guard lock(mutex_);
    known_ = rows;
    return {};
  }

 private:
  Buffer cell_;
  std::mutex mutex_;  // guards the members below
  std::optional<std::uint64_t> known_;
  std::uint64_t seen_ = 0;  // number of writes when the integer was last read
};

struct Table::Body {
  Schema schema;
  std::vector<Column> columns;
  std::size_t capacity = 0;
  Device device;
};

Result<Table> Table::wrap(Schema schema, std::vector<Column> columns, std::size_t capacity,
                          std::shared_ptr<Rows> rows) {
  Device device;
  for (const Column& column : columns) {
    if (!device.is_open()) device = column.device();
  }
  Table made;
  made.body_ = std::make_shared<const Body>(
      Body{std::move(schema), std::move(columns), capacity, std::move(device)});
  made.rows_ = std::move(rows);
  return made;
}

Result<Table> Table::try_make(Schema schema, std::vector<Column> columns,
                              const TableOptions& options) noexcept try {
  const CallSite site = options.site;
  if (schema.size() != columns.size()) {
    return Failure(ErrorCode::shape_mismatch,
                   "{actual} columns cannot form a table of {expected} fields. Pass one column per "
                   "field.",
                   site)
        .with("actual", columns.size())
        .with("expected", schema.size());
  }
  const std::size_t capacity =
      columns.empty() ? static_cast<std::size_t>(options.rows.value_or(0)) : columns[0].capacity();
  const Device* device = nullptr;
  const std::span<const Field> fields = schema.fields();
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const Field& field = fields[i];
    const Column& column = columns[i];
    const auto wrong = [&](ErrorCode code, const char* sentence) {
      return Failure(code, sentence, site).with("field", field.name).with("index", i);
    };
    if (column.capacity() != capacity) {
      return wrong(ErrorCode::size_mismatch,
                   "column '{field}' has {actual} values, and the first column has {expected}. "
                   "Pass columns of one length.")
          .with("actual", column.capacity())
          .with("expected", capacity);
    }
    if (column.type() != field.type) {
      return wrong(ErrorCode::type_mismatch,
                   "column '{field}' is {actual}, and its field is {expected}. Pass the type of "
                   "the schema.")
          .with("actual", name(column.type().kind()))
          .with("expected", name(field.type.kind()));
    }
    if (!field.is_nullable && column.null_count().value_or(0) != 0) {
      return wrong(ErrorCode::type_mismatch,
                   "column '{field}' has {actual} nulls, and its field is not nullable. Fill the "
                   "nulls, or make the field nullable.")
          .with("actual", *column.null_count());
    }
    const Device& own = column.device();
    if (!own.is_open()) continue;
    if (device == nullptr) device = &own;
    if (*device != own) {
      return wrong(ErrorCode::device_mismatch,
                   "column '{field}' is on '{b}', and the columns before it are on '{a}'. Copy it "
                   "to '{a}'.")
          .with("a", device->spec())
          .with("b", own.spec());
    }
  }
  std::optional<std::uint64_t> known = options.rows;
  if (!options.row_count) {
    if (!known) known = capacity;
  } else {
    const Buffer& cell = options.row_count;
    if (cell.dtype() != DType::u32 && cell.dtype() != DType::u64) {
      return Failure(ErrorCode::type_mismatch, "a row count must be u32 or u64, not {actual}.",
                     site)
          .with("field", "row_count")
          .with("actual", name(cell.dtype()));
    }
    if (cell.size() != 1) {
      return Failure(ErrorCode::size_mismatch,
                     "a row count must be one element, not {actual}. Pass a view of one element.",
                     site)
          .with("field", "row_count")
          .with("actual", cell.size());
    }
    if (device != nullptr && cell.device() != *device) {
      return Failure(ErrorCode::device_mismatch,
                     "the row count is on '{b}', and the columns are on '{a}'. Copy the count to "
                     "'{a}'.",
                     site)
          .with("field", "row_count")
          .with("a", device->spec())
          .with("b", cell.device().spec());
    }
  }
  if (known && *known > capacity) return too_many_rows(*known, capacity, site);
  if (known) {
    if (Result<void> fits = check_counted(options.row_count, *known, site); !fits) {
      return fits.failure();
    }
  }
  auto rows = std::make_shared<Rows>(options.row_count, known);
  if (Result<void> begun = rows->try_begin(); !begun) return begun.failure();
  return wrap(std::move(schema), std::move(columns), capacity, std::move(rows));
} catch (const std::bad_alloc&) {
  return no_host_memory("a table", options.site);
}

Result<Table> Table::try_allocate(const Device& device, Schema schema, std::size_t capacity,
                                  const ColumnOptions& options) noexcept try {
  std::vector<Column> columns;
  columns.reserve(schema.size());
  for (const Field& field : schema.fields()) {
    Result<Column> column = Column::try_allocate(device, field.type, capacity,
                                                 {.is_nullable = field.is_nullable,
                                                  .data_bytes = options.data_bytes,
                                                  .storage = options.storage,
                                                  .site = options.site});
    if (!column) return Failure(column.failure()).with("field", field.name);
    columns.push_back(*std::move(column));
  }
  TableOptions made = {.site = options.site};
  if (options.row_count == DType::void_) {
    made.rows = 0;
  } else {
    Result<Buffer> cell = Buffer::try_make(device, Shape::flat(1), options.row_count,
                                           {.tag = options.storage.tag, .site = options.site});
    if (!cell) return cell.failure();
    made.row_count = *std::move(cell);
  }
  return try_make(std::move(schema), std::move(columns), made);
} catch (const std::bad_alloc&) {
  return no_host_memory("a table", options.site);
}

const Schema& Table::schema() const noexcept {
  static const Schema none;
  return body_ ? body_->schema : none;
}

std::span<const Column> Table::columns() const noexcept {
  return body_ ? std::span<const Column>(body_->columns) : std::span<const Column>();
}

std::optional<Column> Table::column(std::size_t index) const {
  return index < arity() ? std::optional(body_->columns[index]) : std::nullopt;
}

std::optional<Column> Table::column(std::string_view name) const {
  const std::optional<std::size_t> index = schema().find(name);
  return index ? column(*index) : std::nullopt;
}

const Device& Table::device() const noexcept {
  static const Device none;
  return body_ ? body_->device : none;
}

std::size_t Table::capacity() const noexcept { return body_ ? body_->capacity : 0; }

Result<std::size_t> Table::try_estimated_bytes() const noexcept {
  std::size_t total = 0;
  for (const Column& column : columns()) {
    const Result<std::size_t> bytes = column.try_bytes();
    if (!bytes) return bytes.failure();
    const std::optional<std::size_t> sum = checked_add(total, *bytes);
    if (!sum) {
      return Failure(
                 ErrorCode::size_overflow,
                 "the size of a table of {count} columns overflows 64 bits. Use several tables.")
          .with("count", arity());
    }
    total = *sum;
  }
  return total;
}

std::optional<std::uint64_t> Table::rows() const noexcept { return rows_ ? rows_->known() : 0; }

Result<std::uint64_t> Table::try_rows_host(CallSite site) const noexcept {
  return rows_ ? rows_->try_read(capacity(), site) : std::uint64_t{0};
}

Buffer Table::row_count() const noexcept { return rows_ ? rows_->cell() : Buffer(); }

Result<void> Table::try_set_rows(std::uint64_t rows, StreamRef stream, CallSite site) noexcept {
  if (rows > capacity()) return too_many_rows(rows, capacity(), site);
  return rows_ ? rows_->try_set(rows, stream, site) : Result<void>();
}

Result<Table> Table::try_select(std::span<const std::size_t> indices, CallSite site) const noexcept
    try {
  Result<Schema> chosen = schema().try_select(indices, site);
  if (!chosen) return chosen.failure();
  std::vector<Column> columns;
  columns.reserve(indices.size());
  for (const std::size_t index : indices) columns.push_back(body_->columns[index]);
  return wrap(*std::move(chosen), std::move(columns), capacity(), rows_);
} catch (const std::bad_alloc&) {
  return no_host_memory("a table", site);
}

Result<Table> Table::try_select(std::span<const std::string_view> names,
                                CallSite site) const noexcept try {
  std::vector<std::size_t> indices;
  indices.reserve(names.size());
  for (const std::string_view wanted : names) {
    const std::optional<std::size_t> index = schema().find(wanted);
    if (!index) {
      return Failure(ErrorCode::not_found,
                     "the table has {count} columns and no column '{name}'. schema() lists the "
                     "columns.",
                     site)
          .with("name", wanted)
          .with("count", arity());
    }
    indices.push_back(*index);
  }
  return try_select(indices, site);
} catch (const std::bad_alloc&) {
  return no_host_memory("a table", site);
}

Result<Table> Table::try_slice(std::size_t first, std::size_t count, CallSite site) const noexcept
    try {
  const Result<std::uint64_t> rows = try_rows_host(site);
  if (!rows) return rows.failure();
  if (!is_within(first, count, static_cast<std::size_t>(*rows))) {
    return Failure(ErrorCode::invalid_view,
                   "rows {first} to {end} exceed a table of {rows} rows. Use a smaller range.",
                   site)
        .with("first", first)
        .with("end", checked_add(first, count).value_or(~std::size_t{0}))
        .with("rows", *rows);
  }
  std::vector<Column> columns;
  columns.reserve(arity());
  for (const Column& column : this->columns()) {
    columns.push_back(column.try_slice(first, count, site).value());
  }
  return try_make(schema(), std::move(columns), {.rows = count, .site = site});
} catch (const std::bad_alloc&) {
  return no_host_memory("a table", site);
}

Result<Table> Table::try_concat(std::span<const Table> tables, CallSite site) noexcept try {
  if (tables.empty()) {
    return Failure(ErrorCode::invalid_argument,
                   "'{name}' of a concatenation are {value}. Give at least one.", site)
        .with("name", "tables")
        .with("value", std::uint64_t{0});
  }
  std::vector<Table> filled;
  std::size_t total = 0;
  for (const Table& table : tables) {
    if (Result<void> same = table.schema().check_match(tables[0].schema(), {}, site); !same) {
      return same.failure();
    }
    const Result<std::uint64_t> rows = table.try_rows_host(site);
    if (!rows) return rows.failure();
    const std::optional<std::size_t> sum = checked_add(total, static_cast<std::size_t>(*rows));
    if (!sum) {
      return Failure(ErrorCode::size_overflow,
                     "the row count of {count} tables overflows 64 bits. Concatenate fewer.", site)
          .with("count", tables.size());
    }
    total = *sum;
    Result<Table> own = table.try_slice(0, static_cast<std::size_t>(*rows), site);
    if (!own) return own;
    filled.push_back(*std::move(own));
  }
  std::vector<Column> columns;
  for (std::size_t i = 0; i < tables[0].arity(); ++i) {
    std::vector<Column> parts;
    for (const Table& table : filled) parts.push_back(table.body_->columns[i]);
    Result<Column> column = Column::try_concat(parts, {.site = site});
    if (!column) {
      return Failure(column.failure()).with("field", tables[0].schema().fields()[i].name);
    }
    columns.push_back(*std::move(column));
  }
  return try_make(tables[0].schema(), std::move(columns), {.rows = total, .site = site});
} catch (const std::bad_alloc&) {
  return no_host_memory("a table", site);
}

Result<Table> Table::try_copy_to(const Device& device, StreamRef stream,
                                 CallSite site) const noexcept try {
  const std::optional<std::uint64_t> known = rows();
  const std::size_t copied = static_cast<std::size_t>(known.value_or(capacity()));
  std::vector<Column> columns;
  columns.reserve(arity());
  for (std::size_t i = 0; i < arity(); ++i) {
    Result<Column> column = body_->columns[i].try_copy_to(device, copied, stream, {.site = site});
    if (!column) return Failure(column.failure()).with("field", schema().fields()[i].name);
    columns.push_back(*std::move(column));
  }
  TableOptions options = {.rows = known, .site = site};
  if (const Buffer cell = row_count(); cell) {
    Result<Buffer> copy = Buffer::try_make(device, Shape::flat(1), cell.dtype(), {.site = site});
    if (!copy) return copy.failure();
    Result<void> done;
    if (known) {
      // A count that the host knows is written directly instead of being copied from the other
      // device.
      if (stream.id() && stream.device_id() == device.id()) {
        const Result<Mark> filled = cell.dtype() == DType::u32
                                        ? copy->try_fill(static_cast<std::uint32_t>(*known), stream)
                                        : copy->try_fill(*known, stream);
        if (!filled) done = filled.failure();
      } else if (cell.dtype() == DType::u32) {
        const std::uint32_t narrow = static_cast<std::uint32_t>(*known);
        done = copy->try_copy_from(&narrow, sizeof narrow, site);
      } else {
        done = copy->try_copy_from(&*known, sizeof *known, site);
      }
    } else if (stream.id()) {
      const Result<Mark> mark = try_copy(*copy, cell, stream, site);
      if (!mark) done = mark.failure();
    } else {
      done = try_copy(*copy, cell, site);
    }
    if (!done) return done.failure();
    options.row_count = *std::move(copy);
  }
  return try_make(schema(), std::move(columns), options);
} catch (const std::bad_alloc&) {
  return no_host_memory("a table", site);
}

}  // namespace tern
