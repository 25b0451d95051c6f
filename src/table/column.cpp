#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/no_host_memory.hpp"
#include "table/bitmap.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/core/bytes.hpp"
#include "tern/table/table.hpp"

namespace tern {
namespace {

[[gnu::cold, gnu::noinline]] Failure too_large(std::size_t capacity, CallSite site) noexcept {
  return Failure(ErrorCode::size_overflow,
                 "the size of a column of {count} values overflows 64 bits. Use several columns.",
                 site)
      .with("count", capacity);
}

Failure not_of_type(const char* part, DType actual, std::string_view expected,
                    CallSite site) noexcept {
  return Failure(ErrorCode::type_mismatch,
                 "the {part} of a column have type {actual}, and {expected} is required. Pass a "
                 "buffer of {expected} or of bytes.",
                 site)
      .with("part", part)
      .with("actual", name(actual))
      .with("expected", expected);
}

/// Returns the size of the first `end` values in the values buffer.
std::optional<std::size_t> value_bytes(const LogicalType& type, DType dtype,
                                       std::size_t end) noexcept {
  if (type.is_variable()) return 0;
  if (type.is_bits()) return bitmap_bytes(end);
  return checked_multiply(end, size_bytes(dtype));
}
std::optional<std::size_t> value_bytes(const LogicalType& type, std::size_t end) noexcept {
  return value_bytes(type, type.dtype(), end);
}

std::optional<std::size_t> offset_bytes(const LogicalType& type, std::size_t end) noexcept {
  const std::optional<std::size_t> entries = checked_add(end, 1);
  return entries ? checked_multiply(*entries, size_bytes(type.offset_dtype())) : std::nullopt;
}

/// Returns whether check_part() would accept the buffer as it is.
bool is_fine(const Buffer& buffer, std::size_t needed, DType dtype) noexcept {
  return buffer && buffer.dtype() == dtype && buffer.size_bytes() >= needed;
}

/// Checks the size and element type of a buffer, and views untyped bytes as the wanted type.
[[gnu::noinline]] Result<void> check_part(Buffer& buffer, const char* part, std::size_t needed,
                                          DType dtype, CallSite site) noexcept {
  if (buffer.size_bytes() < needed) {
    return Failure(ErrorCode::size_mismatch,
                   "the {part} of a column have {actual}, and its values need {expected}. Pass a "
                   "larger buffer, or a smaller capacity.",
                   site)
        .with("part", part)
        .with_bytes("actual", buffer.size_bytes())
        .with_bytes("expected", needed);
  }
  if (!buffer || buffer.dtype() == dtype) return {};
  const bool is_untyped = buffer.dtype() == DType::byte || dtype == DType::byte;
  if (!is_untyped) return not_of_type(part, buffer.dtype(), name(dtype), site);
  // Bytes at the end that do not make a whole element are ignored.
  const std::size_t width = std::max<std::size_t>(size_bytes(dtype), 1);
  Result<Buffer> whole = buffer.try_as(DType::byte, site);
  if (whole) whole = whole->try_byte_view(0, whole->size_bytes() / width * width, site);
  if (whole) whole = whole->try_as(dtype, site);
  if (!whole) return whole.failure();
  buffer = *std::move(whole);
  return {};
}

Result<Buffer> try_new_buffer(const Device& device, DType dtype, std::size_t count,
                              const ColumnOptions& options) noexcept {
  StorageOptions storage = options.storage;
  // The alignment that Arrow recommends.
  if (storage.alignment == 0) storage.alignment = 64;
  storage.site = options.site;
  return Buffer::try_make(device, Shape::flat(count), dtype, storage);
}

/// Allocates a buffer and copies bytes of the host to it.
Result<Buffer> try_upload(const Device& device, DType dtype, const void* from, std::size_t bytes,
                          const ColumnOptions& options) noexcept {
  Result<Buffer> made = try_new_buffer(device, dtype, bytes / size_bytes(dtype), options);
  if (!made || bytes == 0) return made;
  if (Result<void> copied = made->try_copy_from(from, bytes, options.site); !copied) {
    return copied.failure();
  }
  return made;
}

Result<std::vector<std::byte>> try_download(const Buffer& buffer, std::size_t offset,
                                            std::size_t bytes, CallSite site) noexcept try {
  if (bytes == 0) return std::vector<std::byte>();
  Result<Buffer> raw = buffer.try_as(DType::byte, site);
  if (raw) raw = raw->try_byte_view(offset, bytes, site);
  if (!raw) return raw.failure();
  std::vector<std::byte> to(bytes);
  if (Result<void> copied = raw->try_copy_to(to.data(), bytes, site); !copied) {
    return copied.failure();
  }
  return to;
} catch (const std::bad_alloc&) {
  return no_host_memory("a column", site);
}

/// `count` bits beginning with `first`, copied to the host. `first` is the bit of `bytes` at which
/// they begin.
struct HostBits {
  std::vector<std::byte> bytes;
  std::size_t first = 0;
};
Result<HostBits> try_download_bits(const Buffer& buffer, std::size_t first, std::size_t count,
                                   CallSite site) noexcept {
  const std::size_t begin = first / 8;
  Result<std::vector<std::byte>> bytes =
      try_download(buffer, begin, count == 0 ? 0 : bitmap_bytes(first + count) - begin, site);
  if (!bytes) return bytes.failure();
  return HostBits{*std::move(bytes), first % 8};
}

/// Copies the offsets to the host, as 64-bit numbers.
Result<std::vector<std::int64_t>> try_download_offsets(const Column& column, std::size_t rows,
                                                       CallSite site) noexcept try {
  if (!column.parts().offsets || rows == 0) return std::vector<std::int64_t>(rows + 1);
  const DType dtype = column.type().offset_dtype();
  const std::size_t width = size_bytes(dtype);
  const Result<std::vector<std::byte>> raw =
      try_download(column.parts().offsets, column.parts().first * width, (rows + 1) * width, site);
  if (!raw) return raw.failure();
  std::vector<std::int64_t> offsets(rows + 1);
  for (std::size_t i = 0; i <= rows; ++i) {
    if (dtype == DType::i64) {
      std::memcpy(&offsets[i], raw->data() + i * width, width);
    } else {
      std::int32_t narrow;
      std::memcpy(&narrow, raw->data() + i * width, width);
      offsets[i] = narrow;
    }
    if (offsets[i] < (i == 0 ? 0 : offsets[i - 1]) ||
        static_cast<std::uint64_t>(offsets[i]) > column.parts().values.size_bytes()) {
      return Failure(ErrorCode::invalid_view,
                     "offset {index} of a column is {value}, which is below the previous offset or "
                     "beyond its {bytes} of values. Write increasing offsets within the values.",
                     site)
          .with("index", i)
          .with_signed("value", offsets[i])
          .with_bytes("bytes", column.parts().values.size_bytes());
    }
  }
  return offsets;
} catch (const std::bad_alloc&) {
  return no_host_memory("a column", site);
}

Result<Buffer> try_upload_offsets(const Device& device, DType dtype,
                                  std::span<const std::int64_t> offsets,
                                  const ColumnOptions& options) try {
  if (dtype == DType::i64) {
    return try_upload(device, dtype, offsets.data(), offsets.size_bytes(), options);
  }
  if (offsets.back() > std::numeric_limits<std::int32_t>::max()) {
    return Failure(ErrorCode::size_overflow,
                   "a column of {bytes} needs 64-bit offsets. Use large_utf8 or large_binary.",
                   options.site)
        .with_bytes("bytes", static_cast<std::uint64_t>(offsets.back()));
  }
  const std::vector<std::int32_t> narrow(offsets.begin(), offsets.end());
  return try_upload(device, dtype, narrow.data(), narrow.size() * sizeof(std::int32_t), options);
} catch (const std::bad_alloc&) {
  return no_host_memory("a column", options.site);
}

Result<void> add_validity(ColumnParts& parts, const Device& device, std::size_t count,
                          const ColumnOptions& options) try {
  if (options.valid.empty() && !options.is_nullable) return {};
  if (!options.valid.empty() && options.valid.size() != count) {
    return Failure(ErrorCode::size_mismatch,
                   "{actual} validity flags were given for {expected} values. Pass one per value.",
                   options.site)
        .with("actual", options.valid.size())
        .with("expected", count);
  }
  std::vector<std::byte> bits(bitmap_bytes(count), std::byte{0});
  if (!options.valid.empty()) {
    pack_bits(options.valid, bits.data());
  } else {
    const std::vector<std::uint8_t> all(count, 1);
    pack_bits(all, bits.data());
  }
  parts.null_count = count - count_bits(bits.data(), 0, count);
  Result<Buffer> made = try_upload(device, DType::byte, bits.data(), bits.size(), options);
  if (!made) return made.failure();
  parts.validity = *std::move(made);
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("a column", options.site);
}

bool is_written(const Buffer& buffer, std::size_t offset, std::size_t bytes) noexcept {
  if (bytes == 0) return true;
  return static_cast<bool>(
      buffer.storage()->check_written(buffer.offset_bytes() + offset, bytes, {}));
}

/// Copies bytes from one buffer to another. Waits if there is no stream.
Result<void> move_bytes(const Buffer& to, std::size_t to_offset, const Buffer& from,
                        std::size_t offset, std::size_t bytes, StreamRef stream,
                        CallSite site) noexcept {
  if (bytes == 0) return {};
  Result<Buffer> source = from.try_as(DType::byte, site);
  if (source) source = source->try_byte_view(offset, bytes, site);
  if (!source) return source.failure();
  Result<Buffer> target = to.try_as(DType::byte, site);
  if (target) target = target->try_byte_view(to_offset, bytes, site);
  if (!target) return target.failure();
  if (!stream.id()) return try_copy(*target, *source, site);
  const Result<Mark> copied = try_copy(*target, *source, stream, site);
  return copied ? Result<void>() : Result<void>(copied.failure());
}

[[gnu::cold, gnu::noinline]] Failure no_offsets(const LogicalType& type, CallSite site) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "a column of {value} has no '{name}'. Only texts and binaries have them.", site)
      .with("name", "offsets")
      .with("value", name(type.kind()));
}

[[gnu::cold, gnu::noinline]] Failure too_many_nulls(std::size_t nulls, std::size_t most,
                                                    CallSite site) noexcept {
  return Failure(
             ErrorCode::invalid_argument,
             "'{name}' of a column cannot be {value}: the column can have at most {most} nulls.",
             site)
      .with("name", "null_count")
      .with("value", nulls)
      .with("most", most);
}

/// Checks that all buffers with bytes are on one device.
[[gnu::noinline]] Result<void> check_devices(const ColumnParts& parts, CallSite site) noexcept {
  const Device* first = nullptr;
  for (const Buffer* part : {&parts.values, &parts.validity, &parts.offsets}) {
    if (!*part || part->size_bytes() == 0) continue;
    if (first == nullptr) first = &part->device();
    if (*first != part->device()) {
      return Failure(ErrorCode::device_mismatch,
                     "the buffers of a column are on '{a}' and on '{b}'. Copy them to one device.",
                     site)
          .with("a", first->spec())
          .with("b", part->device().spec());
    }
  }
  return {};
}

}  // namespace

Result<Column> Column::try_over(LogicalType type, std::size_t capacity, ColumnParts parts,
                                CallSite site) noexcept {
  Column made;
  made.type_ = std::move(type);
  made.parts_ = std::move(parts);
  if (Result<void> filled = made.try_fill(capacity, site); !filled) return filled.failure();
  return made;
}

Result<void> Column::try_fill(std::size_t capacity, CallSite site) noexcept {
  const LogicalType& type = type_;
  ColumnParts& parts = parts_;
  const std::optional<std::size_t> end = checked_add(parts.first, capacity);
  const DType dtype = type.dtype();
  const std::optional<std::size_t> bytes = end ? value_bytes(type, dtype, *end) : std::nullopt;
  if (!bytes || *bytes > max_request_bytes) return too_large(capacity, site);
  if (!is_fine(parts.values, *bytes, dtype)) {
    if (Result<void> fine = check_part(parts.values, "values", *bytes, dtype, site); !fine) {
      return fine;
    }
  }
  if (type.is_variable()) {
    const std::optional<std::size_t> needed = offset_bytes(type, *end);
    if (!needed || *needed > max_request_bytes) return too_large(capacity, site);
    // A column without values needs no offsets.
    const std::size_t least = capacity == 0 && !parts.offsets ? 0 : *needed;
    if (Result<void> fine = check_part(parts.offsets, "offsets", least, type.offset_dtype(), site);
        !fine) {
      return fine;
    }
  } else if (parts.offsets) {
    return no_offsets(type, site);
  }
  if (parts.validity && !is_fine(parts.validity, bitmap_bytes(*end), DType::byte)) {
    if (Result<void> fine =
            check_part(parts.validity, "validity", bitmap_bytes(*end), DType::byte, site);
        !fine) {
      return fine;
    }
  }
  const std::size_t most = parts.validity ? capacity : 0;
  if (const std::size_t nulls = parts.null_count.value_or(0); nulls > most) {
    return too_many_nulls(nulls, most, site);
  }
  if (!parts.validity) parts.null_count = 0;
  // One buffer is on one device.
  if (parts.validity || parts.offsets) {
    if (Result<void> same = check_devices(parts, site); !same) return same;
  }
  capacity_ = capacity;
  return {};
}

Result<Column> Column::try_allocate(const Device& device, LogicalType type, std::size_t capacity,
                                    const ColumnOptions& options) noexcept {
  const CallSite site = options.site;
  const std::optional<std::size_t> bytes = value_bytes(type, capacity);
  if (!bytes || *bytes > max_request_bytes) return too_large(capacity, site);
  ColumnParts parts;
  const std::size_t data = type.is_variable() ? options.data_bytes : *bytes;
  Result<Buffer> values =
      try_new_buffer(device, type.dtype(), data / size_bytes(type.dtype()), options);
  if (!values) return values.failure();
  parts.values = *std::move(values);
  if (type.is_variable()) {
    const std::optional<std::size_t> needed = offset_bytes(type, capacity);
    if (!needed || *needed > max_request_bytes) return too_large(capacity, site);
    Result<Buffer> offsets = try_new_buffer(device, type.offset_dtype(), capacity + 1, options);
    if (!offsets) return offsets.failure();
    parts.offsets = *std::move(offsets);
  }
  if (options.is_nullable || !options.valid.empty()) {
    if (Result<void> added = add_validity(parts, device, capacity, options); !added) {
      return added.failure();
    }
    // The null count is unknown, because the bitmap will be written later.
    if (options.valid.empty()) parts.null_count = {};
  }
  return try_over(std::move(type), capacity, std::move(parts), site);
}

Result<Column> Column::try_from(const Device& device, const void* values, std::size_t count,
                                DType dtype, LogicalType type,
                                const ColumnOptions& options) noexcept try {
  const CallSite site = options.site;
  ColumnParts parts;
  Result<Buffer> made = Buffer();
  if (type.is_bits() && size_bytes(dtype) == 1) {
    std::vector<std::byte> bits(bitmap_bytes(count));
    pack_bits({static_cast<const std::uint8_t*>(values), count}, bits.data());
    made = try_upload(device, DType::byte, bits.data(), bits.size(), options);
  } else {
    if (type.is_bits() || type.is_variable() || dtype != type.dtype()) {
      return not_of_type("values", dtype, name(type.kind()), site);
    }
    const std::optional<std::size_t> bytes = checked_multiply(count, size_bytes(dtype));
    if (!bytes) return too_large(count, site);
    made = try_upload(device, dtype, values, *bytes, options);
  }
  if (!made) return made.failure();
  parts.values = *std::move(made);
  if (Result<void> added = add_validity(parts, device, count, options); !added) {
    return added.failure();
  }
  return try_over(std::move(type), count, std::move(parts), site);
} catch (const std::bad_alloc&) {
  return no_host_memory("a column", options.site);
}

Result<Column> Column::try_from_strings(const Device& device,
                                        std::span<const std::string_view> values, LogicalType type,
                                        const ColumnOptions& options) noexcept try {
  if (!type.is_variable()) {
    return not_of_type("values", DType::byte, name(type.kind()), options.site);
  }
  std::vector<std::int64_t> offsets;
  offsets.reserve(values.size() + 1);
  offsets.push_back(0);
  for (const std::string_view value : values) {
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(value.size()));
  }
  ColumnParts parts;
  Result<Buffer> made = try_upload_offsets(device, type.offset_dtype(), offsets, options);
  if (!made) return made.failure();
  parts.offsets = *std::move(made);
  std::string data;
  data.reserve(static_cast<std::size_t>(offsets.back()));
  for (const std::string_view value : values) data += value;
  made = try_upload(device, DType::byte, data.data(), data.size(), options);
  if (!made) return made.failure();
  parts.values = *std::move(made);
  if (Result<void> added = add_validity(parts, device, values.size(), options); !added) {
    return added.failure();
  }
  return try_over(std::move(type), values.size(), std::move(parts), options.site);
} catch (const std::bad_alloc&) {
  return no_host_memory("a column", options.site);
}

Result<Column> Column::try_pack(const Buffer& booleans, const ColumnOptions& options) noexcept {
  if (size_bytes(booleans.dtype()) != 1) {
    return not_of_type("values", booleans.dtype(), "bool", options.site);
  }
  const Result<std::vector<std::byte>> bytes =
      try_download(booleans, 0, booleans.size_bytes(), options.site);
  if (!bytes) return bytes.failure();
  return try_from(booleans.device(), bytes->data(), bytes->size(), DType::boolean,
                  TypeKind::boolean, options);
}

Result<Buffer> Column::try_unpack(CallSite site) const noexcept try {
  if (!type_.is_bits()) return not_of_type("values", type_.dtype(), "bool", site);
  const Result<HostBits> bits = try_download_bits(parts_.values, parts_.first, capacity_, site);
  if (!bits) return bits.failure();
  std::vector<std::uint8_t> bytes(capacity_);
  unpack_bits(bits->bytes.data(), bits->first, bytes);
  return try_upload(device(), DType::boolean, bytes.data(), bytes.size(), {.site = site});
} catch (const std::bad_alloc&) {
  return no_host_memory("a column", site);
}

Buffer Column::values() const {
  if (type_.is_bits() || type_.is_variable()) return parts_.values;
  return capacity_ == 0 && !parts_.values ? Buffer() : parts_.values.slice(parts_.first, capacity_);
}

Buffer Column::offsets() const {
  return parts_.offsets ? parts_.offsets.slice(parts_.first, capacity_ + 1) : Buffer();
}

Result<std::size_t> Column::try_count_nulls(std::size_t rows, CallSite site) const noexcept {
  if (!parts_.validity || rows == 0) return std::size_t{0};
  if (rows > capacity_) rows = capacity_;
  if (parts_.null_count && (rows == capacity_ || *parts_.null_count == 0)) {
    return *parts_.null_count;
  }
  const Result<HostBits> bits = try_download_bits(parts_.validity, parts_.first, rows, site);
  if (!bits) return bits.failure();
  return rows - count_bits(bits->bytes.data(), bits->first, rows);
}

const Device& Column::device() const noexcept {
  for (const Buffer* part : {&parts_.values, &parts_.offsets, &parts_.validity}) {
    if (*part && part->size_bytes() != 0) return part->device();
  }
  return parts_.values.device();
}

Result<std::size_t> Column::try_bytes() const noexcept {
  std::optional<std::size_t> total = value_bytes(type_, capacity_);
  if (total && type_.is_variable()) {
    total = checked_add(parts_.values.size_bytes(), offset_bytes(type_, capacity_).value_or(0));
  }
  if (total && parts_.validity) total = checked_add(*total, bitmap_bytes(capacity_));
  if (!total) return too_large(capacity_, {});
  return *total;
}

Result<Column> Column::try_slice(std::size_t first, std::size_t count, CallSite site) const noexcept
    try {
  if (!is_within(first, count, capacity_)) {
    return Failure(
               ErrorCode::invalid_view,
               "values {first} to {end} exceed a column of {count} values. Use a smaller range.",
               site)
        .with("first", first)
        .with("end", checked_add(first, count).value_or(~std::size_t{0}))
        .with("count", capacity_);
  }
  Column part = *this;
  part.parts_.first += first;
  part.capacity_ = count;
  const bool is_known = parts_.null_count == 0u || count == capacity_;
  if (!is_known) {
    part.parts_.null_count = {};
    if (parts_.null_count == capacity_) part.parts_.null_count = count;
  }
  if (count == 0) part.parts_.null_count = 0;
  return part;
} catch (const std::bad_alloc&) {
  return no_host_memory("a column", site);  // copying the name of a time zone may throw
}

Result<Column> Column::try_copy_to(const Device& device, std::size_t rows, StreamRef stream,
                                   const ColumnOptions& options) const noexcept try {
  const CallSite site = options.site;
  if (rows > capacity_) rows = capacity_;
  // The copy begins at the same bit of a byte as the original, so that bits need not be shifted.
  const std::size_t skipped = parts_.first % 8, base = parts_.first - skipped;
  const std::size_t end = parts_.first + rows, room = skipped + capacity_;
  ColumnParts parts;
  parts.first = skipped;
  const auto copy_part = [&](const Buffer& from, Buffer& to, DType dtype, std::size_t count,
                             std::size_t to_begin, std::size_t begin,
                             std::size_t bytes) -> Result<void> {
    Result<Buffer> made = try_new_buffer(device, dtype, count, options);
    if (!made) return made.failure();
    to = *std::move(made);
    return move_bytes(to, to_begin, from, begin, bytes, stream, site);
  };
  Result<void> done;
  if (type_.is_variable()) {
    const std::size_t width = size_bytes(type_.offset_dtype());
    // The offsets say which bytes are texts. The others may never have been written.
    Result<std::vector<ByteRange>> texts = std::vector<ByteRange>();
    if (rows != 0 && parts_.values) {
      texts = parts_.values.storage()->try_written_ranges(parts_.values.offset_bytes(),
                                                          parts_.values.size_bytes());
    }
    if (!texts) return texts.failure();
    done = copy_part(parts_.values, parts.values, DType::byte, parts_.values.size_bytes(), 0, 0, 0);
    for (const ByteRange& text : *texts) {
      if (!done) break;
      const std::size_t begin = text.begin - parts_.values.offset_bytes();
      done = move_bytes(parts.values, begin, parts_.values, begin, text.end - text.begin, stream,
                        site);
    }
    if (done) {
      const std::size_t begin = parts_.first * width;
      const std::size_t bytes = parts_.offsets ? (rows + 1) * width : 0;
      // A column without rows need not have written offsets.
      const bool is_there = rows != 0 || is_written(parts_.offsets, begin, bytes);
      done = copy_part(parts_.offsets, parts.offsets, type_.offset_dtype(), room + 1,
                       skipped * width, begin, is_there ? bytes : 0);
    }
  } else if (type_.is_bits()) {
    done = copy_part(parts_.values, parts.values, DType::byte, bitmap_bytes(room), 0, base / 8,
                     rows == 0 ? 0 : bitmap_bytes(end) - base / 8);
  } else {
    // Elements before the column are not copied: they may never have been written.
    const std::size_t width = size_bytes(type_.dtype());
    done = copy_part(parts_.values, parts.values, type_.dtype(), room, skipped * width,
                     parts_.first * width, rows * width);
  }
  if (done && parts_.validity) {
    // Bits behind the rows are copied too, as far as they are written: an allocated column has ones
    // for the rows that are filled later.
    const std::size_t begin = parts_.validity.offset_bytes() + base / 8;
    const Result<std::vector<ByteRange>> written =
        parts_.validity.storage()->try_written_ranges(begin, bitmap_bytes(room));
    if (!written) return written.failure();
    std::size_t bytes = rows == 0 ? 0 : bitmap_bytes(end) - base / 8;
    if (!written->empty() && written->front().begin == begin) {
      bytes = std::max(bytes, written->front().end - begin);
    }
    done = copy_part(parts_.validity, parts.validity, DType::byte, bitmap_bytes(room), 0, base / 8,
                     bytes);
    for (const ByteRange& range : *written) {
      if (!done) break;
      if (range.begin < begin + bytes) continue;
      done = move_bytes(parts.validity, range.begin - begin, parts_.validity,
                        range.begin - parts_.validity.offset_bytes(), range.end - range.begin,
                        stream, site);
    }
    parts.null_count = parts_.null_count == 0u || rows == capacity_ ? parts_.null_count
                                                                    : std::optional<std::size_t>();
  }
  if (!done) return done.failure();
  return try_over(type_, capacity_, std::move(parts), site);
} catch (const std::bad_alloc&) {
  return no_host_memory("a column", options.site);
}

Result<Column> Column::try_concat(std::span<const Column> columns,
                                  const ColumnOptions& options) noexcept try {
  const CallSite site = options.site;
  if (columns.empty()) {
    return Failure(ErrorCode::invalid_argument,
                   "'{name}' of a concatenation are {value}. Pass at least one.", site)
        .with("name", "columns")
        .with("value", std::uint64_t{0});
  }
  const LogicalType type = columns[0].type_;
  std::size_t total = 0;
  bool is_nullable = options.is_nullable;
  Device device = columns[0].device();
  for (const Column& column : columns) {
    if (column.type_ != type) {
      return Failure(ErrorCode::type_mismatch,
                     "a column of {actual} cannot be appended to a column of {expected}. Convert "
                     "it first.",
                     site)
          .with("actual", name(column.type_.kind()))
          .with("expected", name(type.kind()));
    }
    const std::optional<std::size_t> sum = checked_add(total, column.capacity_);
    if (!sum) return too_large(column.capacity_, site);
    total = *sum;
    is_nullable |= column.is_nullable();
    if (!device.is_open()) device = column.device();
  }
  if (!device.is_open()) return columns[0];

  ColumnParts parts;
  if (type.is_variable()) {
    std::vector<std::int64_t> offsets = {0};
    offsets.reserve(total + 1);
    std::vector<ByteRange> ranges;
    for (const Column& column : columns) {
      const auto own = try_download_offsets(column, column.capacity_, site);
      if (!own) return own.failure();
      const std::int64_t shift = offsets.back() - own->front();
      for (std::size_t i = 1; i < own->size(); ++i) offsets.push_back((*own)[i] + shift);
      ranges.push_back(
          {static_cast<std::size_t>(own->front()), static_cast<std::size_t>(own->back())});
    }
    Result<Buffer> made = try_upload_offsets(device, type.offset_dtype(), offsets, options);
    if (!made) return made.failure();
    parts.offsets = *std::move(made);
    made = try_new_buffer(device, DType::byte, static_cast<std::size_t>(offsets.back()), options);
    if (!made) return made.failure();
    parts.values = *std::move(made);
    std::size_t at = 0;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::size_t bytes = ranges[i].end - ranges[i].begin;
      if (Result<void> moved = move_bytes(parts.values, at, columns[i].parts_.values,
                                          ranges[i].begin, bytes, {}, site);
          !moved) {
        return moved.failure();
      }
      at += bytes;
    }
  } else if (type.is_bits()) {
    std::vector<std::byte> all(bitmap_bytes(total), std::byte{0});
    std::size_t at = 0;
    for (const Column& column : columns) {
      const Result<HostBits> own =
          try_download_bits(column.parts_.values, column.parts_.first, column.capacity_, site);
      if (!own) return own.failure();
      copy_bits(own->bytes.data(), own->first, all.data(), at, column.capacity_);
      at += column.capacity_;
    }
    Result<Buffer> made = try_upload(device, DType::byte, all.data(), all.size(), options);
    if (!made) return made.failure();
    parts.values = *std::move(made);
  } else {
    const std::size_t width = size_bytes(type.dtype());
    if (!checked_multiply(total, width)) return too_large(total, site);
    Result<Buffer> made = try_new_buffer(device, type.dtype(), total, options);
    if (!made) return made.failure();
    parts.values = *std::move(made);
    std::size_t at = 0;
    for (const Column& column : columns) {
      if (Result<void> moved =
              move_bytes(parts.values, at, column.parts_.values, column.parts_.first * width,
                         column.capacity_ * width, {}, site);
          !moved) {
        return moved.failure();
      }
      at += column.capacity_ * width;
    }
  }
  if (is_nullable) {
    std::vector<std::byte> all(bitmap_bytes(total), std::byte{0});
    std::size_t at = 0;
    for (const Column& column : columns) {
      if (column.is_nullable()) {
        const Result<HostBits> own =
            try_download_bits(column.parts_.validity, column.parts_.first, column.capacity_, site);
        if (!own) return own.failure();
        copy_bits(own->bytes.data(), own->first, all.data(), at, column.capacity_);
      } else {
        for (std::size_t i = at; i < at + column.capacity_; ++i) {
          all[i / 8] |= static_cast<std::byte>(1u << (i % 8));
        }
      }
      at += column.capacity_;
    }
    parts.null_count = total - count_bits(all.data(), 0, total);
    Result<Buffer> made = try_upload(device, DType::byte, all.data(), all.size(), options);
    if (!made) return made.failure();
    parts.validity = *std::move(made);
  }
  return try_over(type, total, std::move(parts), site);
} catch (const std::bad_alloc&) {
  return no_host_memory("a column", options.site);
}

std::vector<bool> Column::to_valid(CallSite site) const {
  std::vector<bool> valid(capacity_, true);
  if (!parts_.validity) return valid;
  const HostBits bits = try_download_bits(parts_.validity, parts_.first, capacity_, site).value();
  for (std::size_t i = 0; i < capacity_; ++i) valid[i] = bit_at(bits.bytes.data(), bits.first + i);
  return valid;
}

std::vector<bool> Column::to_bools(CallSite site) const {
  if (!type_.is_bits()) raise(not_of_type("values", type_.dtype(), "bool", site));
  const HostBits bits = try_download_bits(parts_.values, parts_.first, capacity_, site).value();
  std::vector<bool> bools(capacity_);
  for (std::size_t i = 0; i < capacity_; ++i) bools[i] = bit_at(bits.bytes.data(), bits.first + i);
  return bools;
}

std::vector<std::string> Column::to_strings(CallSite site) const {
  if (!type_.is_variable()) raise(not_of_type("values", type_.dtype(), "utf8", site));
  const std::vector<std::int64_t> offsets = try_download_offsets(*this, capacity_, site).value();
  const std::size_t begin = static_cast<std::size_t>(offsets.front());
  const std::vector<std::byte> data =
      try_download(parts_.values, begin, static_cast<std::size_t>(offsets.back()) - begin, site)
          .value();
  std::vector<std::string> strings;
  strings.reserve(capacity_);
  for (std::size_t i = 0; i < capacity_; ++i) {
    strings.emplace_back(
        reinterpret_cast<const char*>(data.data()) + (offsets[i] - offsets.front()),
        static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
  }
  return strings;
}

}  // namespace tern
