// Staging::enqueue: copies that are queued after the work of a stream. The host does not wait.
//
// A lane has one slot, and the lane's stream orders all work on the slot: a host function fills the
// slot and a transfer empties it, or the other way round. The chunks of a copy use the lanes in
// turn, so one chunk is staged while another is transferred. The lanes wait for the user's stream
// at the beginning of a copy, and the user's stream waits for the lanes at its end.
//
// While free lanes are left, two streams never share a lane, so a stream that is blocked delays no
// other stream. When all lanes have work, the streams share them. After an error of the context the
// driver does not call host functions any more, so their data is kept until the end. Thread-safe.

#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/cuda/staging.hpp"
#include "backends/cuda/staging_lane.hpp"
#include "core/worker_team.hpp"

namespace tern::cuda {

class StagingQueue {
 public:
  /// Makes as many lanes of one slot as fit into `ring_bytes`. If `ring_bytes` is small, the slots
  /// are smaller.
  StagingQueue(const DriverTable& driver, const StagingOptions& options, std::size_t ring_bytes,
               WorkerTeam& team);
  ~StagingQueue();

  [[nodiscard]] StagingResult enqueue(const StagedCopy& copy, CUstream stream) noexcept;
  /// Closes the lanes that have no work. Returns the number of bytes they had.
  std::size_t trim() noexcept;
  /// Completes the work of all lanes and closes them.
  void close() noexcept;
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_bytes_.load(); }

 private:
  struct Lane : StagingLane {
    CUstream owner = nullptr;  // the stream whose work the lane had last
  };
  struct Job;

  // Call these with mutex_ held.
  [[nodiscard]] std::vector<Lane*> choose(CUstream stream, std::size_t count);
  [[nodiscard]] bool is_ready(Lane& lane) noexcept;
  [[nodiscard]] StagingFailure submit(Job& job, const std::vector<Lane*>& lanes,
                                      CUstream stream) noexcept;
  [[nodiscard]] StagingFailure join(const std::vector<Lane*>& lanes, CUstream stream) noexcept;
  /// Makes the host wait for what the job has submitted to the lanes, because the stream could not
  /// be made to wait.
  void wait_for(const Job& job, const std::vector<Lane*>& lanes) noexcept;
  void forget_finished() noexcept;

  const DriverTable& driver_;
  const std::size_t min_chunk_bytes_;
  const std::size_t max_per_stream_;
  std::size_t slot_bytes_ = 0;
  WorkerTeam& team_;
  std::atomic<std::size_t> held_bytes_ = 0;
  std::mutex mutex_;  // guards all members below
  CUevent start_ = nullptr;
  std::vector<Lane> lanes_;
  std::size_t next_shared_ = 0;
  std::vector<std::unique_ptr<Job>> jobs_;
};

}  // namespace tern::cuda
