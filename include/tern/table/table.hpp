// A Table is columns of one length on one device, with a schema, of which so many rows are filled.
//
// How many rows there is room for (capacity) and how many there are (rows) are different things.
// The second may be known only to the device: it is then one integer in its memory, which a kernel
// that filters or joins writes as out(table.row_count()), and which the next kernel reads there.
// rows() is what the host knows, and asks nobody; rows_host() reads the integer once and remembers
// it until somebody writes it. A count beyond the capacity is refused, and not remembered.
//
// Arity, types, lengths and the device are checked when it is made; errors name the field. Nothing
// else waits or copies, unless it says so. A value: copies share columns and the count of rows.
// Thread-safe, as the buffers are. Each x() throws what try_x() returns.

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
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/table/column.hpp"
#include "tern/table/schema.hpp"

namespace tern {

struct TableOptions {
  /// As the host knows it.
  std::optional<std::uint64_t> rows = {};
  /// Where the device keeps it: one u32 or u64 in its memory, which the count above is trusted to
  /// be equal to. With neither, all rows are filled.
  Buffer row_count = {};
  CallSite site = CallSite::here();
};

/// How memory for one is wanted.
struct TableAllocation {
  /// u32, u64, or void for a count that only the host knows, and which is 0.
  DType row_count = DType::u64;
  /// For the bytes of each column of texts.
  std::size_t data_bytes = 0;
  StorageOptions storage = {};
  CallSite site = CallSite::here();
};

class TERN_EXPORT Table {
 public:
  /// No columns, no rows.
  Table() noexcept = default;

  /// Refused with shape_mismatch for another number of columns than fields; with size_mismatch for
  /// columns of different lengths, type_mismatch for one of another type than its field's or with
  /// missing values where none may be, device_mismatch; each naming the field. With invalid_view
  /// for more rows than there is room for, with type_mismatch or size_mismatch for a count that is
  /// not one integer.
  [[nodiscard]] static Result<Table> try_make(Schema schema, std::vector<Column> columns,
                                              const TableOptions& options = {}) noexcept;
  [[nodiscard]] static Table make(Schema schema, std::vector<Column> columns,
                                  const TableOptions& options = {}) {
    return try_make(std::move(schema), std::move(columns), options).value();
  }
  /// Room for so many rows, to be written. Columns that may hold nulls get a bitmap of ones.
  [[nodiscard]] static Result<Table> try_allocate(const Device& device, Schema schema,
                                                  std::size_t capacity,
                                                  const TableAllocation& options = {}) noexcept;
  [[nodiscard]] static Table allocate(const Device& device, Schema schema, std::size_t capacity,
                                      const TableAllocation& options = {}) {
    return try_allocate(device, std::move(schema), capacity, options).value();
  }

  // --- What it is

  [[nodiscard]] const Schema& schema() const noexcept;
  /// How many columns.
  [[nodiscard]] std::size_t arity() const noexcept { return columns().size(); }
  [[nodiscard]] std::span<const Column> columns() const noexcept;
  [[nodiscard]] std::optional<Column> column(std::size_t index) const;
  /// The first of the name.
  [[nodiscard]] std::optional<Column> column(std::string_view name) const;
  /// No device where no column has a byte.
  [[nodiscard]] const Device& device() const noexcept;
  /// Rows there is room for.
  [[nodiscard]] std::size_t capacity() const noexcept;
  /// What all columns take, with room for all rows. Refused with size_overflow.
  [[nodiscard]] Result<std::size_t> try_estimated_bytes() const noexcept;
  [[nodiscard]] std::size_t estimated_bytes(CallSite site = CallSite::here()) const {
    return try_estimated_bytes().value(site);
  }

  // --- How many rows there are

  /// As far as the host knows. Never a call of the driver.
  [[nodiscard]] std::optional<std::uint64_t> rows() const noexcept;
  /// Known for certain: read from the device if need be, behind the last write of the count and
  /// nothing else. Refused with invalid_view for more than the capacity, never_written, and as
  /// copies are.
  [[nodiscard]] Result<std::uint64_t> try_rows_host(
      CallSite site = CallSite::here()) const noexcept;
  std::uint64_t rows_host(CallSite site = CallSite::here()) const {
    return try_rows_host(site).value();
  }
  /// Where kernels write and read it. None if only the host knows.
  [[nodiscard]] Buffer row_count() const noexcept;
  /// Said by the host, and written to the device in the order of the stream. Refused with
  /// invalid_view; with stream_misuse where the device has the count and no stream is named.
  Result<void> try_set_rows(std::uint64_t rows, StreamRef stream = {},
                            CallSite site = CallSite::here()) noexcept;
  void set_rows(std::uint64_t rows, StreamRef stream = {}, CallSite site = CallSite::here()) {
    try_set_rows(rows, stream, site).value();
  }

  // --- Others like it

  /// These columns, in this order, with the same count of rows. Refused with out_of_bounds; by name
  /// with not_found.
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
  /// Rows [first, first + count) in the same memory, all of them filled. The host has to know how
  /// many there are, and asks (try_rows_host). Refused with invalid_view.
  [[nodiscard]] Result<Table> try_slice(std::size_t first, std::size_t count,
                                        CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Table slice(std::size_t first, std::size_t count,
                            CallSite site = CallSite::here()) const {
    return try_slice(first, count, site).value();
  }
  /// The rows of several behind each other, in new memory on the device of the first; the host asks
  /// how many there are, and the copy is complete on return. Refused as Schema::check_match and
  /// Column::try_concat.
  [[nodiscard]] static Result<Table> try_concat(std::span<const Table> tables,
                                                CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static Table concat(std::span<const Table> tables,
                                    CallSite site = CallSite::here()) {
    return try_concat(tables, site).value();
  }
  /// New memory on a device, with the same room. In the order of a stream of either; without one it
  /// is complete on return. Where the host knows the rows only they are copied, else all there is
  /// room for, with the count, and the host waits for nothing.
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
