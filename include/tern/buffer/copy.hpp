// Copies between buffers: any kind of memory to any other, on any device.
//
// A copy takes as many bytes as both sides have; their types and shapes are not compared. It runs
// in the order of the stream it names, behind the writers of its source and the users of its
// destination, and both stay alive until it is done. Where streams can move the bytes by themselves
// the call only submits that. The host takes part where it must: it reads files, and waits for
// devices that cannot wait for each other; then the call returns when its part is done. Which way a
// copy goes follows from kinds, devices and capabilities (try_copy_route), and from nothing else.
//
// Ranges of one storage may overlap: the result is as if the source had been copied aside first.
// Zero bytes are copied without a stream. Writing a file is refused with read_only. A copy that is
// refused has changed nothing; one that fails while it moves piece by piece (staged, from a file,
// overlapping, pitched, in a batch) has moved the pieces before, and only these count as written.
// Each x() throws what try_x() returns. Thread-safe, as the buffers' storages are.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tern/buffer/buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// How the bytes of a copy travel.
enum class CopyRoute : std::uint8_t {
  direct,       // submitted to the stream
  handed_over,  // submitted to a stream of the other device, with waits on both ends
  peer,         // from a device to another of its backend, by a stream of the destination's
  staged,       // through host memory in between, piece by piece
  from_file     // read by the host: into host memory, or staged from there
};
[[nodiscard]] TERN_EXPORT std::string_view name(CopyRoute route) noexcept;

/// The way a copy on a stream of `device` takes. Refused with not_allocated for no buffer; with
/// read_only for a file as destination; with device_mismatch if neither side has to do with the
/// device.
[[nodiscard]] TERN_EXPORT Result<CopyRoute> try_copy_route(const Buffer& destination,
                                                           const Buffer& source,
                                                           const Device& device) noexcept;

/// In stream order; the mark is the copy's, and one of the stream. The stream is of the
/// destination's device or of the source's, or of any device where both are memory of the host.
/// Refused with size_mismatch, never_written, not_allocated, read_only, device_mismatch.
TERN_EXPORT Result<Mark> try_copy(const Buffer& destination, const Buffer& source, StreamRef stream,
                                  CallSite site = CallSite::here()) noexcept;
inline Mark copy(const Buffer& destination, const Buffer& source, StreamRef stream,
                 CallSite site = CallSite::here()) {
  return try_copy(destination, source, stream, site).value();
}
/// Complete on return, behind no work but what it needs.
TERN_EXPORT Result<void> try_copy(const Buffer& destination, const Buffer& source,
                                  CallSite site = CallSite::here()) noexcept;
inline void copy(const Buffer& destination, const Buffer& source,
                 CallSite site = CallSite::here()) {
  try_copy(destination, source, site).value();
}

/// Rows, and slices of rows, inside a buffer: where they begin and how far they are apart, in
/// bytes.
struct Pitch {
  std::size_t offset_bytes = 0;
  std::size_t row_bytes = 0;    // from row to row
  std::size_t slice_bytes = 0;  // from slice to slice; 0 where there is one
};
struct Extent {
  std::size_t width_bytes = 0;
  std::size_t height = 1;
  std::size_t depth = 1;
};
/// Rows no wider than they are apart, slices no smaller than their rows, all inside their buffers
/// (invalid_argument, invalid_view, size_overflow); what lies between the rows is left as it is and
/// need not be written. From first to last byte the two sides must not overlap (invalid_argument).
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

struct BufferCopy {
  Buffer destination;
  Buffer source;
};
/// Many at once, all or none submitted as far as that can be checked beforehand. They have no order
/// among each other: none may write what another one touches (invalid_argument). A refusal names
/// the copy by its `index`.
TERN_EXPORT Result<Mark> try_copy_batch(std::span<const BufferCopy> copies, StreamRef stream,
                                        CallSite site = CallSite::here()) noexcept;
inline Mark copy_batch(std::span<const BufferCopy> copies, StreamRef stream,
                       CallSite site = CallSite::here()) {
  return try_copy_batch(copies, stream, site).value();
}

}  // namespace tern
