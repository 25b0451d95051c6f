// Staging: copies between pageable host memory and the device, through pinned memory of Tern.
//
// The driver's own copy of pageable memory uses one buffer and one thread, and blocks until earlier
// work of the stream is done. Here several threads fill and empty a ring of pinned slots while the
// copy engines of the device transfer other slots, and one of the two modes never blocks. The size
// of a piece is chosen by StagingNow::copy and StagingQueue::enqueue (staging_now.cpp,
// staging_queue.cpp); StagingLane::open (staging_lane.cpp) allocates the slots.
//
//   copy_now   for an idle stream. The threads do all the work, and the call returns when the
//              source has been read (to the device) or the destination written (to the host).
//   enqueue    for a busy stream. Everything is queued after its work, by host functions of the
//              driver, and the call does not wait. Both ends must stay unchanged until the stream
//              has passed the copy.
//
// In both modes, later work of the stream is ordered after the copy. `unavailable` means that the
// copy has not begun and the driver's own copy can do it: staging is off, or no pinned memory could
// be allocated. After a failure the contents of the destination are unspecified, and nothing
// accesses either end except work that precedes the next work of the stream.
//
// Staging pins at most `ring_bytes`, on first use, and keeps them. Threads start with the first
// copy that needs them. In the steady state no call creates or frees an object of the driver.
//
// Threads: all functions may be called from any thread, with the context current and the stream not
// capturing. Queued copies of a few held streams do not wait for each other; when all lanes have
// work, streams share lanes and then do wait. Lifetime: the driver table and the context outlive
// this object, and the work of its streams is complete when it is destroyed. The context is current
// then, or abandon() was called.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/cuda/driver_table.hpp"
#include "backends/cuda/staged_copy.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
struct Config;
}

namespace tern::cuda {

struct StagingOptions {
  /// Maximum pinned memory; 0 disables staging.
  std::size_t ring_bytes = 112 * mib;
  /// Number of copying threads, including the caller; 0 disables staging.
  std::size_t threads = 12;
  /// Bounds of the chunk size of copy_now. A thread has two slots.
  std::size_t slot_bytes = 4 * mib;
  std::size_t min_chunk_bytes = 512 * kib;
  /// The slot of copy_small_to_host; 0: none. A ring that is too small has none either.
  std::size_t small_bytes = 256 * kib;
  /// The part of the ring that is reserved for enqueue, so that no copy_now waits for a held
  /// stream.
  std::size_t queue_slots = 8;
  std::size_t queue_slot_bytes = 2 * mib;
  /// How many of them one stream may use while other streams have work.
  std::size_t queue_slots_per_stream = 3;
};

/// Returns the options from TERN_STAGING_THREADS, TERN_STAGING_BYTES and the number of cores.
[[nodiscard]] StagingOptions staging_options(const Config& config) noexcept;

struct StagingResult {
  enum class Kind : std::uint8_t { staged, unavailable, failed };

  Kind kind = Kind::staged;
  StagingFailure failure = {};  // if it failed

  [[nodiscard]] bool is_staged() const noexcept { return kind == Kind::staged; }
};

struct StagingStatistics {
  std::size_t ring_bytes = 0;  // currently pinned
  std::uint64_t copies_now = 0, bytes_now = 0;
  std::uint64_t copies_enqueued = 0, bytes_enqueued = 0;
};

class Staging {
 public:
  /// Makes no driver call. Throws std::bad_alloc.
  Staging(const DriverTable& driver, CUcontext context, const StagingOptions& options = {});
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// All work that the copy must follow must be complete according to cuStreamQuery; for a blocking
  /// stream, including the work of the legacy stream.
  [[nodiscard]] StagingResult copy_now(const StagedCopy& copy, CUstream stream) noexcept;
  /// Like copy_now, for copies to the host that are too small for several threads. Returns
  /// `unavailable` above `small_bytes`, and while another thread makes such a copy.
  [[nodiscard]] StagingResult copy_small_to_host(const StagedCopy& copy) noexcept;
  [[nodiscard]] StagingResult enqueue(const StagedCopy& copy, CUstream stream) noexcept;

  /// Frees unused memory and returns how many bytes of the ring that was.
  std::size_t trim() noexcept;
  [[nodiscard]] StagingStatistics statistics() const noexcept;
  /// Forbids driver calls, as after a fork or at exit: the destructor then leaks everything and
  /// does not wait.
  void abandon() noexcept { is_abandoned_ = true; }

 private:
  struct State;

  std::unique_ptr<State> state_;
  bool is_abandoned_ = false;
};

}  // namespace tern::cuda
