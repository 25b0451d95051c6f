// A StagedTransfer copies bytes through two chunks of host memory. It is used if no stream reaches
// both sides: devices of different backends, devices that are not peers, and files, which the host
// reads.
//
// Each piece is first read into a chunk and then written from the chunk. While one piece is being
// written, the next one is read. The uses of the chunk, which is an ordinary storage, order the two
// halves. Chunks are page-locked if one of the devices has pinned memory, and are freed in stream
// order.
//
// Call try_begin(), then try_add() for each piece, then try_finish(). If the object is destroyed
// without try_finish(), the submitted work is recorded as uses of both sides, and the pieces
// already written count as written. Not thread-safe.

#pragma once

#include <array>
#include <cstddef>

#include "tern/buffer/use.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class StagedTransfer {
 public:
  static constexpr std::size_t chunk_bytes = 4 * mib;

  /// The kind of memory of the chunks. Devices that are simulated in separate worlds must not share
  /// pinned memory: each checker would miss the accesses of the other's streams.
  enum class Between : std::uint8_t { pinned, pageable };

  /// `reader` is a stream that reaches the source; no stream means that the source is a file.
  /// `writer` is a stream that reaches the destination. Both storages must outlive the transfer.
  StagedTransfer(Storage& to, StreamRef writer, Storage& from, StreamRef reader, CallSite site,
                 Between between = Between::pinned) noexcept
      : to_(to), from_(from), writer_(writer), reader_(reader), site_(site), between_(between) {}
  StagedTransfer(const StagedTransfer&) = delete;
  StagedTransfer& operator=(const StagedTransfer&) = delete;
  ~StagedTransfer();

  /// Allocates the chunks, for pieces of up to `max_bytes` and `total_bytes` in all, and begins
  /// the uses of both sides.
  [[nodiscard]] Result<void> try_begin(std::size_t max_bytes, std::size_t total_bytes) noexcept;
  /// Adds a piece of any size. It is split into chunks.
  [[nodiscard]] Result<void> try_add(std::size_t to_offset, std::size_t from_offset,
                                     std::size_t bytes) noexcept;
  /// Submits the rest and orders `stream` after the transfer. The uses of both sides end on
  /// `stream`.
  [[nodiscard]] Result<void> try_finish(StreamRef stream) noexcept;

 private:
  struct Piece {
    std::size_t chunk = 0;
    std::size_t offset = 0;  // in the destination
    std::size_t bytes = 0;
  };

  [[nodiscard]] Result<StorageHandle> try_make_chunk() noexcept;
  /// Reads a piece from the source into a chunk.
  [[nodiscard]] Result<void> try_read(Storage& chunk, std::size_t offset,
                                      std::size_t bytes) noexcept;
  /// Writes the piece that was read last to the destination.
  [[nodiscard]] Result<void> try_write_last() noexcept;

  Storage& to_;
  Storage& from_;
  const StreamRef writer_;
  const StreamRef reader_;
  const CallSite site_;
  const Between between_;

  std::size_t size_ = 0;  // bytes per chunk
  std::size_t count_ = 0;
  std::size_t next_ = 0;
  std::array<StorageHandle, 2> chunks_;
  Piece last_ = {};
  StorageUse to_use_, from_use_;
  bool has_read_ = false, has_written_ = false;
};

}  // namespace tern
