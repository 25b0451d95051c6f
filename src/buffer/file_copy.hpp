// Copies between a file and memory in the order of a stream, while the calling thread goes on.
//
// The file is read or written by FileTransfers. Host functions of the stream start the transfers
// and wait for them, so later work of the stream runs after them. Between the file and memory that
// the file system cannot use, the bytes go through a ring of page-locked chunks: while the stream
// copies one chunk, the next chunks are being read or written. Host memory needs no chunks, except
// on a device with a checker, which sees only what its streams do.
//
// If a transfer fails, the copy goes on without it. The failure is reported where the program looks
// next: by the next synchronize() of the stream, and by every later use of the bytes (Arrival).

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "buffer/copy_engine.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class ChunkSums;

class FileCopy {
 public:
  static constexpr std::size_t chunk_bytes = 8 * mib;
  static constexpr std::size_t chunks = 3;

  /// Whether the next synchronize() of the stream returns a late failure. Blocking copies return it
  /// themselves.
  enum class Reports : std::uint8_t { on_stream, on_bytes_only };

  /// Returns whether the copy can run in the background: the file can be transferred, and the
  /// device has host functions.
  [[nodiscard]] static bool is_possible(const CopyRows& rows, StreamRef runner) noexcept;
  /// Submits a copy, of which exactly one side is a file. `runner` is `stream`, or a stream that
  /// reaches the memory if `stream` does not. The caller has ordered it after `stream`, and the
  /// uses end on `stream`, which is ordered after the copy. Fails with file if a file that is read
  /// is too short now, and with stream_misuse if the stream is being captured. A copy of one row to
  /// the beginning of a file sets the checksums of its chunks in `sums`, if there are any.
  [[nodiscard]] static Result<void> try_run(const CopyRows& rows, StreamRef stream,
                                            StreamRef runner, Reports reports, CallSite site,
                                            std::shared_ptr<ChunkSums> sums = {}) noexcept;
};

}  // namespace tern
