// KeptBytes holds the bytes of paused memory in host memory or in a file, with checksums.
//
//   Result<KeptBytes> kept = KeptBytes::try_make(device, ranges, {.keep = Keep::host}, tag, site);
//   kept->try_save(memory, copies, sums, site);     // in stream order
//   ... the memory is freed once the stream has passed the copy, and check_saved() agrees ...
//   kept->try_restore(memory, copies, site);        // the host compares the checksums
//
// Saving does not wait. Restoring from host memory submits the copy and compares the checksums
// meanwhile. Restoring from a file waits for the disk, so that a disk that fails is known before
// the memory is used. A file has no name and is gone with the object. Freeing the object does not
// wait. Not thread-safe.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "buffer/chunk_sums.hpp"
#include "tern/buffer/pausable_resource.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/buffer/byte_range.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class KeptBytes {
 public:
  struct Options {
    Keep keep = Keep::host;
    ResourceHandle host = {};    // null: pinned memory of the device
    std::string directory = {};  // for Keep::disk
    bool verify = true;
  };

  KeptBytes() noexcept = default;

  /// Allocates host memory or disk space for the bytes of the ranges, which are in order. Fails
  /// with out_of_memory, out_of_budget, and file. For Keep::nothing, allocates nothing.
  [[nodiscard]] static Result<KeptBytes> try_make(const Device& device,
                                                  std::vector<ByteRange> ranges,
                                                  const Options& options, Tag tag,
                                                  CallSite site) noexcept;
  /// Submits a copy of the memory to `copies`, and the computation of checksums to one of the two
  /// streams.
  [[nodiscard]] Result<void> try_save(std::byte* memory, StreamRef copies, StreamRef sums,
                                      CallSite site) noexcept;
  /// Once `copies` has passed the copy: fails with file if the disk has failed.
  [[nodiscard]] Result<void> check_saved(CallSite site) const noexcept;
  /// Submits a copy to the memory. Fails with file, and with bad_format if the bytes have changed.
  /// After a failure, submitted work may still write the memory.
  [[nodiscard]] Result<void> try_restore(std::byte* memory, StreamRef copies,
                                         CallSite site) noexcept;

  [[nodiscard]] Keep keep() const noexcept { return keep_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return storage_ ? storage_->bytes() : 0; }

 private:
  [[nodiscard]] Result<void> try_save_on_host(std::byte* memory, StreamRef copies, StreamRef sums,
                                              CallSite site) noexcept;
  [[nodiscard]] Result<void> try_save_on_disk(std::byte* memory, StreamRef copies,
                                              CallSite site) noexcept;
  [[nodiscard]] Result<void> try_restore_from_host(std::byte* memory, StreamRef copies,
                                                   CallSite site) noexcept;
  [[nodiscard]] Result<void> try_restore_from_disk(std::byte* memory, StreamRef copies,
                                                   CallSite site) noexcept;
  [[nodiscard]] Failure changed(std::size_t offset, CallSite site) const noexcept;

  Device device_;
  Keep keep_ = Keep::nothing;
  Tag tag_ = {};
  std::vector<ByteRange> ranges_;  // what has contents; a file has everything up to their end
  StorageHandle storage_;          // host memory, or a file
  std::shared_ptr<ChunkSums> sums_;
  Mark sums_done_ = {};
};

}  // namespace tern
