// The internals of all copies: checks of both sides, and running a copy on its route.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "buffer/copy_route.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// A copy of equally long rows, in slices, from one storage to another. A plain copy is one row.
struct CopyRows {
  struct Side {
    std::size_t offset = 0;  // of the first row in the storage
    std::size_t row_bytes = 0, slice_bytes = 0;
  };
  Storage& to;
  Side to_side;
  Storage& from;
  Side from_side;
  std::size_t width = 0, height = 1, depth = 1;

  [[nodiscard]] std::size_t bytes() const noexcept { return width * height * depth; }
  /// Distance from the first byte of the first row to the end of the last row.
  [[nodiscard]] std::size_t extent(const Side& side) const noexcept {
    return (depth - 1) * side.slice_bytes + (height - 1) * side.row_bytes + width;
  }
  [[nodiscard]] bool is_one_range() const noexcept { return height == 1 && depth == 1; }

  /// Calls call(to_offset, from_offset) for each row, until one fails.
  template <class Call>
  [[nodiscard]] Result<void> for_each_row(Call call) const noexcept {
    for (std::size_t z = 0; z < depth; ++z) {
      for (std::size_t y = 0; y < height; ++y) {
        const auto at = [&](const Side& side) {
          return side.offset + z * side.slice_bytes + y * side.row_bytes;
        };
        if (Result<void> done = call(at(to_side), at(from_side)); !done) return done;
      }
    }
    return {};
  }
};

/// Which additional streams a copy uses if it needs any: the library's copy streams, if the host
/// waits for the copy anyway, or new streams, which delay no other copy.
enum class FurtherStreams : std::uint8_t { library, fresh };

/// Checks that both sides have a storage and that the destination is writable.
[[nodiscard]] Result<void> check_sides(const Buffer& destination, const Buffer& source,
                                       CallSite site) noexcept;
/// Checks that both sides have the same number of bytes.
[[nodiscard]] Result<void> check_same_size(const Buffer& destination, const Buffer& source,
                                           CallSite site) noexcept;
/// Returns the copy of a whole buffer as one row.
[[nodiscard]] CopyRows rows_of(const Buffer& destination, const Buffer& source) noexcept;

/// Checks that the stream accepts work. Fails with the error of the stream.
[[nodiscard]] Result<void> check_stream(StreamRef stream, CallSite site) noexcept;
/// Checks that all rows of the source are written and that no open host access conflicts with the
/// copy.
[[nodiscard]] Result<void> check_rows(const CopyRows& rows, CallSite site) noexcept;
/// Returns the device_mismatch failure for a stream that can run neither side.
[[nodiscard]] Failure no_copy_route(const Storage& to, const Storage& from, std::string_view device,
                                    CallSite site) noexcept;

/// Runs a checked copy of more than 0 bytes in stream order. The sides may overlap if each is one
/// range. Returns the route that was taken.
[[nodiscard]] Result<CopyRoute> try_run_copy(const CopyRows& rows, StreamRef stream,
                                             FurtherStreams further, CallSite site) noexcept;

/// The mark that a call returns if it had nothing to do.
[[nodiscard]] inline Mark mark_of_nothing(StreamRef stream) noexcept { return stream.next_mark(); }

/// Reads a file range into host memory on the host, and returns when it is done.
[[nodiscard]] Result<void> try_read_file(Storage& to, std::size_t to_offset, Storage& from,
                                         std::size_t from_offset, std::size_t bytes,
                                         CallSite site) noexcept;
/// Writes host memory to a file range on the host, and returns when it is done.
[[nodiscard]] Result<void> try_write_file(Storage& to, std::size_t to_offset, Storage& from,
                                          std::size_t from_offset, std::size_t bytes,
                                          CallSite site) noexcept;

}  // namespace tern
