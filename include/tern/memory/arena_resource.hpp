// An ArenaResource is the memory of one CUDA graph. Nothing else uses this memory while the arena
// exists.
//
//   auto arena = std::make_shared<ArenaResource>(pool, ArenaOptions{.bytes = needed});
//   ... capture a graph whose buffers come from the arena ...
//   ... launch the graph; destroy the graph, then the arena ...
//
// A graph uses the same addresses at each launch. So memory that is freed during the capture is
// reused only in the same capture and by the stream that freed it. The arena returns memory to its
// upstream only when the arena is destroyed. The upstream sees whole chunks, so a BudgetResource as
// the upstream charges exactly the bytes that the arena holds.
//
// Rehearsal. An arena with `rehearse` serves each request from the upstream, so that the work can
// run as usual, and computes which layout a capture of the same work would have. needed_bytes() is
// then the exact size for the arena of the capture:
//
//   auto rehearsal = std::make_shared<ArenaResource>(pool, ArenaOptions{.rehearse = true});
//   run(rehearsal);
//   ArenaOptions options{.bytes = rehearsal->needed_bytes(), .may_grow = false};
//
// The destructor waits for the device, because any stream may have launched the graph, and then
// frees the chunks. An arena of a closed or lost device frees without waiting. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "tern/memory/resource.hpp"

namespace tern {

class ArenaLayout;

struct ArenaOptions {
  /// Memory that the constructor allocates, as one chunk.
  std::size_t bytes = 0;
  /// Allocate further chunks if a request does not fit. If false, such a request fails.
  bool may_grow = true;
  /// Computes the size of an arena, see "Rehearsal" above. `bytes` must be 0, `may_grow` true.
  bool rehearse = false;
  Tag tag = {};
};

class TERN_EXPORT ArenaResource final : public Resource {
 public:
  /// Throws InvalidArgument if `upstream` is null or the options contradict each other, and the
  /// failure of the upstream.
  explicit ArenaResource(ResourceHandle upstream, const ArenaOptions& options = {});
  ~ArenaResource() override;

  [[nodiscard]] const char* name() const noexcept override { return "arena"; }
  [[nodiscard]] const Device& device() const noexcept override;
  [[nodiscard]] ResourceTraits traits() const noexcept override;
  /// reserved_bytes is held_bytes().
  [[nodiscard]] Statistics statistics() const noexcept override;

  /// Allocates a block. A stream gets memory that the stream or the host has freed, or that was
  /// never used. Fails with out_of_memory if the arena is full and may not grow, and as the
  /// upstream does.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override;
  /// Frees the block for later requests of the stream. A free without a stream makes the block
  /// available to every stream.
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;
  /// Does nothing: the graph owns the memory.
  std::size_t trim(std::size_t keep_bytes) noexcept override;

  /// Returns whether the arena measures its calls, as ArenaOptions::rehearse asked.
  [[nodiscard]] bool rehearses() const noexcept;
  /// The size of one chunk that serves the same sequence of calls. Exact if the arena rehearses, or
  /// has one chunk.
  [[nodiscard]] std::size_t needed_bytes() const noexcept;
  /// The bytes that the arena has allocated from its upstream.
  [[nodiscard]] std::size_t held_bytes() const noexcept;

  /// Like the functions above, for streams that Tern cannot borrow because they are being captured.
  /// `lane` is any number that identifies the stream, such as its handle; 0 is the host. A free
  /// without a lane uses the lane of the allocation.
  [[nodiscard]] Result<Block> try_allocate_in_lane(const Request& request,
                                                   std::uintptr_t lane) noexcept;
  /// A rehearsal frees the memory in the order of `last`.
  [[nodiscard]] Result<void> try_deallocate_in_lane(const Block& block,
                                                    std::optional<std::uintptr_t> lane,
                                                    StreamRef last = {},
                                                    CallSite site = CallSite::here()) noexcept;
  /// Frees a block that several streams have used. Nothing knows their order when a graph runs, so
  /// its range is not used again. A rehearsal waits for the device.
  [[nodiscard]] Result<void> try_retire(const Block& block,
                                        CallSite site = CallSite::here()) noexcept;
  /// Frees the chunks of arenas that ended while a wait for their device was impossible, such as
  /// during a capture. Arenas that begin or end call it too.
  static void free_abandoned() noexcept;

 private:
  struct State;
  enum class Reuse : bool { in_lane, never };
  [[nodiscard]] Result<void> free_block(const Block& block, std::optional<std::uintptr_t> lane,
                                        Reuse reuse, StreamRef last, CallSite site) noexcept;
  const std::unique_ptr<State> state_;
};

}  // namespace tern
