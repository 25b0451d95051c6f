// Copies between buffers: from any kind of memory to any other, on any device.
//
//   Mark done = copy(destination, source, stream);  // in stream order
//   copy(destination, source);                      // complete on return
//
// Both buffers must have the same number of bytes; dtypes and shapes are not compared. A copy runs
// in the order of its stream, after the writes of its source and all uses of its destination. Both
// storages stay alive until the copy is done. If streams can move the bytes, the call only submits
// the copy. Files are read and written in the background. The host waits for devices that cannot
// wait for each other; then the call returns when the host's part is done. The route of a copy
// depends only on the kinds of memory, the devices and their capabilities (try_copy_route).
//
// Ranges of one storage may overlap; the result is as if the source had been copied to a temporary
// first. A copy of 0 bytes needs no stream. Writing to a read-only file fails with read_only, and
// copying a file to a file with unsupported. A copy that is
// rejected has changed nothing. A copy that runs in pieces (staged, from a file, overlapping,
// pitched, in a batch) may fail between pieces; then only the pieces already copied count as
// written. A copy with a file may fail after the call has returned. Then the next synchronize() of
// the stream returns the failure, and so does every later use of the destination until it is written
// again (file.hpp).
//
// x() throws what try_x() returns. Thread-safe, like the storages of the buffers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tern/buffer/buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Copies in stream order and returns the mark of the copy, a mark of `stream`. The stream belongs
/// to the device of the destination or of the source; if both are host memory, it may belong to any
/// device. Fails with size_mismatch, never_written, not_allocated, read_only, device_mismatch.
TERN_EXPORT Result<Mark> try_copy(const Buffer& destination, const Buffer& source, StreamRef stream,
                                  CallSite site = CallSite::here()) noexcept;
inline Mark copy(const Buffer& destination, const Buffer& source, StreamRef stream,
                 CallSite site = CallSite::here()) {
  return try_copy(destination, source, stream, site).value();
}
/// Copies and waits for the copy. Waits only for the work that the copy depends on.
TERN_EXPORT Result<void> try_copy(const Buffer& destination, const Buffer& source,
                                  CallSite site = CallSite::here()) noexcept;
inline void copy(const Buffer& destination, const Buffer& source,
                 CallSite site = CallSite::here()) {
  try_copy(destination, source, site).value();
}

/// The layout of rows, and of slices of rows, inside a buffer, in bytes.
struct Pitch {
  /// Offset of the first row in the buffer.
  std::size_t offset_bytes = 0;
  std::size_t row_bytes = 0;    // distance between the starts of two rows
  std::size_t slice_bytes = 0;  // distance between the starts of two slices; 0 if there is one
};
/// The size of a pitched copy.
struct Extent {
  std::size_t width_bytes = 0;  // bytes of a row
  std::size_t height = 1;       // rows per slice
  std::size_t depth = 1;        // slices
};
/// Copies rows and slices in stream order and returns the mark of the copy. A row must not be wider
/// than the distance between rows, a slice not larger than the distance between slices, and all
/// rows must be inside their buffers (invalid_argument, invalid_view, size_overflow). Bytes between
/// the rows are not changed and need not be written. Source and destination, each from its first to
/// its last byte, must not overlap (invalid_argument).
TERN_EXPORT Result<Mark> try_copy_pitched(const Buffer& destination, const Pitch& destination_pitch,
                                          const Buffer& source, const Pitch& source_pitch,
                                          const Extent& extent, StreamRef stream,
                                          CallSite site = CallSite::here()) noexcept;
inline Mark copy_pitched(const Buffer& destination, const Pitch& destination_pitch,
                         const Buffer& source, const Pitch& source_pitch, const Extent& extent,
                         StreamRef stream, CallSite site = CallSite::here()) {
  return try_copy_pitched(destination, destination_pitch, source, source_pitch, extent, stream,
                          site)
      .value();
}

/// One copy of a batch.
/// Both buffers have the same number of bytes. Each may be a view.
struct BufferCopy {
  Buffer destination;
  Buffer source;
};
/// Submits several copies and returns a mark after all of them. The batch is checked first; if a
/// check fails, nothing is submitted. The copies have no order among each other, so no copy may
/// write bytes that another copy touches (invalid_argument). A failure names the copy in its
/// `index` field.
TERN_EXPORT Result<Mark> try_copy_batch(std::span<const BufferCopy> copies, StreamRef stream,
                                        CallSite site = CallSite::here()) noexcept;
inline Mark copy_batch(std::span<const BufferCopy> copies, StreamRef stream,
                       CallSite site = CallSite::here()) {
  return try_copy_batch(copies, stream, site).value();
}

}  // namespace tern
