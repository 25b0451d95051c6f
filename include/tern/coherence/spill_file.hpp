// A SpillFile is disk for what the host has no room for.
//
// Unified buffers that name one (UnifiedOptions::spill) write the host's copy there when its memory
// is wanted and nobody else has the bytes, and read it back with the next access that needs them.
// The file has no name: it is gone when the last buffer lets go of it, and also when the process
// ends in any other way. Only its owner could open it (mode 0600). Disk is claimed before it is
// written, so a full disk is found out while the bytes are still where they were. Every extent has
// a checksum, and one that does not read back as it was written fails the access: nobody is given
// zeros, or somebody else's bytes.
//
// The limit is its budget: what is above is refused with out_of_budget. Reading and writing block
// the caller. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"

namespace tern {

class SpillFile;
using SpillHandle = std::shared_ptr<SpillFile>;

struct SpillOptions {
  /// Where the file is; it has no name there.
  std::string directory = {};
  /// The most it holds. There is no default: a disk belongs to others too.
  std::size_t limit_bytes = 0;
  CallSite site = CallSite::here();
};

/// One moment of a file, and what it did so far.
struct SpillStatistics {
  std::size_t limit_bytes = 0;
  std::size_t used_bytes = 0;  // in whole blocks
  std::size_t peak_bytes = 0;
  std::size_t file_bytes = 0;  // disk that is claimed; 0 again when nothing is in it
  std::uint64_t written_bytes = 0;
  std::uint64_t read_bytes = 0;
  /// Extents that could not be written, and those that did not read back.
  std::uint64_t failed_writes = 0;
  std::uint64_t failed_reads = 0;
};

class TERN_EXPORT SpillFile {
 public:
  /// Extents begin at multiples of this.
  static constexpr std::size_t block_bytes = 4096;

  /// Bytes in the file. Plain: whoever has it reads it back, and releases it once.
  struct Extent {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::uint64_t checksum = 0;
  };

  /// Refused with file (there is no such directory, or nothing may be made in it), invalid_argument
  /// for a limit of 0, out_of_memory.
  [[nodiscard]] static Result<SpillHandle> try_open(const SpillOptions& options) noexcept;
  [[nodiscard]] static SpillHandle open(const SpillOptions& options,
                                        CallSite site = CallSite::here()) {
    return try_open(options).value(site);
  }
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;
  ~SpillFile();

  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }
  [[nodiscard]] SpillStatistics statistics() const noexcept;

  /// For those who spill. Refused with out_of_budget, and with file if the disk is full or fails;
  /// then nothing is in the file that was not before.
  [[nodiscard]] Result<Extent> try_write(std::span<const std::byte> bytes, CallSite site) noexcept;
  /// Refused with file if the disk fails, or the bytes are not those that were written: what `to`
  /// has then is no use.
  [[nodiscard]] Result<void> try_read(const Extent& extent, std::byte* to, CallSite site) noexcept;
  void release(const Extent& extent) noexcept;

 private:
  SpillFile(int file, std::string directory, std::size_t limit_bytes) noexcept;
  [[nodiscard]] Result<std::size_t> try_claim(std::size_t bytes, CallSite site) noexcept;
  void give_back(std::size_t offset, std::size_t bytes) noexcept;
  [[nodiscard]] Failure failed(const char* sentence, const char* call, int error, std::size_t bytes,
                               CallSite site) const noexcept;

  const int file_;
  const std::string directory_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  // guarded by mutex_, as all of these; offset, bytes
  SpillStatistics statistics_;
};

}  // namespace tern
