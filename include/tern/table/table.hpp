// A Table is a set of columns of equal length on one device, with a schema and a row count.
//
//   Table result = Table::allocate(gpu, schema, capacity);
//   filter.launch(stream, elements(n), in(x), out(values), out(result.row_count()));
//   const std::uint64_t rows = result.rows_host();   // waits for the filter
//
// capacity() is the number of rows that the columns have room for; rows() is the number of rows
// that are filled. The row count may be known only to the device: it is then one integer in device
// memory, which a kernel that filters or joins writes, and which the next kernel reads. rows()
// returns what the host knows, without any device call. rows_host() reads the integer once, and
// remembers it until the integer is written again. A count above the capacity is an error and is
// not remembered.
//
// The number, types, lengths and devices of the columns are checked when a table is made; the
// failure names the field. No other function waits or copies, unless its comment says so. A table
// is a value: copies share the columns and the row count. Several threads may use a table as they
// may use its buffers. Each x() throws what try_x() returns.

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

#include "tern/buffer/buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/table/schema.hpp"

namespace tern {

// A Column is a sequence of values of one type in memory of one device. Values may be missing
// (null).
//
// A column has up to three buffers:
// - values: one element for each value; bits for booleans, bytes for strings and binaries.
// - validity: a bitmap with a 1 for each value that is present. Only if values may be missing.
// - offsets: for strings and binaries, where each value begins; one entry more than there are
//   values.
//
// The first value of the column may be any value of the buffers, so slices share all buffers. The
// capacity is the number of values that the column has room for. How many of them are rows is up to
// the table. A column knows how many values are missing, or that they were not counted.
//
// Everything is checked when a column is made: sizes do not overflow, and the buffers are large
// enough, have the right element type and are on one device. The contents of offsets and validity
// are not checked; whoever imports memory of another library checks them. The buffers may be Tern's
// or external.
//
// A column is a value: copies share the buffers. Several threads may use a column as they may use
// its buffers. Each x() throws what try_x() returns.

/// The buffers of a column.
struct ColumnParts {
  /// The elements, the bits, or the bytes of strings and binaries.
  Buffer values = {};
  /// Empty if all values are present.
  Buffer validity = {};
  /// Only for strings and binaries.
  Buffer offsets = {};
  /// The index, in the buffers, of the column's first value.
  std::size_t first = 0;
  /// The number of missing values, if it is known.
  std::optional<std::size_t> null_count = {};
};

/// How to allocate a new column, or a table.
struct ColumnOptions {
  /// Column: one entry for each value, not zero if the value is present. Empty if all values are
  /// present.
  std::span<const std::uint8_t> valid = {};
  /// Column: allocate a validity bitmap even if `valid` is empty. For a table, the schema decides.
  bool is_nullable = false;
  /// Table: the dtype of the row count in device memory, u32 or u64. With void_, only the host has
  /// a row count, and it is 0.
  DType row_count = DType::u64;
  /// The size of the values buffer of each column of strings or binaries.
  std::size_t data_bytes = 0;
  StorageOptions storage = {};
  CallSite site = CallSite::here();
};

class TERN_EXPORT Column {
 public:
  /// Creates a column without values and without a device.
  Column() noexcept = default;
  Column(const Column&) = default;
  Column& operator=(const Column&) = default;
  /// The moved-from column has no values.
  Column(Column&& other) noexcept
      : type_(std::move(other.type_)),
        capacity_(std::exchange(other.capacity_, 0)),
        parts_(std::move(other.parts_)) {
    other.parts_.first = 0;
    other.parts_.null_count.reset();
  }
  Column& operator=(Column&& other) noexcept {
    if (this == &other) return *this;
    type_ = std::move(other.type_);
    capacity_ = std::exchange(other.capacity_, 0);
    parts_ = std::move(other.parts_);
    other.parts_.first = 0;
    other.parts_.null_count.reset();
    return *this;
  }
  ~Column() = default;

  // --- Create a column

  /// Creates a column over existing buffers. Copies nothing. Fails with
  /// - size_mismatch for a buffer that is too small, naming the buffer and both sizes;
  /// - type_mismatch for elements of another type (a buffer of bytes is accepted as any type);
  /// - device_mismatch, misaligned, size_overflow;
  /// - invalid_argument for offsets or a null count that a column of this type cannot have.
  [[nodiscard]] static Result<Column> try_over(LogicalType type, std::size_t capacity,
                                               ColumnParts parts,
                                               CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static Column over(LogicalType type, std::size_t capacity, ColumnParts parts,
                                   CallSite site = CallSite::here()) {
    return try_over(std::move(type), capacity, std::move(parts), site).value();
  }
  /// Allocates a column of `capacity` values, to be written. Fails with the failures of an
  /// allocation.
  [[nodiscard]] static Result<Column> try_allocate(const Device& device, LogicalType type,
                                                   std::size_t capacity,
                                                   const ColumnOptions& options = {}) noexcept;
  [[nodiscard]] static Column allocate(const Device& device, LogicalType type, std::size_t capacity,
                                       const ColumnOptions& options = {}) {
    return try_allocate(device, std::move(type), capacity, options).value();
  }
  /// Copies values from the host. Throws with type_mismatch if T is not the dtype of the type.
  template <HasDType T>
  [[nodiscard]] static Column from(const Device& device, std::span<const T> values,
                                   LogicalType type, const ColumnOptions& options = {}) {
    return try_from(device, values.data(), values.size(), dtype_of<T>(), std::move(type), options)
        .value();
  }
  template <HasDType T>
  [[nodiscard]] static Column from(const Device& device, std::span<const T> values,
                                   const ColumnOptions& options = {}) {
    return from(device, values, LogicalType::try_of(dtype_of<T>(), options.site).value(), options);
  }
  /// Like from(), untyped. Booleans are bytes on the host (boolean, u8) and bits in the column.
  [[nodiscard]] static Result<Column> try_from(const Device& device, const void* values,
                                               std::size_t count, DType dtype, LogicalType type,
                                               const ColumnOptions& options = {}) noexcept;
  /// Copies strings or binaries from the host. Fails with size_overflow if their bytes need 64-bit
  /// offsets and the type has 32-bit offsets.
  [[nodiscard]] static Result<Column> try_from_strings(const Device& device,
                                                       std::span<const std::string_view> values,
                                                       LogicalType type = TypeKind::utf8,
                                                       const ColumnOptions& options = {}) noexcept;
  [[nodiscard]] static Column from_strings(const Device& device,
                                           std::span<const std::string_view> values,
                                           LogicalType type = TypeKind::utf8,
                                           const ColumnOptions& options = {}) {
    return try_from_strings(device, values, std::move(type), options).value();
  }
  /// Converts booleans that are bytes in memory of a device, as in a tensor, to a column of bits
  /// there. Goes through the host and waits. Fails with type_mismatch, and with the failures of a
  /// copy.
  [[nodiscard]] static Result<Column> try_pack(const Buffer& booleans,
                                               const ColumnOptions& options = {}) noexcept;
  [[nodiscard]] static Column pack(const Buffer& booleans, const ColumnOptions& options = {}) {
    return try_pack(booleans, options).value();
  }
  /// Converts a column of bits to one byte for each value, 0 or 1. The bytes of missing values are
  /// unspecified. Goes through the host and waits.
  [[nodiscard]] Result<Buffer> try_unpack(CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer unpack(CallSite site = CallSite::here()) const {
    return try_unpack(site).value();
  }

  // --- Queries

  /// type() is what the values mean. capacity() is how many values the buffers have room for.
  [[nodiscard]] const LogicalType& type() const noexcept { return type_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  /// Returns the buffers as they were given. The column's first value is value parts().first of
  /// them.
  [[nodiscard]] const ColumnParts& parts() const noexcept { return parts_; }
  /// Returns exactly the values of this column, for kernels. For booleans, strings and binaries,
  /// returns the whole buffer.
  [[nodiscard]] Buffer values() const;
  /// Returns the validity bitmap; an empty Buffer if no value is missing.
  [[nodiscard]] const Buffer& validity() const noexcept { return parts_.validity; }
  /// Returns the validity bitmap to write it, for example as inout(column.validity()) of a launch.
  /// This column forgets its null count, which is counted again when it is needed. Copies of the
  /// column that were made before keep the old count.
  [[nodiscard]] Buffer& validity() noexcept {
    if (parts_.validity) parts_.null_count = {};
    return parts_.validity;
  }
  /// Returns the offsets of this column, one more than values; an empty Buffer if the type has
  /// none.
  [[nodiscard]] Buffer offsets() const;
  /// Returns whether the column has a validity bitmap.
  [[nodiscard]] bool is_nullable() const noexcept { return bool(parts_.validity); }
  /// Returns 0 if there is no validity bitmap, and nothing if the missing values were not counted.
  [[nodiscard]] std::optional<std::size_t> null_count() const noexcept { return parts_.null_count; }
  /// Returns how many of the first `rows` values are missing. If this is unknown, copies the bitmap
  /// to the host once and waits.
  [[nodiscard]] Result<std::size_t> try_count_nulls(
      std::size_t rows, CallSite site = CallSite::here()) const noexcept;
  /// Returns an empty Device for a column without bytes.
  [[nodiscard]] const Device& device() const noexcept;
  /// Returns whether other code owns the memory of the values.
  [[nodiscard]] bool is_external() const noexcept { return parts_.values.is_external(); }
  /// Returns the size of the values, bits and offsets of capacity() values, and of the bytes of
  /// strings. Fails with size_overflow.
  [[nodiscard]] Result<std::size_t> try_bytes() const noexcept;

  /// Returns values [first, first + count) in the same memory. Fails with invalid_view.
  [[nodiscard]] Result<Column> try_slice(std::size_t first, std::size_t count,
                                         CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Column slice(std::size_t first, std::size_t count,
                             CallSite site = CallSite::here()) const {
    return try_slice(first, count, site).value();
  }

  // --- Copies

  /// Copies the first `rows` values to new memory on a device, with the same capacity.
  /// Stream-ordered; without a stream, waits. The bytes of strings and the validity bitmap are
  /// copied as far as they are written.
  [[nodiscard]] Result<Column> try_copy_to(const Device& device, std::size_t rows, StreamRef stream,
                                           const ColumnOptions& options = {}) const noexcept;
  /// Returns the values of several columns of one type one after the other, in new memory on the
  /// device of the first column. The columns may be on different devices. Waits. Numbers are copied
  /// on the device, bits and offsets go through the host. Fails with type_mismatch,
  /// invalid_argument for no columns, size_overflow, and like allocations and copies.
  [[nodiscard]] static Result<Column> try_concat(std::span<const Column> columns,
                                                 const ColumnOptions& options = {}) noexcept;

  /// Copy to the host and wait, for inspection: to_valid() returns which values are present,
  /// to_bools() and to_strings() the values of booleans and of texts. They throw.
  [[nodiscard]] std::vector<bool> to_valid(CallSite site = CallSite::here()) const;
  [[nodiscard]] std::vector<bool> to_bools(CallSite site = CallSite::here()) const;
  [[nodiscard]] std::vector<std::string> to_strings(CallSite site = CallSite::here()) const;

 private:
  friend class ColumnFiller;
  /// Checks the buffers for a column of this type, and makes this empty column that column. Fails
  /// as try_over() does; the column is then unusable.
  [[nodiscard]] Result<void> try_fill(std::size_t capacity, CallSite site) noexcept;

  LogicalType type_ = {};
  std::size_t capacity_ = 0;
  ColumnParts parts_ = {};
};

/// The row count of a new table. If neither member is set, all rows are filled.
struct TableOptions {
  /// The row count, as the host knows it.
  std::optional<std::uint64_t> rows = {};
  /// The row count in device memory: one u32 or u64. If `rows` is set too, both are taken to be
  /// equal.
  Buffer row_count = {};
  CallSite site = CallSite::here();
};

class TERN_EXPORT Table {
 public:
  /// Creates a table without columns and rows.
  Table() noexcept = default;

  /// Creates a table over existing columns. A failure about a column names its field. Fails with
  /// - shape_mismatch if the number of columns and fields differs;
  /// - size_mismatch if columns have different lengths;
  /// - type_mismatch if a column is not of its field's type, or is known to have missing values
  ///   that its field forbids;
  /// - device_mismatch;
  /// - invalid_view if there are more rows than capacity;
  /// - type_mismatch or size_mismatch if `row_count` is not one integer.
  [[nodiscard]] static Result<Table> try_make(Schema schema, std::vector<Column> columns,
                                              const TableOptions& options = {}) noexcept;
  [[nodiscard]] static Table make(Schema schema, std::vector<Column> columns,
                                  const TableOptions& options = {}) {
    return try_make(std::move(schema), std::move(columns), options).value();
  }
  /// Allocates a table of `capacity` rows, to be written. Columns that may have nulls get a
  /// validity bitmap of ones. Fails with the failures of an allocation.
  [[nodiscard]] static Result<Table> try_allocate(const Device& device, Schema schema,
                                                  std::size_t capacity,
                                                  const ColumnOptions& options = {}) noexcept;
  [[nodiscard]] static Table allocate(const Device& device, Schema schema, std::size_t capacity,
                                      const ColumnOptions& options = {}) {
    return try_allocate(device, std::move(schema), capacity, options).value();
  }

  // --- Queries

  /// Returns the fields, one per column.
  [[nodiscard]] const Schema& schema() const noexcept;
  /// Returns the number of columns.
  [[nodiscard]] std::size_t arity() const noexcept { return columns().size(); }
  /// Returns the columns in the order of the schema. The span is valid while a copy of the table
  /// exists.
  [[nodiscard]] std::span<const Column> columns() const noexcept;
  /// Returns nothing if there is no such column.
  [[nodiscard]] std::optional<Column> column(std::size_t index) const;
  /// Returns the first column with this name, or nothing.
  [[nodiscard]] std::optional<Column> column(std::string_view name) const;
  /// Returns an empty Device if no column has a byte.
  [[nodiscard]] const Device& device() const noexcept;
  /// Returns the number of rows that the columns have room for.
  [[nodiscard]] std::size_t capacity() const noexcept;
  /// Returns the size of all columns at full capacity. Fails with size_overflow.
  [[nodiscard]] Result<std::size_t> try_estimated_bytes() const noexcept;
  [[nodiscard]] std::size_t estimated_bytes(CallSite site = CallSite::here()) const {
    return try_estimated_bytes().value(site);
  }

  // --- Row count

  /// Returns the row count if the host knows it. Never calls a driver.
  [[nodiscard]] std::optional<std::uint64_t> rows() const noexcept;
  /// Returns the row count. If the host does not know it, reads it from the device and waits for
  /// the last write of the count, and for nothing else. Fails with invalid_view if the count is
  /// above the capacity, with never_written, and with the failures of a copy.
  [[nodiscard]] Result<std::uint64_t> try_rows_host(
      CallSite site = CallSite::here()) const noexcept;
  std::uint64_t rows_host(CallSite site = CallSite::here()) const {
    return try_rows_host(site).value();
  }
  /// Returns the integer that kernels read and write, or an empty Buffer if only the host has the
  /// count.
  [[nodiscard]] Buffer row_count() const noexcept;
  /// Sets the row count, and writes it to the device in stream order. Fails with invalid_view if it
  /// is above the capacity, and with stream_misuse if the device has the count and no stream is
  /// given.
  Result<void> try_set_rows(std::uint64_t rows, StreamRef stream = {},
                            CallSite site = CallSite::here()) noexcept;
  void set_rows(std::uint64_t rows, StreamRef stream = {}, CallSite site = CallSite::here()) {
    try_set_rows(rows, stream, site).value();
  }

  // --- Derived tables

  /// Returns a table of these columns, in this order, with the same row count and memory. Fails
  /// with out_of_bounds for an index and with not_found for a name.
  [[nodiscard]] Result<Table> try_select(std::span<const std::size_t> indices,
                                         CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Table select(std::span<const std::size_t> indices,
                             CallSite site = CallSite::here()) const {
    return try_select(indices, site).value();
  }
  [[nodiscard]] Result<Table> try_select(std::span<const std::string_view> names,
                                         CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Table select(std::span<const std::string_view> names,
                             CallSite site = CallSite::here()) const {
    return try_select(names, site).value();
  }
  /// Returns rows [first, first + count) in the same memory, all of them filled. Reads the row
  /// count as try_rows_host() does. Fails with invalid_view.
  [[nodiscard]] Result<Table> try_slice(std::size_t first, std::size_t count,
                                        CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Table slice(std::size_t first, std::size_t count,
                            CallSite site = CallSite::here()) const {
    return try_slice(first, count, site).value();
  }
  /// Returns the rows of several tables one after the other, in new memory on the device of the
  /// first table. The tables may be on different devices. Reads the row counts, and waits for the
  /// copy. Fails as Schema::check_match and Column::try_concat do.
  [[nodiscard]] static Result<Table> try_concat(std::span<const Table> tables,
                                                CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static Table concat(std::span<const Table> tables,
                                    CallSite site = CallSite::here()) {
    return try_concat(tables, site).value();
  }
  /// Copies the table to new memory on a device, with the same capacity. Stream-ordered, on a
  /// stream of either device; without a stream, waits. If the host knows the row count, only the
  /// filled rows are copied. Otherwise all rows and the count are copied, and the host does not
  /// wait for the count.
  [[nodiscard]] Result<Table> try_copy_to(const Device& device, StreamRef stream = {},
                                          CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Table copy_to(const Device& device, StreamRef stream = {},
                              CallSite site = CallSite::here()) const {
    return try_copy_to(device, stream, site).value();
  }

 private:
  struct Body;
  class Rows;
  [[nodiscard]] static Result<Table> wrap(Schema schema, std::vector<Column> columns,
                                          std::size_t capacity, std::shared_ptr<Rows> rows);

  std::shared_ptr<const Body> body_;
  std::shared_ptr<Rows> rows_;
};

}  // namespace tern
