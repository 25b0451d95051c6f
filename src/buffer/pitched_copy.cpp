// Checks of pitched copies; copy_engine.cpp runs them.

#include <optional>

#include "buffer/copy_engine.hpp"
#include "buffer/transfer_counts.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

/// The parameter names of one side, for its error messages.
struct Names {
  const char* side;
  const char* row;
  const char* slice;
};
constexpr Names destination_names = {"destination", "destination_pitch.row_bytes",
                                     "destination_pitch.slice_bytes"};
constexpr Names source_names = {"source", "source_pitch.row_bytes", "source_pitch.slice_bytes"};

Failure too_small(const char* name, std::size_t value, std::size_t least, CallSite site) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "{name} is {value}, which is less than the {least} bytes between two starts, so "
                 "rows or slices would overlap. Raise it to at least {least}.",
                 site)
      .with("name", name)
      .with("value", value)
      .with("least", least);
}

Failure overflow(const char* side, CallSite site) noexcept {
  return Failure(ErrorCode::size_overflow,
                 "the rows of the {what} overflow a 64-bit size. Copy fewer rows.", site)
      .with("what", side);
}

/// Returns the extent of `count` pieces of `bytes` that are `apart` bytes apart, if it does not
/// overflow.
std::optional<std::size_t> span_of(std::size_t count, std::size_t apart,
                                   std::size_t bytes) noexcept {
  const std::optional<std::size_t> before = checked_multiply(count - 1, apart);
  return before ? checked_add(*before, bytes) : before;
}

Result<void> check_side(const Names& names, const Buffer& buffer, const Pitch& pitch,
                        const Extent& extent, CallSite site) noexcept {
  if (extent.height > 1 && pitch.row_bytes < extent.width_bytes) {
    return too_small(names.row, pitch.row_bytes, extent.width_bytes, site);
  }
  const std::optional<std::size_t> slice =
      span_of(extent.height, pitch.row_bytes, extent.width_bytes);
  if (!slice) return overflow(names.side, site);
  if (extent.depth > 1 && pitch.slice_bytes < *slice) {
    return too_small(names.slice, pitch.slice_bytes, *slice, site);
  }
  const std::optional<std::size_t> all = span_of(extent.depth, pitch.slice_bytes, *slice);
  if (!all) return overflow(names.side, site);
  if (is_within(pitch.offset_bytes, *all, buffer.size_bytes())) return {};
  return Failure(
             ErrorCode::invalid_view,
             "{size} bytes of rows at offset {offset} exceed the {name}, which has {extent} bytes.",
             site)
      .with("offset", pitch.offset_bytes)
      .with("size", *all)
      .with("extent", buffer.size_bytes())
      .with("name", names.side);
}

}  // namespace

Result<Mark> try_copy_pitched(const Buffer& destination, const Pitch& destination_pitch,
                              const Buffer& source, const Pitch& source_pitch, const Extent& extent,
                              StreamRef stream, CallSite site) noexcept {
  if (Result<void> sound = check_sides(destination, source, site); !sound) return sound.failure();
  if (extent.width_bytes == 0 || extent.height == 0 || extent.depth == 0) {
    return mark_of_nothing(stream);
  }
  if (Result<void> fits =
          check_side(destination_names, destination, destination_pitch, extent, site);
      !fits) {
    return fits.failure();
  }
  if (Result<void> fits = check_side(source_names, source, source_pitch, extent, site); !fits) {
    return fits.failure();
  }
  const auto side_of = [](const Buffer& buffer, const Pitch& pitch) {
    return CopyRows::Side{buffer.offset_bytes() + pitch.offset_bytes, pitch.row_bytes,
                          pitch.slice_bytes};
  };
  const CopyRows rows = {*destination.storage(),
                         side_of(destination, destination_pitch),
                         *source.storage(),
                         side_of(source, source_pitch),
                         extent.width_bytes,
                         extent.height,
                         extent.depth};
  if (&rows.to == &rows.from &&
      rows.to_side.offset < rows.from_side.offset + rows.extent(rows.from_side) &&
      rows.from_side.offset < rows.to_side.offset + rows.extent(rows.to_side)) {
    return Failure(
               ErrorCode::invalid_argument,
               "rows of buffer {value} cannot be copied within the buffer, because the two ranges "
               "overlap between their first and last bytes. Copy the rows to another buffer first.",
               site)
        .with("name", "source")
        .with("value", rows.to.id().value);
  }
  if (Result<void> usable = check_stream(stream, site); !usable) return usable.failure();
  if (Result<void> sound = check_rows(rows, site); !sound) return sound.failure();
  if (Result<void> may = try_download(rows.to, rows.from, rows.bytes(), stream.device_id(), site);
      !may) {
    return may.failure();
  }
  const Result<CopyRoute> queued = try_run_copy(rows, stream, FurtherStreams::fresh, site);
  if (!queued) return queued.failure();
  count_transfer(rows.to, rows.from, rows.bytes(), *queued);
  return stream.try_mark();
}

}  // namespace tern
