// Staging: copies between pageable host memory and the device, through pinned memory of our own.
//
// The driver's own copy of pageable memory goes through one buffer with one thread, and blocks on
// what the stream has in front of it. Here several threads fill and empty a ring of pinned slots
// while the device's copy engines move others, and there is a way that never blocks.
//
//   copy_now   for a stream that is idle. The threads do all of it, and the call returns when the
//              source has been read (to the device) or the destination written (to the host).
//   enqueue    for a stream with work in front. Everything is queued and ordered behind that work,
//              by host functions of the driver; the call waits for nothing. Both ends must stay as
//              they are until the stream has passed the copy.
//
// Either way later work of the stream comes after the copy. What is `unavailable` has not been
// begun, and the driver's own copy can do it: staging is off, or no pinned memory could be had.
// After a failure the destination's bytes are unspecified, and nothing will touch either end
// except work that the stream orders before what is submitted to it next.
//
// It pins at most `ring_bytes`, on first use, and keeps them; threads start with the first copy
// that wants them. In the steady state no call makes or frees anything of the driver's.
//
// Threads: all calls from any thread at once, with the context current and the stream not
// capturing. Queued copies of a few held streams do not wait for each other; when all lanes have
// work they are shared, and then they do. Lifetime: the driver table and the context outlive it,
// and its streams' work is complete when it ends; the context is current then, or abandon() has
// been called.

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
  /// Pinned at most; 0 switches staging off.
  std::size_t ring_bytes = 112 * mib;
  /// That copy, the caller included; 0 switches staging off.
  std::size_t threads = 12;
  /// What copy_now moves at a time at most, and at least where there is so much. A thread has two
  /// slots.
  std::size_t slot_bytes = 4 * mib;
  std::size_t min_chunk_bytes = 512 * kib;
  /// The part of the ring that enqueue has for itself, so that no copy_now waits for a held stream.
  std::size_t queue_slots = 8;
  std::size_t queue_slot_bytes = 2 * mib;
  /// How many of them one stream may have while others have work.
  std::size_t queue_slots_per_stream = 3;
};

/// By TERN_STAGING_THREADS and TERN_STAGING_BYTES, and the cores there are.
[[nodiscard]] StagingOptions staging_options(const Config& config) noexcept;

struct StagingResult {
  enum class Kind : std::uint8_t { staged, unavailable, failed };

  Kind kind = Kind::staged;
  StagingFailure failure = {};  // of a failed one

  [[nodiscard]] bool is_staged() const noexcept { return kind == Kind::staged; }
};

struct StagingStatistics {
  std::size_t ring_bytes = 0;  // pinned now
  std::uint64_t copies_now = 0, bytes_now = 0;
  std::uint64_t copies_enqueued = 0, bytes_enqueued = 0;
};

class Staging {
 public:
  /// Calls nothing of the driver's. Throws std::bad_alloc.
  Staging(const DriverTable& driver, CUcontext context, const StagingOptions& options = {});
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Everything that the copy must come after is complete, as cuStreamQuery says; of a blocking
  /// stream also what the legacy stream has.
  [[nodiscard]] StagingResult copy_now(const StagedCopy& copy, CUstream stream) noexcept;
  [[nodiscard]] StagingResult enqueue(const StagedCopy& copy, CUstream stream) noexcept;

  /// Gives back what is not in use, and says how many bytes of the ring that was.
  std::size_t trim() noexcept;
  [[nodiscard]] StagingStatistics statistics() const noexcept;
  /// From now on the driver must not be called, as after a fork or at exit: the destructor then
  /// leaves everything where it is, and waits for nothing.
  void abandon() noexcept { is_abandoned_ = true; }

 private:
  struct State;

  std::unique_ptr<State> state_;
  bool is_abandoned_ = false;
};

}  // namespace tern::cuda
