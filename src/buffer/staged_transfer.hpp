// A StagedTransfer moves bytes through two pieces of host memory, for sides that no stream reaches
// both of: devices of different backends, devices that are no peers, and files, which the host
// reads.
//
// While the second half of one piece is under way, the first half of the next is: each half is
// ordered by the uses of the memory in between, which is a storage like any other. That is
// page-locked where one of the devices has such memory, and given back in stream order.
//
// Pieces are added one by one, then the transfer is finished. Where it ends without that, what was
// submitted is on record on both sides, and the destination counts as written as far as it is. A
// value for one thread.

#pragma once

#include <array>
#include <cstddef>

#include "tern/buffer/storage.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class StagedTransfer {
 public:
  static constexpr std::size_t chunk_bytes = 4 * mib;

  /// What the memory in between may be. Streams that are simulated apart share no page-locked one:
  /// each checker would miss what the other's streams do there.
  enum class Between : std::uint8_t { pinned, pageable };

  /// The reader is a stream that reaches the source, or none, and then that is a file; the writer
  /// one that reaches the destination. Both storages outlive the transfer.
  StagedTransfer(Storage& to, StreamRef writer, Storage& from, StreamRef reader, CallSite site,
                 Between between = Between::pinned) noexcept
      : to_(to), from_(from), writer_(writer), reader_(reader), site_(site), between_(between) {}
  StagedTransfer(const StagedTransfer&) = delete;
  StagedTransfer& operator=(const StagedTransfer&) = delete;
  ~StagedTransfer();

  /// Takes the memory in between, for pieces of up to `most_bytes` and so many bytes in all, and
  /// begins the uses of both sides.
  [[nodiscard]] Result<void> try_begin(std::size_t most_bytes, std::size_t total_bytes) noexcept;
  /// Of any size: cut as needed.
  [[nodiscard]] Result<void> try_add(std::size_t to_offset, std::size_t from_offset,
                                     std::size_t bytes) noexcept;
  /// All is submitted, and later work of the stream comes behind it: it carries the uses from here.
  [[nodiscard]] Result<void> try_finish(StreamRef stream) noexcept;

 private:
  struct Piece {
    std::size_t chunk = 0;
    std::size_t offset = 0;  // in the destination
    std::size_t bytes = 0;
  };

  [[nodiscard]] Result<StorageHandle> try_make_chunk() noexcept;
  /// The first half of a piece.
  [[nodiscard]] Result<void> try_read(Storage& chunk, std::size_t offset,
                                      std::size_t bytes) noexcept;
  /// The second half of the piece that was read last.
  [[nodiscard]] Result<void> try_write_last() noexcept;

  Storage& to_;
  Storage& from_;
  const StreamRef writer_;
  const StreamRef reader_;
  const CallSite site_;
  const Between between_;

  std::size_t size_ = 0;  // of a chunk
  std::size_t count_ = 0;
  std::size_t next_ = 0;
  std::array<StorageHandle, 2> chunks_;
  Piece last_ = {};
  StorageUse to_use_, from_use_;
  bool has_read_ = false, has_written_ = false;
};

}  // namespace tern
