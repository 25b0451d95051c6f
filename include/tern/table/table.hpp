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
#include <string_view>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/table/column.hpp"
#include "tern/table/schema.hpp"

namespace tern {

/// The row count of a new table. If neither member is set, all rows are filled.
struct TableOptions {
  /// The row count, as the host knows it.
  std::optional<std::uint64_t> rows = {};
  /// The row count in device memory: one u32 or u64. If `rows` is set too, both are taken to be
  /// equal.
  Buffer row_count = {};
  CallSite site = CallSite::here();
};

/// How to allocate a table.
struct TableAllocation {
  /// The dtype of the row count in device memory: u32 or u64. With void_, only the host has a row
  /// count, and it is 0.
  DType row_count = DType::u64;
  /// The size of the values buffer of each column of strings or binaries.
  std::size_t data_bytes = 0;
  StorageOptions storage = {};
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
                                                  const TableAllocation& options = {}) noexcept;
  [[nodiscard]] static Table allocate(const Device& device, Schema schema, std::size_t capacity,
                                      const TableAllocation& options = {}) {
    return try_allocate(device, std::move(schema), capacity, options).value();
  }

  // --- Queries

  [[nodiscard]] const Schema& schema() const noexcept;
  /// Returns the number of columns.
  [[nodiscard]] std::size_t arity() const noexcept { return columns().size(); }
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
  /// first table. Reads the row counts, and waits for the copy. Fails as Schema::check_match and
  /// Column::try_concat do.
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
