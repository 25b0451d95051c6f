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

#pragma once

#include <cstddef>
#include <cstdint>
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
#include "tern/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/table/logical_type.hpp"

namespace tern {

/// The buffers of a column.
struct ColumnParts {
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

/// How to allocate a new column.
struct ColumnOptions {
  /// One entry for each value: not zero if the value is present. Empty if all values are present.
  std::span<const std::uint8_t> valid = {};
  /// Allocate a validity bitmap even if `valid` is empty.
  bool is_nullable = false;
  /// The size of the values buffer of a column of strings or binaries.
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
        parts_(std::exchange(other.parts_, {})) {}
  Column& operator=(Column&& other) noexcept {
    if (this == &other) return *this;
    type_ = std::move(other.type_);
    capacity_ = std::exchange(other.capacity_, 0);
    parts_ = std::exchange(other.parts_, {});
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

  [[nodiscard]] const LogicalType& type() const noexcept { return type_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  /// Returns the buffers as they were given. The column's first value is value parts().first of
  /// them.
  [[nodiscard]] const ColumnParts& parts() const noexcept { return parts_; }
  /// Returns exactly the values of this column, for kernels. For booleans, strings and binaries,
  /// returns the whole buffer.
  [[nodiscard]] Buffer values() const;
  [[nodiscard]] const Buffer& validity() const noexcept { return parts_.validity; }
  /// Returns the offsets of this column, one more than values; an empty Buffer if the type has
  /// none.
  [[nodiscard]] Buffer offsets() const;
  [[nodiscard]] bool is_nullable() const noexcept { return bool(parts_.validity); }
  /// Returns 0 if there is no validity bitmap, and nothing if the missing values were not counted.
  [[nodiscard]] std::optional<std::size_t> null_count() const noexcept { return parts_.null_count; }
  /// Returns how many of the first `rows` values are missing. If this is unknown, copies the bitmap
  /// to the host once and waits.
  [[nodiscard]] Result<std::size_t> try_count_nulls(
      std::size_t rows, CallSite site = CallSite::here()) const noexcept;
  /// Returns an empty Device for a column without bytes.
  [[nodiscard]] const Device& device() const noexcept;
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
  /// Stream-ordered; without a stream, waits. The bytes of strings are copied as a whole.
  [[nodiscard]] Result<Column> try_copy_to(const Device& device, std::size_t rows, StreamRef stream,
                                           const ColumnOptions& options = {}) const noexcept;
  /// Returns the values of several columns of one type one after the other, in new memory on the
  /// device of the first column. Waits. Numbers are copied on the device, bits and offsets go
  /// through the host. Fails with type_mismatch, invalid_argument for no columns, size_overflow,
  /// device_mismatch.
  [[nodiscard]] static Result<Column> try_concat(std::span<const Column> columns,
                                                 const ColumnOptions& options = {}) noexcept;

  /// Copy to the host and wait, for inspection: which values are present, booleans, strings. They
  /// throw.
  [[nodiscard]] std::vector<bool> to_valid(CallSite site = CallSite::here()) const;
  [[nodiscard]] std::vector<bool> to_bools(CallSite site = CallSite::here()) const;
  [[nodiscard]] std::vector<std::string> to_strings(CallSite site = CallSite::here()) const;

 private:
  LogicalType type_ = {};
  std::size_t capacity_ = 0;
  ColumnParts parts_ = {};
};

}  // namespace tern
