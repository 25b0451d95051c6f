// A TracePlayer makes the calls of an allocation trace on a resource: one pass of the program that
// the trace describes. `tern bench pool.traces` and `tern replay` measure with it.
//
//   TracePlayer player(trace, *pool, streams, Wait::never);
//   const double seconds = player.play(0, trace.steps.size());
//   player.free_rest();
//
// One thread makes all calls, in the order of the trace. A block whose allocation was refused has
// its free skipped. Trace, resource and streams must outlive the player.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bench/allocation_trace.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern::bench {

class TracePlayer {
 public:
  /// There must be at least `trace.stream_count` streams. `wait` applies to every request.
  TracePlayer(const AllocationTrace& trace, Resource& resource, std::span<const Stream> streams,
              Wait wait);

  /// Makes the calls of the steps from `first` up to, but not including, `last`. Returns the
  /// seconds that they took. Throws if a block cannot be freed.
  double play(std::size_t first, std::size_t last);
  /// Frees the blocks that the trace does not free, each on the stream that allocated it.
  void free_rest();

  [[nodiscard]] std::size_t refusals() const { return refusals_; }
  /// The step of the first request that was refused.
  [[nodiscard]] std::optional<std::size_t> first_refused() const { return first_refused_; }
  /// Requested bytes of the live blocks now, and their maximum.
  [[nodiscard]] std::size_t live_bytes() const { return live_bytes_; }
  [[nodiscard]] std::size_t peak_bytes() const { return peak_bytes_; }
  /// Requests and frees that reached the resource.
  [[nodiscard]] std::uint64_t calls() const { return calls_; }

 private:
  struct Live {
    Block block = {};
    std::size_t bytes = 0;
    std::uint32_t stream = 0;
  };

  const AllocationTrace& trace_;
  Resource& resource_;
  const std::span<const Stream> streams_;
  const Wait wait_;
  std::vector<Live> live_;
  std::size_t live_bytes_ = 0, peak_bytes_ = 0, refusals_ = 0;
  std::optional<std::size_t> first_refused_;
  std::uint64_t calls_ = 0;
};

}  // namespace tern::bench
