// A Column is values of one type, some of which may be missing, in memory of one device.
//
// It is up to three buffers: the values, of which there is one element each (bits for truth values,
// bytes for texts); where values may be missing, a bitmap that has a one for each that is there;
// and for texts and binaries the offsets, one more than there are values. Its first value may be
// any of theirs, so slices share all of it. How many it has room for is its capacity; how many of
// these are rows is the table's affair. It knows how many are missing, or that nobody counted.
//
// Everything is checked when it is made: sizes do not wrap, the buffers are large enough, of the
// right element and of one device. What the bytes say (offsets, missing values) is not looked at;
// memory of others is checked by whoever imports it. The buffers may be Tern's or external.
//
// A value: copies share their buffers, as those do, and may be used by threads in the same way.
// Each x() throws what try_x() returns.

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
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/table/logical_type.hpp"

namespace tern {

/// What a column is made of.
struct ColumnParts {
  Buffer values = {};
  /// None: all values are there.
  Buffer validity = {};
  /// For texts and binaries.
  Buffer offsets = {};
  /// Which of theirs is the column's first value.
  std::size_t first = 0;
  /// How many are missing, if that is known.
  std::optional<std::size_t> null_count = {};
};

/// How new memory for one is wanted.
struct ColumnOptions {
  /// One for each value: is it there? None: all of them are.
  std::span<const std::uint8_t> valid = {};
  /// Room for missing values, where nobody says which they are.
  bool is_nullable = false;
  /// For the bytes of texts and binaries.
  std::size_t data_bytes = 0;
  StorageOptions storage = {};
  CallSite site = CallSite::here();
};

class TERN_EXPORT Column {
 public:
  /// None: no values, no device.
  Column() noexcept = default;
  Column(const Column&) = default;
  Column& operator=(const Column&) = default;
  /// Leaves one without values.
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

  // --- Making one

  /// Over buffers that are there. Refused with size_mismatch, naming the buffer, what it has and
  /// what it needs; with type_mismatch for elements of another type (bytes are taken as any); with
  /// device_mismatch, misaligned, size_overflow; with invalid_argument for offsets or counts of
  /// missing values that such a column has not.
  [[nodiscard]] static Result<Column> try_over(LogicalType type, std::size_t capacity,
                                               ColumnParts parts,
                                               CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static Column over(LogicalType type, std::size_t capacity, ColumnParts parts,
                                   CallSite site = CallSite::here()) {
    return try_over(std::move(type), capacity, std::move(parts), site).value();
  }
  /// Memory for so many, to be written. Refused as allocations are.
  [[nodiscard]] static Result<Column> try_allocate(const Device& device, LogicalType type,
                                                   std::size_t capacity,
                                                   const ColumnOptions& options = {}) noexcept;
  [[nodiscard]] static Column allocate(const Device& device, LogicalType type, std::size_t capacity,
                                       const ColumnOptions& options = {}) {
    return try_allocate(device, std::move(type), capacity, options).value();
  }
  /// A copy of values of the host: numbers and times, of the type's dtype (type_mismatch).
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
  /// Untyped. Truth values are bytes here (boolean, u8), and bits in the column.
  [[nodiscard]] static Result<Column> try_from(const Device& device, const void* values,
                                               std::size_t count, DType dtype, LogicalType type,
                                               const ColumnOptions& options = {}) noexcept;
  /// Texts or binaries. Refused with size_overflow where their bytes need larger offsets.
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
  /// Truth values that are bytes in memory of a device, as those of a tensor are, as bits there; by
  /// way of the host, complete on return. Refused with type_mismatch, and as copies are.
  [[nodiscard]] static Result<Column> try_pack(const Buffer& booleans,
                                               const ColumnOptions& options = {}) noexcept;
  [[nodiscard]] static Column pack(const Buffer& booleans, const ColumnOptions& options = {}) {
    return try_pack(booleans, options).value();
  }
  /// The other way round: a byte for each, 0 or 1; what is missing is whatever it is.
  [[nodiscard]] Result<Buffer> try_unpack(CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer unpack(CallSite site = CallSite::here()) const {
    return try_unpack(site).value();
  }

  // --- What it is

  [[nodiscard]] const LogicalType& type() const noexcept { return type_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  /// The buffers as they were given; offsets of bits and values count from parts().first on.
  [[nodiscard]] const ColumnParts& parts() const noexcept { return parts_; }
  /// The elements of this column, for what is neither bits nor variable: what kernels use. Of the
  /// others, the whole buffer.
  [[nodiscard]] Buffer values() const;
  [[nodiscard]] const Buffer& validity() const noexcept { return parts_.validity; }
  /// Those of this column: one more than values; or none.
  [[nodiscard]] Buffer offsets() const;
  [[nodiscard]] bool is_nullable() const noexcept { return bool(parts_.validity); }
  /// 0 without a bitmap; nothing if nobody counted.
  [[nodiscard]] std::optional<std::size_t> null_count() const noexcept { return parts_.null_count; }
  /// Counted among the first `rows` now, unless it is known: one copy of the bitmap to the host.
  [[nodiscard]] Result<std::size_t> try_count_nulls(
      std::size_t rows, CallSite site = CallSite::here()) const noexcept;
  /// No device for a column of no bytes.
  [[nodiscard]] const Device& device() const noexcept;
  [[nodiscard]] bool is_external() const noexcept { return parts_.values.is_external(); }
  /// What the values, bits and offsets of so many rows take, and the bytes of texts. Refused with
  /// size_overflow.
  [[nodiscard]] Result<std::size_t> try_bytes() const noexcept;

  /// Values [first, first + count), of the same memory. Refused with invalid_view.
  [[nodiscard]] Result<Column> try_slice(std::size_t first, std::size_t count,
                                         CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Column slice(std::size_t first, std::size_t count,
                             CallSite site = CallSite::here()) const {
    return try_slice(first, count, site).value();
  }

  // --- Copies

  /// New memory with the first `rows` values and room for as many as here, in stream order; without
  /// a stream it is complete on return. Bytes of texts go all together.
  [[nodiscard]] Result<Column> try_copy_to(const Device& device, std::size_t rows, StreamRef stream,
                                           const ColumnOptions& options = {}) const noexcept;
  /// The values of several columns of one type behind each other, in new memory of the device of
  /// the first, complete on return: numbers by copies there, bits and offsets by way of the host.
  /// Refused with type_mismatch, invalid_argument for none, size_overflow, device_mismatch.
  [[nodiscard]] static Result<Column> try_concat(std::span<const Column> columns,
                                                 const ColumnOptions& options = {}) noexcept;

  /// On the host, for those who want to look: which values are there, truth values, texts.
  [[nodiscard]] std::vector<bool> to_valid(CallSite site = CallSite::here()) const;
  [[nodiscard]] std::vector<bool> to_bools(CallSite site = CallSite::here()) const;
  [[nodiscard]] std::vector<std::string> to_strings(CallSite site = CallSite::here()) const;

 private:
  LogicalType type_ = {};
  std::size_t capacity_ = 0;
  ColumnParts parts_ = {};
};

}  // namespace tern
