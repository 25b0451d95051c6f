// KeptBytes holds the bytes of paused memory in host memory or in a file, with checksums.
//
//   Result<KeptBytes> kept = KeptBytes::try_make(device, ranges, {.keep = Keep::host}, tag, site);
//   kept->try_save(memory, copies, sums, team, site);  // in stream order
//   ... the memory is freed once the stream has passed the copy, and check_saved() agrees ...
//   KeptBytesCheck check({&*kept});
//   check.try_start(site);                          // other threads compare the checksums
//   kept->try_restore(memory, {0, bytes}, copies, site);
//   check.try_finish(site);
//
// Saving does not wait. Restoring from host memory submits the copy, while threads of the check
// read the bytes. Restoring from a file waits for the disk and compares the checksums itself, so
// that a disk that fails is known before the memory is used. A file has no name and is gone with
// the object. Freeing the object does not wait. Not thread-safe.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "buffer/chunk_sums.hpp"
#include "core/worker_team.hpp"
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
  /// Returns how many threads are worth it for checksums of so many bytes.
  [[nodiscard]] static std::size_t sum_threads(std::size_t bytes) noexcept;
  /// Submits a copy of the memory to `copies`, and the computation of checksums by the team to one
  /// of the two streams.
  [[nodiscard]] Result<void> try_save(std::byte* memory, StreamRef copies, StreamRef sums,
                                      const std::shared_ptr<WorkerTeam>& team,
                                      CallSite site) noexcept;
  /// Once `copies` has passed the copy: fails with file if the disk has failed.
  [[nodiscard]] Result<void> check_saved(CallSite site) const noexcept;
  /// Submits a copy to a part of the memory; from a file, the part from 0 on restores everything.
  /// Fails with file, and with bad_format if the bytes of a file have changed. After a failure,
  /// submitted work may still write the memory.
  [[nodiscard]] Result<void> try_restore(std::byte* memory, const ByteRange& part, StreamRef copies,
                                         CallSite site) noexcept;

  [[nodiscard]] Keep keep() const noexcept { return keep_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return storage_ ? storage_->bytes() : 0; }

 private:
  friend class KeptBytesCheck;

  /// Calls visit(range) for what a part and the ranges have in common, until a call fails.
  template <class Visit>
  [[nodiscard]] Result<void> for_each_common_range(const ByteRange& part, Visit visit) noexcept {
    for (const ByteRange& range : ranges_) {
      const ByteRange common{std::max(range.begin, part.begin), std::min(range.end, part.end)};
      if (common.begin >= common.end) continue;
      if (Result<void> visited = visit(common); !visited) return visited;
    }
    return {};
  }
  [[nodiscard]] Result<void> try_save_on_host(std::byte* memory, StreamRef copies, StreamRef sums,
                                              const std::shared_ptr<WorkerTeam>& team,
                                              CallSite site) noexcept;
  /// Submits the checksums of a part whose copy was submitted last.
  [[nodiscard]] Result<void> try_queue_sums(const ByteRange& part, StreamRef copies, StreamRef sums,
                                            const std::shared_ptr<WorkerTeam>& team,
                                            CallSite site) noexcept;
  [[nodiscard]] Result<void> try_save_on_disk(std::byte* memory, StreamRef copies,
                                              CallSite site) noexcept;
  [[nodiscard]] Result<void> try_restore_from_host(std::byte* memory, const ByteRange& part,
                                                   StreamRef copies, CallSite site) noexcept;
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

/// Compares the checksums of bytes that are kept in host memory, on several threads, while the
/// caller submits copies of them. The destructor waits for the threads. Not thread-safe.
class KeptBytesCheck {
 public:
  /// The objects outlive the check. Throws std::bad_alloc.
  explicit KeptBytesCheck(std::vector<KeptBytes*> of);
  KeptBytesCheck(const KeptBytesCheck&) = delete;
  KeptBytesCheck& operator=(const KeptBytesCheck&) = delete;
  /// Ends the comparison early.
  ~KeptBytesCheck() { changed_.store(0); }

  /// Returns whether all checksums were computed, so that try_start() does not wait.
  [[nodiscard]] bool is_ready() const noexcept;
  /// Waits until the checksums were computed, and starts the threads.
  [[nodiscard]] Result<void> try_start(CallSite site) noexcept;
  /// Once started: compares, too, and waits for the end. Fails with bad_format if bytes have
  /// changed.
  [[nodiscard]] Result<void> try_finish(CallSite site) noexcept;

 private:
  struct Compare {
    KeptBytesCheck* check;
    void operator()(std::size_t index) const noexcept { check->compare(index); }
  };
  void compare(std::size_t index) noexcept;

  std::vector<KeptBytes*> all_;
  std::vector<std::size_t> ends_;  // the chunks up to the end of each object
  std::size_t chunks_ = 0;
  std::atomic<std::size_t> changed_ = 0;  // the first chunk that has changed, or chunks_
  std::optional<WorkerTeam> team_;
  std::optional<WorkerTeam::Background<Compare>> loop_;
};

}  // namespace tern
