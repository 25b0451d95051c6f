#include <array>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/no_host_memory.hpp"
#include "interop/foreign_release.hpp"
#include "tern/core/bytes.hpp"
#include "tern/interop/dlpack.hpp"

namespace tern {
namespace {

std::string_view name_of(const Table& table, std::size_t column) noexcept {
  return table.schema().fields()[column].name;
}

/// A failure for a column that a tensor cannot express, with the alternative.
Failure cannot_be_tensor(const Table& table, std::size_t column, const char* value,
                         const char* expected, CallSite site) noexcept {
  return Failure(ErrorCode::dlpack_rejected,
                 "column '{column}' cannot be a DLPack tensor: it has {value}. {expected}.", site)
      .with("field", "column")
      .with("column", name_of(table, column))
      .with("value", value)
      .with("expected", expected);
}

/// Returns the row count, reading it from the device if necessary.
Result<std::size_t> try_rows(const Table& table, const DlpackOptions& options) noexcept {
  if (options.is_unordered && !table.rows()) {
    return Failure(ErrorCode::dlpack_rejected,
                   "the row count of the table is on '{device}', and an export that does not wait "
                   "cannot read it. Call rows_host() first.",
                   options.site)
        .with("field", "rows")
        .with("device", table.device().is_open() ? table.device().spec() : "no device");
  }
  const Result<std::uint64_t> rows = table.try_rows_host(options.site);
  if (rows) return static_cast<std::size_t>(*rows);
  if (rows.failure().code() != ErrorCode::invalid_view) return rows.failure();
  return Failure(ErrorCode::dlpack_rejected,
                 "a table with a capacity of {capacity} rows has a row count of {rows}, so a "
                 "tensor of it has no shape. Check what wrote the count.",
                 options.site)
      .with("field", "rows")
      .with("rows", rows.failure().number("rows").value_or(0))
      .with("capacity", table.capacity());
}

Result<void> check_values(const Table& table, std::size_t index, std::size_t rows,
                          const DlpackOptions& options) noexcept {
  const Column& column = table.columns()[index];
  const LogicalType& type = column.type();
  if (type.is_variable()) {
    return cannot_be_tensor(table, index, "values of different lengths",
                            "Export the buffers offsets() and values()", options.site);
  }
  if (type.is_bits()) {
    return cannot_be_tensor(
        table, index, "one bit per value",
        "Export unpack(), a copy with one byte per value, or the buffer values()", options.site);
  }
  if (!column.is_nullable() || column.null_count() == std::size_t{0}) return {};
  constexpr const char* instead = "Export the buffers values() and validity()";
  // Counting unknown nulls needs a copy, which waits.
  if (options.is_unordered && !column.null_count()) {
    return cannot_be_tensor(table, index, "a bitmap with an unknown number of nulls", instead,
                            options.site);
  }
  const Result<std::size_t> nulls = column.try_count_nulls(rows, options.site);
  if (!nulls) return nulls.failure();
  if (*nulls == 0) return {};
  return cannot_be_tensor(table, index, "missing values", instead, options.site)
      .with("nulls", *nulls);
}

Result<Buffer> try_values(const Table& table, std::size_t index,
                          const DlpackOptions& options) noexcept try {
  if (index >= table.arity()) {
    return Failure(ErrorCode::out_of_bounds,
                   "a table of {count} columns has no column {index}. Use a smaller index.",
                   options.site)
        .with("index", index)
        .with("count", table.arity());
  }
  const Result<std::size_t> rows = try_rows(table, options);
  if (!rows) return rows.failure();
  if (Result<void> fine = check_values(table, index, *rows, options); !fine) return fine.failure();
  const Column& column = table.columns()[index];
  const Buffer values = column.values();
  if (values) return values.try_slice(0, *rows, options.site);
  // A column without values may have no buffer, but a tensor needs one.
  return Failure(ErrorCode::not_allocated,
                 "column '{column}' has a capacity of 0 and no buffer, so it cannot be exported.",
                 options.site)
      .with("id", std::uint64_t{0})
      .with("column", name_of(table, index));
} catch (const std::bad_alloc&) {
  return no_host_memory("a DLPack tensor", options.site);
}

Failure no_cover(const Table& table, std::size_t column, const char* value,
                 CallSite site) noexcept {
  return Failure(ErrorCode::dlpack_rejected,
                 "a table of {count} columns cannot be one DLPack tensor: column '{column}' "
                 "{value}. Export each column separately.",
                 site)
      .with("field", "table")
      .with("count", table.arity())
      .with("column", name_of(table, column))
      .with("value", value);
}

/// Returns the tensor over the storage that the columns fill.
Result<StridedBuffer> try_cover(const Table& table, const DlpackOptions& options) noexcept try {
  const CallSite site = options.site;
  if (table.arity() == 0) {
    return Failure(ErrorCode::dlpack_rejected,
                   "a table of {count} columns cannot be a DLPack tensor, because no column "
                   "defines the element type.",
                   site)
        .with("field", "table")
        .with("count", table.arity());
  }
  const Result<std::size_t> rows = try_rows(table, options);
  if (!rows) return rows.failure();
  const Column& first = table.columns()[0];
  const DType dtype = first.type().dtype();
  std::size_t expected = 0;
  for (std::size_t i = 0; i < table.arity(); ++i) {
    const Column& column = table.columns()[i];
    if (Result<void> fine = check_values(table, i, *rows, options); !fine) return fine.failure();
    if (column.type().dtype() != dtype) {
      return no_cover(table, i, "has another type than the first", site);
    }
    const Buffer values = column.values();
    if (!values || values.storage() != first.parts().values.storage()) {
      return no_cover(table, i, "is in other memory than the first", site);
    }
    if (values.offset_bytes() != expected) {
      return no_cover(table, i, "does not begin where the previous column ends", site);
    }
    expected += values.size_bytes();
  }
  const StorageHandle& storage = first.parts().values.storage();
  if (expected != storage->bytes()) {
    return no_cover(table, table.arity() - 1, "does not end where the memory ends", site);
  }
  if (*rows != table.capacity()) {
    return no_cover(table, 0, "has a larger capacity than the number of rows", site)
        .with("rows", *rows)
        .with("capacity", table.capacity());
  }
  Result<Buffer> whole = Buffer::try_over(storage, 0, Shape::flat(expected), DType::byte, site);
  if (!whole) return whole.failure();
  const std::array<std::int64_t, 2> strides = {1, static_cast<std::int64_t>(*rows)};
  return StridedBuffer::try_over(*std::move(whole), 0, dtype, Shape{*rows, table.arity()}, strides,
                                 site);
} catch (const std::bad_alloc&) {
  return no_host_memory("a DLPack tensor", options.site);
}

// --- Import

Failure no_column(const char* field, std::uint64_t value, const char* expected,
                  CallSite site) noexcept {
  return Failure(ErrorCode::dlpack_rejected,
                 "a DLPack tensor cannot be a column ({field}: {value}): {expected}.", site)
      .with("field", field)
      .with("value", value)
      .with("expected", expected);
}

/// Returns the name of the column for errors, if there is one.
std::string_view name_of(const DlpackOptions& options) noexcept {
  return options.field ? std::string_view(options.field->name) : std::string_view();
}

Result<LogicalType> try_type(DType dtype, const DlpackOptions& options) {
  const CallSite site = options.site;
  if (dtype == DType::boolean) {
    return Failure(ErrorCode::dlpack_rejected,
                   "a DLPack tensor of {value} has one byte per value, and a column has one bit. "
                   "Import a tensor, and call Column::pack.",
                   site)
        .with("field", "dtype")
        .with("value", "truth values");
  }
  Result<LogicalType> given = LogicalType::try_of(dtype, site);
  if (!given || !options.field) return given;
  // Compare as a schema does, with the accepted differences.
  const Schema there({Field{options.field->name, *given, options.field->is_nullable}});
  if (Result<void> fits = there.check_match(Schema({*options.field}), options.match, site); !fits) {
    return fits.failure();
  }
  return options.field->type;
}

Result<Column> try_column(Result<StridedBuffer> taken, const DlpackOptions& options) noexcept try {
  const CallSite site = options.site;
  if (!taken) return taken.failure();
  if (taken->shape().rank() != 1) {
    return no_column("ndim", taken->shape().rank(),
                     "a column has one dimension. Import it as a tensor", site);
  }
  if (!taken->is_contiguous()) {
    return Failure(ErrorCode::dlpack_rejected,
                   "a DLPack tensor cannot be a column: {field} is {value}, so the values are not "
                   "contiguous. Import a tensor, and call contiguous(stream).",
                   site)
        .with("field", "strides[0]")
        .with_signed("value", taken->strides()[0]);
  }
  const std::size_t rows = taken->element_count();
  if (options.rows && rows != *options.rows) {
    return Failure(ErrorCode::size_mismatch,
                   "a DLPack tensor of {actual} elements cannot be column '{field}' of {expected} "
                   "values. Pass columns of one length.",
                   site)
        .with("field", name_of(options))
        .with("actual", rows)
        .with("expected", *options.rows);
  }
  Result<LogicalType> type = try_type(taken->dtype(), options);
  if (!type) return type.failure();
  Result<Buffer> values = taken->try_buffer(site);
  if (!values) return values.failure();
  Result<Buffer> typed = values->try_as(type->dtype(), site);
  if (!typed) return typed.failure();
  return Column::try_over(*std::move(type), rows, {.values = *std::move(typed), .null_count = 0},
                          site);
} catch (const std::bad_alloc&) {
  return no_host_memory("a column", options.site);
}

/// Ends a tensor that was not imported.
void delete_if_set(abi::DLManagedTensorVersioned* tensor) noexcept {
  if (tensor != nullptr) call_deleter(*tensor);
}

}  // namespace

Result<abi::DLManagedTensorVersioned*> try_export_dlpack_column(
    const Table& table, std::size_t column, const DlpackOptions& options) noexcept {
  const Result<Buffer> values = try_values(table, column, options);
  if (!values) return values.failure();
  return try_export_dlpack(*values, options);
}

Result<abi::DLManagedTensorVersioned*> try_export_dlpack_column(
    const Table& table, std::string_view column, const DlpackOptions& options) noexcept {
  const std::optional<std::size_t> index = table.schema().find(column);
  if (index) return try_export_dlpack_column(table, *index, options);
  return Failure(
             ErrorCode::not_found,
             "the table has {count} columns and no column '{name}'. schema() lists the columns.",
             options.site)
      .with("name", column)
      .with("count", table.arity());
}

Result<abi::DLManagedTensor*> try_export_dlpack_column_legacy(const Table& table,
                                                              std::size_t column,
                                                              const DlpackOptions& options) noexcept
    try {
  const Result<Buffer> values = try_values(table, column, options);
  if (!values) return values.failure();
  return try_export_dlpack_legacy(StridedBuffer(*values), options);
} catch (const std::bad_alloc&) {
  return no_host_memory("a DLPack tensor", options.site);
}

Result<abi::DLManagedTensorVersioned*> try_export_dlpack(const Table& table,
                                                         const DlpackOptions& options) noexcept {
  const Result<StridedBuffer> whole = try_cover(table, options);
  if (!whole) return whole.failure();
  return try_export_dlpack(*whole, options);
}

Result<Column> try_import_dlpack_column(const Device& device, abi::DLManagedTensorVersioned* tensor,
                                        const DlpackOptions& options) noexcept {
  return try_column(try_import_dlpack(device, tensor, options), options);
}

Result<Column> try_import_dlpack_column(const Device& device, abi::DLManagedTensor* tensor,
                                        const DlpackOptions& options) noexcept {
  return try_column(try_import_dlpack(device, tensor, options), options);
}

Result<Table> try_import_dlpack_table(const Device& device, const Schema& schema,
                                      std::span<abi::DLManagedTensorVersioned* const> tensors,
                                      const DlpackOptions& options) noexcept {
  const CallSite site = options.site;
  std::size_t taken = 0;
  const auto refuse = [&](const Failure& failure) {
    for (; taken < tensors.size(); ++taken) delete_if_set(tensors[taken]);
    return failure;
  };
  if (tensors.size() != schema.size()) {
    return refuse(
        Failure(
            ErrorCode::shape_mismatch,
            "{actual} tensors cannot form a table of {expected} fields. Pass one tensor per field.",
            site)
            .with("actual", tensors.size())
            .with("expected", schema.size()));
  }
  try {
    std::vector<Column> columns;
    columns.reserve(tensors.size());
    DlpackOptions each = options;
    for (const Field& field : schema.fields()) {
      each.field = field;
      // The import owns the tensor from here on, even if it fails.
      Result<Column> column = try_import_dlpack_column(device, tensors[taken++], each);
      if (!column) return refuse(Failure(column.failure()).with("column", field.name));
      each.rows = column->capacity();
      columns.push_back(*std::move(column));
    }
    return Table::try_make(schema, std::move(columns),
                           {.rows = each.rows.value_or(0), .site = site});
  } catch (const std::bad_alloc&) {
    return refuse(no_host_memory("a table", site));
  }
}

}  // namespace tern
