// The uses of buffers and kernels that a GraphCapture collects.
//
// While a capture is open, a UseScope on one of its streams finds its CapturedUses and adds to
// them, instead of ordering work that does not run yet. Each launch of the graph then declares
// them. A stream belongs to a capture if the capture began on the stream, or if the stream is being
// captured and its device has one open capture.
//
// Thread-safe.

#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/device/stream.hpp"

namespace tern {

struct KernelState;

/// A range of a storage, and what all captured work together does to it.
struct CapturedUse {
  StorageHandle storage;
  std::size_t offset = 0, bytes = 0;
  Access access = Access::read;
};

class CapturedUses {
 public:
  /// Returns the uses of the capture of the stream, or null. Fails with stream_misuse if it is not
  /// known which capture the stream belongs to.
  [[nodiscard]] static Result<std::shared_ptr<CapturedUses>> try_find(StreamRef stream,
                                                                      CallSite site) noexcept;
  /// Opens and closes the collection for a capture that begins on the stream.
  [[nodiscard]] static Result<std::shared_ptr<CapturedUses>> try_open(StreamRef stream,
                                                                      CallSite site) noexcept;
  static void close(const std::shared_ptr<CapturedUses>& uses) noexcept;

  /// Makes room for `count` calls of add().
  [[nodiscard]] Result<void> try_reserve(std::size_t count, CallSite site) noexcept;
  void add(StorageHandle storage, std::size_t offset, std::size_t bytes, Access access) noexcept;
  /// Keeps the kernel loaded as long as the graph.
  [[nodiscard]] Result<void> try_keep(std::shared_ptr<KernelState> kernel, CallSite site) noexcept;

  /// After close(), nothing is added any more.
  [[nodiscard]] const std::vector<CapturedUse>& uses() const noexcept { return uses_; }
  [[nodiscard]] const std::vector<std::shared_ptr<KernelState>>& kernels() const noexcept {
    return kernels_;
  }

 private:
  std::mutex mutex_;
  std::vector<CapturedUse> uses_;                      // guarded by mutex_ while open
  std::vector<std::shared_ptr<KernelState>> kernels_;  // guarded by mutex_ while open
};

/// Notes a launch of the kernel by a graph, so that the kernel is not unloaded before the launch is
/// done. Fails with out_of_memory.
[[nodiscard]] Result<void> try_note_launch(KernelState& kernel, StreamRef stream,
                                           CallSite site) noexcept;

}  // namespace tern
