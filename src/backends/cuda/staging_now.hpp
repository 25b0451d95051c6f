// Staging::copy_now: a team of threads copies the chunks. Each thread has a lane with two slots.
// While the device transfers one slot, the thread fills or empties the other.
//
// Concurrent copies share the lanes. A copy that finds no free lane waits for one. This wait is
// short, because copies of this kind never wait for the work of a stream.
//
// A small copy to the host goes through one pinned slot that is kept for such copies, on the thread
// of the caller. From 64 KiB on, that is faster than the driver's own copy (`tern bench
// copy.pageable` compares them). Thread-safe.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

#include "backends/cuda/staging.hpp"
#include "backends/cuda/staging_lane.hpp"
#include "core/worker_team.hpp"

namespace tern::cuda {

class StagingNow {
 public:
  /// Makes as many lanes of two slots as fit into `ring_bytes`. If `ring_bytes` is small, the slots
  /// are smaller.
  StagingNow(const DriverTable& driver, CUcontext context, const StagingOptions& options,
             std::size_t ring_bytes, WorkerTeam& team);

  [[nodiscard]] StagingResult copy(const StagedCopy& copy, CUstream stream) noexcept;
  /// Copies to the host. Returns `unavailable` if the copy is larger than the slot for small
  /// copies, or if another thread uses the slot.
  [[nodiscard]] StagingResult copy_small_to_host(const StagedCopy& copy) noexcept;
  /// Closes the lanes that are not in use. Returns the number of bytes they had.
  std::size_t trim() noexcept;
  /// Completes the work of all lanes and closes them.
  void close() noexcept;
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_bytes_.load(); }

 private:
  struct Lane : StagingLane {
    bool is_taken = false;  // guarded by mutex_
    StagingSlot* last = nullptr;
  };
  struct Job;

  [[nodiscard]] std::vector<Lane*> take(std::size_t count);
  void give_back(const std::vector<Lane*>& lanes) noexcept;
  void work(Job& job, Lane& lane) noexcept;
  [[nodiscard]] bool is_ready(Lane& lane) noexcept;
  [[nodiscard]] bool is_small_ready() noexcept;
  [[nodiscard]] StagingFailure feed(Job& job, Lane& lane) noexcept;
  [[nodiscard]] StagingFailure drain(Job& job, Lane& lane) noexcept;
  [[nodiscard]] StagingResult finish(Job& job, const std::vector<Lane*>& lanes,
                                     CUstream stream) noexcept;

  const DriverTable& driver_;
  const CUcontext context_;
  const std::size_t min_chunk_bytes_;
  std::size_t slot_bytes_ = 0;
  WorkerTeam& team_;
  std::atomic<std::size_t> held_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable lane_freed_;
  std::vector<Lane> lanes_;
  std::mutex small_mutex_;
  std::size_t small_bytes_ = 0;
  StagingLane small_;  // guarded by small_mutex_
};

}  // namespace tern::cuda
