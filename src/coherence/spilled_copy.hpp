// SpilledCopy is a host copy that is in a spill file instead of in memory: ranges of bytes, and
// where the file has each of them.
//
// It owns its extents of the file, and releases them when it is destroyed. Not synchronized:
// UnifiedCore changes it under both of its locks, so either lock is enough to read it.

#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "tern/coherence/spill_file.hpp"
#include "tern/coherence/unified_statistics.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/buffer/storage.hpp"

namespace tern {

class SpilledCopy {
 public:
  SpilledCopy() noexcept = default;
  SpilledCopy(SpilledCopy&& other) noexcept
      : file_(std::exchange(other.file_, nullptr)),
        ranges_(std::exchange(other.ranges_, {})),
        extents_(std::exchange(other.extents_, {})) {}
  SpilledCopy& operator=(SpilledCopy&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(ranges_, other.ranges_);
    std::swap(extents_, other.extents_);
    return *this;
  }
  ~SpilledCopy() { release(); }

  /// Writes ranges of a storage in host memory to the file, which outlives the result. The caller
  /// has waited for the uses of the storage. A failure leaves the file as it was. Throws
  /// std::bad_alloc.
  [[nodiscard]] static Result<SpilledCopy> try_write(SpillFile& file, Storage& from,
                                                     std::span<const ByteRange> ranges,
                                                     CallSite site);
  /// Reads all ranges into a storage in host memory, for which the caller has waited. `tag` names
  /// the buffer in a failure.
  [[nodiscard]] Result<void> try_read(Storage& to, Tag tag, CallSite site) const noexcept;
  /// Releases the disk space. The copy is empty afterwards.
  void release() noexcept;

  [[nodiscard]] bool empty() const noexcept { return extents_.empty(); }
  /// Describes the transfer of all ranges. The copy is not empty.
  [[nodiscard]] Transfer transfer(TransferReason reason, Place from, Place to,
                                  CallSite site) const noexcept;

 private:
  SpillFile* file_ = nullptr;
  std::vector<ByteRange> ranges_;     // ascending
  std::vector<SpillExtent> extents_;  // one for each range
};

/// Returns the address of a storage in host memory.
[[nodiscard]] std::byte* host_bytes(Storage& storage) noexcept;

}  // namespace tern
