// A LaunchRecorder declares the memory of a launch that Tern does not make itself: a launch by a
// library, a framework, or the driver's own interface.
//
//   LaunchRecorder recorder(stream);
//   recorder.use(input, Access::read);
//   recorder.use(output, Access::discard);
//   recorder.preflight();                       // checks everything, queues the waits
//   their_launch(handle, recorder.pointer(0), recorder.pointer(1));
//   recorder.commit();                          // records the uses
//
// preflight() freezes the declarations. It succeeds completely or queues nothing. pointer() returns
// addresses only after preflight(). Calls in another order fail with stream_misuse. If a recorder
// is destroyed between preflight() and commit(), launch_statistics() counts it, and its memory
// counts as used by all work that the stream has at that moment, because the launch may have been
// submitted. Call cancel() if nothing was submitted.
//
// A recorder accepts buffers, arrays, and blocks of a resource. It keeps buffers alive, but a block
// has no shared owner: commit() checks that the block is still live, and the freeing stream must
// wait for its uses first (try_wait_for_uses).
//
// In strict mode, memory whose uses cannot be tracked is an error (untracked_buffer); in permissive
// mode it is skipped and counted. Uses of imported memory are tracked. In strict mode, it must also
// be known when the earlier writes of imported memory are complete (foreign.hpp); if this was never
// stated, preflight() fails with untracked_buffer.
//
// A recorder belongs to one thread. Other threads may use the same memory at the same time; uses
// that they begin between preflight() and commit() are not lost.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/use_scope.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// Which memory a recorder accepts.
struct RecorderOptions {
  /// Skip and count memory whose uses cannot be tracked, instead of failing with untracked_buffer.
  bool permissive = false;
  /// If set, only memory of this resource is accepted. Other memory fails with invalid_argument.
  ResourceHandle resource = {};
};

class TERN_EXPORT LaunchRecorder {
 public:
  explicit LaunchRecorder(StreamRef stream, RecorderOptions options = {}) noexcept;
  LaunchRecorder(const LaunchRecorder&) = delete;
  LaunchRecorder& operator=(const LaunchRecorder&) = delete;
  ~LaunchRecorder();

  [[nodiscard]] StreamRef stream() const noexcept { return scope_.stream(); }
  /// Returns the number of declared uses.
  [[nodiscard]] std::size_t size() const noexcept { return places_.size(); }
  /// Returns how many of them preflight() skipped.
  [[nodiscard]] std::size_t skipped() const noexcept { return skipped_; }

  // --- Declaring a use returns its index for pointer(). These functions fail with stream_misuse
  // after preflight(), with invalid_argument for memory of another resource than the recorder's,
  // and with out_of_memory. preflight() checks everything else.

  /// Declares a use of a buffer or an array.
  template <class Used>
  Result<std::size_t> try_use(const Used& used, Access access,
                              CallSite site = CallSite::here()) noexcept {
    if (Result<void> open = make_place(site); !open) return open.failure();
    if (Result<void> own = check_resource(used.storage(), site); !own) return own.failure();
    return put(scope_.try_add(used, access, site));
  }
  template <class Used>
  std::size_t use(const Used& used, Access access, CallSite site = CallSite::here()) {
    return try_use(used, access, site).value();
  }
  /// Declares a use of a whole block of the resource.
  Result<std::size_t> try_use(const Resource& resource, const Block& block, Access access,
                              CallSite site = CallSite::here()) noexcept;
  std::size_t use(const Resource& resource, const Block& block, Access access,
                  CallSite site = CallSite::here()) {
    return try_use(resource, block, access, site).value();
  }
  /// Declares a use of memory that is neither a buffer nor a block. Its uses cannot be tracked.
  Result<std::size_t> try_use_external(void* address, std::size_t bytes, Access access,
                                       CallSite site = CallSite::here()) noexcept;
  std::size_t use_external(void* address, std::size_t bytes, Access access,
                           CallSite site = CallSite::here()) {
    return try_use_external(address, bytes, access, site).value();
  }

  /// Checks all uses and queues the waits. Fails like UseScope::try_begin; with use_after_free,
  /// out_of_bounds or device_mismatch for a block; with untracked_buffer; and with stream_misuse if
  /// the stream is being captured into a graph (the capture stays valid). After a failure nothing
  /// is queued, more uses may be declared, and preflight() may be called again.
  Result<void> try_preflight(CallSite site = CallSite::here()) noexcept;
  void preflight(CallSite site = CallSite::here()) { try_preflight(site).value(); }

  /// Returns the address of a use between preflight() and commit(), else null.
  [[nodiscard]] void* pointer(std::size_t index) const noexcept;

  /// Records the uses. Call it after submitting the launch. Fails with stream_misuse without a
  /// preflight(), unless nothing was declared. Fails with use_after_free if a block was freed
  /// meanwhile; the other uses are recorded then.
  Result<void> try_commit(CallSite site = CallSite::here()) noexcept;
  void commit(CallSite site = CallSite::here()) { try_commit(site).value(); }
  /// Ends the recorder without recording uses, because nothing was submitted.
  void cancel() noexcept;

 private:
  enum class Phase : std::uint8_t { declaring, preflighted, over };
  /// Where a declared use is stored: in scope_ or in raw_.
  struct Place {
    bool is_in_scope = true;
    std::uint32_t index = 0;
  };
  /// A use of a block or of external memory.
  struct RawUse {
    Block block = {};
    Access access = Access::read;
    bool is_external = false, is_tracked = false;
    CallSite site = {};
    std::uint32_t first = 0;               // the first use of the same block
    Access merged = Access::read;          // valid in the first use
    std::shared_ptr<UseRecord> uses = {};  // while begun; valid in the first use
    UseRecord::Ticket ticket = {};
  };

  [[nodiscard]] Result<void> make_place(CallSite site) noexcept;
  [[nodiscard]] Result<std::size_t> put(Result<std::size_t> index) noexcept;
  [[nodiscard]] Result<std::size_t> put_raw(RawUse use) noexcept;
  [[nodiscard]] Result<void> check_resource(const StorageHandle& storage,
                                            CallSite site) const noexcept;
  [[nodiscard]] Result<void> check_raw(const RawUse& use) const noexcept;
  /// Checks that imported memory is ready, unless the recorder is permissive.
  [[nodiscard]] Result<void> check_readiness() const noexcept;
  [[nodiscard]] Result<void> try_begin_raw(CallSite site) noexcept;
  void finish_raw(bool is_submitted) noexcept;

  UseScope scope_;
  const RecorderOptions options_;
  std::vector<Place> places_;
  std::vector<RawUse> raw_;
  std::size_t skipped_ = 0;
  CallSite preflight_site_ = {};
  Phase phase_ = Phase::declaring;
};

/// Orders later work of the stream after all uses of the block that recorders committed. Call it
/// before freeing the block on the stream.
[[nodiscard]] TERN_EXPORT Result<void> try_wait_for_uses(StreamRef stream, const Block& block,
                                                         CallSite site = CallSite::here()) noexcept;

/// Counts over all recorders of the process.
struct LaunchStatistics {
  std::uint64_t dropped = 0;   // recorders destroyed between preflight and commit
  std::uint64_t skipped = 0;   // uses that permissive recorders could not track
  CallSite last_dropped = {};  // the preflight of the last dropped recorder
};
[[nodiscard]] TERN_EXPORT LaunchStatistics launch_statistics() noexcept;

}  // namespace tern
