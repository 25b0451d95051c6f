// What all copies are made of: checks of the two sides, and the run of one on its route.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/storage.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Rows of one size, as many as there are in all slices, from one storage to another.
struct CopyRows {
  struct Side {
    std::size_t offset = 0;  // of the first row, in the storage
    std::size_t row_bytes = 0, slice_bytes = 0;
  };
  Storage& to;
  Side to_side;
  Storage& from;
  Side from_side;
  std::size_t width = 0, height = 1, depth = 1;

  [[nodiscard]] std::size_t bytes() const noexcept { return width * height * depth; }
  /// From the first byte to behind the last.
  [[nodiscard]] std::size_t extent(const Side& side) const noexcept {
    return (depth - 1) * side.slice_bytes + (height - 1) * side.row_bytes + width;
  }
  [[nodiscard]] bool is_one_range() const noexcept { return height == 1 && depth == 1; }

  /// `call(to_offset, from_offset)` for each row, until one is refused.
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

/// Whose the further streams are that a copy may need: those of the library, if the host waits for
/// the copy anyway, or fresh ones, which nobody else is kept waiting by.
enum class FurtherStreams : std::uint8_t { library, fresh };

/// Both are buffers, and the destination is no file.
[[nodiscard]] Result<void> check_sides(const Buffer& destination, const Buffer& source,
                                       CallSite site) noexcept;
/// And of one size.
[[nodiscard]] Result<void> check_same_size(const Buffer& destination, const Buffer& source,
                                           CallSite site) noexcept;
[[nodiscard]] CopyRows rows_of(const Buffer& destination, const Buffer& source) noexcept;

/// Does the stream take work? In the words of the stream.
[[nodiscard]] Result<void> check_stream(StreamRef stream, CallSite site) noexcept;
/// Are all rows of the source written, and does no host access stand against the copy?
[[nodiscard]] Result<void> check_rows(const CopyRows& rows, CallSite site) noexcept;
[[nodiscard]] Failure no_way(const Storage& to, const Storage& from, std::string_view device,
                             CallSite site) noexcept;

/// Some bytes of a checked copy, in stream order. The sides may overlap if they are one range.
/// Gives the way they took.
[[nodiscard]] Result<CopyRoute> try_run_copy(const CopyRows& rows, StreamRef stream,
                                             FurtherStreams further, CallSite site) noexcept;

/// What a call returns that had nothing to do.
[[nodiscard]] inline Mark mark_of_nothing(StreamRef stream) noexcept { return stream.next_mark(); }

/// A file into host memory, by the host and at once.
[[nodiscard]] Result<void> try_read_file(Storage& to, std::size_t to_offset, Storage& from,
                                         std::size_t from_offset, std::size_t bytes,
                                         CallSite site) noexcept;

}  // namespace tern
