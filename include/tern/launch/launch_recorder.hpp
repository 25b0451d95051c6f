// A LaunchRecorder declares what memory a launch uses that Tern does not make: of a library, of the
// driver's own interface, of a framework.
//
//   LaunchRecorder recorder(stream);
//   recorder.use(input, Access::read);
//   recorder.use(output, Access::discard);
//   recorder.preflight();                       // checks all, queues the waits
//   their_launch(handle, recorder.pointer(0), recorder.pointer(1));
//   recorder.commit();                          // the uses are on record
//
// The set is frozen by preflight(), which either does everything or queues nothing; nothing else
// gives out an address. Calls in another order are refused with stream_misuse. A recorder that goes
// between preflight() and commit() is counted (launch_statistics), and its memory is held as used
// up to what the stream has then, because nobody knows whether something was submitted; cancel()
// says that nothing was.
//
// It takes buffers, arrays, and blocks of a resource. Blocks have no owner that could be kept, so
// they are looked at again by commit(); and whoever frees one first makes the freeing stream wait
// for its uses (try_wait_for_uses). Strict, it refuses memory whose uses cannot be known
// (untracked_buffer); permissive, it skips and counts it. Imported memory is a buffer, and its uses
// are tracked; strict, the recorder also wants to know when its earlier writes are complete
// (foreign.hpp), and refuses it with untracked_buffer if nobody has stated that.
//
// It keeps buffers and borrows nothing. One object belongs to one thread; what it does to memory is
// thread-safe, and a use that others begin between its preflight() and its commit() is not lost.

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

enum class Tracking : std::uint8_t {
  strict,
  permissive,  // what cannot be tracked is skipped and counted
};

struct RecorderOptions {
  Tracking tracking = Tracking::strict;
  /// Only memory of this resource is taken (invalid_argument).
  ResourceHandle resource = {};
};

class TERN_EXPORT LaunchRecorder {
 public:
  explicit LaunchRecorder(StreamRef stream, RecorderOptions options = {}) noexcept;
  LaunchRecorder(const LaunchRecorder&) = delete;
  LaunchRecorder& operator=(const LaunchRecorder&) = delete;
  ~LaunchRecorder();

  [[nodiscard]] StreamRef stream() const noexcept { return scope_.stream(); }
  /// Declared so far.
  [[nodiscard]] std::size_t size() const noexcept { return places_.size(); }
  /// Of those, how many preflight() skipped.
  [[nodiscard]] std::size_t skipped() const noexcept { return skipped_; }

  // --- Declaring gives the number to ask pointer() with. Refused behind preflight (stream_misuse),
  // for memory of another resource than the recorder's, and with out_of_memory; everything else is
  // judged by preflight, together.

  /// A buffer or an array.
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
  /// A block that the resource gave, whole.
  Result<std::size_t> try_use(const Resource& resource, const Block& block, Access access,
                              CallSite site = CallSite::here()) noexcept;
  std::size_t use(const Resource& resource, const Block& block, Access access,
                  CallSite site = CallSite::here()) {
    return try_use(resource, block, access, site).value();
  }
  /// Memory of somebody else that is no buffer: nobody can know its uses.
  Result<std::size_t> try_use_external(void* address, std::size_t bytes, Access access,
                                       CallSite site = CallSite::here()) noexcept;
  std::size_t use_external(void* address, std::size_t bytes, Access access,
                           CallSite site = CallSite::here()) {
    return try_use_external(address, bytes, access, site).value();
  }

  /// Refused as UseScope::try_begin, and for blocks with use_after_free, out_of_bounds,
  /// device_mismatch; with untracked_buffer; with stream_misuse on a stream that is being captured
  /// into a graph, whose launches are not uses yet, and the capture stays good. Then nothing is
  /// queued, more may be declared, and the call may be made again.
  Result<void> try_preflight(CallSite site = CallSite::here()) noexcept;
  void preflight(CallSite site = CallSite::here()) { try_preflight(site).value(); }

  /// Between preflight and commit; else null.
  [[nodiscard]] void* pointer(std::size_t index) const noexcept;

  /// The launch is submitted. Refused with stream_misuse without a preflight, unless nothing was
  /// declared; with use_after_free
  /// if a block was freed meanwhile, and then the other uses are on record.
  Result<void> try_commit(CallSite site = CallSite::here()) noexcept;
  void commit(CallSite site = CallSite::here()) { try_commit(site).value(); }
  /// Nothing was submitted.
  void cancel() noexcept;

 private:
  enum class Phase : std::uint8_t { declaring, preflighted, over };
  /// Where a declared use is found.
  struct Place {
    bool is_in_scope = true;
    std::uint32_t index = 0;
  };
  /// Memory that is no storage.
  struct RawUse {
    Block block = {};
    Access access = Access::read;
    bool is_external = false, is_tracked = false;
    CallSite site = {};
    std::uint32_t first = 0;               // the first use of the same block
    Access merged = Access::read;          // of the first
    std::shared_ptr<UseRecord> uses = {};  // while it has begun, of the first
    UseRecord::Ticket ticket = {};
  };

  [[nodiscard]] Result<void> make_place(CallSite site) noexcept;
  [[nodiscard]] Result<std::size_t> put(Result<std::size_t> index) noexcept;
  [[nodiscard]] Result<std::size_t> put_raw(RawUse use) noexcept;
  [[nodiscard]] Result<void> check_resource(const StorageHandle& storage,
                                            CallSite site) const noexcept;
  [[nodiscard]] Result<void> check_raw(const RawUse& use) const noexcept;
  /// Of imports, unless the recorder is permissive.
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

/// Later work of the stream comes behind all uses of the block that recorders committed: before it
/// is freed there.
[[nodiscard]] TERN_EXPORT Result<void> try_wait_for_uses(StreamRef stream, const Block& block,
                                                         CallSite site = CallSite::here()) noexcept;

/// Of all recorders of the process.
struct LaunchStatistics {
  std::uint64_t dropped = 0;   // between preflight and commit
  std::uint64_t skipped = 0;   // uses that permissive recorders could not track
  CallSite last_dropped = {};  // the line of its preflight
};
[[nodiscard]] TERN_EXPORT LaunchStatistics launch_statistics() noexcept;

}  // namespace tern
