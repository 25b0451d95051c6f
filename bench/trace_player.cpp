#include "bench/trace_player.hpp"

#include <algorithm>
#include <chrono>

namespace tern::bench {

TracePlayer::TracePlayer(const AllocationTrace& trace, Resource& resource,
                         std::span<const Stream> streams, Wait wait)
    : trace_(trace),
      resource_(resource),
      streams_(streams),
      wait_(wait),
      live_(trace.block_count) {}

double TracePlayer::play(std::size_t first, std::size_t last) {
  using Clock = std::chrono::steady_clock;
  // In local variables, so that the loop keeps them in registers.
  std::size_t live_bytes = live_bytes_, peak_bytes = peak_bytes_, skipped = 0;
  const Clock::time_point start = Clock::now();
  for (const TraceStep& step : std::span(trace_.steps).subspan(first, last - first)) {
    const StreamRef stream = streams_[step.stream];
    Live& one = live_[step.block];
    if (step.bytes == 0) {
      if (one.block) {
        resource_.try_deallocate(one.block, stream).value();
      } else {
        ++skipped;
      }
      live_bytes -= one.bytes;
      one = {};
      continue;
    }
    const Result<Block> block =
        resource_.try_allocate({.bytes = step.bytes, .stream = stream, .wait = wait_});
    if (!block) {
      if (refusals_++ == 0) first_refused_ = static_cast<std::size_t>(&step - trace_.steps.data());
      continue;
    }
    one = {*block, step.bytes, step.stream};
    live_bytes += step.bytes;
    peak_bytes = std::max(peak_bytes, live_bytes);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  live_bytes_ = live_bytes;
  peak_bytes_ = peak_bytes;
  calls_ += last - first - skipped;
  return seconds;
}

void TracePlayer::free_rest() {
  for (Live& one : live_) {
    if (!one.block) continue;
    resource_.try_deallocate(one.block, streams_[one.stream]).value();
    live_bytes_ -= one.bytes;
    ++calls_;
    one = {};
  }
}

}  // namespace tern::bench
