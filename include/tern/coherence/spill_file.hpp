// A SpillFile is disk space for host copies of unified buffers that do not fit into host memory.
//
//   auto spill = SpillFile::open({.directory = "/scratch", .limit_bytes = 64 * gib});
//   UnifiedBuffer<float> rho(Shape{count}, {.device = gpu, .spill = spill});
//
// When the memory of a host copy is needed elsewhere and no other place has its bytes, the buffer
// writes them to its spill file. The next access that needs the bytes reads them back.
//
// The file has no name in its directory and mode 0600. It is deleted when the last buffer releases
// its handle, and also if the process ends in any other way. Disk blocks are allocated before they
// are written, so that a full disk is detected while the bytes are still in memory. Every extent
// has a checksum. If an extent does not read back as it was written, the access fails; no access
// returns zeros or the bytes of another buffer.
//
// Many pieces of the extents are transferred at once, around the page cache where the file system
// permits it, so that spilling does not use the memory that it frees. Checksums are computed while
// other pieces are transferred.
//
// A write above the limit fails with out_of_budget. Reading and writing wait for the disk. All
// functions may be called from any thread. Each x() throws what try_x() returns.
//
// A forked child shares the file with its parent. The child can read extents that the parent has
// not freed since. Its writes fail with after_fork, and release() changes nothing.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/coherence/spill_extent.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

class SpillFile;
class TransferFile;
/// Each buffer that spills keeps its file alive through a handle.
using SpillHandle = std::shared_ptr<SpillFile>;

/// Where the file is, and how large it may become.
struct SpillOptions {
  /// The directory in which the file is created, without a name.
  std::string directory = {};
  /// The largest size of the file. It has no default, because the disk belongs to other programs
  /// too.
  std::size_t limit_bytes = 0;
  CallSite site = CallSite::here();
};

/// The current state of a spill file, and its totals since it was opened.
struct SpillStatistics {
  std::size_t limit_bytes = 0;
  std::size_t used_bytes = 0;  // in whole blocks
  std::size_t peak_bytes = 0;
  std::size_t file_bytes = 0;  // allocated disk space; 0 again when the file is empty
  std::uint64_t written_bytes = 0;
  std::uint64_t read_bytes = 0;
  /// Extents that could not be written, and extents that could not be read back.
  std::uint64_t failed_writes = 0;
  std::uint64_t failed_reads = 0;
};

class TERN_EXPORT SpillFile {
 public:
  /// Extents begin at multiples of this size, and their disk space is rounded up to it.
  static constexpr std::size_t block_bytes = 4096;

  /// Opens a spill file. Fails with file if the directory does not exist or cannot be written, with
  /// invalid_argument if the limit is 0, and with out_of_memory.
  [[nodiscard]] static Result<SpillHandle> try_open(const SpillOptions& options) noexcept;
  [[nodiscard]] static SpillHandle open(const SpillOptions& options,
                                        CallSite site = CallSite::here()) {
    return try_open(options).value(site);
  }
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;
  ~SpillFile();

  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }
  /// Returns the figures at one moment.
  [[nodiscard]] SpillStatistics statistics() const noexcept;

  /// Writes bytes to a new extent; used by unified buffers. Fails with out_of_budget, and with file
  /// if the disk is full or fails. A failed write leaves the file as it was.
  [[nodiscard]] Result<SpillExtent> try_write(std::span<const std::byte> bytes,
                                              CallSite site) noexcept;
  /// Reads an extent back. Fails with file if the disk fails or if the checksum differs; the bytes
  /// in `to` are then meaningless.
  [[nodiscard]] Result<void> try_read(const SpillExtent& extent, std::byte* to,
                                      CallSite site) noexcept;
  /// Like try_write() for several ranges, which are written at the same time. Sets one extent for
  /// each range. If a range fails, no extent keeps disk space.
  [[nodiscard]] Result<void> try_write_all(std::span<const std::span<const std::byte>> ranges,
                                           std::span<SpillExtent> extents, CallSite site) noexcept;
  /// Like try_read() for several extents, which are read at the same time. The failure names the
  /// first extent that failed (`index`).
  [[nodiscard]] Result<void> try_read_all(std::span<const SpillExtent> extents,
                                          std::span<std::byte* const> to, CallSite site) noexcept;
  /// Frees the disk space of an extent.
  void release(const SpillExtent& extent) noexcept;

 private:
  SpillFile(int file, std::unique_ptr<TransferFile> transfers, std::string directory,
            std::size_t limit_bytes) noexcept;
  [[nodiscard]] Result<std::size_t> try_claim(std::size_t bytes, CallSite site) noexcept;
  void give_back(std::size_t offset, std::size_t bytes) noexcept;
  [[nodiscard]] Failure failed(const char* sentence, const char* call, int error, std::size_t bytes,
                               CallSite site) const noexcept;
  /// The failure of a transfer of an extent.
  [[nodiscard]] Failure failed_transfer(bool is_write, int error, std::size_t failed_offset,
                                        std::size_t bytes, CallSite site) noexcept;

  const int file_;
  const std::unique_ptr<TransferFile> transfers_;
  const std::string directory_;
  const std::uint64_t process_;  // the generation of the process that opened the file
  mutable Mutex mutex_;
  /// Guarded by mutex_, as all members below. Maps the offset of each free range to its size.
  std::map<std::size_t, std::size_t> free_;
  SpillStatistics statistics_;
};

}  // namespace tern
