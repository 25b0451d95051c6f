#include "backends/cuda/staging_queue.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

namespace tern::cuda {
namespace {

constexpr std::size_t slot_step_bytes = 4 * kib;

}  // namespace

/// The data of the host functions of one copy. It does not move until all of them have run.
struct StagingQueue::Job {
  struct Piece {
    Job* job = nullptr;
    std::size_t chunk = 0;
    std::byte* slot = nullptr;
  };

  Job(const StagedChunks& of, std::size_t max_chunk_bytes, WorkerTeam& with)
      : chunks(of), chunk_bytes(max_chunk_bytes), team(with) {
    pieces.reserve(chunks.count());
  }

  /// The host function. It makes no driver call, and does not access the job after its last line.
  static void run(void* context) {
    const Piece& piece = *static_cast<const Piece*>(context);
    Job& job = *piece.job;
    const SpansNumber spans = job.chunks.spans();
    ++job.running;
    if (job.has_source) {
      std::memcpy(piece.slot, job.source.get() + piece.chunk * job.chunk_bytes, job.chunk_bytes);
    } else if (!job.is_cancelled) {
      spans_run(spans);
      const std::size_t parts = job.chunks.parts(piece.chunk);
      job.team.for_each(
          parts, [&](std::size_t part) { job.chunks.move(piece.chunk, piece.slot, part, parts); });
    }
    if (job.moved.fetch_add(1, std::memory_order_relaxed) + 1 == job.chunks.count()) {
      spans_ended(spans);
    }
    --job.running;
    job.running.notify_all();
    job.finished.fetch_add(1, std::memory_order_release);
  }

  /// After this returns, no host function accesses the user's memory.
  void cancel() noexcept {
    is_cancelled = true;
    wait_for_running();
  }

  /// Copies the source of the pieces that are queued. A transfer that is queued cannot be taken
  /// back, so its slot must get the bytes that it should transfer, although the call fails and the
  /// caller may free the source. Returns false if the host has no memory.
  [[nodiscard]] bool try_keep_source() noexcept {
    source.reset(new (std::nothrow) std::byte[submitted * chunk_bytes]);
    if (!source) return false;
    for (std::size_t chunk = 0; chunk < submitted; ++chunk) {
      chunks.move(chunk, source.get() + chunk * chunk_bytes);
    }
    has_source = true;
    wait_for_running();
    return true;
  }

  void wait_for_running() noexcept {
    for (std::size_t now; (now = running.load()) != 0;) running.wait(now);
  }

  [[nodiscard]] bool is_finished() const noexcept {
    return finished.load(std::memory_order_acquire) == submitted;
  }

  const StagedChunks chunks;
  const std::size_t chunk_bytes;
  WorkerTeam& team;
  std::vector<Piece> pieces;
  bool is_begun = false;                // something was submitted to a lane
  std::size_t submitted = 0;            // host functions
  std::unique_ptr<std::byte[]> source;  // see try_keep_source()
  std::atomic<bool> has_source = false;
  std::atomic<bool> is_cancelled = false;
  std::atomic<std::size_t> running = 0;
  std::atomic<std::size_t> moved = 0, finished = 0;
};

StagingQueue::StagingQueue(const DriverTable& driver, const StagingOptions& options,
                           std::size_t ring_bytes, WorkerTeam& team)
    : driver_(driver),
      min_chunk_bytes_(std::max<std::size_t>(options.min_chunk_bytes, 1)),
      max_per_stream_(std::max<std::size_t>(options.queue_slots_per_stream, 1)),
      team_(team) {
  slot_bytes_ = std::min(options.queue_slot_bytes, ring_bytes);
  // A whole number of pages, unless somebody wants less than one.
  if (slot_bytes_ > slot_step_bytes) slot_bytes_ -= slot_bytes_ % slot_step_bytes;
  const std::size_t most = slot_bytes_ == 0 ? 0 : ring_bytes / slot_bytes_;
  lanes_ = std::vector<Lane>(std::min(most, options.queue_slots));
}

StagingQueue::~StagingQueue() = default;

StagingResult StagingQueue::enqueue(const StagedCopy& copy, CUstream stream) noexcept {
  if (lanes_.empty()) return {StagingResult::Kind::unavailable};
  // Small enough for every lane to have two, and large enough to be worth a host function.
  const std::size_t even = copy.bytes() / (2 * max_per_stream_) + 1;
  const std::size_t chunk_bytes = std::min(slot_bytes_, std::max(even, min_chunk_bytes_));
  const StagedChunks chunks(copy, chunk_bytes);
  const std::lock_guard lock(mutex_);
  forget_finished();
  try {
    if (start_ == nullptr &&
        driver_.cuEventCreate(&start_, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
      start_ = nullptr;
      return {StagingResult::Kind::unavailable};
    }
    const std::vector<Lane*> lanes = choose(stream, chunks.count());
    if (lanes.empty()) return {StagingResult::Kind::unavailable};
    jobs_.push_back(std::make_unique<Job>(chunks, chunk_bytes, team_));
    Job& job = *jobs_.back();
    const StagingFailure failure = submit(job, lanes, stream);
    if (!failure) return {};
    // Transfers that are already queued still use the device memory and the slots. Later work of
    // the stream must come after them.
    const bool is_to_device = chunks.direction() == StagedDirection::to_device;
    if (!is_to_device) job.cancel();
    const bool needs_source = is_to_device && !job.try_keep_source();
    if (join(lanes, stream) || needs_source) wait_for(job, lanes);
    if (needs_source) job.cancel();
    return {StagingResult::Kind::failed, failure};
  } catch (const std::bad_alloc&) {
    return {StagingResult::Kind::unavailable};
  }
}

std::vector<StagingQueue::Lane*> StagingQueue::choose(CUstream stream, std::size_t count) {
  const std::size_t wanted = std::min({count, max_per_stream_, lanes_.size()});
  std::vector<Lane*> chosen, idle, busy;
  chosen.reserve(wanted);
  idle.reserve(lanes_.size());
  busy.reserve(lanes_.size());
  for (Lane& lane : lanes_) {
    if (!lane.is_open() || lane.is_idle(driver_)) {
      idle.push_back(&lane);
    } else if (lane.owner == stream && chosen.size() < wanted) {
      chosen.push_back(&lane);
    } else {
      busy.push_back(&lane);
    }
  }
  // Use half of the free lanes, so that the next stream finds free lanes too.
  std::size_t share = (idle.size() + 1) / 2;
  for (Lane* lane : idle) {
    if (share == 0 || chosen.size() == wanted) break;
    if (!is_ready(*lane)) continue;
    chosen.push_back(lane);
    --share;
  }
  if (chosen.empty() && !busy.empty()) chosen.push_back(busy[next_shared_++ % busy.size()]);
  return chosen;
}

bool StagingQueue::is_ready(Lane& lane) noexcept {
  if (lane.is_open()) return true;
  if (lane.open(driver_, 1, slot_bytes_)) return false;
  held_bytes_ += lane.held_bytes();
  return true;
}

StagingFailure StagingQueue::submit(Job& job, const std::vector<Lane*>& lanes,
                                    CUstream stream) noexcept {
  // Every copy records this event again. A wait that is already queued keeps the earlier record.
  if (const CUresult result = driver_.cuEventRecord(start_, stream); result != CUDA_SUCCESS) {
    return {"cuEventRecord", result};
  }
  for (Lane* lane : lanes) {
    // Before the wait: from then on the lane is as late as the stream, even if the copy fails.
    lane->owner = stream;
    const CUresult result = driver_.cuStreamWaitEvent(lane->stream(), start_, 0);
    if (result != CUDA_SUCCESS) return {"cuStreamWaitEvent", result};
  }
  const bool is_to_device = job.chunks.direction() == StagedDirection::to_device;
  for (std::size_t chunk = 0; chunk < job.chunks.count(); ++chunk) {
    Lane& lane = *lanes[chunk % lanes.size()];
    job.is_begun = true;
    std::byte* slot = lane.slot(0).memory;
    if (!is_to_device) {
      if (const StagingFailure failure = job.chunks.transfer(chunk, slot, driver_, lane.stream())) {
        return failure;
      }
    }
    // The vector has capacity for all of them, so none of them moves.
    job.pieces.push_back({&job, chunk, slot});
    const CUresult result = driver_.cuLaunchHostFunc(lane.stream(), Job::run, &job.pieces.back());
    if (result != CUDA_SUCCESS) return {"cuLaunchHostFunc", result};
    ++job.submitted;
    if (is_to_device) {
      if (const StagingFailure failure = job.chunks.transfer(chunk, slot, driver_, lane.stream())) {
        return failure;
      }
    }
  }
  return join(lanes, stream);
}

void StagingQueue::wait_for(const Job& job, const std::vector<Lane*>& lanes) noexcept {
  if (!job.is_begun) return;
  for (Lane* lane : lanes) lane->settle_surely(driver_);
}

StagingFailure StagingQueue::join(const std::vector<Lane*>& lanes, CUstream stream) noexcept {
  StagingFailure first;
  for (Lane* lane : lanes) {
    StagingSlot& slot = lane->slot(0);
    StagingFailure failure = lane->record(driver_, slot);
    // A record covers all work of the lane, including work whose own record failed.
    lane->set_unsettled(static_cast<bool>(failure));
    if (!failure) {
      const CUresult result = driver_.cuStreamWaitEvent(stream, slot.event, 0);
      if (result != CUDA_SUCCESS) failure = {"cuStreamWaitEvent", result};
    }
    if (failure && !first) first = failure;
  }
  return first;
}

void StagingQueue::forget_finished() noexcept {
  std::erase_if(jobs_, [](const std::unique_ptr<Job>& job) { return job->is_finished(); });
}

std::size_t StagingQueue::trim() noexcept {
  const std::lock_guard lock(mutex_);
  forget_finished();
  std::size_t bytes = 0;
  for (Lane& lane : lanes_) {
    if (!lane.is_open() || !lane.is_idle(driver_)) continue;
    bytes += lane.held_bytes();
    lane.close(driver_);
  }
  held_bytes_ -= bytes;
  return bytes;
}

void StagingQueue::close() noexcept {
  const std::lock_guard lock(mutex_);
  for (Lane& lane : lanes_) {
    if (!lane.is_open()) continue;
    static_cast<void>(lane.settle(driver_));
    lane.close(driver_);
  }
  held_bytes_ = 0;
  if (start_ != nullptr) static_cast<void>(driver_.cuEventDestroy(start_));
  start_ = nullptr;
}

}  // namespace tern::cuda
