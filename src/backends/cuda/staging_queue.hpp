// The patient way of Staging: copies that are queued behind a stream's work, and wait for nothing.
//
// A lane has one slot, and its stream orders everything that is done with it: a host function fills
// the slot and a transfer empties it, or the other way round. Chunks go round the lanes, so that
// one is staged while another is in transfer. The lanes wait for the user's stream, and that waits
// for the lanes.
//
// A lane that still has work of one stream is not given to another while there are others, so a
// stream that is held holds up nobody else; once all lanes have work, the streams share them. Host
// functions are not called after an error of the context: what they would have used stays until
// the end. Thread-safe.

#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/cuda/staging.hpp"
#include "backends/cuda/staging_lane.hpp"
#include "backends/host/worker_team.hpp"

namespace tern::cuda {

class StagingQueue {
 public:
  /// Lanes of one slot within the bytes; with a smaller slot if they are few.
  StagingQueue(const DriverTable& driver, const StagingOptions& options, std::size_t ring_bytes,
               host::WorkerTeam& team);
  ~StagingQueue();

  [[nodiscard]] StagingResult enqueue(const StagedCopy& copy, CUstream stream) noexcept;
  /// Closes the lanes that have no work; gives the bytes they had.
  std::size_t trim() noexcept;
  /// Completes and closes all.
  void close() noexcept;
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_bytes_.load(); }

 private:
  struct Lane : StagingLane {
    CUstream owner = nullptr;  // whose work it had last
  };
  struct Job;

  // All with the mutex held.
  [[nodiscard]] std::vector<Lane*> choose(CUstream stream, std::size_t count);
  [[nodiscard]] bool is_ready(Lane& lane) noexcept;
  [[nodiscard]] StagingFailure submit(Job& job, const std::vector<Lane*>& lanes,
                                      CUstream stream) noexcept;
  [[nodiscard]] StagingFailure join(const std::vector<Lane*>& lanes, CUstream stream) noexcept;
  void forget_finished() noexcept;

  const DriverTable& driver_;
  const std::size_t min_chunk_bytes_;
  const std::size_t max_per_stream_;
  std::size_t slot_bytes_ = 0;
  host::WorkerTeam& team_;
  std::atomic<std::size_t> held_bytes_ = 0;
  std::mutex mutex_;  // guards all that follows
  CUevent start_ = nullptr;
  std::vector<Lane> lanes_;
  std::size_t next_shared_ = 0;
  std::vector<std::unique_ptr<Job>> jobs_;
};

}  // namespace tern::cuda
