#include "backends/cuda/staging_now.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <thread>

namespace tern::cuda {
namespace {

constexpr std::size_t slots_per_lane = StagingLane::max_slots;
constexpr std::size_t slot_step_bytes = 4 * kib;

/// A helper thread belongs to one Staging, so it is configured once. It must not invalidate a
/// capture of another thread, which event queries would do otherwise.
bool enter_context(const DriverTable& driver, CUcontext context) noexcept {
  thread_local bool has_entered = false;
  if (has_entered) return true;
  if (driver.cuCtxSetCurrent(context) != CUDA_SUCCESS) return false;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  has_entered = driver.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
  return has_entered;
}

}  // namespace

struct StagingNow::Job {
  const StagedChunks& chunks;
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> has_failed = false;
  std::mutex mutex = {};
  StagingFailure failure = {};  // the first one; guarded by mutex

  /// Takes the next chunk. Returns false if there is none, or if the copy has failed.
  bool take(std::size_t& chunk) noexcept {
    if (has_failed.load(std::memory_order_relaxed)) return false;
    chunk = next.fetch_add(1, std::memory_order_relaxed);
    return chunk < chunks.count();
  }
  void fail(const StagingFailure& with) noexcept {
    const std::lock_guard lock(mutex);
    if (!failure) failure = with;
    has_failed = true;
  }
};

StagingNow::StagingNow(const DriverTable& driver, CUcontext context, const StagingOptions& options,
                       std::size_t ring_bytes, WorkerTeam& team)
    : driver_(driver),
      context_(context),
      min_chunk_bytes_(std::max<std::size_t>(options.min_chunk_bytes, 1)),
      team_(team) {
  if (options.threads > 0 && ring_bytes >= 2 * options.small_bytes) {
    small_bytes_ = options.small_bytes;
    ring_bytes -= small_bytes_;
  }
  slot_bytes_ = std::min(options.slot_bytes, ring_bytes / slots_per_lane);
  // A whole number of pages, unless the options ask for less than one page.
  if (slot_bytes_ > slot_step_bytes) slot_bytes_ -= slot_bytes_ % slot_step_bytes;
  const std::size_t most = slot_bytes_ == 0 ? 0 : ring_bytes / (slots_per_lane * slot_bytes_);
  lanes_ = std::vector<Lane>(std::min(most, options.threads));
}

StagingResult StagingNow::copy(const StagedCopy& copy, CUstream stream) noexcept {
  if (lanes_.empty()) return {StagingResult::Kind::unavailable};
  // Small enough for every lane to have two, and large enough to be worth a transfer.
  const std::size_t even = copy.bytes() / (slots_per_lane * lanes_.size()) + 1;
  const std::size_t chunk_bytes = std::min(slot_bytes_, std::max(even, min_chunk_bytes_));
  const StagedChunks chunks(copy, chunk_bytes);
  Job job{chunks};
  try {
    const std::vector<Lane*> lanes = take(chunks.count());
    team_.for_each(lanes.size(), [&](std::size_t i) { work(job, *lanes[i]); });
    const StagingResult result = finish(job, lanes, stream);
    give_back(lanes);
    return result;
  } catch (const std::bad_alloc&) {
    return {StagingResult::Kind::unavailable};
  }
}

bool StagingNow::is_small_ready() noexcept {
  if (small_.is_open()) return !small_.is_unsettled() || small_.settle(driver_);
  if (small_.open(driver_, 1, small_bytes_)) return false;
  held_bytes_ += small_.held_bytes();
  return true;
}

StagingResult StagingNow::copy_small_to_host(const StagedCopy& copy) noexcept {
  if (copy.bytes() > small_bytes_) return {StagingResult::Kind::unavailable};
  const std::unique_lock lock(small_mutex_, std::try_to_lock);
  const StagedChunks chunks(copy, small_bytes_);
  // Rows that the driver cannot copy in one call are more than one chunk.
  if (!lock || chunks.count() != 1 || !is_small_ready()) return {StagingResult::Kind::unavailable};
  std::byte* const memory = small_.slot(0).memory;
  StagingFailure failure = chunks.transfer(0, memory, driver_, small_.stream());
  if (!failure) {
    const CUresult result = driver_.cuStreamSynchronize(small_.stream());
    if (result != CUDA_SUCCESS) failure = {"cuStreamSynchronize", result};
  }
  if (failure) {
    // The caller may free the source as soon as the call has failed.
    small_.settle_surely(driver_);
    return {StagingResult::Kind::failed, failure};
  }
  chunks.move(0, memory);
  return {};
}

std::vector<StagingNow::Lane*> StagingNow::take(std::size_t count) {
  std::vector<Lane*> taken;
  taken.reserve(std::min(count, lanes_.size()));
  std::unique_lock lock(mutex_);
  lane_freed_.wait(lock, [&] {
    return std::ranges::any_of(lanes_, [](const Lane& lane) { return !lane.is_taken; });
  });
  for (Lane& lane : lanes_) {
    if (taken.size() == count) break;
    if (lane.is_taken) continue;
    lane.is_taken = true;
    taken.push_back(&lane);
  }
  return taken;
}

void StagingNow::give_back(const std::vector<Lane*>& lanes) noexcept {
  {
    const std::lock_guard lock(mutex_);
    for (Lane* lane : lanes) lane->is_taken = false;
  }
  lane_freed_.notify_all();
}

void StagingNow::work(Job& job, Lane& lane) noexcept {
  lane.last = nullptr;
  const bool is_caller = std::this_thread::get_id() == job.caller;
  // A helper that cannot enter the context leaves its chunks to the other threads.
  if (!is_caller && !enter_context(driver_, context_)) return;
  if (job.next.load(std::memory_order_relaxed) >= job.chunks.count() || !is_ready(lane)) return;
  const StagingFailure failure =
      job.chunks.direction() == StagedDirection::to_device ? feed(job, lane) : drain(job, lane);
  if (failure) job.fail(failure);
}

bool StagingNow::is_ready(Lane& lane) noexcept {
  if (lane.is_open()) return !lane.is_unsettled() || lane.settle(driver_);
  if (lane.open(driver_, slots_per_lane, slot_bytes_)) return false;
  held_bytes_ += lane.held_bytes();
  return true;
}

StagingFailure StagingNow::feed(Job& job, Lane& lane) noexcept {
  std::size_t chunk = 0;
  for (std::size_t turn = 0; job.take(chunk); ++turn) {
    StagingSlot& slot = lane.slot(turn % slots_per_lane);
    if (const StagingFailure failure = lane.wait(driver_, slot)) return failure;
    job.chunks.move(chunk, slot.memory);
    lane.last = &slot;
    if (const StagingFailure failure =
            job.chunks.transfer(chunk, slot.memory, driver_, lane.stream())) {
      return failure;
    }
    if (const StagingFailure failure = lane.record(driver_, slot)) return failure;
  }
  return {};
}

StagingFailure StagingNow::drain(Job& job, Lane& lane) noexcept {
  struct Expected {
    std::size_t chunk = 0;
    bool is_expected = false;
  };
  std::array<Expected, slots_per_lane> expected = {};
  bool has_more = true;
  for (std::size_t turn = 0;; ++turn) {
    StagingSlot& slot = lane.slot(turn % slots_per_lane);
    Expected& here = expected[turn % slots_per_lane];
    if (here.is_expected) {
      if (const StagingFailure failure = lane.wait(driver_, slot)) return failure;
      job.chunks.move(here.chunk, slot.memory);
      here.is_expected = false;
    }
    has_more = has_more && job.take(here.chunk);
    if (!has_more) {
      const auto is_expected = [](const Expected& one) { return one.is_expected; };
      if (std::ranges::none_of(expected, is_expected)) return {};
      continue;
    }
    lane.last = &slot;
    if (const StagingFailure failure =
            job.chunks.transfer(here.chunk, slot.memory, driver_, lane.stream())) {
      return failure;
    }
    if (const StagingFailure failure = lane.record(driver_, slot)) return failure;
    here.is_expected = true;
  }
}

StagingResult StagingNow::finish(Job& job, const std::vector<Lane*>& lanes,
                                 CUstream stream) noexcept {
  if (!job.has_failed && job.next == 0) return {StagingResult::Kind::unavailable};
  if (!job.has_failed && job.chunks.direction() == StagedDirection::to_device) {
    for (const Lane* lane : lanes) {
      if (lane->last == nullptr) continue;
      const CUresult result = driver_.cuStreamWaitEvent(stream, lane->last->event, 0);
      if (result != CUDA_SUCCESS) job.fail({"cuStreamWaitEvent", result});
    }
  }
  if (!job.has_failed) return {};
  // The caller may free the source and the destination as soon as the call has failed.
  for (Lane* lane : lanes) {
    if (lane->last != nullptr) lane->settle_surely(driver_);
  }
  return {StagingResult::Kind::failed, job.failure};
}

std::size_t StagingNow::trim() noexcept {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (Lane& lane : lanes_) {
    if (lane.is_taken || !lane.is_open() || !lane.is_idle(driver_)) continue;
    bytes += lane.held_bytes();
    lane.close(driver_);
  }
  const std::unique_lock small_lock(small_mutex_, std::try_to_lock);
  if (small_lock && small_.is_open() && small_.is_idle(driver_)) {
    bytes += small_.held_bytes();
    small_.close(driver_);
  }
  held_bytes_ -= bytes;
  return bytes;
}

void StagingNow::close() noexcept {
  const auto close_lane = [&](StagingLane& lane) {
    if (!lane.is_open()) return;
    static_cast<void>(lane.settle(driver_));
    lane.close(driver_);
  };
  for (Lane& lane : lanes_) close_lane(lane);
  close_lane(small_);
  held_bytes_ = 0;
}

}  // namespace tern::cuda
